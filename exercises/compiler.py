"""Checks of 06_compiler: a model in one graph, an epoch of one compilation, and when a compiler is right."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from helpers import releases

from .verdict import attempt, exercise

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


@exercise
def one_graph(model_class, say):
    """`model_class()` must compute what Talkative does, gradients too, in one graph for all inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        before = Talkative()
        after, problem = attempt(model_class)
    yield problem and f"{problem[0].upper()}{problem[1:]}."
    yield attempt(lambda: after.load_state_dict(before.state_dict()))[1] and say("layers")
    graphs, breaks = [], len(_reasons())
    compiled = _compiled(after, graphs)
    for seed, factor in BATCHES:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        x[0] *= factor
        case, wanted, found = say("taken" if factor > 1 else "not taken"), before(x), None
        for call in (after, compiled):
            found, problem = attempt(call, x)
            yield case, problem and problem.splitlines()[0]
            shaped = torch.is_tensor(found) and found.shape == wanted.shape
            yield case, not shaped and say("shape", shape=list(wanted.shape))
            yield case, not torch.allclose(found, wanted, rtol=1e-4, atol=1e-5) and say("outputs")
        yield case, not found.requires_grad and say("detached")
        pairs = (before, wanted), (after, found)
        gradients = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for model, out in pairs]
        same = all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*gradients, strict=True))
        yield case, not same and say("gradients")
    found = {(reason.user_stack[-1].line or "").strip() for reason in _reasons()[breaks:] if reason.user_stack}
    yield found and say("breaks", lines=" and at: ".join(sorted(found)))
    yield len(graphs) > 1 and say("graphs", n=len(graphs))


@exercise
def one_compilation(train_epoch, say):
    """`train_epoch(model, optimizer, images, labels, batch)` must train on all samples with one compilation."""
    for samples, batch in ((22, 8), (19, 8), (24, 8)):
        graphs, net, images, labels = [], *_small_set(samples)
        start = copy.deepcopy(net.state_dict())
        model = _compiled(net, graphs)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        case, over = say("case", samples=samples, batch=batch), samples % batch
        for _ in range(2):
            # Or it would remember from earlier cells that this size varies, and be prepared for it.
            with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
                _, problem = attempt(train_epoch, model, optimizer, images, labels, batch)
            yield case, problem and problem.splitlines()[0]
        ways = [way for way in ("drop", "use", "pad", "thin", "wrap") if _trained(samples, start, batch, way, net)]
        if not {"drop", "use"} & set(ways):
            yield case, all(torch.equal(p, start[name]) for name, p in net.named_parameters()) and say("unchanged")
            yield case, say(ways[0] if over and ways else "otherwise", batch=batch, over=over)
        yield case, not graphs and say("nothing")
        yield case, len(graphs) > 1 and say("compilations", compiled=len(graphs), over=over)


def _small_set(samples):
    """(a net, images, labels): the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(samples)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.SiLU(), nn.Linear(6, 3))
        return net, torch.randn(samples, 3, 2, 2), torch.randint(3, (samples,))


def _trained(samples, start, batch, last, like):
    """Whether two epochs in eager end as `like` has; `last` says what happens to an incomplete batch."""
    net, images, labels = _small_set(samples)
    net.load_state_dict(start)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for part, answers in 2 * list(zip(images.split(batch), labels.split(batch), strict=True)):
        missing, divisor = batch - len(part), len(part) if last == "use" else batch
        if missing and last == "drop":
            continue
        if missing and last == "pad":
            part, answers = F.pad(part, (0, 0, 0, 0, 0, 0, 0, missing)), F.pad(answers, (0, missing))
        if missing and last == "wrap":
            part, answers = torch.cat([part, images[:missing]]), torch.cat([answers, labels[:missing]])
        optimizer.zero_grad()
        (F.cross_entropy(net(part), answers, reduction="sum") / divisor).backward()
        optimizer.step()
    pairs = zip(net.parameters(), like.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


EPS = torch.finfo(torch.float32).eps
NETS = {"an MLP": (3e-7, 1.0), "a net with SiLU": (2e-6, 1e-4), "a ResNet": (1e-2, 1.0), "a deep ResNet": (1e-2, 1e-6)}


@exercise
def close_enough(answer, say):
    """`answer(eager, plan, exact)`, of flat fp64 tensors: whether a plan is as good as eager, within a factor."""

    def says(*given):
        return attempt(lambda: bool(answer(*(t.clone() for t in given))))

    for net, (error, scale) in NETS.items():
        exact = scale * _noise(0)
        eager, broken = exact + error * scale * _noise(1), exact.clone()
        broken[7] = math.nan
        plans = [("same", 0, True, eager.clone())]
        plans += [("refuses", far, True, exact + far * error * scale * _noise(2)) for far in (0.5, 1.0, 2.0)]
        plans += [("takes off", 30 * error, False, exact + 30 * error * scale * _noise(3))]
        plans += [("takes half", 0, False, 1.5 * exact), ("takes zero", 0, False, torch.zeros_like(exact))]
        plans += [("takes sign", 0, False, -exact), ("takes nan", 0, False, broken)]
        for key, far, wanted, plan in plans:
            said, problem = says(eager, plan, exact)
            yield say("case", net=net, error=error), problem or (said != wanted and say(key, far=far))
    exact = torch.ones(8, dtype=torch.float64)
    yield says(exact, exact * (1 + EPS / 2), exact)[0] is not True and say("rounding")


def _noise(seed):
    return torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _compiled(model, graphs):
    """`model` given to a backend that compiles nothing, and appends what it was given to `graphs`."""

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    if not releases.isolated():  # drop what an earlier function has taught the compiler
        torch._dynamo.reset()
    return torch.compile(model, backend=backend, **releases.isolated())


def _reasons():
    from torch._dynamo import utils

    return utils.graph_break_reasons
