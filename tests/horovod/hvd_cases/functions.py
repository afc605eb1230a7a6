"""Cases of broadcast_parameters, broadcast_optimizer_state, broadcast_object and allgather_object."""

import collections
import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import platforms.horovod.torch as hvd

from .lab import case

Pair = collections.namedtuple("Pair", "one two")


# -- parameters --------------------------------------------------------------------------------


@case("functions", least=2)
def odd_kinds_from_every_root():
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


@case("functions", least=2)
def every_way_to_give_them():
    """Also in another order on every rank, if they have names."""
    root = hvd.size() - 1
    for way in (
        lambda m: m.state_dict(),
        lambda m: m.named_parameters(),
        lambda m: m.parameters(),
        lambda m: list(m.parameters()),
        lambda m: sorted(m.named_parameters(), reverse=hvd.rank() % 2 == 1),
    ):
        model, theirs = (model_and(torch.optim.SGD, 0.1, seed=seed)[0] for seed in (hvd.rank(), root))
        hvd.broadcast_parameters(way(model), root_rank=root)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), theirs.parameters(), strict=True))
        assert all(p.requires_grad and p.is_leaf for p in model.parameters())


@case("functions", least=2)
def wrong_parameters():
    for wrong in (None, 3, "weights", torch.ones(2)):
        with pytest.raises(ValueError, match="invalid params of type"):
            hvd.broadcast_parameters(wrong, root_rank=0)
    with pytest.raises(ValueError, match="'epoch' is a int.*broadcast_object"):
        hvd.broadcast_parameters({"epoch": 3}, root_rank=0)
    with pytest.raises(hvd.HorovodInternalError, match="odd"):
        hvd.broadcast_parameters({"odd": torch.ones(2 + hvd.rank())}, root_rank=0)
    with pytest.raises(ValueError, match="root"):
        hvd.broadcast_parameters({"x": torch.ones(2)}, root_rank=hvd.size())
    hvd.broadcast_parameters({}, root_rank=0)


# -- optimizers --------------------------------------------------------------------------------


def optimizers():
    """Constructors by name: one of torch's for each kind of state."""
    made = {
        name: getattr(torch.optim, name)
        for name in ("SGD", "Adam", "NAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD", "Adafactor", "Muon")
        if hasattr(torch.optim, name)
    }
    made["momentum"] = lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, dampening=0.1)
    made["amsgrad"] = lambda p, lr: torch.optim.AdamW(p, lr=lr, amsgrad=True, betas=(0.8, 0.9))
    made["centred"] = lambda p, lr: torch.optim.RMSprop(p, lr=lr, momentum=0.9, centered=True)
    made["fused"] = lambda p, lr: torch.optim.Adam(p, lr=lr, fused=True)
    made["lr as a tensor"] = lambda p, lr: torch.optim.Adam(p, lr=torch.tensor(lr))
    made["odd"] = Odd
    return made


class Odd(torch.optim.Optimizer):
    """State and options of every type that pickles."""

    def __init__(self, parameters, lr=0.1, tag=None, nested=None, flag=True):
        super().__init__(parameters, {"lr": lr, "tag": tag, "nested": nested, "flag": flag})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(none=None, count=0, word="x", half=p.half(), pair=Pair(p.clone(), 1.5))
                    state["deep"] = {
                        "list": [p * 2, {"more": (p.sum(), "text")}],
                        "default": collections.Counter("aab"),
                    }
                    state["transposed"] = torch.ones(2, 3).t() * p.sum()
                state["count"] += 1
                state["deep"]["list"][0].add_(p.grad)
                p.sub_(state["deep"]["list"][0], alpha=group["lr"] * state["pair"].two)
        self.state["global"] = {"steps": torch.tensor(3), "who": "all"}


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
            before = copy.deepcopy(optimizer.state_dict())
            gradients = [p.grad for p in model.parameters()]
            parameters = [p.clone() for p in model.parameters()]
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            same(optimizer.state_dict(), theirs.state_dict())
            assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True)), name
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
        for steps in (0, 1):
            model, optimizer = model_and(torch.optim.Adam, 0.1 + hvd.rank(), steps=steps if hvd.rank() else 0)
            if wrapped:
                optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
            assert optimizer.param_groups[0]["lr"] == 0.1 and len(optimizer.state_dict()["state"]) == 0
            take_step(model, optimizer)


@case("functions", least=2)
def options_of_any_type():
    options = [
        {"tag": "text", "nested": {"a": [1, (2.5, None)], "b": Pair(1, "two")}, "flag": False},
        {"tag": None, "nested": torch.arange(3), "flag": None},
    ]
    model, _ = model_and(Odd, 0.1)
    groups = [dict(params=[p]) for p in model.parameters()]
    if hvd.rank() == 0:
        groups = [{**group, **more} for group, more in zip(groups, options, strict=True)]
    optimizer = Odd(groups)
    kept = optimizer.param_groups[0]
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for group, more in zip(optimizer.param_groups, options, strict=True):
        same({key: group[key] for key in more}, more)
    assert optimizer.param_groups[0] is kept


