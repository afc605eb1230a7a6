"""Checks that try the reader's function in this process: notebooks 00 to 05, 09 and 10."""

import math
import operator
import shlex
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.optim import optimizer as hooks

from helpers import measure
from helpers.training import schedules

from .verdict import attempt, exercise, flat, nearest, number, same


@exercise
def slices(function, say):
    """`function(rank, world_size, samples)` gives (start, stop), the rank's piece of all samples.

    Right if every sample has exactly one owner and the pieces differ by one sample at most.
    """
    for samples, n in ((1437, 1), (1437, 2), (1437, 4), (1437, 8), (8, 3), (2, 3)):
        say.case(n=n, samples=samples)
        owners, sizes = [0] * samples, []
        for rank in range(n):
            answer = attempt(function, rank, n, samples)
            start, stop = _piece(answer) or (None, None)
            yield start is None and say("no pair", rank=rank, answer=answer)
            inside = 0 <= start <= stop <= samples
            yield not inside and say("outside", rank=rank, start=start, stop=stop, last=samples - 1)
            owners[start:stop] = [count + 1 for count in owners[start:stop]]
            sizes.append(stop - start)
        yield 0 in owners and say("nobody", count=owners.count(0), first=owners.index(0), samples=samples, n=n)
        most = max(owners)
        yield most > 1 and say("shared", sample=owners.index(most), owners=most)
        yield max(sizes) - min(sizes) > 1 and say("uneven", least=min(sizes), most=max(sizes))


def _piece(answer):
    """(start, stop) of a pair of whole numbers of any kind, a slice or a range, else None."""
    if isinstance(answer, (slice, range)):
        answer = answer.step in (None, 1) and (answer.start or 0, answer.stop)
    try:
        start, stop = map(operator.index, answer)
    except (TypeError, ValueError):
        return None
    return start, stop


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
    """`function(step, steps, warmup, clock, synchronize)` gives the time of each step after the warm-up.

    Tried on a device that only exists here, whose `step` returns before its work is done.
    """
    for steps, warmup in ((7, 2), (5, 0)):
        device, wanted = Device(), [ORDERS + work for work in WORK[warmup:steps]]
        say.case(steps=steps, warmup=warmup)
        times = attempt(function, device.step, steps, warmup, device.clock, device.synchronize)
        listed = isinstance(times, (list, tuple)) and all(isinstance(time, (int, float)) for time in times)
        yield not listed and say("no list", times=times)
        yield device.steps != steps and say("calls", calls=device.steps)
        yield len(times) > len(wanted) and say("many", n=len(times))
        yield len(times) < len(wanted) and say("few", n=len(times))
        short = [time - ORDERS for time in wanted]
        guesses = {
            "right": wanted,
            "queued": [ORDERS] * len(wanted),
            "short": short,
            "first": [*times[:1], *wanted[1:]],
        }
        key = nearest(times, guesses)
        key = "long" if key == "otherwise" and sum(times) > sum(wanted) else key
        yield key != "right" and say(key, times=times, wanted=wanted, orders=ORDERS)


@exercise
def reduce_gradients(answer, say):
    """`answer(gradients, sizes)` must give the whole batch's gradients.

    `gradients[i]` is the list of replica i's gradients, one a parameter, of the mean loss over its
    own piece of `sizes[i]` samples.
    """
    for sizes in ((4, 4), (5, 3), (4, 2, 1)):
        whole, *gradients = _gradients(sum(sizes), *sizes)
        say.case(sizes=" + ".join(map(str, sizes)))
        found = attempt(answer, [[g.clone() for g in of_one] for of_one in gradients], list(sizes))
        yield not (isinstance(found, (list, tuple)) and len(found) == len(whole)) and say("list", n=len(whole))
        shaped = all(torch.is_tensor(g) and g.shape == w.shape for g, w in zip(found, whole, strict=True))
        yield not shaped and say("shape")
        weights = {"sum": [1] * len(sizes), "mean": [1 / len(sizes)] * len(sizes), "weighted": sizes}
        key = nearest(found, {"right": whole} | {key: _weighted(gradients, of) for key, of in weights.items()})
        yield key != "right" and say(key)


def _gradients(samples, *sizes):
    """The gradients of mean losses, in float64: of the whole batch, and of pieces of these sizes."""
    generator = torch.Generator().manual_seed(0)
    net = torch.nn.Linear(4, 3).double()
    inputs = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (samples,), generator=generator)
    pieces = [(inputs, labels), *zip(inputs.split(sizes), labels.split(sizes), strict=True)]
    return [torch.autograd.grad(F.cross_entropy(net(some), of), list(net.parameters())) for some, of in pieces]


def _weighted(gradients, weights):
    """The sum of the replicas' gradients with these weights, parameter by parameter."""
    return [sum(w * g for w, g in zip(weights, of_all, strict=True)) for of_all in zip(*gradients, strict=True)]


