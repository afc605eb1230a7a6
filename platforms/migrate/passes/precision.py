"""Mixed precision: what initializes it, DDP around what it makes of the model, and the scaled loss."""

from .kinds import shaped
from .model import Placement

INITIALIZE = """
if $args.amp:
    # before DDP, which wraps what initialize returns, and before a checkpoint is loaded
    $model, $optimizer = amp.initialize($model, $optimizer, opt_level=$args.opt_level,
    ${space}loss_scale='dynamic' if $args.loss_scale == -1 else $args.loss_scale)
"""
SCALER = "scaler = $torch.amp.GradScaler('npu', enabled=$args.amp)"
APEX = """
if $args.amp:
    with amp.scale_loss($loss, $optimizer) as scaled_loss:
        scaled_loss.backward($given)
else:
    $loss.backward($given)
"""
CLIPPERS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")


@shaped(11)
def initialize(script, shape):
    """amp.initialize, then DDP, right after the optimizer; a GradScaler in the modern style."""
    if shape.scale:
        return
    if not shape.scalable:
        if not shape.scaled:
            script.left(
                shape.worker,
                "no mixed precision: where model, optimizer and backward pass meet is not clear",
                "On an NPU half precision is much faster: add torch.autocast and torch.amp.GradScaler by hand.",
            )
        return
    training = shape.training
    statement = training.optimizer_statement
    if script.style == "modern":
        script.after(statement, SCALER, torch=script.alias("torch"), args=shape.args)
        return
    words = {"args": shape.args, "model": training.model, "optimizer": training.optimizer}
    words["space"] = " " * len(f"{training.model}, {training.optimizer} = amp.initialize(")
    indent = script.indent(statement)
    text = script.write(INITIALIZE, indent, **words) + Placement(shape).wrapping(indent)
    script.insert(script.lines(statement)[1], script.newline + text)


@shaped(14)
def scale_loss(script, shape):
    """amp.scale_loss, or autocast and the scaler's own steps in the modern style."""
    training = shape.training
    if not shape.scale or training.backward is None:
        return
    call = training.backward.value
    words = {
        "args": training.args_in(training.trainer),
        "loss": call.func.value.id,
        "optimizer": training.optimizer_in_trainer,
        "given": ", ".join(f"{it.arg}={script.code(it.value)}" for it in call.keywords),
    }
    clippings = script.calls(training.trainer, *CLIPPERS)
    if shape.scale == "amp":
        _apex(script, training, words, clippings)
    elif training.forward:
        _scaler(script, training, words, clippings)


def _apex(script, training, words, clippings):
    script.replace(training.backward, APEX, comments=False, **words)
    for call in clippings:  # apex updates its own fp32 copies of the parameters
        old = script.code(call.args[0])
        script.edit(call.args[0], f"amp.master_params({words['optimizer']}) if {words['args']}.amp else {old}")


def _scaler(script, training, words, clippings):
    torch, quote = script.alias("torch"), script.quote
    first, last = training.forward[0], training.forward[-1]
    indent = script.indent(first)
    text = f"{indent}with {torch}.autocast({quote}npu{quote}, enabled={words['args']}.amp):{script.newline}"
    text += "".join(script.shown(it, indent + script.unit, comments=it is not first) for it in training.forward)
    script.edit_span(script.lines(first, comments=False)[0], script.lines(last)[1], text)
    script.edit(training.backward.value.func.value, f"scaler.scale({words['loss']})")
    for call in clippings:
        script.before(script.statement(call), f"scaler.unscale_({words['optimizer']})", comments=False)
    script.replace(training.step, "scaler.step($optimizer)\nscaler.update()", comments=False, **words)
    if training.trainer is not training.worker:
        script.insert(script.span(training.trainer.args.args[-1])[1], ", scaler")
        given = script.arguments(training.call)[-1]
        script.insert(script.span(given)[1], ", scaler=scaler" if training.call.keywords else ", scaler")
