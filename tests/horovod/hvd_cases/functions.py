"""Cases of broadcast_parameters, broadcast_optimizer_state, broadcast_object and allgather_object."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import platforms.horovod.torch as hvd

from .lab import case


@case("functions", least=2)
def parameters_of_odd_kinds_from_every_root():
    for root in range(hvd.size()):
        ours, theirs = (
            {
                "counter": torch.tensor(rank),
                "empty": torch.empty(0, 3),
                "bool": torch.tensor([rank % 2 == 0, True]),
                "transposed": torch.full((4, 3), float(rank)).t(),
                "complex": torch.full((2,), 1j * rank),
            }
            for rank in (hvd.rank(), root)
        )
        hvd.broadcast_parameters({**ours, "nothing": None}, root_rank=root)
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()), ours
    for way in (  # also in another order on every rank, if they have names
        lambda m: list(m.parameters()),
        lambda m: sorted(m.named_parameters(), reverse=hvd.rank() % 2 == 1),
    ):
        model, theirs = (model_and(torch.optim.SGD, 0.1, seed=seed)[0] for seed in (hvd.rank(), 1))
        hvd.broadcast_parameters(way(model), root_rank=1)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), theirs.parameters(), strict=True))


@case("functions", least=2)
def wrong_parameters():
    for wrong, words in (
        ("weights", "invalid params of type"),
        (torch.ones(2), "invalid params of type"),
        ({"epoch": 3}, "'epoch' is a int.*broadcast_object"),
        ({"odd": torch.ones(2 + hvd.rank())}, "odd"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.broadcast_parameters(wrong, root_rank=0)


def optimizers():
    """Constructors by name: one of torch's for each kind of state."""
    names = ("SGD", "Adam", "NAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adafactor", "Muon")
    made = {name: getattr(torch.optim, name) for name in names if hasattr(torch.optim, name)}
    made["momentum"] = lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, dampening=0.1)
    made["amsgrad"] = lambda p, lr: torch.optim.AdamW(p, lr=lr, amsgrad=True, betas=(0.8, 0.9))
    made["fused"] = lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True)
    made["lr as a tensor"] = lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(lr))
    return made


def model_and(make, lr, seed=1, steps=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    optimizer = make(model.parameters(), lr)
    for _ in range(steps):
        take_step(model, optimizer)
    return model, optimizer


def take_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.arange(8.0).view(2, 4)).square().mean().backward()
    optimizer.step()


def same(one, other):
    """Asserts that two state dicts are equal, bit by bit and type by type."""
    (ones, shape), (others, theirs) = tree_flatten(one), tree_flatten(other)
    assert shape == theirs, (shape, theirs)
    for a, b in zip(ones, others, strict=True):
        assert type(a) is type(b)
        assert torch.equal(a, b) and a.dtype == b.dtype if torch.is_tensor(a) else a == b


@case("functions", least=2)
def the_roots_state_for_everybody():
    """Fresh optimizers of other ranks get the root's state; so do those with another; the root's does not move."""
    root = hvd.size() - 1
    for name, make in optimizers().items():
        for steps_of_others in (0, 1):
            _, theirs = model_and(make, 0.02, steps=2)
            is_root = hvd.rank() == root
            model, optimizer = model_and(make, 0.02 if is_root else 0.5, steps=2 if is_root else steps_of_others)
            before, parameters = copy.deepcopy(optimizer.state_dict()), [p.clone() for p in model.parameters()]
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            same(optimizer.state_dict(), theirs.state_dict())
            assert all(torch.equal(p, q) for p, q in zip(model.parameters(), parameters, strict=True)), name
            if is_root:
                same(optimizer.state_dict(), before)
            hvd.broadcast_parameters(model.state_dict(), root_rank=root)
            take_step(model, optimizer)  # and it works
            everybody = hvd.allgather_object([p.detach() for p in model.parameters()])
            assert all(torch.equal(a, b) for other in everybody for a, b in zip(everybody[0], other, strict=True)), name


@case("functions", least=2)
def a_root_without_state():
    """Nobody is left with a state of its own; options are those of the root, of a wrapped optimizer too."""
    for wrapped in (False, True):
        model, optimizer = model_and(torch.optim.Adam, 0.1 + hvd.rank(), steps=hvd.rank())
        if wrapped:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.1 and len(optimizer.state_dict()["state"]) == 0
        take_step(model, optimizer)


@case("functions", least=2)
def wrong_optimizers():
    model, _ = model_and(torch.optim.SGD, 0.1)
    with pytest.raises(ValueError, match="cannot broadcast torch.optim.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)
    kind = torch.optim.Adam if hvd.rank() == 1 else torch.optim.SGD
    with pytest.raises(ValueError, match=r"optimizers of ranks \[1\] differ"):
        hvd.broadcast_optimizer_state(kind(model.parameters(), lr=0.1), root_rank=0)


@case("functions", least=2)
def objects_of_every_rank():
    def objects(rank):
        return ["text" * rank, {"a": [1, {2}], "rank": rank}, b"\0" * (10**6 * rank), lambda x: x + rank, None]

    everybody = [objects(rank) for rank in range(hvd.size())]
    for i, ours in enumerate(everybody[hvd.rank()]):
        gathered = hvd.allgather_object(ours, name=f"object {i}")
        assert len(gathered) == hvd.size()
        for root, theirs in enumerate(everybody):
            got = hvd.broadcast_object(ours, root_rank=root)
            for found in (got, gathered[root]):
                assert found(1) == theirs[i](1) if callable(found) else found == theirs[i]
            assert got is ours or hvd.rank() != root
    # Ranks other than the root may give anything: their object is not looked at.
    assert hvd.broadcast_object(3 if hvd.rank() == 1 else threading.Lock(), 1, name="mine") == 3


@case("functions", least=2)
def unpicklable():
    """One rank's mistake is told on all, and nobody waits."""
    ours = threading.Lock() if hvd.rank() == 1 else 5
    for call in (lambda: hvd.broadcast_object(ours, root_rank=1), lambda: hvd.allgather_object(ours)):
        with pytest.raises(TypeError if hvd.rank() == 1 else ValueError, match="pickle"):
            call()
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


@case("functions", least=3)
def in_a_process_set():
    """Roots are numbers of the world, and only members take part."""
    some = hvd.add_process_set([0, 2])
    if some.included():
        assert hvd.broadcast_object_fn(2, process_set=some)(hvd.rank()) == 2
        assert hvd.allgather_object(hvd.rank(), process_set=some) == [0, 2]
        model, optimizer = model_and(torch.optim.Adam, 0.1 * (hvd.rank() + 1), steps=hvd.rank() // 2)
        hvd.broadcast_optimizer_state(optimizer, root_rank=2, process_set=some)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3) and len(optimizer.state) == 2
    hvd.remove_process_set(some)
