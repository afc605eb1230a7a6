"""Checks of 06_compiler: a model in one graph, and an epoch of one compilation."""

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
        before, after = Talkative(), attempt(model_class)
    try:
        after.load_state_dict(before.state_dict())
    except Exception:  # no model at all, or another one
        yield say("layers")
    from torch._dynamo.utils import graph_break_reasons

    graphs, breaks = [], len(graph_break_reasons)
    compiled = _compiled(after, graphs)
    for seed, factor in BATCHES:
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        x[0] *= factor
        say.case("taken" if factor > 1 else "not taken")
        wanted, found = before(x), None
        for call in (after, compiled):
            found = attempt(call, x)
            shaped = torch.is_tensor(found) and found.shape == wanted.shape
            yield not shaped and say("shape", shape=list(wanted.shape))
            yield not _near([found], [wanted]) and say("outputs")
        yield not found.requires_grad and say("detached")
        pairs = (before, wanted), (after, found)
        gradients = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for model, out in pairs]
        yield not _near(*gradients) and say("gradients")
    say.tried = None
    found = {(reason.user_stack[-1].line or "").strip() for reason in graph_break_reasons[breaks:] if reason.user_stack}
    yield found and say("breaks", lines=" and at: ".join(sorted(found)))
    yield len(graphs) > 1 and say("graphs", n=len(graphs))


@exercise
def one_compilation(train_epoch, say):
    """`train_epoch(model, optimizer, images, labels, batch)` must train on all samples with one compilation."""
    for samples, batch in ((22, 8), (19, 8), (24, 8)):
        graphs, net, images, labels = [], *_small_set(samples)
        model = _compiled(net, graphs)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        say.case(samples=samples, batch=batch)
        for _ in range(2):
            # Or it would remember from earlier cells that this size varies, and be prepared for it.
            with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
                attempt(train_epoch, model, optimizer, images, labels, batch)
        if not any(_trained(samples, batch, way, net) for way in ("drop", "use")):
            yield _near(net.parameters(), _small_set(samples)[0].parameters()) and say("unchanged")
            yield say("otherwise")
        yield not graphs and say("nothing")
        yield len(graphs) > 1 and say("compilations", compiled=len(graphs), over=samples % batch)


def _small_set(samples):
    """(a net, images, labels): the same ones every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(samples)
        net = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.SiLU(), nn.Linear(6, 3))
        return net, torch.randn(samples, 3, 2, 2), torch.randint(3, (samples,))


def _trained(samples, batch, last, like):
    """Whether two epochs in eager end as `like` has; `last` says what happens to an incomplete batch."""
    net, images, labels = _small_set(samples)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for part, answers in 2 * list(zip(images.split(batch), labels.split(batch), strict=True)):
        if last == "drop" and len(part) < batch:
            continue
        optimizer.zero_grad()
        F.cross_entropy(net(part), answers).backward()
        optimizer.step()
    return _near(net.parameters(), like.parameters())


def _near(some, others):
    return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(some, others, strict=True))


def _compiled(model, graphs):
    """`model` given to a backend that compiles nothing, and appends what it was given to `graphs`."""

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    if not releases.isolated():  # drop what an earlier function has taught the compiler
        torch._dynamo.reset()
    return torch.compile(model, backend=backend, **releases.isolated())
