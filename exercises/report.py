"""Checks of 10_report: is a difference more than noise, and when is compiling won back?"""

from helpers import measure

from .verdict import attempt, exercise, formula, number_or_none, same


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
        value, problem = attempt(answer, list(base), list(other))
        case = say("case", base=_span(base, say), other=_span(other, say))
        yield case, problem
        if value == wanted:
            continue
        yield case, value is None and say("none")
        yield case, value not in ("faster", "slower", "no difference") and say("word", value=value)
        yield case, base == other and say("equal", value=value)
        yield case, wanted == "no difference" and say("overlap", value=value)
        missed, longer = value == "no difference", sum(other) > sum(base)
        yield case, missed and len(base) > 100 and say("many", n=len(base))
        yield case, missed and say("apart", wanted=wanted)
        yield case, say("mean" if longer != (wanted == "slower") else "otherwise", value=value)


def _span(seconds, say):
    low, high = measure.median_interval(seconds)
    return say("span", low=1000 * low, high=1000 * high, n=len(seconds))


def _pays(compile_s, eager_s, compiled_s):
    return compile_s / (eager_s - compiled_s) if compiled_s < eager_s else None


def _steps_of(function, *case):
    """The answer, rounded to the right one a step apart: a quotient of clock readings is no whole number."""
    value, problem = number_or_none(function, *case)
    wanted = _pays(*case)
    return (wanted if None not in (value, wanted) and abs(value - wanted) < 1 + 1e-9 else value), problem


pays_after = formula(
    "pays_after",
    "`answer(compile_s, eager_s, compiled_s)`: steps after which compiling has paid; None if never.",
    (
        (30.0, 0.10, 0.08),
        (10.0, 0.5, 0.25),
        (1.0, 0.03, 0.02),
        (0.0, 0.2, 0.1),
        (7.0, 0.4, 0.1),
        (30.0, 0.10, 0.12),
        (5.0, 0.1, 0.1),
    ),
    _pays,
    _steps_of,
    never=lambda value, compile_s, eager_s, compiled_s: compiled_s >= eager_s,
    none=lambda value, *case: value is None,
    whole=lambda value, c, e, s: same(value, c / e) or same(value, c / s),
    times=lambda compile_s, eager_s, compiled_s: compile_s * (eager_s - compiled_s),
)
