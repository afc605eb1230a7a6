"""Checks that try the reader's function in this process: notebooks 00 to 05, 09 and 10."""

import math
import operator
import shlex
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.optim import optimizer as hooks

from .verdict import attempt, exercise, flat, formula, nearest


@exercise
def slices(function, say):
    """`function(rank, world_size, samples)` gives (start, stop): one owner each, sizes at most 1 apart."""
    for samples, n in ((1437, 1), (1437, 2), (1437, 4), (1437, 8), (8, 3), (2, 3)):
        say.case(n=n, samples=samples)
        owners, sizes = [0] * samples, []
        for rank in range(n):
            answer = attempt(function, rank, n, samples)
            try:
                start, stop = map(operator.index, answer)
            except (TypeError, ValueError):
                yield say("no pair", rank=rank, answer=answer)
            inside = 0 <= start <= stop <= samples
            yield not inside and say("outside", rank=rank, start=start, stop=stop, last=samples - 1)
            owners[start:stop] = [count + 1 for count in owners[start:stop]]
            sizes.append(stop - start)
        yield 0 in owners and say("nobody", count=owners.count(0), first=owners.index(0), samples=samples, n=n)
        most = max(owners)
        yield most > 1 and say("shared", sample=owners.index(most), owners=most)
        yield max(sizes) - min(sizes) > 1 and say("uneven", least=min(sizes), most=max(sizes))


WORK = [90, 40, 10, 12, 11, 10, 14]  # ms that a device needs for each step
ORDERS = 1  # ms that Python needs to queue a step


class Device:
    """A device that works through a queue, on a clock of its own in ms; something is queued already."""

    def __init__(self):
        self.now, self.free, self.steps = 0, 25, 0

    def step(self):
        self.now += ORDERS
        self.free = max(self.free, self.now) + WORK[self.steps]
        self.steps += 1

    def clock(self):
        return self.now

    def synchronize(self):
        self.now = max(self.now, self.free)


@exercise
def timed_steps(function, say):
    """`function(step, steps, warmup, clock, synchronize)` gives the times after the warm-up; tried on a Device."""
    for steps, warmup in ((7, 2), (5, 0)):
        device, wanted = Device(), [ORDERS + work for work in WORK[warmup:steps]]
        say.case(steps=steps, warmup=warmup)
        times = attempt(function, device.step, steps, warmup, device.clock, device.synchronize)
        listed = isinstance(times, (list, tuple)) and all(isinstance(time, (int, float)) for time in times)
        yield not listed and say("no list", times=times)
        yield device.steps != steps and say("calls", calls=device.steps)
        yield len(times) != len(wanted) and say("count", n=len(times))
        guesses = {"right": wanted, "queued": [ORDERS] * len(wanted), "first": [*times[:1], *wanted[1:]]}
        key = nearest(times, guesses | {"short": [time - ORDERS for time in wanted]})
        yield key != "right" and say(key, times=times, wanted=wanted, orders=ORDERS)


@exercise
def reduce_gradients(answer, say):
    """`answer(gradients, sizes)` must give the whole batch's gradients.

    `gradients[i]` is the list of replica i's gradients, one a parameter, of the mean loss over its
    own piece of `sizes[i]` samples.
    """
    for sizes in ((4, 4), (5, 3), (4, 2, 1)):
        n, (whole, *gradients) = len(sizes), _gradients(sum(sizes), *sizes)
        say.case(sizes=" + ".join(map(str, sizes)))
        found = attempt(answer, [[g.clone() for g in of_one] for of_one in gradients], list(sizes))
        yield not (isinstance(found, (list, tuple)) and len(found) == len(whole)) and say("list", n=len(whole))
        shaped = all(torch.is_tensor(g) and g.shape == w.shape for g, w in zip(found, whole, strict=True))
        yield not shaped and say("shape")
        guesses = {"right": whole}
        for key, weights in {"sum": [1] * n, "mean": [1 / n] * n, "weighted": sizes}.items():
            guesses[key] = [sum(w * g for w, g in zip(weights, of, strict=True)) for of in zip(*gradients, strict=True)]
        key = nearest(found, guesses)
        yield key != "right" and say(key)


def _gradients(samples, *sizes):
    """The gradients of mean losses, in float64: of the whole batch, and of pieces of these sizes."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Linear(4, 3).double()
    inputs = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (samples,), generator=generator)
    pieces = [(inputs, labels), *zip(inputs.split(sizes), labels.split(sizes), strict=True)]
    return [torch.autograd.grad(F.cross_entropy(net(some), of), list(net.parameters())) for some, of in pieces]


@contextmanager
def noted_updates():
    """A list that grows with each optimizer's step: (weights, gradients) just before it."""
    notes = []

    def note(optimizer, *_):
        used = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        notes.append([flat(of).clone() for of in (used, [p.grad for p in used])])

    handle = hooks.register_optimizer_step_pre_hook(note)
    try:
        yield notes
    finally:
        handle.remove()


