"""Plans are timed on real training steps, in turn, and all ranks agree on the fastest."""

import math
import statistics
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from .. import device as devices
from ..language import N_, Message
from ..records.speedup import SPEED_UP, SpeedUp, of_times
from .copies import tensors
from .numerics import ALLOWED
from .plan import Plan

CLOSE = 0.9  # plans this near to the fastest are timed further in the second stage
FINALISTS = 3
MIN_GAIN = 1.02  # times eager's speed; a plan that gains less is not chosen
DROPPED = (N_("rejected"), N_("failed"))


@dataclass
class Candidate:
    """A plan, what is known of it, and the steps it was timed for.

    Attributes:
        call: computes the model's forward as the plan says (None: it was dropped).
        status: "baseline", "timing", "slower", "chosen", "rejected" or "failed".
        why: a sentence for the reader.
        compile_s: seconds its first step took longer than a step of eager.
        output_error, gradient_error: in units of eager's own error.
        samples: {round: seconds of forward and backward}; of the slowest rank once they agreed.
    """

    plan: Plan
    call: object = None
    status: str = "timing"
    why: str = ""
    compile_s: float | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    samples: dict = field(default_factory=dict)

    def judge(self, errors) -> None:
        """Take in (output error, gradient error) of one more check, and drop out if one is too large."""
        self.output_error, self.gradient_error = map(
            max, errors, (self.output_error or 0.0, self.gradient_error or 0.0)
        )
        if max(errors) > ALLOWED:
            why = Message("wrong numbers: {errors}, {allowed}× is allowed", errors=self._errors(), allowed=ALLOWED)
            self.drop("rejected", why)

    def fail(self, error, when="at its first step") -> None:
        """Drop out because of an exception."""
        text = " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].split())
        self.drop("failed", f"{type(error).__name__} {when}: {text[:160]}{'…' if len(text) > 160 else ''}")

    def drop(self, status, why) -> None:
        """Take no further part in the trials."""
        self.status, self.why, self.call = status, why, None

    def verdict(self) -> str:
        """What the check found, in words."""
        if self.why:
            return Message("{status}: {why}", status=Message(self.status), why=self.why)
        if not self.plan.compiled:
            return self._errors()
        return Message("{compile_s} s to compile, {text}", compile_s=f"{self.compile_s:.1f}", text=self._errors())

    def _errors(self):
        outputs, gradients = (
            f"{error:.2g}×" if error < 100 else f"{error:,.0f}×" for error in (self.output_error, self.gradient_error)
        )
        return Message(
            "outputs {outputs} and gradients {gradients} eager's own error", outputs=outputs, gradients=gradients
        )

    def speed_up(self, baseline) -> SpeedUp:
        """Over `baseline`, in the rounds that both were timed in; a ratio of 0 without any."""
        both = [n for n in self.samples if n in baseline.samples]
        mine, theirs = ([[of.samples[n]] for n in both] for of in (self, baseline))
        return of_times(mine, theirs) if both else SpeedUp(0.0)

    def row(self, baseline) -> dict:
        """The plan's line in the table."""
        row, found = dict.fromkeys(("step_s", *SPEED_UP, "break_even")), self.speed_up(baseline)
        if found.ratio:
            row |= dict(zip(SPEED_UP, found, strict=True))
            row["step_s"] = statistics.median(self.samples.values())
            saved = statistics.median(baseline.samples.values()) * (1 - 1 / found.ratio)
            if saved > 0:
                row["break_even"] = math.ceil((self.compile_s or 0.0) / saved)
        known = ("status", "why", "compile_s", "output_error", "gradient_error")
        return {"plan": str(self.plan), **{name: getattr(self, name) for name in known}, **row}


