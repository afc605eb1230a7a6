"""Cases of DistributedOptimizer: it trains as DDP does, and as one process on the global batch; and its manners."""

import contextlib
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import platforms.horovod.torch as hvd
from platforms.horovod.core import lane

from .lab import case

STEPS, ROWS = 5, 12  # rows of the global batch: divides by 2, 3 and 4


class Net(nn.Module):
    """Two layers, one that can be frozen and one that the loss does not depend on."""

    def __init__(self, frozen=False, unused=False):
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)
        self.frozen = nn.Linear(5, 5).requires_grad_(not frozen)
        self.unused = nn.Linear(2, 2) if unused else None

    def forward(self, x):
        return self.second(torch.tanh(self.first(self.frozen(x))))


class Words(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.table((x[:, :3].abs() * 4).long().clamp(0, 9)).mean(1))


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, **{"lr": 0.1, **options})


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1)


def with_momentum(parameters):
    return sgd(parameters, momentum=0.9, nesterov=True)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05, amsgrad=True)


def two_groups(parameters):
    parameters = list(parameters)
    return sgd([{"params": parameters[:2], "lr": 0.3, "weight_decay": 0.01}, {"params": parameters[2:]}], momentum=0.5)


def lists_of(model):
    return [[model.second.weight, model.first.weight], [model.first.bias]]


PLAIN = dict(net=Net, optimizer=sgd, passes=1, clip=None, schedule=None, options={}, find_unused=False, far=1e-10)
CASES = {
    "param groups": {"optimizer": two_groups},
    "accumulation": {"optimizer": adam, "passes": 3},
    "clipped accumulation": {"optimizer": with_momentum, "passes": 2, "clip": 0.05},
    "2 groups": {"options": {"groups": 2}, "optimizer": adam},
    "more groups than parameters": {"options": {"groups": 50}},
    "lists as groups": {"options": {"groups": lists_of}, "passes": 2},
    "num_groups": {"options": {"num_groups": 3}},
    "frozen": {"net": lambda: Net(frozen=True), "optimizer": adam},
    "unused": {"net": lambda: Net(unused=True), "optimizer": adam, "find_unused": True},
    "unused in groups": {"net": lambda: Net(unused=True), "options": {"groups": 2}, "find_unused": True},
    "step lr": {"schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3), "optimizer": adam},
    "predivide in groups": {"options": {"gradient_predivide_factor": 3.0, "groups": 1}},
    "no names": {"options": {"named_parameters": None}},
    "sum": {"options": {"op": hvd.Sum}},
    "half precision": {"options": {"compression": "fp16"}, "far": 2**-9},
    "brain floats in groups": {"options": {"compression": "bf16", "groups": 2}, "far": 2**-6},
    "sparse": {"net": Words},
    "sparse in groups": {"net": Words, "optimizer": adagrad, "options": {"groups": 2}},
    "sparse as dense": {"net": Words, "optimizer": adagrad, "options": {"sparse_as_dense": True}},
}


def batches(rank=0, size=1, passes=1, rows=ROWS):
    """STEPS lists of `passes` batches [rows / size, 5] with targets: rank's share of the global ones."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS, passes, rows, 5, generator=generator, dtype=torch.float64)
    share = slice(rank * rows // size, (rank + 1) * rows // size)
    return [[(x[share], x[share, :3].sin()) for x in xs] for xs in inputs]


def settle(model, optimizer, case, distributed):
    """Synchronise, clip and step, as the documentation says."""
    if case["clip"] is None:
        return optimizer.step()
    if distributed:
        optimizer.synchronize()
    nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
    with optimizer.skip_synchronize() if distributed else contextlib.nullcontext():
        optimizer.step()


def train(case, rank=0, size=1, spelling="plain"):
    """The trained parameters, and the optimizer's state, of one way to train a case."""
    torch.manual_seed(3)
    model = case["net"]().double()
    optimizer, wrapped = case["optimizer"](p for p in model.parameters()), model
    if spelling == "ddp":
        wrapped = DistributedDataParallel(model, find_unused_parameters=case["find_unused"])
    if spelling == "hvd":
        options = {"named_parameters": model.named_parameters(), **case["options"]}
        if callable(options.get("groups")):
            options["groups"] = options["groups"](model)
        if options.get("compression"):
            options["compression"] = getattr(hvd.Compression, options["compression"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=case["passes"], **options)
    summed = spelling == "hvd" and case["options"].get("op") == hvd.Sum
    schedule = case["schedule"] and case["schedule"](optimizer)
    for step in batches(rank, size, case["passes"]):
        optimizer.zero_grad()
        for i, (x, y) in enumerate(step):
            quiet = spelling == "ddp" and i + 1 < len(step)
            with wrapped.no_sync() if quiet else contextlib.nullcontext():
                loss = nn.functional.mse_loss(wrapped(x), y[:, : wrapped(x).shape[1]]) / len(step)
                (loss / size if summed else loss).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error" if spelling == "hvd" else "default")
            warnings.filterwarnings("ignore", "Sparse invariant checks")  # torch's own Adagrad
            settle(model, optimizer, case, spelling == "hvd")
        if schedule:
            schedule.step()
    # Without the state of unused parameters, which may be absent or zero.
    tensors = [v for state in optimizer.state_dict()["state"].values() for _, v in sorted(state.items())]
    return [*model.state_dict().values(), *(t for t in tensors if torch.is_tensor(t) and t.dim() and t.any())]


def furthest(ours, theirs):
    return max((a - b).abs().max().item() for a, b in zip(ours, theirs, strict=True))


@case("optimizer")
def as_ddp_and_as_one_process():
    dist.init_process_group("gloo")
    rank, size = hvd.rank(), hvd.size()
    for name, changes in CASES.items():
        case = {**PLAIN, **changes}
        ours = train(case, rank, size, "hvd")
        for theirs in (train(case), train(case, rank, size, "ddp")):  # one process, and DDP
            far = furthest(ours, theirs)
            assert far <= case["far"] and (size == 1 or case["far"] < 1e-9 or far > 1e-9), f"{name}: {far}"
        assert furthest(ours, hvd.broadcast_object(ours)) == 0, f"{name}: ranks differ"
    dist.destroy_process_group()


# -- special ways ------------------------------------------------------------------------------


def one_step(model, optimizer, seed=0):
    optimizer.zero_grad()
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * seed + hvd.rank())).double()
    model(x).square().mean().backward()
    optimizer.step()


