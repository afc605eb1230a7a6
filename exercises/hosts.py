"""Checks of 09_several_machines: start hosts, go on from a checkpoint, what an all-reduce costs, what of it hides."""

import math
import os
import shlex
import tempfile

import torch

from helpers import costmodel

from .verdict import attempt, exercise, number

JOBS = ((("anna", "bert"), 8), (("a1", "a2", "a3"), 4))  # (hosts, ranks on each)
MEETING = ("rdzv-endpoint", "rdzv-id")
CASES = (  # bytes, devices, seconds a message, seconds a byte
    (1e6, 2, 1e-4, 1e-8),
    (1e8, 8, 1e-5, 1e-10),
    (0.0, 16, 1e-3, 1e-9),
    (4e6, 1024, 1e-6, 1e-9),
    (1e6, 1, 1.0, 1.0),
)
STEPS = (  # backward, ready, costs
    (1.0, (1.0,), (0.3,)),
    (1.0, (0.2, 0.5, 1.0), (0.1, 0.1, 0.2)),
    (1.0, (0.2, 0.4, 1.0), (0.9, 0.4, 0.1)),
    (0.1, (0.3, 0.6, 1.0), (0.5, 0.5, 0.5)),
    (2.0, (0.5, 1.0), (0.1, 0.0)),
)


@exercise("Paste it on every host within ten minutes: the agents meet, count the ranks, and start them.")
def command_for(answer):
    """`answer(host, hosts, each)` is the torchrun line to paste on `host`, one of `hosts` with `each` ranks."""
    for hosts, each in JOBS:
        found = []
        for host in hosts:
            text, problem = attempt(answer, host, list(hosts), each)
            if problem is None and not isinstance(text, str):
                problem = f"your function returned {text!r}, not a line to paste. Is there a `return`?"
            words = [] if problem else shlex.split(text)
            yield f"the line for {host} of {', '.join(hosts)}, {each} ranks each", problem or _wrong_line(words)
            found.append(_options(words))
        yield f"{len(hosts)} hosts with {each} ranks each", _wrong_job(found, hosts, each)


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


def _wrong_line(words):
    if not words or words[0] != "torchrun" or words[-1] != "train.py":
        return "a line begins with torchrun and ends with the script, train.py"
    if "standalone" in _options(words):
        return "--standalone is for one host: it makes a meeting point that other hosts never hear of"
    return None


def _wrong_job(found, hosts, each):
    nodes, ranks, ends, ids = ([of.get(name) for of in found] for name in ("nnodes", "nproc-per-node", *MEETING))
    if nodes != [str(len(hosts))] * len(hosts):
        return f"--nnodes is the number of hosts, the same in all lines; yours: {_values(nodes)}"
    if ranks == [str(each * len(hosts))] * len(hosts):
        return f"{ranks[0]} is the number of all ranks. Each agent starts those of its own host only"
    if ranks != [str(each)] * len(hosts):
        return f"--nproc-per-node is the number of ranks on a host; yours: {_values(ranks)}"
    if None in ends:
        return "the agents find no place to meet: --rdzv-endpoint=HOST:PORT names one"
    if any(end.startswith(("localhost", "127.")) for end in ends):
        return "localhost is each host's own name for itself, so every agent waits at a place of its own"
    if len(set(ends)) > 1:
        return f"each line names another meeting point, {_values(ends)}: all agents need the same one"
    if ends[0].partition(":")[0] not in hosts:
        return f"the meeting point {ends[0]} is on none of the hosts"
    if {of.get("rdzv-backend") for of in found} != {"c10d"}:
        return "without --rdzv-backend=c10d torchrun takes the static way, which wants a --node-rank from each host"
    if len(set(ids)) > 1:
        return f"the lines name different runs, {_values(ids)}: agents of one run share one --rdzv-id"
    return None


def _values(found):
    return ", ".join(map(str, dict.fromkeys(found)))


