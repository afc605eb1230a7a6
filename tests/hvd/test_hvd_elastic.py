"""hvd.elastic: trainings that lose ranks go on from the last commit with those that are left."""

import copy
import os
import pickle
import signal
import traceback

import pytest
import torch
from torch import nn

import helpers

SAMPLES, BATCH = 48, 2


def forked(fn, ranks, *args):
    """Call `fn` in `ranks` processes of their own, some of which may be killed; (exit status, answer) of each.

    `helpers.launch` ends all ranks when one dies, so this is called in a single launched one (which is warm).
    """
    reading, pids = [], []
    for rank in range(ranks):
        here, there = os.pipe()
        pids.append(os.fork())
        if pids[-1] == 0:
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ.update({name: str(value) for name, value in place.items()})
            try:
                answer = fn(*args)
            except BaseException:
                answer = traceback.format_exc()
            with os.fdopen(there, "wb") as out:
                pickle.dump(answer, out)
            os._exit(0)
        os.close(there)
        reading.append(os.fdopen(here, "rb"))
    told = [stream.read() for stream in reading]
    exits = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return [(code, pickle.loads(data) if data else None) for code, data in zip(exits, told, strict=True)]


class Line(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return i


def inputs(indices):
    return torch.stack([torch.tensor([i, i % 5, 1.0]).double() / 10 for i in indices])


def loss_of(model, indices):
    return (model(inputs(indices)) - inputs(indices).sum(1, keepdim=True).sin()).square().mean()


def new_training():
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def elastic_training(victims, way, commit_every=2):
    """Two epochs; at the given steps the given ranks (as they are numbered then) go. Returns what the state knows."""
    import helpers.hvd.torch as hvd

    hvd.init()
    model, optimizer = new_training()
    if hvd.rank():
        nn.init.zeros_(model[0].weight)  # only rank 0's start counts
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(Line(), seed=3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, schedule=schedule, epoch=0, step=0, log=[])
    resets, lost_at, worlds = [], [], []
    state.register_reset_callbacks([lambda: resets.append((hvd.rank(), hvd.size()))])

    @hvd.elastic.run
    def train(state, end):
        worlds.append(hvd.size())
        while state.epoch < end:
            loader = torch.utils.data.DataLoader(Line(), batch_size=BATCH, sampler=state.sampler)
            for i, batch in enumerate(loader):
                one_batch(hvd, state, i, batch, victims, way, lost_at)
                if state.step % commit_every == 0:
                    state.commit()
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()
        return "trained"

    assert train(state, 2) == "trained"
    known = {"log": state.log, "worlds": worlds, "resets": resets, "rank": hvd.rank()}
    known["parameters"] = [p.detach() for p in model.parameters()]
    hvd.shutdown()
    return known


def one_batch(hvd, state, i, batch, victims, way, lost_at):
    state.optimizer.zero_grad()
    loss = loss_of(state.model, batch.tolist())
    if (state.step, hvd.rank(), hvd.size()) in victims and not lost_at:
        lost_at.append(state.step)
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "left":
            hvd.shutdown()
            os._exit(5)
        raise hvd.HorovodInternalError("a transient failure")
    loss.backward()
    state.optimizer.step()
    state.schedule.step()
    together = hvd.allgather(batch).tolist()
    state.log.append((state.epoch, together))
    state.step += 1
    state.sampler.record_batch(i, len(batch))


def replayed(log):
    """The parameters after the logged batches, in one process."""
    model, optimizer = new_training()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    for _, indices in log:
        optimizer.zero_grad()
        loss_of(model, indices).backward()
        optimizer.step()
        schedule.step()
    return [p.detach() for p in model.parameters()]


def check_training(known):
    """Every index once in each epoch, and a training that one process would have done just so."""
    for epoch in (0, 1):
        seen = sorted(index for e, indices in known["log"] for index in indices if e == epoch)
        assert seen == list(range(SAMPLES)), seen
    for ours, theirs in zip(known["parameters"], replayed(known["log"]), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("way", ["killed", "left"])
@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_go_on(victim, way):
    (told,) = helpers.launch(forked, 1, elastic_training, 3, {(3, victim, 3)}, way, threads=1, timeout=60)
    for rank, (code, known) in enumerate(told):
        if rank == victim:
            assert code == (-signal.SIGKILL if way == "killed" else 5)
            continue
        assert not isinstance(known, str), known
        assert known["resets"] == [(known["rank"], 2)] and known["worlds"] == [3, 2]
        check_training(known)
    assert sorted(known["rank"] for _, known in told if known) == [0, 1]


def test_one_after_another():
    """Four, three, two, one; the last survivor finishes alone."""
    victims = {(1, 3, 4), (4, 0, 3), (7, 1, 2)}
    (told,) = helpers.launch(forked, 1, elastic_training, 4, victims, "killed", threads=1, timeout=60)
    ((_, known),) = [(code, known) for code, known in told if code == 0]
    assert not isinstance(known, str), known
    assert known["worlds"] == [4, 3, 2, 1] and [size for _, size in known["resets"]] == [3, 2, 1]
    check_training(known)


@pytest.mark.parametrize("who", [[0, 1], [1], [0]])
def test_transient_failures_lose_nobody(who):
    """A rank that only thinks that something failed comes back; the others notice and meet it."""
    for known in helpers.launch(elastic_training, 2, {(3, r, 2) for r in who}, "raises", threads=1, timeout=60):
        assert known["worlds"] == [2, 2] and [size for _, size in known["resets"]] == [2]
        check_training(known)


# -- the loop ----------------------------------------------------------------------------------


def loop():
    import helpers.hvd.torch as hvd

    hvd.init()
    checks = [
        sync_comes_first, goes_on_without_restoring, any_ranks_news_count, removed_hosts_need_no_sync, reset_limit,
        the_same_mistake_twice, other_errors_pass, after_a_failed_collective,
    ]  # fmt: skip
    for check in checks:
        check(hvd)
    assert hvd.size() == int(os.environ["WORLD_SIZE"])
    hvd.shutdown()
    return len(checks)


def new_state(hvd, **more):
    torch.manual_seed(hvd.rank())
    model = nn.Linear(2, 1)
    return hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"batch": hvd.rank(), **more})


