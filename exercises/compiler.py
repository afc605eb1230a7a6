"""Checks of 06_compiler: a model in one graph, an epoch of one compilation, and when a compiler is right."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from helpers import releases

from .verdict import attempt, exercise, not_yet, right

BATCHES = ((0, 1), (1, 10), (2, 1), (0, 10))  # (seed, factor of the first sample): an outlier makes the `if` true


class Talkative(nn.Module):
    """The model of the exercise; breaks the graph in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        x = F.silu(x / x.std().item())
        peak = x.abs().max()
        if peak > 3:
            x = x * (3 / peak)
        return self.second(x)


@exercise("One graph, the same numbers, the same gradients, on both sides of what was an `if`.")
def one_graph(model_class):
    """`model_class()` must compute what Talkative does, gradients too, in one graph for all inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = Talkative()
        after, problem = attempt(model_class)
    if problem is None:
        _, problem = attempt(lambda: after.load_state_dict(before.state_dict()))
        problem = problem and "it has other layers than before. Change `forward` only"
    yield problem and f"{problem[0].upper()}{problem[1:]}."
    graphs, breaks = [], len(_reasons())
    _forget()
    compiled = torch.compile(after, backend=_counting(graphs), **releases.isolated())
    for seed, factor in BATCHES:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        x[0] *= factor
        hint = _hint_model(before, after, compiled, x)
        yield hint and (f"Where the `if` was taken, {hint}" if factor > 1 else f"Where the `if` was not taken, {hint}")
    found = {(reason.user_stack[-1].line or "").strip() for reason in _reasons()[breaks:] if reason.user_stack}
    yield found and f"The numbers are right, but the graph still breaks at: {' and at: '.join(sorted(found))}"
    if len(graphs) > 1:
        yield f"No break is left, but {len(graphs)} graphs were compiled: what depends on a number's value?"


def _hint_model(before, after, compiled, x):
    """What is wrong with the outputs or gradients of `after` for the inputs `x`, or None."""
    wanted, found = before(x), None
    for how, call in (("", after), ("compiled, ", compiled)):
        found, problem = attempt(call, x)
        if problem:
            return f"{how}{problem.splitlines()[0]}."
        if not torch.is_tensor(found) or found.shape != wanted.shape:
            return f"{how}the output is not a tensor of {list(wanted.shape)}. Is there a `return`?"
        if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
            return f"{how}the outputs are not those of before."
    if not found.requires_grad:
        return "the outputs are right, but no gradient flows back from them."
    gradients = [
        torch.autograd.grad(out.square().sum(), list(m.parameters())) for m, out in ((before, wanted), (after, found))
    ]
    if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*gradients, strict=True)):
        return (
            "the outputs are right, the gradients are not. A number that .item() has fetched is a constant for "
            "autograd: what makes a constant of a tensor, and leaves it where it is?"
        )
    return None


SETS = ((22, 8), (19, 8), (24, 8))  # (samples, batch)


def one_compilation(train_epoch) -> bool:
    """`train_epoch(model, optimizer, images, labels, batch)` must train on all samples with one compilation."""
    left_out = 0
    for samples, batch in SETS:
        graphs, net, images, labels = [], *_small_set(samples)
        start = copy.deepcopy(net.state_dict())
        _forget()
        model = torch.compile(net, backend=_counting(graphs), **releases.isolated())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for _ in range(2):
            # Or it would remember from earlier cells that this size varies, and be prepared for it.
            with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
                _, problem = attempt(train_epoch, model, optimizer, images, labels, batch)
            if problem:
                return not_yet(f"{samples} samples in batches of {batch}: {problem.splitlines()[0]}.")
        hint = _hint_epoch(net, start, images, labels, batch, len(graphs))
        if isinstance(hint, str):
            return not_yet(f"{samples} samples in batches of {batch}: {hint}")
        left_out = left_out or hint
    if left_out:
        return right(
            f"One compilation. It costs you {left_out} of {SETS[0][0]} samples in each epoch: shuffle, so that they "
            "are others each time."
        )
    return right("One compilation, and every sample counts once.")


def _hint_epoch(net, start, images, labels, batch, compiled):
    """A hint, or how many samples of an epoch were left out."""
    samples, over = len(images), len(images) % batch

    def same_as(**how):
        reference = _small_set(samples)[0]
        reference.load_state_dict(start)
        for _ in range(2):
            _train(reference, images, labels, batch, **how)
        pairs = zip(net.parameters(), reference.parameters(), strict=True)
        return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)

    dropped = over > 0 and same_as(last="drop")
    if not dropped and not same_as():
        if all(torch.equal(p, start[name]) for name, p in net.named_parameters()):
            return "the weights have not changed. Which calls make an update?"
        if over and same_as(last="pad"):
            return "the padding was learnt from: as images of zeros with labels of their own. Leave it out of the loss."
        if over and same_as(last="thin"):
            return f"the last loss was divided by {batch}, but {over} samples are in it: their update is too small."
        if over and same_as(last="wrap"):
            return "the last batch was filled up with samples that count twice now. Fill it with what does not count."
        return "the weights are not those of an ordinary epoch. Take each sample once, and the mean loss of each batch."
    if compiled == 0:
        return "nothing was compiled. Call the model that you are given."
    if compiled > 1:
        return f"{compiled} compilations. The last batch has {over} samples: which batch must not look different?"
    return over if dropped else 0


def _small_set(samples):
    """(a net, images, labels): the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(samples)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.SiLU(), nn.Linear(6, 3))
        return net, torch.randn(samples, 3, 2, 2), torch.randint(3, (samples,))


