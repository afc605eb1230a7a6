"""RunConfig's `compiler` in a training run, and what the record keeps about it."""

import torch

from .. import releases
from ..compiler import compiler_stats, optimize
from ..compiler.plan import default_plans, quiet
from ..launcher.language import marked
from . import sharding

ROUNDS = 3  # of the trials; a run in a comparison has few steps to spare


def prepare(config, model, log) -> None:
    """Make `model` compute as `config.compiler` says; call it before the model is wrapped.

    "auto" lets `optimize` choose among eager and inductor, and channels last unless the run has fixed
    it; the precision stays the run's. "inductor" switches torch.compile on, come what may.

    Args:
        log: gets a line of text when something takes long.
    """
    if config.compiler == "none":
        return
    compiler_stats(reset=True)
    if config.compiler == "auto":
        plans = [plan for plan in default_plans(model) if not (config.channels_last and plan.channels_last)]
        optimize(model, plans, rounds=ROUNDS, log=log)
    else:
        quiet()
        log(marked(f"compiling with {config.compiler} in the first step …"))
        # FSDP gathers weights between its units, which no graph can contain.
        for part in sharding.units(model) if config.strategy == "fsdp" else [model]:
            releases.compile_in_place(part, config.compiler)


def plan_is_chosen(config, model) -> bool:
    """Whether the steps from now on are all computed in the same way."""
    return config.compiler != "auto" or model.tuner.done


def eager():
    """A context in which what was compiled is not used: an evaluation is not worth a compilation of its own."""
    return torch.compiler.set_stance("force_eager")


def measured(config, model) -> dict | None:
    """What the record keeps: the plan, what was tried and what it cost; None without a compiler."""
    if config.compiler == "none":
        return None
    stats = compiler_stats()
    found = {
        "asked": config.compiler,
        "plan": config.compiler,
        "graphs": stats.graphs,
        "compile_s": stats.compile_s,
        "breaks": [vars(place) for place in stats.breaks],
        "recompilations": [vars(again) for again in stats.recompilations],
    }
    if config.compiler == "auto":
        tuner = model.tuner
        found.update(
            plan=str(tuner.choice) if tuner.done else None,
            rows=tuner.rows(),
            summary=tuner.summary(),
        )
    return found


def note(config, model) -> str:
    """A sentence for the run's note; "" if there is none."""
    if config.compiler != "auto":
        return ""
    if not model.tuner.done:
        return marked("the run ended before the tuner had chosen: give it more steps")
    return marked(f"plan: {model.tuner.choice}")
