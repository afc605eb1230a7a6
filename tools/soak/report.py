"""What a soak tells: a line now and then, the table at the end, JSON."""

import statistics
from collections import Counter

from . import judge
from .plans import PLANTED

EVERY = 5.0  # s between two lines of progress


def violation(kernel, launch, problem, seed) -> str:
    """A problem with what is needed to see it again."""
    return (
        f"kernel {kernel}, launch {launch.plan.number}: {problem}\n"
        f"    planned: {launch.plan}\n"
        f"    again: python -m tools.soak --seed {seed} --only {kernel}.{launch.plan.number}"
    )


def progress(soaks, seconds) -> str:
    """One line about all kernels."""
    parts = [
        f"kernel {soak.kernel}: {len(soak.launches)}/{soak.wanted} launches, {soak.planted} with failures"
        for soak in soaks
    ]
    wrong = sum(len(soak.violations) for soak in soaks)
    return f"{seconds:4.0f} s  " + "; ".join(parts) + f"; {wrong} violation{'s' * (wrong != 1)}"


def table(soaks) -> str:
    """Launches and their times by kind, then memory."""
    lines = [f"{'kernel':>6}  {'launches':<12} {'count':>5} {'wrong':>5} {'median s':>9} {'longest s':>9}"]
    for soak in soaks:
        for kind in ("healthy", *PLANTED):
            launches = [launch for launch in soak.launches if launch.plan.kind == kind]
            if launches:
                times = [launch.seconds for launch in launches]
                wrong = sum(bool(launch.problems) for launch in launches)
                lines.append(
                    f"{soak.kernel:>6}  {kind:<12} {len(launches):>5} {wrong:>5} "
                    f"{statistics.median(times):>9.2f} {max(times):>9.2f}"
                )
    lines += ["", f"{'kernel':>6}  {'memory of the':<13} {'kind':<10} {'MiB then':>9} {'MiB now':>9} {'growth':>7}"]
    for soak in soaks:
        for (role, kind), (before, after) in judge.medians(soak.readings, soak.first).items():
            lines.append(
                f"{soak.kernel:>6}  {role:<13} {kind:<10} {before / 2**20:>9.1f} {after / 2**20:>9.1f} "
                f"{after / before - 1:>+7.1%}"
            )
    lines.append(
        f"(then: median of {judge.READINGS} readings from launch {soaks[0].first} on; now: of the last "
        f"{judge.READINGS}; with nothing running, after a collection of garbage and malloc_trim)"
    )
    return "\n".join(lines)


def as_json(soaks, seed, seconds) -> dict:
    """All of it as plain values; memory in bytes, times in seconds."""
    return {
        "seed": seed,
        "seconds": seconds,
        "passed": all(soak.passed for soak in soaks),
        "kernels": [
            {
                "kernel": soak.kernel,
                "wanted": soak.wanted,
                "performed": len(soak.launches),
                "background": sum(launch.plan.background for launch in soak.launches),
                "kinds": Counter(launch.plan.kind for launch in soak.launches),
                "violations": soak.violations,
                "stop_s": [launch.outcome["stop_s"] for launch in soak.launches if "stop_s" in launch.outcome],
                "launches": [
                    {
                        "number": launch.plan.number,
                        "plan": str(launch.plan),
                        "seconds": launch.seconds,
                        "error": launch.outcome["error"],
                        "rank": launch.outcome.get("rank"),
                        "problems": launch.problems,
                    }
                    for launch in soak.launches
                ],
                "memory": [{"launch": number, **values} for number, values in soak.readings],
            }
            for soak in soaks
        ],
    }
