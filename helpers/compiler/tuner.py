"""The tuner: takes the place of a model's forward, tries plans in the first training steps, keeps the fastest.

The training loop stays as it is. Each plan is checked once against eager (`numerics`), those that are right take real
training steps in turn (`trials`), and the fastest computes all others.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from ..language import Message, shown
from . import trials
from .numerics import NumericsCheck
from .plan import Plan, device_of
from .trials import Candidate, Trials

OTHER_SHAPE = Message("optimize: a batch of another shape runs without the compiler; drop or pad the last batch")


class Tuner:
    """What `model.forward` is once the model was given to `optimize`, whose arguments these are.

    Attributes:
        plans: the Plans, plain eager first.
        choice: the chosen Plan (None until then).
    """

    def __init__(self, model, forward, plans, rounds, log):
        self.model, self.forward, self.plans = model, forward, list(dict.fromkeys([Plan(), *plans]))
        self.rounds, self.log = rounds, log
        self.trials = self.choice = self.signature = None
        self._checking, self._calls, self._rows = False, {}, []

    @property
    def done(self) -> bool:
        """Whether a plan was chosen."""
        return self.choice is not None

    def __call__(self, *args, **kwargs):
        """The model's forward. Plans are for training: without gradients, or in eval mode, eager computes."""
        if self._checking or not (self.model.training and torch.is_grad_enabled()):
            return self.forward(*args, **kwargs)
        if self.trials is None and not self.done:
            self._check_all(args, kwargs)
        if self.trials is not None and self.trials.stage_is_over:
            self.trials.end_stage()
            if winner := self.trials.winner:
                self.choice, self._calls = winner.plan, {winner.plan: winner.call}
                self._rows, self.trials = self.rows(), None  # frees what was compiled for the others
                self._log(Message("optimize: {summary}", summary=self.summary()))
        same = signature_of(args, kwargs) == self.signature
        if self.done:
            # A compilation for batches of another shape is seldom won back in their few steps.
            plan = self.choice if same else replace(self.choice, backend="eager")
            if plan not in self._calls:
                self._calls[plan] = plan.make(self.forward)
                if plan != self.choice:
                    self._log(OTHER_SHAPE)
            return self._calls[plan](*args, **kwargs)
        if self.trials is None or not same:  # nothing learns, or the step would not be a fair sample
            return self.forward(*args, **kwargs)
        return self.trials.step(device_of(args, kwargs), args, kwargs)

    def rows(self) -> list:
        """A dict for each plan: what it cost to compile, what it gained, why it was not taken."""
        return self._rows if self.trials is None else [c.row(self.trials.baseline) for c in self.trials.candidates]

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
        if not rows:
            return Message("nothing was tried yet: plans are tried in the first training steps")
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

    def _check_all(self, args, kwargs):
        """Check all plans on this batch; the model's own errors, and an interrupt, leave all as it was."""
        self._checking = True  # a check calls the model too
        try:
            check = NumericsCheck(self.model, self.forward, args, kwargs)
            if not check.trains:
                return
            if check.reference != "fp64":
                self._log(Message("optimize: plans are compared with {compared_with}", compared_with=check.reference))
            candidates = [Candidate(plan) for plan in self.plans]
            candidates[0].status, candidates[0].call = "baseline", self.forward
            for one in candidates[1:]:
                if one.plan.compiled:
                    self._log(Message("optimize: compiling {plan} …", plan=str(one.plan)))
                try:
                    one.call = one.plan.make(self.forward)
                    one.judge(check.errors(one.plan, one.call))
                    one.compile_s = max(0.0, check.first_s - check.eager_s) if one.plan.compiled else 0.0
                except Exception as error:
                    one.fail(error)
                self._log(Message("optimize: {plan}: {verdict}", plan=str(one.plan), verdict=one.verdict()))
            trials.agree(candidates)
            self.signature = signature_of(args, kwargs)
            self.trials = Trials(candidates, self.rounds)
        finally:
            self._checking = False

    def _log(self, text):
        if self.log is not None and not (dist.is_initialized() and dist.get_rank()):
            self.log(shown(text))

    def __getstate__(self):
        """For copies and pickles: the model and the choice, without compiled code, which computes for this model."""
        return {**self.__dict__, "trials": None, "_calls": {}}


def signature_of(args, kwargs) -> tuple:
    """What compiled code is specific to: shapes, types and devices of tensors, other values."""
    of = lambda t: (t.shape, t.dtype, t.device, t.requires_grad) if torch.is_tensor(t) else type(t)  # noqa: E731
    leaves, plain = pytree.tree_leaves((args, kwargs)), (bool, int, float, str, type(None))
    return tuple(leaf if isinstance(leaf, plain) else of(leaf) for leaf in leaves)
