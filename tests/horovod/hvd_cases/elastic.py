"""Cases of hvd.elastic without losses: the loop around a training function, states and samplers."""

import copy

import pytest
import torch
from torch import nn

import platforms.horovod.torch as hvd

from .lab import case

# -- the loop ----------------------------------------------------------------------------------


def new_state(**more):
    torch.manual_seed(hvd.rank())
    model = nn.Linear(2, 1)
    return hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"batch": hvd.rank(), **more})


@case("elastic", least=2)
def sync_comes_first():
    state = new_state()

    @hvd.elastic.run
    def train(state, *args, word=None):
        """Documented."""
        assert state.batch == 0
        return args, word

    assert train.__name__ == "train" and train.__doc__ == "Documented."
    assert train(state, 1, 2, word="x") == ((1, 2), "x")
    torch.manual_seed(0)
    assert torch.equal(state.model.weight, nn.Linear(2, 1).weight)


@case("elastic", least=2)
def what_ends_it():
    """A mistake that ranks make again, instead of repeating it for ever; any other error."""
    endings = [(None, hvd.HorovodInternalError, "crooked", 2), (KeyError("mine"), KeyError, "mine", 1)]
    for error, kind, words, times in endings:
        calls = []

        @hvd.elastic.run
        def train(state, calls=calls, error=error):
            calls.append(1)
            if error is not None:
                raise error
            hvd.allreduce(torch.ones(1 + hvd.rank()), name="crooked")

        with pytest.raises(kind, match=words):
            train(new_state())
        assert len(calls) == times


@case("elastic", least=2)
def after_a_failed_collective():
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


# -- states ------------------------------------------------------------------------------------


@case("elastic")
def torch_state():
    """As Horovod's own test: synchronise, restore, commit."""
    one, two = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    for p in one.parameters():
        nn.init.constant_(p, 1.0 + hvd.rank())
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


@case("elastic")
def plain_objects():
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, log=[hvd.rank()], best=None)
    state.sync()
    assert state.log == [0] and state.best is None
    state.log.append("kept")
    state.save()
    for _ in range(2):
        state.log.append("lost")
        state.restore()
        assert state.log == [0, "kept"]
    for method in ("save", "restore", "sync"):
        with pytest.raises(NotImplementedError):
            getattr(hvd.elastic.State(hvd.broadcast_object, hvd.rank), method)()


@case("elastic")
def replaced_values():
    """A model assigned to the state later is the one that is saved from then on."""
    state = hvd.elastic.TorchState(nn.Linear(1, 1), other=nn.Linear(1, 1))
    model = nn.Linear(1, 1)
    kept = copy.deepcopy(model.state_dict())
    state.model = model
    nn.init.zeros_(model.weight)
    state.restore()
    assert state.model is model and torch.equal(model.weight, kept["weight"])
    state.sync()


@case("elastic")
def schedulers():
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


@case("elastic")
def samplers():
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


@case("elastic")
def sampler_in_state():
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