class Trials:
    """Which plan takes the next step, and when the trials are over.

    In the first stage all sound plans take `rounds` steps each after one to warm up, in the second those that are close
    take as many again. Each round begins with another plan, so that neither a machine that slows down nor a rhythm in
    the training loop favours one. All ranks count the same steps.

    Attributes:
        baseline: the Candidate of plain eager, which takes part in all rounds.
        winner: the Candidate that was chosen (None: still timing).
    """

    def __init__(self, candidates, rounds):
        self.candidates, self.baseline, self.rounds = candidates, candidates[0], rounds
        self.turns, self.at, self.winner, self.final = [], 0, None, False
        self._add([c for c in candidates if c.status in ("baseline", "timing")], rounds + 1)

    @property
    def stage_is_over(self) -> bool:
        """Whether all steps of this stage were taken; then all ranks must call `end_stage`."""
        return self.at == len(self.turns)

    @property
    def turn(self) -> tuple:
        """(number of the round, the Candidate whose turn it is); one that was dropped keeps its turns for eager."""
        return self.turns[self.at]

    def end_turn(self, seconds) -> None:
        """Go on to the next turn; `seconds` that this one took, or None if it was no fair sample."""
        number, candidate = self.turn
        if number and seconds is not None and candidate.call is not None:  # round 0 warms up
            candidate.samples[number] = seconds
        self.at += 1

    def end_stage(self) -> None:
        """Agree with the other ranks on the times, then time the fastest further, or choose."""
        agree(self.candidates)
        by_rank = gather([c.samples for c in self.candidates])
        for place, candidate in enumerate(self.candidates):
            rounds = set.intersection(*(set(samples[place]) for samples in by_rank))
            candidate.samples = {n: max(samples[place][n] for samples in by_rank) for n in rounds}  # the slowest rank's
        gain = lambda candidate: candidate.speed_up(self.baseline).ratio  # noqa: E731
        ranked = sorted((c for c in self.candidates if c.status == "timing"), key=gain, reverse=True)
        close = [c for c in ranked if gain(c) > CLOSE * max(1.0, gain(ranked[0]))][:FINALISTS]
        if close and not self.final:
            self.final = True
            self._add([self.baseline, *close], self.rounds)
            return
        self.winner = ranked[0] if ranked and gain(ranked[0]) >= MIN_GAIN else self.baseline
        for candidate in ranked:
            candidate.status, candidate.why = "slower", f"{gain(candidate):.2f}× eager's speed"
        self.winner.status, self.winner.why = "chosen", ""
        if self.winner is self.baseline:
            self.winner.why = Message("no other plan was {min_gain}× as fast", min_gain=f"{MIN_GAIN:g}")

    def _add(self, candidates, rounds):
        first, count = self.turns[-1][0] + 1 if self.turns else 0, len(candidates)
        if count > 1:
            self.turns += [(first + r, candidates[(k + r) % count]) for r in range(rounds) for k in range(count)]


def agree(candidates) -> None:
    """Drop on all ranks what one rank dropped; the largest errors and the slowest compilation count."""
    all_ranks = gather([(c.status, c.why, c.compile_s, c.output_error, c.gradient_error) for c in candidates])
    for place, candidate in enumerate(candidates):
        by_rank = [answers[place] for answers in all_ranks]
        candidate.compile_s, candidate.output_error, candidate.gradient_error = (
            max((values[field] for values in by_rank if values[field] is not None), default=None) for field in (2, 3, 4)
        )
        dropped = [(rank, status, why) for rank, (status, why, *_) in enumerate(by_rank) if status in DROPPED]
        if dropped and any(values[:2] != by_rank[0][:2] for values in by_rank):
            rank, status, why = dropped[0]  # the first that objects, on every rank alike
            candidate.drop(status, Message("on rank {rank}: {why}", rank=rank, why=why))


class Step:
    """A training step, from its first forward pass on to the end of the last backward pass before the next step.

    Attributes:
        calls: signatures of its forward passes.
        seconds: what it took (None: no backward pass has ended).
        running: a backward pass has begun and not ended; if the next step finds it so, the backward pass broke off.
        twice: a backward pass is itself differentiated (create_graph=True).
    """

    def __init__(self, device):
        self.device, self.calls, self.seconds, self.running, self.twice = device, [], None, False, False
        devices.synchronize(device)
        self.began = time.perf_counter()

    def watch(self, outputs) -> None:
        """Notice the backward passes of the `outputs` of a forward pass."""
        for tensor in tensors(outputs):
            if tensor.grad_fn is not None:  # a hook on a leaf would stay there
                tensor.register_hook(self._backward_began)

    def _backward_began(self, gradient):
        self.twice |= torch.is_grad_enabled()
        if not self.running:
            self.running = True
            queue = torch.autograd.Variable._execution_engine.queue_callback
            # Twice: what DDP queues meanwhile, the wait for its last bucket, comes in between.
            queue(lambda: queue(self._backward_ended))

    def _backward_ended(self):
        devices.synchronize(self.device)
        self.seconds, self.running = time.perf_counter() - self.began, False


def gather(value) -> list:
    """`value` of every rank, in their order."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