def sync_comes_first(hvd):
    state = new_state(hvd)

    @hvd.elastic.run
    def train(state, *args, word=None):
        """Documented."""
        assert state.batch == 0
        return args, word

    assert train.__name__ == "train" and train.__doc__ == "Documented."
    assert train(state, 1, 2, word="x") == ((1, 2), "x")
    torch.manual_seed(0)
    assert torch.equal(state.model.weight, nn.Linear(2, 1).weight)


def goes_on_without_restoring(hvd):
    """After HostsUpdatedInterrupt nothing is undone, and rank 0's present state counts."""
    state, calls = new_state(hvd, list=[]), []

    @hvd.elastic.run
    def train(state):
        calls.append((state.batch, list(state.list), state.model.weight[0, 0].item()))
        if len(calls) == 1:
            state.batch = 7 + hvd.rank()
            state.list.append("kept")
            with torch.no_grad():
                state.model.weight.fill_(5.0 + hvd.rank())
            raise hvd.HostsUpdatedInterrupt()

    train(state)
    assert calls[1:] == [(7, ["kept"], 5.0)]


def any_ranks_news_count(hvd):
    for who in range(hvd.size()):
        state, calls = new_state(hvd), []
        times = []
        state.register_reset_callbacks([lambda times=times: times.append(hvd.size())])

        @hvd.elastic.run
        def train(state, who=who, calls=calls):
            calls.append(state.batch)
            if len(calls) == 1:
                state.commit()  # no news yet
                state.batch = 3
                if hvd.rank() == who:
                    state.on_hosts_updated(1, hvd.elastic.HostUpdateResult.added)
                state.commit()
                raise AssertionError("the news was not noticed")

        train(state)
        assert calls == [0, 3] and times == [hvd.size()]


def removed_hosts_need_no_sync(hvd):
    state, calls = new_state(hvd), []
    sampler = hvd.elastic.ElasticSampler(Line())
    state.sampler = sampler

    @hvd.elastic.run
    def train(state):
        calls.append(state.batch)
        if len(calls) == 1:
            state.batch = 10 + hvd.rank()
            state.on_hosts_updated(5, hvd.elastic.HostUpdateResult.removed)
            state.check_host_updates()

    train(state)
    assert calls == [0, 10 + hvd.rank()]


