"""The tuner: takes the place of a model's forward, tries plans in the first training steps, keeps the fastest.

The training loop stays as it is. In the first step the tuner watches. In the second each plan is checked against eager
on copies (`numerics`). Those that are right take real steps in turn (`trials`), and the fastest computes all others.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from ..language import Message, shown
from . import copies, trials
from .numerics import NumericsCheck
from .plan import Plan, device_of
from .trials import Candidate, Step, Trials

MOST_CALLS = 1000  # forward passes without a backward pass, after which the tuner gives up
TWICE = Message("the loop differentiates gradients (create_graph=True), which compiled code cannot do")
OTHER_SHAPE = Message("optimize: a batch of another shape runs without the compiler; drop or pad the last batch")


class Tuner:
    """What `model.forward` is once the model was given to `optimize`, whose arguments these are.

    Attributes:
        plans: the Plans, plain eager first.
        choice: the chosen Plan (None until then).
        why: why the model stays in eager, if nothing could be tried.
    """

    def __init__(self, model, forward, plans, rounds, log):
        self.model, self.forward, self.plans = model, forward, list(dict.fromkeys([Plan(), *plans]))
        self.rounds, self.log, self.why, self._unfit = rounds, log, "", ""
        self.step = self.outside = self.candidates = self.pattern = self.trials = self.choice = None
        self._signatures, self._calls, self._rows = set(), {}, []

    @property
    def function(self):
        """The forward as a function of the model: what is compiled for a copy of the model then fits the model too."""
        return self.forward.__func__ if getattr(self.forward, "__self__", None) is self.model else _through_tuner

    @property
    def done(self) -> bool:
        """Whether a plan was chosen."""
        return self.choice is not None

    def __call__(self, *args, **kwargs):
        """The model's forward. Plans are for training: without gradients, or in eval mode, eager computes."""
        if not (self.model.training and torch.is_grad_enabled()):
            return self.forward(*args, **kwargs)
        signature = signature_of(args, kwargs)
        again = torch._C._current_graph_task_id() >= 0  # backward computes it again, for checkpointing
        if not (self.done or again):
            self._begin(args, kwargs)
        if self.done:
            return self._chosen(signature)(self.model, *args, **kwargs)
        if self.pattern is None and self.candidates and signature not in self._signatures:
            self._check(signature, args, kwargs)
        outputs = self._turn(signature, args, kwargs)
        if not again:
            self.step.calls.append(signature)
            self.step.watch(outputs)
        return outputs

    def _begin(self, args, kwargs):
        """Begin a step if this call is the first of one: what comes next depends on what the last step has shown.

        In the first step eager computes and the tuner watches; in the second plans are checked; then they are timed.
        """
        last = self.step
        if last and last.seconds is None and not last.running and len(last.calls) < MOST_CALLS:
            return
        if last is None:
            self.outside = copies.Outside(self.model)
            if len(self.plans) == 1:
                return self._stay(Message("there is no other plan"))
        elif self.candidates is None and not last.running:  # else it is watched once more
            if why := self._reason(last):
                return self._stay(why)
            self.candidates = [Candidate(plan) for plan in self.plans]
            self.candidates[0].status, self.candidates[0].call = "baseline", self.function
        elif last.twice:
            return self._stay(TWICE)
        elif self.candidates and self.trials is None:
            if why := next(filter(None, trials.gather(self._unfit)), ""):
                return self._stay(why)
            trials.agree(self.candidates)
            self.pattern, self.trials = last.calls, Trials(self.candidates, self.rounds)
        elif self.trials:
            self._end_turn(last)
        if self.trials and self.trials.stage_is_over:
            self._end_stage()
        self.step = Step(device_of(args, kwargs))

    def _reason(self, step) -> str:
        """Why the model has to stay in eager after `step` ("": it need not); the same on all ranks."""
        own = ""
        if step.twice:
            own = TWICE
        elif step.seconds is None:
            own = Message("no backward pass through its outputs ended in {calls} calls", calls=len(step.calls))
        elif changed := self.outside.changed():
            own = Message("{names}, used by forward or a hook, is no part of it and changes", names=", ".join(changed))
        return next(filter(None, trials.gather(own)), "")

    def _stay(self, why):
        """Give up all plans but eager."""
        eager = Candidate(Plan(), self.function, "chosen", why)
        self.choice, self.why, self._rows, self.trials = eager.plan, why, [eager.row(eager)], None
        self._log(Message("optimize: {summary}", summary=self.summary()))

    def _end_turn(self, last):
        number, candidate = self.trials.turn
        if last.running and candidate.call is not self.function:
            candidate.drop("failed", Message("its backward pass broke off in round {number}", number=number))
        fair = last.calls == self.pattern and last.seconds is not None
        if fair or dist.is_initialized():  # ranks count alike, also where one had a batch of another shape
            self.trials.end_turn(last.seconds if fair else None)

    def _end_stage(self):
        self.trials.end_stage()
        if winner := self.trials.winner:
            self.choice, self._calls = winner.plan, {winner.plan: winner.call}
            self._rows, self.trials = self.rows(), None  # frees what was compiled for the others
            self._log(Message("optimize: {summary}", summary=self.summary()))

    def _chosen(self, signature):
        """The chosen plan; for batches of another shape without the compiler, which they would seldom win back."""
        same = signature in self._signatures or not self.choice.compiled
        plan = self.choice if same else replace(self.choice, backend="eager", layout_kept=False)
        if plan not in self._calls:
            self._calls[plan] = plan.make(self.function)
            if plan != self.choice:
                self._log(OTHER_SHAPE)
        return self._calls[plan]

    def _turn(self, signature, args, kwargs):
        """The outputs of the plan whose turn it is."""
        if self.trials is None or signature not in self._signatures:
            return self.forward(*args, **kwargs)
        number, candidate = self.trials.turn
        if candidate.call in (None, self.function):
            return self.forward(*args, **kwargs)
        try:
            return candidate.call(self.model, *args, **kwargs)
        except Exception as error:
            outputs = self.forward(*args, **kwargs)  # raises if it was the model's own error
            candidate.fail(error, f"in round {number}")
            return outputs

    def rows(self) -> list:
        """A dict for each plan: what it cost to compile, what it gained, why it was not taken."""
        return self._rows or [one.row(self.candidates[0]) for one in self.candidates or ()]

    def __str__(self):
        import pandas  # slow, and only for this

        if not (rows := self.rows()):
            return shown(self.summary())
        numbers = ["compile_s", "step_s", "speed_up", "break_even"]
        table = pandas.DataFrame(rows).astype(dict.fromkeys(numbers, float))[["plan", *numbers, "status", "why"]]
        shown_table = table.to_string(index=False, na_rep="–", float_format="{:,.3g}".format)
        return f"{shown(self.summary())}\n{shown_table}"

    def summary(self) -> str:
        """What was chosen and what it cost, in a line."""
        rows = self.rows()
        if self.why:
            return Message("stays in eager: {why}", why=self.why)
        if not rows:
            calls = len(self.step.calls) if self.step else 0
            return Message("nothing was tried yet: plans are tried when a training step has ended; calls: {n}", n=calls)
        if not self.done:
            return Message("{rows} plans are being tried", rows=len(rows))
        speed_up = next(row["speed_up"] for row in rows if row["status"] == "chosen") or 1.0
        return Message(
            "chose {plan} of {rows} plans, {speed_up}× eager's speed; {spent} s were spent on compiling",
            plan=str(self.choice),
            rows=len(rows),
            speed_up=f"{speed_up:.2f}",
            spent=f"{sum(row['compile_s'] or 0.0 for row in rows):.1f}",
        )

    def _check(self, signature, args, kwargs):
        """Check all plans on copies of the model and of this batch."""
        self._signatures.add(signature)
        try:
            check = NumericsCheck(self.model, self.function, args, kwargs)
        except Exception as error:  # an interrupt leaves all as it was
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            self._unfit = Message("plans cannot be checked on a copy of the model ({error})", error=said)
            return
        if check.reference != "fp64":
            self._log(Message("optimize: plans are compared with {compared_with}", compared_with=check.reference))
        for one in [one for one in self.candidates[1:] if one.status not in trials.DROPPED]:
            if one.plan.compiled:
                self._log(Message("optimize: compiling {plan} …", plan=str(one.plan)))
            try:
                one.call = one.call or one.plan.make(self.function)
                one.judge(check.errors(one.plan, one.call))
                first_s = max(0.0, check.first_s - check.eager_s) if one.plan.compiled else 0.0
                one.compile_s = (one.compile_s or 0.0) + first_s
            except Exception as error:
                one.fail(error)
            self._log(Message("optimize: {plan}: {verdict}", plan=str(one.plan), verdict=one.verdict()))

    def _log(self, text):
        if self.log is not None and not (dist.is_initialized() and dist.get_rank()):
            self.log(shown(text))

    def __getstate__(self):
        """For copies and pickles: the model and the choice, without compiled code and what belongs to this training."""
        begun = dict.fromkeys(("step", "outside", "candidates", "pattern", "trials", "log"))
        return {**self.__dict__, **begun, "_calls": {}}


def _through_tuner(model, *args, **kwargs):
    return model.tuner.forward(*args, **kwargs)


def signature_of(args, kwargs) -> tuple:
    """What compiled code is specific to: shapes, types and devices of tensors, other values."""
    of = lambda t: (t.shape, t.dtype, t.device, t.requires_grad) if torch.is_tensor(t) else type(t)  # noqa: E731
    leaves, plain = pytree.tree_leaves((args, kwargs)), (bool, int, float, str, type(None))
    return tuple(x if isinstance(x, plain) else (of(x), *map(of, copies.tensors(x))) for x in leaves)