@case("functions", least=2)
def tensors_in_place_and_sparse_adam():
    """A learning rate that is a tensor stays that tensor: schedulers and compiled steps hold on to it."""
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=torch.tensor(0.1 + hvd.rank()))
    rate = optimizer.param_groups[0]["lr"]
    if hvd.rank() == 0:
        table(torch.tensor([1, 3])).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.1)
    everybody = hvd.allgather_object(optimizer.state_dict())
    same(everybody[-1], everybody[0])
    assert everybody[-1]["state"][0]["exp_avg"].any()


@case("functions", least=2)
def wrong_optimizers():
    model, _ = model_and(torch.optim.SGD, 0.1)
    with pytest.raises(ValueError, match="cannot broadcast torch.optim.LBFGS state"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), root_rank=0)
    kind = torch.optim.Adam if hvd.rank() == 1 else torch.optim.SGD
    with pytest.raises(ValueError, match=r"optimizers of ranks \[1\] differ"):
        hvd.broadcast_optimizer_state(kind(model.parameters(), lr=0.1), root_rank=0)
    some = list(model.parameters())[: 1 + hvd.rank() % 2]
    with pytest.raises(ValueError, match=r"ranks \[1"):
        hvd.broadcast_optimizer_state(torch.optim.SGD(some, lr=0.1), root_rank=0)


# -- objects -----------------------------------------------------------------------------------


def objects_of(rank):
    class Local:
        where = rank

    return [
        None,
        rank,
        "text" * rank,
        {"a": [1, {2}], "rank": rank},
        torch.full((rank + 1,), 1.0),
        b"\0" * (10**6 * rank),
        lambda x: x + rank,
        Local,
        Pair(rank, ()),
        [],
        float("nan"),
    ]


def alike(one, other):
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if callable(one):
        return one.where == other.where if isinstance(one, type) else one(1) == other(1)
    return one == other or one != one


@case("functions", least=2)
def objects_of_every_rank():
    everybody = [objects_of(rank) for rank in range(hvd.size())]
    for i, ours in enumerate(everybody[hvd.rank()]):
        gathered = hvd.allgather_object(ours, name=f"object {i}")
        assert len(gathered) == hvd.size()
        for root, theirs in enumerate(everybody):
            got = hvd.broadcast_object(ours, root_rank=root)
            assert alike(theirs[i], got) and alike(theirs[i], gathered[root])
            assert got is ours or hvd.rank() != root
    assert hvd.broadcast_object_fn(root_rank=1)(hvd.rank()) == 1
    # Ranks other than the root may give anything: their object is not looked at.
    assert hvd.broadcast_object(3 if hvd.rank() == 1 else threading.Lock(), 1, name="mine") == 3


@case("functions", least=2)
def unpicklable():
    """One rank's mistake is told on all, and nobody waits."""
    ours = threading.Lock() if hvd.rank() == 1 else 5
    with pytest.raises(TypeError if hvd.rank() == 1 else ValueError, match="pickle"):
        hvd.broadcast_object(ours, root_rank=1)
    with pytest.raises(TypeError if hvd.rank() == 1 else ValueError, match="pickle"):
        hvd.allgather_object(ours)
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


@case("functions", least=3)
def in_a_process_set():
    """Roots are numbers of the world, and only members take part."""
    some = hvd.add_process_set([0, 2])
    if some.included():
        assert hvd.broadcast_object(hvd.rank(), root_rank=2, process_set=some) == 2
        assert hvd.broadcast_object_fn(0, process_set=some)(hvd.rank()) == 0
        assert hvd.allgather_object(hvd.rank(), process_set=some) == [0, 2]
        tensor = torch.tensor([hvd.rank()])
        hvd.broadcast_parameters([tensor], root_rank=2, process_set=some)
        assert tensor.item() == 2
        model, optimizer = model_and(torch.optim.Adam, 0.1 * (hvd.rank() + 1), steps=hvd.rank() // 2)
        hvd.broadcast_optimizer_state(optimizer, root_rank=2, process_set=some)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3) and len(optimizer.state) == 2
        with pytest.raises(ValueError, match=r"ranks \[2\] differ from that of rank 0"):
            hvd.broadcast_optimizer_state(
                torch.optim.SGD(list(model.parameters())[hvd.rank() // 2 :], lr=0.1), 0, process_set=some
            )
    hvd.remove_process_set(some)
