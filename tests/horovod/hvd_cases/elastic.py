"""Cases of hvd.elastic without losses: the loop around a training function, states and samplers."""

import copy

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
