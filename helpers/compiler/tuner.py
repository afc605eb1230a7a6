"""The tuner: takes the place of a model's forward, tries plans in the first training steps, keeps the fastest.

The training loop stays as it is. Each plan is checked once against eager (`soundness`), those that are
right take real training steps in turn (`trials`), and the fastest computes all others.
"""

import copy
import time
import types

import torch
from torch.utils import _pytree as pytree

from ..launcher.language import local, marked
from . import decisions, trials
from .plan import Plan, device_of
from .soundness import Judge
from .trials import Candidate, Trials


class Tuner:
    """What `model.forward` is once the model was given to `optimize`.

    Attributes:
        done: whether a plan was chosen.
        choice: the chosen Plan (None until done).
        from_cache: when the decision was made, if it came from disk, else "".
    """

    def __init__(self, model, forward, plans, settings):
        self.model, self.forward, self.settings = model, forward, settings
        self.plans = [Plan(), *(plan for plan in dict.fromkeys(plans) if plan != Plan())]
        self.trials = self.chosen = None
        self._checking = False
        self.from_cache, self._rows = "", []

    @property
    def done(self) -> bool:
        """Whether a plan was chosen."""
        return self.chosen is not None

    @property
    def choice(self):
        """The chosen Plan, or None."""
        return self.chosen.plan if self.done else None

    def __call__(self, *args, **kwargs):
        """The model's forward. Plans are for training: without gradients, or in eval mode, eager computes."""
        if self._checking or not (self.model.training and torch.is_grad_enabled()):
            return self.forward(*args, **kwargs)
        if not self.done and self.trials is None:
            self._checking = True  # a check calls the model too
            try:
                self._try_all(args, kwargs)
            finally:
                self._checking = False
        if self.trials is not None and self.trials.stage_is_over:
            self._end_stage()
        if self.done:
            return self.chosen(*args, **kwargs)
        if self.trials is None or signature_of(args, kwargs) != self.signature:
            return self.forward(*args, **kwargs)  # another shape would not be a fair sample
        return self.trials.step(device_of(args, kwargs), args, kwargs)

    # -- for the reader -------------------------------------------------------------------

    def rows(self) -> list:
        """A dict for each plan: what it cost to compile, what it gained, why it was not taken."""
        if self.trials is not None:
            return [c.row(self.trials.baseline) for c in self.trials.candidates]
        return self._rows

    def __str__(self):
        rows = self.rows()
        return trials.text(rows, local(self.summary())) if rows else local(self.summary())

    def summary(self) -> str:
        """What was chosen and what it cost, in a line."""
        rows = self.rows()
        if not rows:
            return marked("nothing was tried yet: plans are tried in the first training steps")
        if not self.done:
            timed = sum(row["status"] in ("baseline", "timing") for row in rows)
            return marked(f"{timed} of {len(rows)} plans are being timed")
        chosen = next(row for row in rows if row["status"] == "chosen")
        spent = sum(row["compile_s"] or 0.0 for row in rows)
        text = marked(
            f"chose {chosen['plan']} of {len(rows)} plans, {chosen['speed_up'] or 1.0:.2f}× eager's speed; "
            f"{spent:.1f} s were spent on compiling"
        )
        if self.from_cache:
            text = marked(f"{text} when it was decided, {self.from_cache}")
        return text + (f"; {self.chosen.failure}" if self.chosen.failure else "")

    # -- the first step: is each plan right? ----------------------------------------------

    def _try_all(self, args, kwargs):
        """Check all plans on this batch; the model's own errors, and an interrupt, leave all as it was."""
        judge = Judge(self.model, self.forward, args, kwargs)
        if not judge.probe.trains:
            return
        self.signature, self.draws = signature_of(args, kwargs), judge.probe.draws
        if self._use_decision(judge):
            return
        candidates = [Candidate(plan) for plan in self.plans]
        candidates[0].status = "baseline"
        spent = 0.0
        for one in candidates:
            if one.status != "baseline" and spent >= self.settings.budget_s:
                one.drop("skipped", marked(f"the budget of {self.settings.budget_s:g} s was spent"))
            else:
                spent = max(trials.gather(spent + self._check(one, judge)))
        trials.agree(candidates)
        self.trials = Trials(candidates, self.settings.rounds, self.settings.min_gain)

    def _check(self, one, judge):
        """Compile a plan and hold it against eager; returns the seconds that took."""
        began, plan = time.perf_counter(), one.plan
        if plan.compiled:
            self._log(marked(f"optimize: compiling {plan} …"))
        try:
            one.call = self.forward
            if one.status != "baseline":
                one.call = plan.make(self.forward, self.draws, has_dynamic(self.signature))
            one.judge(judge.errors(plan, one.call))
            one.compile_s = max(0.0, judge.first_s - judge.eager_s) if plan.compiled else 0.0
        except Exception as error:
            if one.status == "baseline":
                raise
            one.fail(error)
        self._log(f"optimize: {plan}: {local(one.verdict())}")
        if one.status == "baseline" and judge.compared_with != "fp64":
            self._log(marked(f"optimize: plans are compared with {judge.compared_with}"))
        return time.perf_counter() - began

    # -- the end of the trials ------------------------------------------------------------

    def _end_stage(self):
        self.trials.end_stage()
        winner = self.trials.winner
        if winner is None:
            return
        self._choose(winner.plan, winner.call)
        self._rows, self.trials = self.rows(), None  # frees what was compiled for the others
        name = self._cache_name()
        if name and trials.is_main():
            decisions.write(name, str(winner.plan), self._rows)
        self._log(f"optimize: {local(self.summary())}")

    def _choose(self, plan, call):
        self.chosen = ChosenPlan(
            plan, self.forward, self.signature, self.draws, self.settings.recompiles, self._log, call
        )

    # -- decisions on disk ----------------------------------------------------------------

    def _cache_name(self):
        if not self.settings.cache:
            return None
        asked = {"min_gain": self.settings.min_gain, "ranks": trials.world_size(), "budget_s": self.settings.budget_s}
        return decisions.key(self.model, self.forward, self.plans, self.signature, asked)

    def _use_decision(self, judge):
        """Use a decision from disk if there is one and its plan is still right; all ranks do, or none."""
        name = self._cache_name()
        found = trials.broadcast(decisions.read(name) if name and trials.is_main() else None)
        plan = next((plan for plan in self.plans if found and str(plan) == found["plan"]), None)
        if plan is None:
            return False
        one = Candidate(plan, status="baseline" if plan == Plan() else "timing")
        self._check(one, judge)
        trials.agree([one])
        if one.is_timed:
            self._rows, self.from_cache = found["rows"], found["made"]
            self._choose(plan, one.call)
            self._log(f"optimize: {local(self.summary())}")
        return one.is_timed

    def _log(self, text):
        if trials.is_main() and self.settings.log is not None:
            self.settings.log(local(text))

    # -- copies of the model --------------------------------------------------------------

    def __deepcopy__(self, memo):
        """A copied model (such as an average of weights) computes with its own weights, by the plan that was chosen."""
        model = memo.get(id(self.model), self.model)
        twin = Tuner(model, _rebound(self.forward, model, memo), self.plans, self.settings)
        if self.done:
            twin.signature, twin.draws, twin.from_cache = self.signature, self.draws, self.from_cache
            twin._rows = [dict(row) for row in self._rows]
            twin._choose(self.choice, None)
        return twin

    def __getstate__(self):
        """For pickle: the model and the choice, without compiled code."""
        return {**self.__dict__, "trials": None}


