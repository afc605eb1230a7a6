"""RunConfig's `compiler` in a training run, and what the record keeps about it."""

import torch

from ..compiler import compiler_stats, optimize
from ..compiler.plan import default_plans, quiet
from ..language import Message
from ..measure import AT_LEAST

ROUNDS = AT_LEAST  # of the trials; a run in a comparison has few steps to spare


def prepare(config, model, strategy, log) -> None:
    """Make `model` compute as `config.compiler` says; call it before the model is wrapped.

    "auto" lets `optimize` choose among its default plans, without channels last if the run has fixed it. `log` gets a
    line of text when something takes long.
    """
    if config.compiler == "none":
        return
    compiler_stats(reset=True)
    if config.compiler == "auto":
        plans = [plan for plan in default_plans(model) if not (config.channels_last and plan.channels_last)]
        optimize(model, plans, rounds=ROUNDS, log=log)
    else:
        quiet()
        log(Message("compiling with {compiler} in the first step …", compiler=config.compiler))
        for part in strategy.compiled_parts(model):
            compile_in_place(part, config.compiler)


def compile_in_place(module, backend) -> None:
    """`module.compile(backend=backend)`, also for a module whose forward is torch's own, such as nn.Sequential.

    Releases such as 2.6 and 2.8 skip the code of torch's own modules, and then compile nothing, silently.
    """
    from torch._dynamo import eval_frame, external_utils, trace_rules

    wraps = hasattr(eval_frame.OptimizedModule, "_should_wrap_module_call_impl")
    if wraps or not trace_rules.check(module.forward):
        module.compile(backend=backend)
        return
    call = external_utils.wrap_inline(module._call_impl)  # a frame of its own, which is not skipped
    # Another code object for each module, since functions that share their code share their recompilations.
    call.__code__ = call.__code__.replace(co_name=call.__code__.co_name)
    module._compiled_call_impl = torch.compile(call, backend=backend)


def plan_is_chosen(config, model) -> bool:
    """Whether the steps from now on are all computed in the same way."""
    return config.compiler != "auto" or model.tuner.done


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
        found["plan"] = str(tuner.choice) if tuner.done else None
        found.update(rows=tuner.rows(), summary=tuner.summary())
    return found


def note(config, model) -> str:
    """A sentence for the run's note; "" if there is none."""
    if config.compiler != "auto":
        return ""
    why, unsure = model.tuner.why, "the run ended before the tuner had chosen: give it more steps"
    return f"plan: {model.tuner.choice}" + (f" ({why})" if why else "") if model.tuner.done else unsure