def _train(net, images, labels, batch, last="use"):
    """An epoch in eager; `last` says what happens to an incomplete batch."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for part, answers in zip(images.split(batch), labels.split(batch), strict=True):
        missing, divisor = batch - len(part), len(part)
        if missing and last == "drop":
            continue
        if missing and last == "thin":
            divisor = batch
        if missing and last == "pad":
            part, answers = F.pad(part, (0, 0, 0, 0, 0, 0, 0, missing)), F.pad(answers, (0, missing))
            divisor = batch
        if missing and last == "wrap":
            part, answers = torch.cat([part, images[:missing]]), torch.cat([answers, labels[:missing]])
            divisor = batch
        optimizer.zero_grad()
        (F.cross_entropy(net(part), answers, reduction="sum") / divisor).backward()
        optimizer.step()


EPS = torch.finfo(torch.float32).eps
NETS = {"an MLP": (3e-7, 1.0), "a net with SiLU": (2e-6, 1e-4), "a ResNet": (1e-2, 1.0), "a deep ResNet": (1e-2, 1e-6)}


@exercise("Neither too strict for a ResNet nor too lax for an MLP: eager's own error is the measure.")
def close_enough(answer):
    """`answer(eager, plan, exact)`, of flat fp64 tensors: whether a plan is as good as eager, within a factor."""
    for net, (error, scale) in NETS.items():
        exact = scale * _noise(0)
        eager = exact + error * scale * _noise(1)
        told = f"In {net} eager's gradients are {error:.0e} off the exact ones"
        sound = {f"{f:g} times as far": exact + f * error * scale * _noise(2) for f in (0.5, 1.0, 2.0)}
        for how, plan in {"not at all": eager.clone(), **sound}.items():
            off = "and a plan computes just what eager does" if how == "not at all" else f"and a sound plan is {how}"
            yield _verdict(answer, (eager, plan, exact), True, f"{told}, {off}")
        for what, plan in _faults(exact, error, scale).items():
            yield _verdict(answer, (eager, plan, exact), False, f"{told}, and {what}")
    exact = torch.ones(8, dtype=torch.float64)
    told = "Eager has hit the exact numbers by luck, and a sound plan is one rounding of fp32 off"
    hint = _verdict(answer, (exact, exact * (1 + EPS / 2), exact), True, told)
    yield hint and f"{hint} How near can fp32 come at all?"


def _noise(seed):
    return torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _faults(exact, error, scale):
    far = 30 * error
    broken = exact.clone()
    broken[7] = math.nan
    return {
        f"a plan is off by {far:.0e}": exact + far * scale * _noise(3),
        "a plan's numbers are half too large": 1.5 * exact,
        "a plan's gradients are all 0": torch.zeros_like(exact),
        "a plan's gradients have the wrong sign": -exact,
        "one of a plan's numbers is nan": broken,
    }


def _verdict(answer, given, wanted, told):
    """A hint if the reader's function does not say `wanted`, or None."""
    said, problem = attempt(lambda: bool(answer(*(t.clone() for t in given))))
    if problem:
        return f"{told}: {problem}."
    if said == wanted:
        return None
    return f"{told}: your function refuses it." if wanted else f"{told}: your function takes it."


def _forget():
    """Where compiled functions cannot be kept apart, drop what an earlier one has taught the compiler."""
    if not releases.isolated():
        torch._dynamo.reset()


def _counting(graphs):
    """A backend that compiles nothing, and notes down what it was given."""

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return backend


def _reasons():
    from torch._dynamo import utils

    return utils.graph_break_reasons