class ChosenPlan:
    """Computes a model's forward by one plan.

    A compiled plan is for the shapes that it was compiled for. Another shape, such as that of a last
    smaller batch, would cost a compilation that its few steps seldom win back: such batches are
    computed without the compiler, unless `recompiles` of them may be compiled too. Sizes marked by
    torch._dynamo.mark_dynamic may change freely.

    Attributes:
        recompiled: shapes that were compiled besides the first.
        other_shapes: steps that ran without the compiler because of their shape.
        failure: why the plan was given up, or "".
    """

    def __init__(self, plan, forward, signature, draws, recompiles, log, call=None):
        self.plan, self.forward, self.known = plan, forward, [signature]
        self.draws, self.recompiles, self.log = draws, recompiles, log
        self.calls = {plan: call} if call else {}
        self.recompiled, self.other_shapes, self.failure = 0, 0, ""

    def __call__(self, *args, **kwargs):
        plan = self.plan
        if plan.compiled and not self._is_compiled_for(signature_of(args, kwargs)):
            plan = plan.without_compiler()
        try:
            return self._call(plan)(*args, **kwargs)
        except Exception as error:
            if not plan.compiled:
                raise
            outputs = self.forward(*args, **kwargs)  # raises if it was the model's own error
            self.plan = Plan()
            text = " ".join(str(error).split())[:160]
            self.failure = marked(f"{plan} failed later, eager since: {type(error).__name__}: {text}")
            self.log(f"optimize: {local(self.failure)}")
            return outputs

    def _call(self, plan):
        if plan not in self.calls:
            self.calls[plan] = plan.make(self.forward, self.draws, has_dynamic(self.known[0]))
        return self.calls[plan]

    def _is_compiled_for(self, signature):
        if signature in self.known:
            return True
        if self.recompiled < self.recompiles:
            self.recompiled += 1
            self.known.append(signature)
            count = f"{self.recompiled} of {self.recompiles}"
            self.log(local(f"optimize: compiling {self.plan} for another shape ({count}) …"))
            return True
        if not self.other_shapes:
            self.log(
                local(
                    "optimize: a batch of another shape runs without the compiler, as compiling again takes "
                    "longer than a "
                    "few steps can win back; drop or pad the last batch, or allow recompiles=1"
                )
            )
        self.other_shapes += 1
        return False

    def __getstate__(self):
        return {**self.__dict__, "calls": {}, "log": _ignore}  # compiled code cannot be pickled


def signature_of(args, kwargs) -> tuple:
    """What compiled code is specific to: shapes (None where marked dynamic), types, devices, other values."""
    return tuple(
        (
            tuple(None if d in getattr(v, "_dynamo_dynamic_indices", ()) else s for d, s in enumerate(v.shape)),
            str(v.dtype),
            str(v.device),
            v.requires_grad,
        )
        if torch.is_tensor(v)
        else repr(v)
        if isinstance(v, (bool, int, float, str, type(None)))
        else type(v).__name__
        for v in pytree.tree_leaves((args, kwargs))
    )


def has_dynamic(signature) -> bool:
    """Whether a size in it is marked dynamic."""
    return any(None in leaf[0] for leaf in signature if isinstance(leaf, tuple))


def _rebound(forward, model, memo):
    """`forward` as a method of `model`, the copy of the module that it was a method of."""
    if isinstance(forward, types.MethodType):
        return types.MethodType(forward.__func__, model)
    return copy.deepcopy(forward, memo)


def _ignore(text):
    pass