def reset_limit(hvd):
    calls = []

    @hvd.elastic.run(reset_limit=2)
    def train(state):
        calls.append(1)
        raise hvd.HorovodInternalError("again")

    with pytest.raises(RuntimeError, match="reset 2 times, and reset_limit is 2"):
        train(new_state(hvd))
    assert len(calls) == 3


def the_same_mistake_twice(hvd):
    """Ranks that disagree will disagree again: the error is told instead of repeated for ever."""
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(1)
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="crooked")

    with pytest.raises(hvd.HorovodInternalError, match="crooked"):
        train(new_state(hvd))
    assert len(calls) == 2


def after_a_failed_collective(hvd):
    """One failure in an optimizer's step: restored, and its gradients in flight are forgotten."""
    model = nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    state, calls = hvd.elastic.TorchState(model, optimizer, batch=0), []

    @hvd.elastic.run
    def train(state):
        calls.append(state.batch)
        for _ in range(3):
            state.optimizer.zero_grad()
            state.model(torch.ones(1, 2)).sum().backward()
            if len(calls) == 1 and state.batch == 1:
                hvd.allreduce(torch.ones(1 + hvd.rank()), name="once")
            state.optimizer.step()
            state.batch += 1
        return [p.tolist() for p in state.model.parameters()]

    answers = hvd.allgather_object(train(state))
    assert calls == [0, 0] and all(answer == answers[0] for answer in answers)


def other_errors_pass(hvd):
    @hvd.elastic.run
    def train(state):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        train(new_state(hvd))


@pytest.mark.parametrize("ranks", [2, 3])
def test_loop(ranks):
    assert helpers.launch(loop, ranks, threads=1, timeout=60) == [8] * ranks


# -- states ------------------------------------------------------------------------------------


def states():
    import helpers.hvd.torch as hvd

    hvd.init()
    checks = [torch_state, plain_objects, replaced_values, schedulers, own_handlers, samplers, sampler_in_state]
    for check in checks:
        check(hvd)
    hvd.shutdown()
    return len(checks)


def torch_state(hvd):
    """As Horovod's own test: synchronise, restore, commit."""
    value = 1.0 if hvd.rank() == 0 else 2.0
    one, two = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    for p in one.parameters():
        nn.init.constant_(p, value)
    optimizer = torch.optim.SGD(one.parameters(), lr=0.001 * (1 + hvd.rank()), momentum=0.5)
    state = hvd.elastic.TorchState(one, optimizer, batch=20 + hvd.rank(), epoch=10 + hvd.rank())
    state.sync()
    synced = copy.deepcopy(one.state_dict())
    assert all((w == 1).all() for w in state.model.state_dict().values())
    assert (state.batch, state.epoch, optimizer.param_groups[0]["lr"]) == (20, 10, 0.001)
    one.load_state_dict(two.state_dict())
    state.batch, state.epoch = 21, 11
    optimizer.param_groups[0]["lr"] = 9.0
    for _ in range(2):  # a restored state can be spoilt and restored again
        state.restore()
        assert all(torch.equal(w, synced[k]) for k, w in one.state_dict().items())
        assert (state.batch, state.epoch, optimizer.param_groups[0]["lr"]) == (20, 10, 0.001)
        one.load_state_dict(two.state_dict())
        state.batch = 21
    state.commit()
    nn.init.zeros_(one[0].weight)
    state.restore()
    assert all(torch.equal(w, two.state_dict()[k]) for k, w in one.state_dict().items()) and state.batch == 21
    assert hvd.elastic.TorchState().model is None


def plain_objects(hvd):
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, log=[hvd.rank()], best=None)
    state.sync()
    assert state.log == [0] and state.best is None
    state.log.append("lost")
    state.restore()
    assert state.log == [0]
    state.log.append("kept")
    state.save()
    state.log.append("lost")
    state.restore()
    assert state.log == [0, "kept"]
    for method in ("save", "restore", "sync"):
        with pytest.raises(NotImplementedError):
            getattr(hvd.elastic.State(hvd.broadcast_object, hvd.rank), method)()


