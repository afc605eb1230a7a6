"""hvd.elastic: trainings that lose ranks go on from the last commit; what loses no rank is in hvd_cases/elastic.py."""

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
    import platforms.horovod.torch as hvd

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


long = pytest.mark.long


@pytest.mark.parametrize("victim, way", [(0, "killed"), (2, "left"), pytest.param(2, "killed", marks=long)])
def test_survivors_go_on(victim, way):
    (told,) = helpers.launch(forked, 1, elastic_training, 3, {(3, victim, 3)}, way, threads=1, timeout=1800)
    for rank, (code, known) in enumerate(told):
        if rank == victim:
            assert code == (-signal.SIGKILL if way == "killed" else 5)
            continue
        assert not isinstance(known, str), known
        assert known["resets"] == [(known["rank"], 2)] and known["worlds"] == [3, 2]
        check_training(known)
    assert sorted(known["rank"] for _, known in told if known) == [0, 1]


@pytest.mark.parametrize("who", [[1], pytest.param([0, 1], marks=long)])
def test_transient_failures_lose_nobody(who):
    """A rank that only thinks that something failed comes back; the others notice and meet it."""
    for known in helpers.launch(elastic_training, 2, {(3, r, 2) for r in who}, "raises", threads=1, timeout=1800):
        assert known["worlds"] == [2, 2] and [size for _, size in known["resets"]] == [2]
        check_training(known)