def made(optimizer=sgd, net=Net, **options):
    torch.manual_seed(3)
    model = net().double()
    return model, hvd.DistributedOptimizer(optimizer(model.parameters()), model.named_parameters(), **options)


def agree(model):
    """How far the ranks' parameters are apart; 0.0 when they are equal bit by bit."""
    ours = [*model.state_dict().values()]
    return max(furthest(ours, other) for other in hvd.allgather_object(ours))


@case("optimizer", least=2)
def gradients_of_some_ranks():
    """A branch that one rank does not take: zeros of that rank count in the average, with groups and without."""
    for options in ({}, {"groups": 2}):
        model, optimizer = made(net=lambda: Net(unused=True), **options)
        if hvd.rank():
            model.unused(torch.ones(1, 2).double()).sum().backward()
        else:
            model(torch.ones(1, 5).double()).sum().backward()
        optimizer.synchronize()
        share = (hvd.size() - 1) / hvd.size()
        assert torch.allclose(model.unused.bias.grad, torch.full((2,), share).double())
        assert torch.allclose(model.second.bias.grad, torch.full((3,), 1 / hvd.size()).double())
        with optimizer.skip_synchronize():
            optimizer.step()
        assert agree(model) == 0


@case("optimizer", least=2)
def uneven_data():
    """A rank that has run out of batches joins; it counts as zeros, with groups, accumulation and compression too."""
    for options in ({}, {"groups": 2}, {"backward_passes_per_step": 2}, {"compression": hvd.Compression.fp16}):
        model, optimizer = made(**options)
        passes = optimizer.backward_passes_per_step
        for step in range(3 if hvd.rank() else 2):
            optimizer.zero_grad()
            for _ in range(passes):
                push(model)
            optimizer.step()
            total = passes * sum(rank + 1 for rank in range(step // 2, hvd.size())) / hvd.size()
            assert model.second.bias.grad.tolist() == pytest.approx([total] * 3, rel=1e-3)
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        assert agree(model) == 0


@case("optimizer", least=2)
def through_scaler():
    """Scaled losses, an overflow on the last rank only: nobody steps, every rank's scale is halved.

    By the documented way (with clipping), and by `scaler.step` alone, as with DDP.
    """
    for documented, options in (True, {"momentum": 0.9}), (False, {"momentum": 0.9, "fused": True}):
        torch.manual_seed(3)
        model, plain = Net(), Net()
        plain.load_state_dict(model.state_dict())
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters(), **options), model.named_parameters())
        reference = sgd(plain.parameters(), **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step in range(4):
            everybody = torch.randn(hvd.size(), 4, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            overflow = torch.inf if step == 1 and hvd.rank() == hvd.size() - 1 else 1
            scaler.scale(model(everybody[hvd.rank()]).square().mean() * overflow).backward()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                if documented:
                    optimizer.synchronize()
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                with optimizer.skip_synchronize() if documented else contextlib.nullcontext():
                    scaler.step(optimizer)
            scaler.update()
            if step != 1:
                reference.zero_grad()
                plain(everybody.flatten(0, 1)).square().mean().backward()
                if documented:
                    nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
                reference.step()
        assert scaler.get_scale() == 512.0 and agree(model) == 0
        assert furthest([*model.parameters()], [*plain.parameters()]) < 1e-6


@case("optimizer", least=2)
def sparse_on_some_ranks():
    """A rank that looks up no word in a later step takes part with an empty gradient."""
    model, optimizer = made(sgd, Words)
    one_step(model, optimizer)
    assert model.table.weight.grad.is_sparse
    optimizer.zero_grad()
    if hvd.rank() == 0:
        model.out(torch.ones(1, 4).double()).sum().backward()
    else:
        model(torch.ones(1, 5).double()).sum().backward()
    optimizer.step()
    assert agree(model) == 0


@case("optimizer", least=2)
def several_optimizers_later_parameters_and_checkpoints():
    """Two optimizers in one backward; a group added and layers thawed after wrapping; a plain checkpoint."""
    torch.manual_seed(3)
    one, two = Net(frozen=True).double(), nn.Linear(3, 2).double()
    plain = adam(one.parameters())
    early = torch.optim.lr_scheduler.LambdaLR(plain, lambda epoch: 0.5**epoch)
    first = hvd.DistributedOptimizer(plain, one.named_parameters("one"))
    second = hvd.DistributedOptimizer(sgd(two.parameters()), two.named_parameters("two"))
    both = nn.Sequential(one, two)
    for step in range(2):
        second.zero_grad()
        one_step(both, first, step)
        second.step()
        assert agree(both) == 0
        one.frozen.requires_grad_(True)
    assert isinstance(first, torch.optim.Adam) and type(first).__name__ == "Adam"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the scheduler has seen no step of the plain optimizer
        early.step()
    assert first.param_groups[0]["lr"] == pytest.approx(0.025)
    first.load_state_dict(plain.state_dict())
    del second  # its model outlives it: its hooks send nothing
    first.add_param_group({"params": list(two.parameters())})
    hvd.broadcast_parameters(two.state_dict(), 0)
    for p in two.parameters():
        p.grad = None
    one_step(both, first)
    assert agree(both) == 0


@case("optimizer", least=3)
def in_process_sets():
    """Ranks 0 and 2 train together, rank 1 alone."""
    mine, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = mine if mine.included() else alone
    for changes in ({"options": {"groups": 2}}, {"passes": 2, "optimizer": adam}):
        case = {**PLAIN, **changes}
        options = {**case["options"], "process_set": mine}
        ours = train({**case, "options": options}, mine.rank(), mine.size(), "hvd")
        assert furthest(ours, train(case)) < 1e-10


@case("optimizer", least=2)
def adasum_combines_steps():
    if hvd.size() & (hvd.size() - 1):
        return  # it takes powers of two
    alike, optimizer = made(op=hvd.Adasum, optimizer=with_momentum)
    for step in range(2):
        one_step(alike, optimizer, step)
    assert agree(alike) == 0
    with pytest.raises(AssertionError, match="not supported when using Adasum"):
        optimizer.skip_synchronize()
    # Two ranks with the same gradient take one step of it; with orthogonal gradients, both.
    x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(sgd([x], lr=1.0), [("x", x)], op=hvd.Adasum)
    x.sum().backward()
    optimizer.step()
    assert x.tolist() == [-1.0, -1.0]
    optimizer.zero_grad()
    x[hvd.rank() % 2].backward()
    optimizer.step()
    assert hvd.size() > 2 or x.tolist() == pytest.approx([-2.0, -2.0], abs=1e-12)
    with pytest.raises(NotImplementedError, match="process sets"):
        made(op=hvd.Adasum, process_set=hvd.ProcessSet([0]))


# -- manners -----------------------------------------------------------------------------------


def push(model, scale=None):
    """One backward pass whose gradient is rank + 1, or `scale`, for the last bias and zero for the rest."""
    (model.second.bias * (hvd.rank() + 1 if scale is None else scale)).sum().backward()


@case("optimizer", least=2)
def calls_in_the_wrong_order():
    """zero_grad in flight, too many and too few passes, step after synchronize, clipping in flight."""
    model, optimizer = made(backward_passes_per_step=2)
    push(model)
    with pytest.raises(AssertionError, match="zero_grad.*prohibited as it can cause a race condition"):
        optimizer.zero_grad()
    optimizer.step()  # reduces what there is
    assert model.second.bias.grad.tolist() == [(hvd.size() + 1) / 2] * 3
    push(model)
    optimizer.load_state_dict(optimizer.state_dict())  # forgets what is under way
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(1)
    push(model)
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        push(model)
    with pytest.warns(UserWarning, match="gradients of second.bias were changed"):
        optimizer.synchronize()
    with pytest.warns(UserWarning, match=r"step\(\) called without optimizer.skip_synchronize\(\)"):
        optimizer.step()
    optimizer.zero_grad()
    push(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.warns(UserWarning, match="gradients of .*optimizer.synchronize"):
        optimizer.step()


@case("optimizer", least=2)
def refusals():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    both, plain = sgd([*one.parameters(), *two.parameters()]), sgd(one.parameters())
    for optimizer, named, options, words in (
        (both, [*one.named_parameters(), *two.named_parameters()], {}, "unique. Found duplicates: bias, weight"),
        (both, one.named_parameters(), {}, "were not named"),
        (plain, one.parameters(), {}, "sequence of tuples"),
        (plain, None, {"groups": -1}, "non-negative integer"),
        (plain, None, {"groups": [["weight"]]}, "consist of torch.Tensor"),
        (plain, None, {"groups": [[one.weight], [one.weight]]}, "only appear once"),
        (plain, None, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "not supported with op != Average"),
        (plain, None, {"backward_passes_per_step": 0}, "positive integer"),
        (hvd.DistributedOptimizer(plain), None, {}, "already"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(optimizer, named, **options)


@case("optimizer", least=2)
def while_backward_runs():
    """From the second step on, buckets of late layers are sent before backward reaches the early ones."""
    events = []
    submit = lane.Lane.submit

    def submitted(self, entry, **options):
        events.append(entry.request["parts"])
        return submit(self, entry, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane.Lane, "submit", submitted)
        for options in ({}, {"groups": 2}):
            torch.manual_seed(3)
            early, late = nn.Linear(5, 400), nn.Linear(400, 700)  # 280 thousand weights fill the first bucket
            named = [*early.named_parameters("early"), *late.named_parameters("late")]
            optimizer = hvd.DistributedOptimizer(sgd([p for _, p in named]), named, **options)
            for step in range(3):
                events.clear()
                hidden = early(torch.ones(1, 5))
                hidden.register_hook(lambda gradient: events.append("landmark"))  # backward comes by
                late(hidden).sum().backward()
                where = events.index("landmark")
                assert bool(events[:where]) == (step > 0), events
                assert {name.split(".")[0] for names in events[:where] for name in names} <= {"late"}, events
                optimizer.step()
                sent = [name for names in events if names != "landmark" for name in names]
                assert sorted(sent) == sorted(name for name, _ in named), events


@case("optimizer", least=2)
def after_a_refused_gradient():
    """Ranks that disagree about one parameter are told, on all ranks; the optimizer works afterwards."""
    x, wrong = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(sgd([x, wrong]), [("x", x), ("wrong", wrong)])
    (x.sum() + wrong.sum()).backward()
    with pytest.raises(hvd.HorovodInternalError, match="wrong"):
        optimizer.step()
    wrong.requires_grad_(False)
    optimizer.zero_grad()
    (x * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    assert x.grad.tolist() == [(hvd.size() + 1) / 2] * 2