def replaced_values(hvd):
    """A model assigned to the state later is the one that is saved from then on."""
    state = hvd.elastic.TorchState(nn.Linear(1, 1), other=nn.Linear(1, 1))
    model = nn.Linear(1, 1)
    kept = copy.deepcopy(model.state_dict())
    state.model = model
    nn.init.zeros_(model.weight)
    state.restore()
    assert state.model is model and torch.equal(model.weight, kept["weight"])
    state.sync()


def schedulers(hvd):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    state = hvd.elastic.TorchState(model, optimizer, schedule=schedule)
    for _ in range(2 if hvd.rank() == 0 else 1):
        optimizer.step()
        schedule.step()
    state.sync()
    assert schedule.last_epoch == 2 and optimizer.param_groups[0]["lr"] == 0.25
    schedule.step()
    state.restore()
    assert schedule.last_epoch == 2 and optimizer.param_groups[0]["lr"] == 0.25


class Recorder:
    def __init__(self):
        self.calls = []


class RecorderHandler:
    """Not of our classes: what the registry documents is enough."""

    def __init__(self, value):
        self.value = value

    def save(self):
        self.value.calls.append("save")

    def restore(self):
        self.value.calls.append("restore")

    def sync(self):
        self.value.calls.append("sync")

    def set_value(self, value):
        self.value = value


def own_handlers(hvd):
    registry = hvd.elastic.get_handler_registry()
    hvd.elastic.set_handler_registry([(Recorder, RecorderHandler), *registry])
    try:
        state = hvd.elastic.TorchState(recorder=Recorder())
    finally:
        hvd.elastic.set_handler_registry(registry)
    state.restore()
    state.sync()
    assert state.recorder.calls[:2] == ["restore", "sync"]


def samplers(hvd):
    """Shares of any number of indices: every index somewhere, the same number on all ranks, epochs in other orders."""
    for n in (0, 1, 2, 7, 12):
        for shuffle in (False, True):
            sampler = hvd.elastic.ElasticSampler(range(n), shuffle=shuffle, seed=5)
            shares = hvd.allgather_object(list(sampler))
            assert {len(share) for share in shares} == {len(sampler)} == {-(-n // hvd.size())}
            assert {index for share in shares for index in share} == set(range(n))
    assert list(hvd.elastic.ElasticSampler(range(9), shuffle=False))[0] == hvd.rank()
    orders = []
    for epoch in (0, 1, 0):
        sampler = hvd.elastic.ElasticSampler(range(100))
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    assert orders[0] == orders[2] != orders[1]


def sampler_in_state(hvd):
    """As Horovod's own test, with the samples of all ranks counted."""
    sampler = hvd.elastic.ElasticSampler(range(8 * hvd.size()))
    loader = torch.utils.data.DataLoader(range(8 * hvd.size()), batch_size=2, sampler=sampler)
    state = hvd.elastic.TorchState(sampler=sampler)
    state.sync()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, _ in enumerate(loader):
            sampler.record_batch(i, 2)
            assert sampler.processed_num == 2 * (i + 1) * hvd.size()
        assert i == 3
    assert len(list(loader)) == 4  # not reset: as long as ever
    sampler.set_epoch(2)
    for i in range(2):
        sampler.record_batch(i, 2)
    state.commit()
    for i in range(2, 4):
        sampler.record_batch(i, 2)
    state.restore()
    assert sampler.processed_num == 4 * hvd.size() and len(sampler) == 4
    sampler.record_batch(2, 2)
    state.commit()
    state.sync()
    assert sampler.processed_num == 6 * hvd.size() and len(sampler) == 2 and len(list(loader)) == 1
    sampler.record_batch(0, 5)  # more than there was
    sampler.reset()
    assert len(sampler) == 0 and list(sampler) == []
    sampler.set_epoch(3)
    assert len(sampler) == 8 and len(list(loader)) == 4


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_states(ranks):
    assert helpers.launch(states, ranks, threads=1, timeout=60) == [7] * ranks