@exercise
def resumable(answer, say):
    """`answer(path, until, batches)` trains until `until` epochs are done, from the checkpoint at `path` if any."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name, until in (("whole", 3), ("parts", 1), ("parts", 3)):
            torch.manual_seed(len(runs))  # a new process knows nothing of the one before
            runs.append(_run(answer, Path(folder) / f"{name}.pt", until))
            yield name == "parts" and not (Path(folder) / "parts.pt").exists() and say("no file")
    (whole, noted), (first, done), (resumed, went_on) = runs
    yield (whole, first) != ([0, 1, 2], [0]) and say("epochs", whole=whole, first=first)
    yield resumed != [1, 2] and say("again" if 0 in resumed else "next", resumed=resumed)
    for step, (one, other) in enumerate(zip(noted[len(done) :], went_on, strict=False), 1):
        weights, gradients = map(torch.equal, one, other)
        yield not weights and say("weights" if step == 1 else "momentum", step=step)
        yield not gradients and say("gradients", step=step)


def _run(answer, path, until):
    """(epochs trained, notes of each update)."""
    epochs, generator = [], torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(32, 8, generator=generator), torch.randint(0, 3, (32,), generator=generator)

    def batches(epoch):
        epochs.append(epoch)
        order = torch.randperm(32, generator=torch.Generator().manual_seed(epoch))
        return [(inputs[rows], labels[rows]) for rows in order.split(8)]

    with noted_updates() as updates:
        attempt(answer, str(path), until, batches)
    return epochs, updates


def _amp(step, micro, max_norm, bad):
    """The weights and the loss scale after three steps, where `bad` of them meet an infinite gradient."""
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(4, 3)
    torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for k in range(3):
        inputs = torch.randn(micro, 8, 4, generator=generator) * (1e37 if k < bad else 1)
        labels = torch.randint(0, 3, (micro, 8), generator=generator)
        step(model, optimizer, scaler, list(zip(inputs, labels, strict=True)), max_norm)
    return [*(p.detach().nan_to_num() for p in model.parameters()), scaler.get_scale()]


def _step(order="unscale clip step update", mean=True):
    """A step of AMP with these calls in this order, right or wrong."""

    def step(model, optimizer, scaler, micro_batches, max_norm):
        calls = {
            "unscale": lambda: scaler.unscale_(optimizer),
            "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm),
            "step": lambda: scaler.step(optimizer),
            "plain": optimizer.step,
            "update": scaler.update,
        }
        optimizer.zero_grad()
        for inputs, labels in micro_batches:
            loss = F.cross_entropy(model(inputs), labels) / (len(micro_batches) if mean else 1)
            scaler.scale(loss).backward()
        for name in order.split():
            calls[name]()

    return partial(_amp, step)


@formula(
    ((1, math.inf, 0), (4, math.inf, 0), (4, 0.1, 0), (4, 0.1, 1)),
    partial(attempt, _amp),
    scaled=_step("plain"),
    sum=_step(mean=False),
    early=_step("clip step update"),
    plain=_step("unscale clip plain update"),
)
def amp_step(micro, max_norm, bad):
    """`answer(model, optimizer, scaler, micro_batches, max_norm)` makes one step with clipping and a loss scale."""
    return _step()(micro, max_norm, bad)


@exercise
def command_for(answer, say):
    """`answer(host, hosts, each)` is the torchrun line to paste on `host`, one of `hosts` with `each` ranks."""
    for hosts, each in ((("anna", "bert"), 8), (("a1", "a2", "a3"), 4)):  # hosts, ranks on each
        lines, n = [], len(hosts)
        for host in hosts:
            say.case("line", host=host, hosts=", ".join(hosts), each=each)
            text = attempt(answer, host, list(hosts), each)
            yield not isinstance(text, str) and say("no line", text=text)
            words = shlex.split(text)
            yield (words[:1], words[-1:]) != (["torchrun"], ["train.py"]) and say("ends")
            lines.append(_options(words))
            yield "standalone" in lines[-1] and say("standalone")
        say.case("job", n=n, each=each)
        names = ("nnodes", "nproc-per-node", "rdzv-endpoint", "rdzv-backend", "rdzv-id")
        nodes, ranks, ends, ways, runs = (list(dict.fromkeys(of.get(name) for of in lines)) for name in names)
        yield nodes != [str(n)] and say("nodes", found=nodes)
        yield ranks != [str(each)] and say("all ranks" if ranks == [str(each * n)] else "ranks", found=ranks)
        yield None in ends and say("nowhere")
        yield any(end.startswith(("localhost", "127.")) for end in ends) and say("localhost")
        yield len(ends) > 1 and say("points", found=ends)
        yield ends[0].partition(":")[0] not in hosts and say("elsewhere", found=ends)
        yield ways != ["c10d"] and say("static")
        yield len(runs) > 1 and say("runs", found=runs)


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


CAUSES = {  # of the symptoms of notebooks/scripts/five_failures.py
    "A": "different collectives",
    "B": "out of memory",
    "C": "no set_epoch",
    "D": "the metric of one shard",
    "E": "the raw model is called",
}


@exercise
def causes(answer, say):
    """`answer`: {"A": its cause, …}."""
    yield not isinstance(answer, dict) and say("no dict", kind=type(answer).__name__)
    for letter, cause in CAUSES.items():
        say.case(letter=letter)
        given = answer.get(letter)
        yield given is None and say("missing")
        yield given != cause and say(letter, given=given)


@exercise
def diagnosis(answer, say):
    """`answer`: {run: what is wrong with it}, of the four recorded runs of notebook 05."""
    yield not isinstance(answer, dict) and say("no dict", answer=answer)
    for run, cause in zip("ABCD", ("more work", "few updates", "too long steps", "nothing"), strict=True):
        yield answer.get(run) != cause and say(run)
