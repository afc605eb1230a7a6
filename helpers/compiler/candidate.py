"""One plan while it is tried, and the line about it in the table."""

import statistics
from dataclasses import dataclass, field

from .plan import Plan
from .soundness import ALLOWED

COLUMNS = (
    "plan", "status", "why", "compile_s", "output_error", "gradient_error", "step_s", "speed_up", "speed_up_q1",
    "speed_up_q3", "break_even",
)  # fmt: skip


@dataclass
class Candidate:
    """A plan, what is known of it, and the steps it was timed for.

    Attributes:
        call: computes the model's forward as the plan says (None: it was dropped).
        status: "baseline", "racing", "slower", "chosen", "rejected", "failed" or "skipped".
        why: a sentence for the reader.
        compile_s: seconds its first step took longer than a step of eager.
        output_error, gradient_error: in units of eager's own error.
        samples: {round: seconds of forward and backward}; of the slowest rank once they agreed.
    """

    plan: Plan
    call: object = None
    status: str = "racing"
    why: str = ""
    compile_s: float | None = None
    output_error: float | None = None
    gradient_error: float | None = None
    samples: dict = field(default_factory=dict)

    @property
    def racing(self) -> bool:
        """Whether it is still to be timed."""
        return self.status in ("baseline", "racing")

    def judge(self, errors) -> None:
        """Take in (output error, gradient error), and drop out if they are too large."""
        self.output_error, self.gradient_error = errors
        wrong = [f"{name} {times(error)}" for name, error in zip(("outputs", "gradients"), errors, strict=True)
                 if not error <= ALLOWED]  # fmt: skip
        if wrong:
            self.drop("rejected", f"wrong numbers: {' and '.join(wrong)} eager's own error, {ALLOWED:g}× is allowed")

    def fail(self, error, when="at its first step") -> None:
        """Drop out because of an exception."""
        said = " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].split())
        self.drop("failed", f"{type(error).__name__} {when}: {said[:160]}{'…' if len(said) > 160 else ''}")

    def verdict(self) -> str:
        """What the check has found, in words."""
        if self.why:
            return f"{self.status}, {self.why}"
        took = f"{self.compile_s:.1f} s to compile, " if self.plan.compiled else ""
        return f"{took}outputs {times(self.output_error)} and gradients {times(self.gradient_error)} eager's own error"

    def drop(self, status, why) -> None:
        """Take no further part."""
        self.status, self.why, self.call = status, why, None

    def ratios(self, baseline) -> list:
        """How many times as fast as `baseline` in each round that both were timed in."""
        return [baseline.samples[r] / s for r, s in sorted(self.samples.items()) if r in baseline.samples]

    def speed_up(self, baseline) -> float:
        """The median of `ratios`; 0 if there are none."""
        return statistics.median(self.ratios(baseline) or [0.0])

    def row(self, baseline) -> dict:
        """The plan's line in the table, a dict with COLUMNS."""
        ratios = sorted(self.ratios(baseline))
        quarter = lambda q: ratios[round(q * (len(ratios) - 1))] if ratios else None  # noqa: E731
        step_s = statistics.median(self.samples.values()) if self.samples else None
        row = {
            "plan": str(self.plan), "status": self.status, "why": self.why, "compile_s": self.compile_s,
            "output_error": self.output_error, "gradient_error": self.gradient_error, "step_s": step_s,
            "speed_up": statistics.median(ratios) if ratios else None,
            "speed_up_q1": quarter(0.25), "speed_up_q3": quarter(0.75), "break_even": None,
        }  # fmt: skip
        if ratios and row["speed_up"] > 1:
            saved = statistics.median(baseline.samples.values()) * (1 - 1 / row["speed_up"])
            row["break_even"] = -int(-(self.compile_s or 0.0) // saved)
        return row


def times(factor) -> str:
    """A factor for people, to two digits."""
    return "∞×" if factor == float("inf") else f"{factor:.2g}×" if factor < 100 else f"{factor:,.0f}×"


def text(rows, title="") -> str:
    """The rows as a table in plain text, the reasons below their plans."""
    wide = max(len(row["plan"]) for row in rows)
    number = lambda value, form: "–" if value is None else format(value, form)  # noqa: E731
    lines = [title] * bool(title)
    lines.append(f"{'plan':<{wide}}  {'compile':>8}  {'step':>9}  {'speed-up':>8}  {'pays after':>11}  status")
    for row in rows:
        step = row["step_s"] and row["step_s"] * 1000
        pays = "never" if row["speed_up"] and row["break_even"] is None else number(row["break_even"], ",d")
        lines.append(
            f"{row['plan']:<{wide}}  {number(row['compile_s'], '.1f'):>6} s  {number(step, '.1f'):>6} ms  "
            f"{number(row['speed_up'], '.2f'):>7}×  {pays:>11}  {row['status']}{': ' * bool(row['why'])}{row['why']}"
        )
    return "\n".join(lines)
