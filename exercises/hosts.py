"""Checks of 09_several_machines: start hosts, go on from a checkpoint, what an all-reduce costs, what of it hides."""

import os
import shlex
import tempfile

import torch

from helpers import costmodel

from .verdict import attempt, exercise, formula, number, same


@exercise
def command_for(answer, say):
    """`answer(host, hosts, each)` is the torchrun line to paste on `host`, one of `hosts` with `each` ranks."""
    for hosts, each in ((("anna", "bert"), 8), (("a1", "a2", "a3"), 4)):  # hosts, ranks on each
        found, n = [], len(hosts)
        for host in hosts:
            text, problem = attempt(answer, host, list(hosts), each)
            case = say("line", host=host, hosts=", ".join(hosts), each=each)
            yield case, problem or (not isinstance(text, str) and say("no line", text=text))
            words = shlex.split(text)
            yield case, (words[:1], words[-1:]) != (["torchrun"], ["train.py"]) and say("ends")
            found.append(_options(words))
            yield case, "standalone" in found[-1] and say("standalone")
        case = say("job", n=n, each=each)

        def of(name, found=found):
            return [options.get(name) for options in found]

        def told(name, of=of):
            return ", ".join(map(str, dict.fromkeys(of(name))))

        ends = of("rdzv-endpoint")
        yield case, of("nnodes") != [str(n)] * n and say("nodes", found=told("nnodes"))
        yield case, of("nproc-per-node") == [str(each * n)] * n and say("all ranks", found=told("nproc-per-node"))
        yield case, of("nproc-per-node") != [str(each)] * n and say("ranks", found=told("nproc-per-node"))
        yield case, None in ends and say("nowhere")
        yield case, any(end.startswith(("localhost", "127.")) for end in ends) and say("localhost")
        yield case, len(set(ends)) > 1 and say("points", found=told("rdzv-endpoint"))
        yield case, ends[0].partition(":")[0] not in hosts and say("elsewhere", found=ends[0])
        yield case, set(of("rdzv-backend")) != {"c10d"} and say("static")
        yield case, len(set(of("rdzv-id"))) > 1 and say("runs", found=told("rdzv-id"))


def _options(words):
    """{option: value} of a torchrun line, hyphens or underscores, "=" or a space between."""
    found, name = {}, None
    for word in words[1:-1]:
        if word.startswith("-"):
            name, _, value = word.lstrip("-").replace("_", "-").partition("=")
            found[name] = value
        elif name:
            found[name] = word
    return found


@exercise
def resume(answer, say):
    """`answer(path, model, optimizer)`: load "model", "optimizer" and "step" of a file, if it exists; the next step."""
    with tempfile.TemporaryDirectory() as folder:
        path, whole = os.path.join(folder, "checkpoint.pt"), _train(*_new(0), 0, 6)
        model, optimizer = _new(0)
        before = model.weight.tolist()
        step, problem = attempt(answer, path, model, optimizer)
        yield say("first"), problem and problem.replace(folder + os.sep, "")  # the same words in every run
        yield say("first"), (step != 0 or isinstance(step, bool)) and say("start", step=step)
        yield say("first"), before != model.weight.tolist() and say("changed")
        _train(model, optimizer, 0, 3)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, path)
        saved, (model, optimizer) = model.weight.tolist(), _new(1)
        step, problem = attempt(answer, path, model, optimizer)
        case = say("restart")
        yield case, problem and problem.replace(folder + os.sep, "")
        yield case, type(step) is not int and say("no number", step=step)
        yield case, step != 3 and say("next" if step else "zero", step=step)
        yield case, model.weight.tolist() != saved and say("weights")
        yield case, _train(model, optimizer, step, 6) != whole[3:] and say("momentum")


def _new(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1, bias=False).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _train(model, optimizer, first, last):
    """The losses of steps `first` to `last` - 1, whose batches follow from their numbers."""
    losses = []
    for step in range(first, last):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        loss = (model(x).squeeze() - x[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _ring(size, n, latency, per_byte):
    return sum(costmodel.all_reduce(size, n, costmodel.Link(latency, per_byte)))


def _whole_tensors(value, size, n, latency, per_byte):
    """Whether each message is taken to hold the whole tensor."""
    message = latency + size * per_byte
    return same(value, message) or same(value, 2 * (n - 1) * message)


ring_seconds = formula(
    "ring_seconds",
    "`answer(size, n, latency, per_byte)`: seconds of a ring all-reduce of `size` bytes on `n` devices.",
    (  # bytes, devices, seconds a message, seconds a byte
        (1e6, 2, 1e-4, 1e-8),
        (1e8, 8, 1e-5, 1e-10),
        (0.0, 16, 1e-3, 1e-9),
        (4e6, 1024, 1e-6, 1e-9),
        (1e6, 1, 1.0, 1.0),
    ),
    lambda size, n, latency, per_byte: _ring(size, n, latency, per_byte),
    number,
    alone=lambda value, size, n, latency, per_byte: n == 1,
    bytes=lambda size, n, latency, per_byte: _ring(size, n, 0, per_byte),
    once=lambda *case: _ring(*case) / 2,
    piece=_whole_tensors,
)
not_hidden = formula(
    "not_hidden",
    "`answer(backward, ready, costs)`: seconds of sending that are left when backward is over.",
    (
        (1.0, (1.0,), (0.3,)),
        (1.0, (0.2, 0.5, 1.0), (0.1, 0.1, 0.2)),
        (1.0, (0.2, 0.4, 1.0), (0.9, 0.4, 0.1)),
        (0.1, (0.3, 0.6, 1.0), (0.5, 0.5, 0.5)),
        (2.0, (0.5, 1.0), (0.1, 0.0)),
    ),
    lambda backward, ready, costs: costmodel.overlap(backward, ready, costs, [0.0] * len(costs))[1],
    number,
    all=lambda backward, ready, costs: sum(costs),
    last=lambda backward, ready, costs: costs[-1],
    negative=lambda value, *case: value < 0,
    less=lambda value, backward, ready, costs: value > costmodel.overlap(backward, ready, costs, [0.0] * len(costs))[1],
)
