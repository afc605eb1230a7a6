"""The tuner: takes the place of a model's forward, tries plans in the first training steps, keeps the fastest.

The training loop stays as it is. Each plan is checked once against eager (`soundness`), those that are
right take real training steps in turn (`race`), and the fastest computes all others (`settled`).
"""

import copy
import time
import types

import torch

from . import candidate, decisions, ranks
from .candidate import Candidate
from .plan import Plan, device_of
from .race import Race, hear_objections
from .settled import Settled, has_dynamic, signature_of
from .soundness import Judge


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
        self.race = self.settled = None
        self._checking = False
        self.from_cache, self._rows = "", []

    @property
    def done(self) -> bool:
        """Whether a plan was chosen."""
        return self.settled is not None

    @property
    def choice(self):
        """The chosen Plan, or None."""
        return self.settled.plan if self.done else None

    def __call__(self, *args, **kwargs):
        """The model's forward. Plans are for training: without gradients, or in eval mode, eager computes."""
        if self._checking or not (self.model.training and torch.is_grad_enabled()):
            return self.forward(*args, **kwargs)
        if not self.done and self.race is None:
            self._checking = True  # a check calls the model too
            try:
                self._try_all(args, kwargs)
            finally:
                self._checking = False
        if self.race is not None and self.race.stage_is_over:
            self._end_stage()
        if self.done:
            return self.settled(*args, **kwargs)
        if self.race is None or signature_of(args, kwargs) != self.signature:
            return self.forward(*args, **kwargs)  # another shape would not be a fair sample
        return self.race.step(device_of(args, kwargs), args, kwargs)

    # -- for the reader -------------------------------------------------------------------

    def rows(self) -> list:
        """A dict for each plan: what it cost to compile, what it gained, why it was not taken."""
        if self.race is not None:
            return [c.row(self.race.baseline) for c in self.race.candidates]
        return self._rows

    def frame(self):
        """The rows as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.rows(), columns=candidate.COLUMNS)

    def __str__(self):
        rows = self.rows()
        return candidate.text(rows, self.summary()) if rows else self.summary()

    def summary(self) -> str:
        """What was chosen and what it cost, in a line."""
        rows = self.rows()
        if not rows:
            return "nothing was tried yet: plans are tried in the first training steps"
        if not self.done:
            racing = sum(row["status"] in ("baseline", "racing") for row in rows)
            return f"{racing} of {len(rows)} plans are being timed"
        chosen = next(row for row in rows if row["status"] == "chosen")
        spent = sum(row["compile_s"] or 0.0 for row in rows)
        text = f"chose {chosen['plan']} of {len(rows)} plans, {chosen['speed_up'] or 1.0:.2f}× eager's speed"
        text += f"; {spent:.1f} s were spent on compiling"
        if self.from_cache:
            text += f" when it was decided, {self.from_cache}"
        return text + (f"; {self.settled.failure}" if self.settled.failure else "")

    # -- the first step: is each plan right? ----------------------------------------------

    def _try_all(self, args, kwargs):
        """Check all plans on this batch; the model's own errors, and the stop button, leave all as it was."""
        judge = Judge(self.model, self.forward, args, kwargs)
        if not judge.question.trains:
            return
        self.signature, self.draws = signature_of(args, kwargs), judge.question.draws
        if self._remembered(judge):
            return
        candidates = [Candidate(plan) for plan in self.plans]
        candidates[0].status = "baseline"
        spent = 0.0
        for one in candidates:
            if one.status != "baseline" and spent >= self.settings.budget_s:
                one.drop("skipped", f"the budget of {self.settings.budget_s:g} s was spent")
            else:
                spent = max(ranks.told_by_all(spent + self._check(one, judge)))
        hear_objections(candidates)
        self.race = Race(candidates, self.settings.rounds, self.settings.min_gain)

    def _check(self, one, judge):
        """Compile a plan and hold it against eager; returns the seconds that took."""
        began, plan = time.perf_counter(), one.plan
        if plan.compiled:
            self._say(f"optimize: compiling {plan} …")
        try:
            one.call = self.forward if one.status == "baseline" else self._made(plan)
            one.judge(judge.errors(plan, one.call))
            one.compile_s = max(0.0, judge.first_s - judge.eager_s) if plan.compiled else 0.0
        except Exception as error:
            if one.status == "baseline":
                raise
            one.fail(error)
        self._say(f"optimize: {plan}: {one.verdict()}")
        if one.status == "baseline" and judge.compared_with != "fp64":
            self._say(f"optimize: plans are compared with {judge.compared_with}")
        return time.perf_counter() - began

    def _made(self, plan):
        return plan.make(self.forward, self.draws, has_dynamic(self.signature))

    # -- the end of the race --------------------------------------------------------------

    def _end_stage(self):
        self.race.end_stage()
        winner = self.race.winner
        if winner is None:
            return
        self._settle(winner.plan, winner.call)
        self._rows, self.race = self.rows(), None  # lets go of what was compiled for the others
        name = self._cache_name()
        if name and ranks.is_main():
            decisions.write(name, str(winner.plan), self._rows)
        self._say(f"optimize: {self.summary()}")

    def _settle(self, plan, call):
        self.settled = Settled(
            plan, self.forward, self.signature, self.draws, self.settings.recompiles, self._say, call
        )

    # -- decisions on disk ----------------------------------------------------------------

    def _cache_name(self):
        if not self.settings.cache:
            return None
        asked = {"min_gain": self.settings.min_gain, "ranks": ranks.world_size(), "budget_s": self.settings.budget_s}
        return decisions.key(self.model, self.forward, self.plans, self.signature, asked)

    def _remembered(self, judge):
        """Take a decision from disk, if there is one and its plan is still right; all ranks or none."""
        name = self._cache_name()
        found = ranks.told_by_main(decisions.read(name) if name and ranks.is_main() else None)
        plan = next((plan for plan in self.plans if found and str(plan) == found["plan"]), None)
        if plan is None:
            return False
        one = Candidate(plan, status="baseline" if plan == Plan() else "racing")
        self._check(one, judge)
        hear_objections([one])
        if one.racing:
            self._rows, self.from_cache = found["rows"], found["made"]
            self._settle(plan, one.call)
            self._say(f"optimize: {self.summary()}")
        return one.racing

    def _say(self, text):
        if ranks.is_main() and self.settings.log is not None:
            self.settings.log(text)

    # -- copies of the model --------------------------------------------------------------

    def __deepcopy__(self, memo):
        """A copied model (an average of weights, say) computes with its own weights, by the plan that was chosen."""
        model = memo.get(id(self.model), self.model)
        twin = Tuner(model, _rebound(self.forward, model, memo), self.plans, self.settings)
        if self.done:
            twin.signature, twin.draws, twin.from_cache = self.signature, self.draws, self.from_cache
            twin._rows = [dict(row) for row in self._rows]
            twin._settle(self.choice, None)
        return twin

    def __getstate__(self):
        """What travels to another process: the model and the choice, not what was compiled."""
        return {**self.__dict__, "race": None}


def _rebound(forward, model, memo):
    """`forward` as a method of `model`, the copy of the module that it was a method of."""
    if isinstance(forward, types.MethodType):
        return types.MethodType(forward.__func__, model)
    return copy.deepcopy(forward, memo)
