"""Checks of 10_report: is a difference more than noise, and when is compiling won back?"""

import math

from helpers import measure

from .verdict import attempt, exercise, number_or_none


def _steps(middle, width, n=41):
    """`n` seconds of steps, evenly from `middle` - `width` to `middle` + `width`, in no order."""
    return [middle + width * (2 * (7 * k % n) / (n - 1) - 1) for k in range(n)]


STEPS = {  # seconds of steps: of the baseline, of the other run
    "faster": (_steps(0.11, 0.01), _steps(0.055, 0.005)),
    "slower": ([*_steps(0.055, 0.005), 2.9], [*_steps(0.11, 0.01), 0.01]),
    "no difference": (_steps(0.120, 0.02), _steps(0.117, 0.02)),
}
CLOSE = ("faster", (_steps(0.120, 0.02, 401), _steps(0.115, 0.02, 401)))  # middle halves overlap, intervals do not
FEW = ("no difference", (_steps(0.120, 0.02, 9), _steps(0.110, 0.02, 9)))
EVEN = ("no difference", ([0.10] * 9, [0.10] * 9))
COSTS = (  # seconds to compile, a step before, a step after; steps until it has paid
    (30.0, 0.10, 0.08, 1500),
    (10.0, 0.5, 0.25, 40),
    (1.0, 0.03, 0.02, 100),
    (0.0, 0.2, 0.1, 0),
    (7.0, 0.4, 0.1, 24),
    (30.0, 0.10, 0.12, None),
    (5.0, 0.1, 0.1, None),
)


@exercise("A difference counts where the intervals of the medians lie apart, and only then.")
def difference(answer):
    """`answer(base, other)`: "faster", "slower" or "no difference", from the 95% intervals of two lists' medians."""
    for wanted, (base, other) in [*STEPS.items(), CLOSE, FEW, EVEN]:
        value, problem = attempt(answer, list(base), list(other))
        if problem is None and value != wanted:
            problem = _hint_difference(value, wanted, base, other)
        yield f"Steps with their median at {_told(base)} beside {_told(other)}", problem


def _told(seconds):
    low, high = measure.median_interval(seconds)
    return f"{1000 * low:.0f} to {1000 * high:.0f} ms ({len(seconds)} steps)"


def _hint_difference(value, wanted, base, other):
    if value is None:
        return "your function returned None. Is there a `return` on every way through it?"
    if value not in STEPS:
        return f"{value!r} is none of {', '.join(map(repr, STEPS))}"
    if wanted == "no difference":
        if base == other:
            return f"these are the very same times, and you say {value!r}"
        return f"you say {value!r}, but the intervals overlap: the same two runs, made again, could change places"
    if value == "no difference" and len(base) > 100:
        return f"the steps of both vary, but {len(base)} of them fix the medians well. What shrinks with their number?"
    if value == "no difference":
        return f"these lie well apart, and the run is {wanted}. Does one odd step at the end decide for you?"
    if (sum(other) > sum(base)) != (wanted == "slower"):
        return f"you say {value!r}. One odd step is enough to pull a mean; a median does not see it"
    return f"you say {value!r}. Less time a step is faster"


@exercise("What compiling costs, divided by what a step saves; and where a step saves nothing, never.")
def pays_after(answer):
    """`answer(compile_s, eager_s, compiled_s)`: steps after which compiling has paid; None if it never does."""
    for compile_s, eager_s, compiled_s, wanted in COSTS:
        steps, problem = number_or_none(answer, compile_s, eager_s, compiled_s)
        # A step apart is right, too: a quotient of clock readings is no whole number.
        same = steps == wanted if None in (steps, wanted) else abs(steps - wanted) <= 1
        if problem is None and not same:
            problem = _hint_pays(steps, wanted, compile_s, eager_s, compiled_s)
        yield f"{compile_s:g} s to compile, a step of {eager_s:g} s before and {compiled_s:g} s after", problem


def _hint_pays(number, wanted, compile_s, eager_s, compiled_s):
    if wanted is None:
        reason = "slower" if compiled_s > eager_s else "no faster"
        return f"a compiled step is {reason}, so there is no such number; give None (yours is {number:g})"
    if number is None:
        return "None, but every compiled step saves some time. It adds up"
    if math.isclose(number, compile_s / eager_s, rel_tol=1e-6) or math.isclose(number, compile_s / compiled_s):
        return "you divide by the whole time of a step. How much of it does compiling save?"
    if math.isclose(number, compile_s * (eager_s - compiled_s), rel_tol=1e-6):
        return "you multiply by what a step saves. How many times does that go into the cost?"
    return f"{number:g} steps save {number * (eager_s - compiled_s):.3g} s, and {compile_s:g} s were spent"
