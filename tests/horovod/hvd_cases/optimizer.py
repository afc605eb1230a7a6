"""Cases of DistributedOptimizer: it trains as DDP does, and as one process on the global batch; and its manners."""

import contextlib
import gc
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


class Images(nn.Module):
    """Convolutions in the memory format channels_last."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 3, 3)).to(memory_format=torch.channels_last)

    def forward(self, x):
        images = x[:, None, None].expand(-1, 3, 5, -1).contiguous(memory_format=torch.channels_last)
        return self.layers(images).flatten(1)


def shared():
    """Two layers with one weight."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    model[2].weight = model[0].weight
    return model


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, **{"lr": 0.1, **options})


def adagrad(parameters):
    return torch.optim.Adagrad(parameters, lr=0.1)


def with_momentum(parameters):
    return sgd(parameters, momentum=0.9, nesterov=True)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.05, weight_decay=0.1, amsgrad=True)


def two_groups(parameters):
    parameters = list(parameters)
    return sgd([{"params": parameters[:2], "lr": 0.3, "weight_decay": 0.01}, {"params": parameters[2:]}], momentum=0.5)


def lists_of(model):
    return [[model.second.weight, model.first.weight], [model.first.bias]]


PLAIN = {
    "net": Net,
    "optimizer": sgd,
    "passes": 1,
    "clip": None,
    "schedule": None,
    "options": {},
    "find_unused": False,
    "far": 1e-10,
}
CASES = {
    "sgd": {},
    "momentum": {"optimizer": with_momentum},
    "adam": {"optimizer": adam},
    "adamw": {"optimizer": adamw},
    "param groups": {"optimizer": two_groups},
    "accumulation": {"optimizer": adam, "passes": 3},
    "clipping": {"optimizer": with_momentum, "clip": 0.05},
    "clipped accumulation": {"passes": 2, "clip": 0.05},
    "2 groups": {"options": {"groups": 2}, "optimizer": adam},
    "more groups than parameters": {"options": {"groups": 50}},
    "lists as groups": {"options": {"groups": lists_of}, "passes": 2},
    "num_groups": {"options": {"num_groups": 3}},
    "frozen": {"net": lambda: Net(frozen=True), "optimizer": adam},
    "frozen in groups": {"net": lambda: Net(frozen=True), "options": {"groups": 2}},
    "unused": {"net": lambda: Net(unused=True), "optimizer": adam, "find_unused": True},
    "unused in groups": {"net": lambda: Net(unused=True), "options": {"groups": 2}, "find_unused": True},
    "step lr": {"schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.3), "optimizer": adam},
    "one cycle": {"schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=STEPS)},
    "predivide": {"options": {"gradient_predivide_factor": 3.0}},
    "predivide in groups": {"options": {"gradient_predivide_factor": 3.0, "groups": 1}},
    "no names": {"options": {"named_parameters": None}},
    "sum": {"options": {"op": hvd.Sum}},
    "double precision kept": {"options": {"compression": "none"}},
    "half precision": {"options": {"compression": "fp16"}, "far": 2**-9},
    "brain floats in groups": {"options": {"compression": "bf16", "groups": 2}, "far": 2**-6},
    "sparse": {"net": Words},
    "sparse in groups": {"net": Words, "optimizer": adagrad, "options": {"groups": 2}},
    "sparse as dense": {"net": Words, "optimizer": adagrad, "options": {"sparse_as_dense": True}},
    "channels last": {"net": Images},
    "shared weights": {"net": shared},
}


def batches(rank=0, size=1, passes=1, rows=ROWS):
    """STEPS lists of `passes` batches [rows / size, 5] with targets: rank's share of the global ones."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(STEPS, passes, rows, 5, generator=generator, dtype=torch.float64)
    targets = inputs[..., :3].sin()
    share = slice(rank * rows // size, (rank + 1) * rows // size)
    return [[(x[share], y[share]) for x, y in zip(xs, ys, strict=True)] for xs, ys in zip(inputs, targets, strict=True)]


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
    return [*model.state_dict().values(), *states(optimizer)]


def states(optimizer):
    """The tensors of an optimizer's state, those of unused parameters left out: they may be absent or zero."""
    tensors = [v for state in optimizer.state_dict()["state"].values() for _, v in sorted(state.items())]
    return [t for t in tensors if torch.is_tensor(t) and t.dim() and t.any()]


def furthest(ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
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
    return max(
        furthest([*model.state_dict().values()], other)
        for other in hvd.allgather_object([*model.state_dict().values()])
    )


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
            ranks = range(hvd.size()) if step < 2 else range(1, hvd.size())
            assert model.second.bias.grad.tolist() == pytest.approx(
                [passes * sum(rank + 1 for rank in ranks) / hvd.size()] * 3, rel=1e-3
            )
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        assert agree(model) == 0


@case("optimizer", least=2)
def through_scaler():
    """Scaled losses, an overflow on the last rank only: nobody steps, every rank's scale is halved."""
    scaled_training(True, {"momentum": 0.9})
    scaled_training(False, {"momentum": 0.9, "fused": True})


def scaled_training(documented, options):
    """By the documented way (with clipping), or by `scaler.step` alone, as with DDP."""
    torch.manual_seed(3)
    model, plain = Net(), Net()
    plain.load_state_dict(model.state_dict())
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters(), **options), model.named_parameters())
    reference = sgd(plain.parameters(), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    for step in range(4):
        overflow = step == 1
        everybody = torch.randn(hvd.size(), 4, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = model(everybody[hvd.rank()]).square().mean()
        if overflow and hvd.rank() == hvd.size() - 1:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if documented:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            with optimizer.skip_synchronize() if documented else contextlib.nullcontext():
                scaler.step(optimizer)
        scaler.update()
        if not overflow:
            reference.zero_grad()
            plain(everybody.flatten(0, 1)).square().mean().backward()
            if documented:
                nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            reference.step()
    assert scaler.get_scale() == 512.0
    assert agree(model) == 0
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


class Counting(hvd.Compression.fp16):
    """A compressor of the user's own."""

    calls = []

    @classmethod
    def compress(cls, tensor):
        cls.calls.append("compress")
        return super().compress(tensor)

    @classmethod
    def decompress(cls, tensor, ctx):
        cls.calls.append("decompress")
        assert tensor.dtype == torch.half
        return super().decompress(tensor, ctx)


@case("optimizer", least=2)
def compressed_by_the_users_own():
    for options in ({}, {"groups": 2}):
        model, optimizer = made(compression=Counting, **options)
        one_step(model, optimizer)
        assert agree(model) == 0 and model.first.weight.grad.dtype == torch.float64
    count = 2 * len(list(Net().parameters()))
    assert Counting.calls.count("compress") == Counting.calls.count("decompress") == count


@case("optimizer", least=2)
def by_closure():
    """A closure's gradients are reduced too, also when the optimizer asks for them several times in a step."""
    model, optimizer = made(lambda p: torch.optim.LBFGS(p, max_iter=3))
    x = torch.ones(3, 5).double()  # the same on all ranks, so that all take as many iterations

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        (loss * (1 + hvd.rank())).backward()  # but not the same gradients
        return loss

    before = optimizer.step(closure)
    assert agree(model) == 0
    assert model(x).square().mean() < before


@case("optimizer", least=2)
def several_models():
    """Two models by prefixed names, one optimizer (the article's merge), and two optimizers in one backward."""
    torch.manual_seed(3)
    one, two = nn.Linear(5, 4).double(), nn.Linear(4, 2).double()
    named = [*one.named_parameters("one"), *two.named_parameters("two")]
    optimizer = hvd.DistributedOptimizer(sgd([p for _, p in named]), named)
    both = nn.Sequential(one, two)
    one_step(both, optimizer)
    assert agree(both) == 0
    del optimizer
    first = hvd.DistributedOptimizer(sgd(one.parameters()), one.named_parameters("one"))
    second = hvd.DistributedOptimizer(sgd(two.parameters()), two.named_parameters("two"))
    one_step(both, first)
    second.step()
    assert agree(both) == 0


@case("optimizer", least=2)
def later_parameters():
    """Layers thawed and groups added after wrapping are reduced; layers frozen after it stay as they are."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"net": Net(frozen=True), "head": nn.Linear(3, 3)}).double()
    optimizer = hvd.DistributedOptimizer(sgd(model["net"].parameters(), weight_decay=0.1), model.named_parameters())
    whole = nn.Sequential(model["net"], model["head"])
    one_step(whole, optimizer)
    optimizer.add_param_group({"params": list(model["head"].parameters()), "lr": 0.2})
    model["net"].frozen.requires_grad_(True)
    model["net"].first.requires_grad_(False)
    model["head"].weight.grad = None
    kept, head = model["net"].first.weight.clone(), model["head"].weight.clone()
    for step in range(3):
        one_step(whole, optimizer, step)
    assert torch.equal(model["net"].first.weight, kept) and not torch.equal(model["head"].weight, head)
    hvd.broadcast_parameters({"bias": model["head"].bias.data}, 0)  # it had one local gradient before it was added
    assert agree(model["net"]) == 0


@case("optimizer", least=2)
def plain_checkpoint_loads():
    """State written by the plain optimizer goes into the wrapped one and back; the wrapped shares what it wraps."""
    torch.manual_seed(3)
    model = Net().double()
    plain = adam(model.parameters())
    model(torch.ones(2, 5).double()).sum().backward()
    plain.step()
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert optimizer.state_dict().keys() == plain.state_dict().keys()
    assert furthest(states(optimizer), states(plain)) == 0  # not lost by wrapping
    optimizer.load_state_dict(plain.state_dict())
    one_step(model, optimizer)
    again = adam(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    assert furthest(states(again), states(optimizer)) == 0


@case("optimizer", least=3)
def in_process_sets():
    """Ranks 0 and 2 train together, rank 1 alone."""
    mine, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = mine if mine.included() else alone
    for changes in ({}, {"options": {"groups": 2}}, {"passes": 2, "optimizer": adam}):
        case = {**PLAIN, **changes}
        options = {**case["options"], "process_set": mine}
        ours = train({**case, "options": options}, mine.rank(), mine.size(), "hvd")
        assert furthest(ours, train(case)) < 1e-10
    model, optimizer = made(process_set=hvd.add_process_set([0, 1]))
    one_step(model, optimizer)  # on rank 2: a step on its own gradients, which waits for nobody
    everybody = hvd.allgather_object([p.detach() for p in model.parameters()])
    assert furthest(everybody[0], everybody[1]) == 0 and furthest(everybody[0], everybody[2]) > 1e-4


# -- Adasum ------------------------------------------------------------------------------------


@case("optimizer", least=2)
def adasum_combines_steps():
    if hvd.size() & (hvd.size() - 1):
        return  # it takes powers of two
    alike, optimizer = made(op=hvd.Adasum, optimizer=with_momentum)
    assert isinstance(optimizer, torch.optim.SGD)
    for step in range(2):
        one_step(alike, optimizer, step)
    assert agree(alike) == 0
    with pytest.raises(AssertionError, match="not supported when using Adasum"):
        optimizer.skip_synchronize()
    optimizer.synchronize()
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


def bias_of(model):
    """The gradient that `push` has left, in units of the average over ranks."""
    return (model.second.bias.grad / ((hvd.size() + 1) / 2)).tolist()


@case("optimizer", least=2)
def in_flight():
    model, optimizer = made(backward_passes_per_step=2)
    for set_to_none in (True, False):
        push(model)
        with pytest.raises(AssertionError, match="zero_grad.*prohibited as it can cause a race condition"):
            optimizer.zero_grad(set_to_none=set_to_none)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert model.second.bias.grad.abs().max() == 0
    push(model)
    optimizer.load_state_dict(optimizer.state_dict())  # forgets what is under way
    optimizer.zero_grad()


@case("optimizer", least=2)
def too_many_and_too_few_passes():
    for options in ({}, {"groups": 1}):
        model, optimizer = made(net=lambda: nn.Sequential(nn.Linear(5, 3)), **options)
        model(torch.ones(1, 5).double()).sum().backward()
        with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
            model(torch.ones(1, 5).double()).sum().backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        one_step(model, optimizer)
    model, optimizer = made(backward_passes_per_step=3)
    push(model)
    optimizer.step()  # reduces what there is
    assert bias_of(model) == [1.0] * 3
    optimizer.set_backward_passes_per_step(2)
    optimizer.zero_grad()
    push(model), push(model)
    optimizer.synchronize()
    assert optimizer.backward_passes_per_step == 2 and bias_of(model) == [2.0] * 3
    with pytest.raises(ValueError, match="positive integer"):
        optimizer.set_backward_passes_per_step(0)


@case("optimizer", least=2)
def warns_after_synchronize():
    """The step after it reduces nothing twice, and takes the gradients that came since."""
    for early in (True, False):
        model, optimizer = made(op=hvd.Sum)
        if early:
            push(model, 1.0)
        optimizer.synchronize()
        if not early:
            push(model, 1.0)
        with pytest.warns(UserWarning, match=r"step\(\) called without optimizer.skip_synchronize\(\)") as told:
            optimizer.step()
        assert len(told) == 1 and model.second.bias.grad.tolist() == [hvd.size()] * 3


@case("optimizer", least=2)
def changed_in_flight():
    """Clipping without synchronize() is a race, and is told."""
    for options in ({}, {"groups": 2}, {"compression": hvd.Compression.fp16}):
        model, optimizer = made(**options)
        model(torch.ones(1, 5).double()).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.warns(UserWarning, match="gradients of .*optimizer.synchronize") as told:
            optimizer.step()
        assert len(told) == 1


@case("optimizer", least=2)
def refusals():
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    both = sgd([*one.parameters(), *two.parameters()])
    named = [*one.named_parameters(), *two.named_parameters()]
    with pytest.raises(ValueError, match="must be unique. Found duplicates: bias, weight"):
        hvd.DistributedOptimizer(both, named)
    with pytest.raises(ValueError, match="were not named"):
        hvd.DistributedOptimizer(both, one.named_parameters())
    with pytest.raises(ValueError, match="sequence of tuples"):
        hvd.DistributedOptimizer(sgd(one.parameters()), one.parameters())
    plain = sgd(one.parameters())
    for wrong, words in (
        ({"groups": -1}, "non-negative integer"),
        ({"groups": "all"}, "non-negative integer"),
        ({"groups": [["weight"]]}, "consist of torch.Tensor"),
        ({"groups": [[one.weight], [one.weight]]}, "only appear once"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "not supported with op != Average"),
        ({"gradient_predivide_factor": 0.0}, "positive"),
        ({"backward_passes_per_step": 0}, "positive integer"),
    ):
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(plain, one.named_parameters(), **wrong)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        optimizer = hvd.DistributedOptimizer(plain, one.named_parameters(), num_groups=1)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


@case("optimizer", least=2)
def same_kind():
    """It is an optimizer of the class that it wraps, and schedulers see no difference, made before or after it."""
    torch.manual_seed(3)
    model = Net().double()
    plain = adamw(model.parameters())
    early = torch.optim.lr_scheduler.LambdaLR(plain, lambda epoch: 0.5**epoch)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW) and type(optimizer).__name__ == "AdamW"
    assert "lr" in repr(optimizer) and optimizer.defaults["lr"] == 0.05
    late = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1**epoch)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    for schedule, rate in ((early, 0.025), (late, 0.005)):
        one_step(model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error" if schedule is late else "ignore")
            schedule.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    optimizer.load_state_dict(optimizer.state_dict())
    one_step(model, optimizer)
    assert calls == ["pre", "post"] * 3  # each hook once
    assert agree(model) == 0


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
    x = nn.Parameter(torch.zeros(2))
    wrong = nn.Parameter(torch.zeros(2 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(sgd([x, wrong]), [("x", x), ("wrong", wrong)])
    (x.sum() + wrong.sum()).backward()
    with pytest.raises(hvd.HorovodInternalError, match="wrong"):
        optimizer.step()
    wrong.requires_grad_(False)
    optimizer.zero_grad()
    (x * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    assert x.grad.tolist() == [(hvd.size() + 1) / 2] * 2


@case("optimizer", least=2)
def discarded():
    """A model outlives its optimizer: another one takes over, as in a notebook cell that is run twice."""
    model, optimizer = made()
    one_step(model, optimizer)
    del optimizer
    gc.collect()
    model(torch.ones(1, 5).double()).sum().backward()  # of interest to nobody
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    one_step(model, optimizer, 1)
    assert agree(model) == 0


@case("optimizer", most=1)
def alone():
    """A world of one: a plain optimizer with all the names, and no rule about passes."""
    model, optimizer = made(adam, groups=2)
    for _ in range(3):
        push(model)
    optimizer.zero_grad()
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    made(op=hvd.Adasum)