@exercise
def visits(answer, say):
    """`answer(data, rank, world_size, epochs)`: what a rank trains on, a list of samples for each of `epochs`."""
    data, found = list(range(100, 124)), {}
    for epochs in (range(4), range(2, 4)):
        for rank in (0, 1):
            got = attempt(lambda *given: [list(map(int, seen)) for seen in answer(*given)], data, rank, 2, epochs)
            yield len(got) != len(epochs) and say("lists", asked=len(epochs), given=len(got))
            found[rank, epochs.start] = got
    orders = found[0, 0]
    for epoch, (some, others) in enumerate(zip(orders, found[1, 0], strict=True)):
        if sorted(some + others) != data:
            yield set(some + others) - set(data) and say("positions")
            yield some == others and say("same", epoch=epoch)
            shared = len(set(some) & set(others))
            yield shared and say("both", epoch=epoch, n=shared)
            yield say("none", epoch=epoch, n=len(data) - len(some + others), all=len(data))
    yield orders[0] in (data[0::2], sorted(orders[0])) and say("unshuffled")
    late = next((late for late, seen in enumerate(orders) if seen in orders[:late]), None)
    if late is not None:
        yield late == 1 and len(set(map(tuple, orders))) > 1 and say("behind")
        yield say("repeated", early=orders.index(orders[late]), late=late)
    yield found[0, 2] != orders[2:] and say("resumed")


@contextmanager
def noted_updates():
    """A list that grows with each optimizer's step: (weights, gradients, momentum) just before it."""
    notes = []

    def note(optimizer, *_):
        used = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        momentum = [optimizer.state[p].get("momentum_buffer") for p in used]
        momentum = [torch.zeros_like(p) if m is None else m for m, p in zip(momentum, used, strict=True)]
        notes.append([flat(of).clone() for of in (used, [p.grad for p in used], momentum)])

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
        weights, gradients, momentum = map(torch.equal, one, other)
        key = "weights" if not weights else "momentum" if not momentum else "gradients"
        yield not (weights and gradients and momentum) and say(key, step=step)


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


RATES = ((0.02, 64, 256, 5), (0.1, 256, 512, 0), (0.05, 64, 64, 3), (0.1, 256, 8192, 1))  # lr, base, batch, warm-up


@exercise
def learning_rate(answer, say):
    """`answer(update, lr, base_batch, global_batch, warmup)`: linear scaling, after a linear warm-up."""
    for lr, base, batch, warmup in RATES:
        peak = schedules.peak_lr(lr, "linear", batch, base)
        wanted = [peak * schedules.factor(update, 100, warmup_steps=warmup) for update in range(warmup + 4)]
        say.case(lr=lr, base=base, batch=batch, warmup=warmup)
        found = [number(answer, update, lr, base, batch, warmup) for update in range(len(wanted))]
        if same(found, wanted):
            continue
        last = found[-1]
        yield max(found) > peak * (1 + 1e-6) and last > found[-2] and say("rises", peak=peak)
        guesses = {"right": peak, "small": lr, "falls": lr * base / batch, "root": lr * math.sqrt(batch / base)}
        key = nearest(last, guesses)
        yield key != "right" and say("peak" if key == "otherwise" else key, last=last, peak=peak)
        yield same(found, [peak] * len(found)) and say("no warm-up", peak=peak)
        yield found[0] == 0 and say("zero")
        yield warmup > 0 and same(found[warmup - 1], peak) and say("early", warmup=warmup)
        yield say("otherwise", first=", ".join(f"{value:.3g}" for value in found[: warmup + 1]))


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


def _steps(middle, width, n=41):
    """`n` seconds of steps, evenly from `middle` - `width` to `middle` + `width`, in no order."""
    return [middle + width * (2 * (7 * k % n) / (n - 1) - 1) for k in range(n)]


PAIRS = (  # seconds of steps: of the baseline, of the other run
    ("faster", _steps(0.11, 0.01), _steps(0.055, 0.005)),
    ("slower", [*_steps(0.055, 0.005), 2.9], [*_steps(0.11, 0.01), 0.01]),
    ("no difference", _steps(0.120, 0.02), _steps(0.117, 0.02)),
    ("faster", _steps(0.120, 0.02, 401), _steps(0.115, 0.02, 401)),  # middle halves overlap, intervals do not
    ("no difference", _steps(0.120, 0.02, 9), _steps(0.110, 0.02, 9)),
    ("no difference", [0.10] * 9, [0.10] * 9),
)


@exercise
def difference(answer, say):
    """`answer(base, other)`: "faster", "slower" or "no difference", from the 95% intervals of two lists' medians."""
    for wanted, base, other in PAIRS:
        say.case(base=_span(base, say), other=_span(other, say))
        value = attempt(answer, list(base), list(other))
        if value == wanted:
            continue
        yield value is None and say("none")
        yield value not in ("faster", "slower", "no difference") and say("word", value=value)
        yield base == other and say("equal", value=value)
        yield wanted == "no difference" and say("overlap", value=value)
        missed, longer = value == "no difference", sum(other) > sum(base)
        yield missed and say("many" if len(base) > 100 else "apart", n=len(base), wanted=wanted)
        yield say("mean" if longer != (wanted == "slower") else "otherwise", value=value)


def _span(seconds, say):
    low, high = measure.median_interval(seconds)
    return say("span", low=1000 * low, high=1000 * high, n=len(seconds))
