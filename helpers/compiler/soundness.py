"""Is a plan right? Its outputs and gradients against eager's, on the live batch.

No fixed tolerance works: gradients in fp32 are 1e-7 away from those in fp64 for an MLP, and 1e-2
for a ResNet, where one unit whose input is nearly zero falls on the other side of its ReLU. So
eager's own distance from fp64 is the yardstick, and a plan may be three times as far away.
"""

import time

import torch
from torch.utils import _pytree as pytree

from .answers import Question
from .plan import Plan

ALLOWED = 3.0  # times eager's own error
TRIALS = 3  # batches on which a plan may show that it is right
# Relative noise put on the inputs, to see which units are near a kink: 16 roundings in fp32. In bf16
# so many units change sides that its own rounding shows them.
NOISE = {torch.float32: 2.0**-20, torch.bfloat16: 2.0**-8}
# Relative errors that are never held against a plan. Eager adds long sums up in pairs, compilers often one
# number after the other, which in fp32 costs √n roundings: this is for 65,536 numbers. bf16 is summed in fp32.
FLOOR = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-8}


class Judge:
    """Compares plans with eager on one live batch.

    Args:
        model: the module; `forward` is its own forward, without any plan.

    Attributes:
        question: the live batch as a Question.
        first_s: seconds of the first step of the plan asked last, its compilation included.
        eager_s: seconds of a step of eager.

    Raises:
        Exception: what the model itself raises on this batch.
    """

    def __init__(self, model, forward, args, kwargs):
        self.model, self.forward, self.batch = model, forward, (args, kwargs)
        self.question = Question(model, forward, args, kwargs)
        self._yardsticks, self._references = {}, {}
        began = time.perf_counter()
        self.question.ask(forward)
        self.first_s = self.eager_s = time.perf_counter() - began

    def errors(self, plan, call):
        """(output error, gradient error) of `call`, which computes `plan`, in units of eager's own.

        A plan that seems wrong on the live batch is asked again on others that are nearly the same: a
        unit may have been at its kink, where the gradient jumps. A plan that is wrong is wrong on all.

        Raises:
            Exception: whatever `call` raises.
        """
        best = None
        for trial in range(TRIALS):
            question, yardstick = self._yardstick(plan.bf16, trial)
            began = time.perf_counter()
            answer = question.ask(call)
            if not trial:
                self.first_s = time.perf_counter() - began
            found = yardstick.errors(answer)
            if best is None or max(found) < max(best):
                best = found
            if max(best) <= ALLOWED:
                break
        return best

    @property
    def compared_with(self) -> str:
        """What answers are compared with, in words: "fp64", or why not."""
        return self._reference(self.question, None)[1]

    def _yardstick(self, bf16, trial):
        if (bf16, trial) not in self._yardsticks:
            dtype = torch.bfloat16 if bf16 else torch.float32
            question = self._near(trial, dtype) if trial else self.question
            others = [self._near(10 * trial + k, dtype) for k in (1, 2)]
            for other in others:
                other.weights = question.weights
            images = any(torch.is_tensor(t) and t.dim() == 4 for t in pytree.tree_leaves(self.batch))
            layouts = (False, True) if images else (False,)
            eager = [Plan("eager", layout, bf16).make(self.forward) for layout in layouts]
            own = [q.ask(call) for call in eager for q in (question, *others)]
            self._yardsticks[bf16, trial] = question, Yardstick(self._reference(question, own[0])[0], own, dtype)
        return self._yardsticks[bf16, trial]

    def _near(self, seed, dtype):
        return Question(self.model, self.forward, *self.batch, seed, NOISE[dtype])

    def _reference(self, question, own):
        """(answer, what it is in words)."""
        if question not in self._references:
            try:
                exact = question.ask_in_double(), "fp64"
                if question.draws and distance(own.outputs, exact[0].outputs) > 0.5:
                    raise ValueError("it draws other random numbers there")
            except Exception as error:
                said = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
                exact = None, f"eager itself, as the model does not run in fp64 ({said})"
            self._references[question] = exact
        exact, kind = self._references[question]
        return (own if exact is None else exact), kind


class Yardstick:
    """How far eager is from the reference `exact`: from fp64, or from itself where a model cannot run in fp64."""

    def __init__(self, exact, own, dtype):
        self.outputs, self.buffers, self.gradients = (
            _Own([getattr(a, part) for a in own], getattr(exact, part), FLOOR[dtype])
            for part in ("outputs", "buffers", "gradients")
        )

    def errors(self, answer):
        """(outputs and buffers, gradients): the largest error in `answer`, in units of eager's own."""
        outputs = max(self.outputs.ratio(answer.outputs), self.buffers.ratio(answer.buffers))
        return outputs, self.gradients.ratio(answer.gradients)


class _Own:
    """Eager's own errors of some tensors.

    A tensor of few elements can be right by luck, and a gradient that is zero in exact arithmetic is
    all noise: so each tensor is granted the relative error of all together, and its share of the
    absolute one. All together may also be too long or too short by a tenth of the relative error at
    least; noise hides a factor less well than it hides a single number.
    """

    def __init__(self, answers, reference, floor):
        self.reference = reference
        self.relative = max([distance(answer, reference) for answer in answers] + [floor])
        self.factor = max([abs(_excess(answer, reference)) for answer in answers] + [self.relative / 10])
        whole, count = _norm(reference), sum(r.numel() for r in reference)
        self.each = []
        for place, r in enumerate(reference):
            errors = [(answer[place] - r).norm().item() for answer in answers]
            share = whole * (r.numel() / count) ** 0.5
            self.each.append(max(*errors, self.relative * r.norm().item(), self.relative * share))

    def ratio(self, answer):
        """The largest error among the tensors of `answer` and of its length, in units of these."""
        found = [abs(_excess(answer, self.reference)) / self.factor]
        for tensor, reference, own in zip(answer, self.reference, self.each, strict=True):
            error = (tensor - reference).norm().item()
            found.append(error / own if own else float("inf") if error else 0.0)
        return max(value if value == value else float("inf") for value in found)  # not a number is wrong


def distance(answer, reference):
    """How far `answer` is from `reference`, relative to its length, all tensors together."""
    return _norm([a - r for a, r in zip(answer, reference, strict=True)]) / (_norm(reference) or 1.0)


def _excess(answer, reference):
    """How much longer `answer` is than `reference` in its direction, relative to it."""
    square = sum(r.square().sum().item() for r in reference)
    along = sum(((a - r) @ r).item() for a, r in zip(answer, reference, strict=True))
    return along / (square or 1.0)


def _norm(tensors):
    return sum(t.square().sum().item() for t in tensors) ** 0.5
