"""The tuner's choice against every plan timed at length, faults planted, and a warm start against a cold one.

Each case runs in processes of its own: one with empty caches, one that finds them filled, one with
planted faults, one without a C++ compiler.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

from helpers import measure

from .cases.planted import FAULTS

UNIT = "s"
CASES = (  # model, pixels, batch, bf16 allowed
    ("silu_mlp", 32, 64, False),
    ("silunet", 32, 64, True),
    ("transformer", 32, 32, False),
    ("resnet18", 32, 32, False),
    ("silunet", 32, 32, False),
    ("resnet50", 32, 16, False),
    ("resnet18", 64, 16, False),
    ("resnet50", 64, 8, False),
)
TIMEOUT = 1800
BEST, EAGER, WRONG, SOUND = (
    "the choice's speed / the best plan's, least",
    "the choice's speed / eager's, least",
    "planted faults accepted",
    "sound plans refused",
)
TARGETS = {BEST: (">=", 0.95), EAGER: (">=", 0.98), WRONG: ("<=", 0), SOUND: ("<=", 0)}


def child(case, **environment):
    """What one process found out about `case`."""
    command = [sys.executable, "-m", "benchmarks.cases.compiler", json.dumps(case)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def run():
    rows, ratios = {}, {}
    sound = wrong = accepted = refused = 0
    for model, pixels, batch, bf16 in CASES:
        name = f"{model} {pixels}×{pixels} b{batch}{' bf16' * bf16}"
        case = {"model": model, "pixels": pixels, "batch": batch, "bf16": bf16}
        with tempfile.TemporaryDirectory() as caches:
            kept = {"TORCHINDUCTOR_CACHE_DIR": caches}
            cold, warm = (child({**case, "what": what}, **kept) for what in ("cold", "warm"))
            faults = child({**case, "what": "faults"}, **kept)
        samples, choice = cold["samples"], cold["choice"]
        faster = {
            plan: statistics.median(e / s for e, s in zip(samples["eager"], spent, strict=True))
            for plan, spent in samples.items()
        }
        best = max(faster, key=faster.get)
        rows |= {f"{name}: {plan}": measure.summary(spent) for plan, spent in samples.items()}
        ratios[f"{name}: chose {choice}, against eager"] = faster[choice]
        ratios[f"{name}: chose {choice}, against the best ({best})"] = faster[choice] / faster[best]
        ratios[f"{name}: warm start / cold, compiling ({cold['compile_s']:.0f} s cold)"] = (
            warm["compile_s"] / cold["compile_s"]
        )
        ratios[f"{name}: warm start / cold, all tuning"] = warm["tuning_s"] / cold["tuning_s"]
        status = {row["plan"]: row["status"] for row in faults["rows"]}
        wrong += len(FAULTS)
        accepted += sum(status[fault] != expected for fault, expected in FAULTS.items())
        right = [status[plan] for plan in ("same", "aot_eager")] + [row["status"] for row in cold["rows"]]
        sound += len(right)
        refused += sum(state in ("rejected", "failed") for state in right)
        print(
            f"  … {name}: chose {choice}, {faster[choice]:.2f}× eager, {faster[choice] / faster[best]:.2f}× the best "
            f"({best}); compiling {cold['compile_s']:.0f} s cold, {warm['compile_s']:.1f} s warm; faults accepted: "
            f"{[fault for fault, expected in FAULTS.items() if status[fault] != expected]}; sound plans refused: "
            f"{sum(state in ('rejected', 'failed') for state in right)} of {len(right)}",
            flush=True,
        )
    case = {"model": "silu_mlp", "pixels": 32, "batch": 8, "bf16": False, "what": "no compiler"}
    with tempfile.TemporaryDirectory() as caches:
        without = child(case, CXX="/nowhere/c++", TORCHINDUCTOR_CACHE_DIR=caches)
    wrong, accepted = wrong + 1, accepted + (without["rows"][1]["status"] != "failed")
    ratios[WRONG], ratios[SOUND] = accepted, refused
    print(f"  … {wrong} planted faults, {sound} sound plans")
    for least, against in ((BEST, "against the best"), (EAGER, "against eager")):
        ratios[least] = min(ratio for name, ratio in ratios.items() if against in name)
    return rows, ratios


def reasons(rows, ratios):
    """Which case is the worst."""
    found = {}
    for least, against in ((BEST, "against the best"), (EAGER, "against eager")):
        worst = min((name for name in ratios if against in name), key=ratios.get)
        found[least] = f"{worst}: {ratios[worst]:.2f}; the tuner times fewer steps of a plan than this benchmark"
    return found