@exercise("Weights, the optimizer's state and the number of the step: with these a restart changes no loss.")
def resume(answer):
    """`answer(path, model, optimizer)`: load "model", "optimizer" and "step" of a file, if it exists; the next step."""
    with tempfile.TemporaryDirectory() as folder:
        path, whole = os.path.join(folder, "checkpoint.pt"), _train(*_new(0), 0, 6)
        model, optimizer = _new(0)
        before = model.weight.tolist()
        step, problem = attempt(answer, path, model, optimizer)
        problem = problem and problem.replace(folder + os.sep, "")  # the same words in every run
        yield "the first start, without a file", problem or _wrong_start(step, before != model.weight.tolist())
        _train(model, optimizer, 0, 3)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}, path)
        saved, (model, optimizer) = model.weight.tolist(), _new(1)
        step, problem = attempt(answer, path, model, optimizer)
        problem = (
            problem
            or _wrong_step(step)
            or (
                model.weight.tolist() != saved
                and ("the weights are not those of the file: which method of the model takes its state_dict?")
            )
        )
        yield "a restart after 3 steps", problem
        lost = _train(model, optimizer, step, 6) != whole[3:] and (
            "the weights are right, but the next losses are not those of a run without the accident. What does SGD "
            "with momentum remember besides the weights?"
        )
        yield "a restart after 3 steps", lost


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


def _wrong_start(step, changed):
    if step != 0 or isinstance(step, bool):
        return f"you return {step!r}; with nothing saved, training begins with step 0"
    return "your function has changed the weights" if changed else None


def _wrong_step(step):
    if isinstance(step, bool) or not isinstance(step, int):
        return f"you return {step!r}, not the number of the next step"
    if step == 0:
        return "you return 0, so all steps are made again. The file knows how many are done"
    if step != 3:
        return f"you return {step}. Steps 0, 1 and 2 are done and in the file; which comes next?"
    return None


@exercise("Messages grow with the devices; bytes do not: never more than twice the size, however many there are.")
def ring_seconds(answer):
    """`answer(size, n, latency, per_byte)`: seconds of a ring all-reduce of `size` bytes on `n` devices."""
    for size, n, latency, per_byte in CASES:
        link = costmodel.Link(latency, per_byte)
        wanted = sum(costmodel.all_reduce(size, n, link))
        got, problem = number(answer, size, n, latency, per_byte)
        asked = f"{size:,.0f} bytes on {n} devices"
        yield asked, problem
        if not math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-12):
            yield f"{asked}: {got:.4g} s. {_hint_ring(got, size, n, latency, per_byte)}"


def _hint_ring(got, size, n, latency, per_byte):
    messages, share = 2 * (n - 1), 2 * (n - 1) / n

    def close(value):
        return math.isclose(got, value, rel_tol=1e-6)

    if n == 1:
        return "One device alone sends nothing."
    if close(share * size * per_byte) and latency:
        return "These are the bytes. What do the messages cost, each of them, however small?"
    if close((messages * latency + share * size * per_byte) / 2):
        return "That is once around the ring: now each device has the sum of one piece. All need all pieces."
    if close(latency + size * per_byte) or close(messages * latency + messages * size * per_byte):
        return (
            "How large is the piece that travels in one message? The tensor is cut into as many as there are devices."
        )
    return "How many messages does a device send, one after the other, and how many bytes are in each?"


@exercise("Only the last bucket can never hide, and what has queued up before it.")
def not_hidden(answer):
    """`answer(backward, ready, costs)`: seconds of sending that are left when backward is over."""
    for backward, ready, costs in STEPS:
        wanted = costmodel.overlap(backward, ready, costs, [0.0] * len(costs))[1]
        got, problem = number(answer, backward, list(ready), list(costs))
        asked = f"backward {backward:g} s, ready at {list(ready)} of it, costs {list(costs)} s"
        yield asked, problem
        if not math.isclose(got, wanted, rel_tol=1e-6, abs_tol=1e-9):
            yield f"{asked}: {got:.4g} s. {_hint_hidden(got, wanted, costs)}"


def _hint_hidden(got, wanted, costs):
    if math.isclose(got, sum(costs), rel_tol=1e-6):
        return "That is all of it, as if nothing were sent while backward still runs."
    if math.isclose(got, costs[-1], rel_tol=1e-6, abs_tol=1e-12):
        return "The last bucket has to wait until those before it are through: there is one network for all of them."
    if got < 0:
        return "What is left cannot be less than nothing."
    if got > wanted:
        return "Less is left: a bucket starts as soon as it is ready and the network is free, also amid backward."
    return "More is left. When does each bucket start, and when is the network free again?"
