"""Mixed precision: what initializes it, DDP around what it makes of the model, and the scaled loss."""

from helpers.language import N_

from .model import Placement

_CLIPPERS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")


def initialize(script, shape):
    """amp.initialize, then DDP, right after the optimizer; a GradScaler in the modern style."""
    if shape.scale:
        return
    if not shape.scalable:
        if not shape.scaled:
            script.left(
                shape.worker,
                N_("no mixed precision: where model, optimizer and backward pass meet is not clear"),
                N_("On an NPU half precision is much faster: add torch.autocast and torch.amp.GradScaler by hand."),
            )
        return
    statement = shape.optimizer_statement
    if not shape.article:
        script.after(statement, "scaler", torch=script.alias("torch"), args=shape.args)
        return
    words = {"args": shape.args, "model": shape.model, "optimizer": shape.optimizer}
    words["space"] = " " * len(f"{shape.model}, {shape.optimizer} = amp.initialize(")
    indent = script.indent(statement)
    text = script.write("initialize", indent, **words) + Placement(script, shape).wrapping(indent)
    script.insert(script.lines(statement)[1], script.newline + text)


def scale_loss(script, shape):
    """amp.scale_loss, or autocast and the scaler's own steps in the modern style."""
    if not shape.scale or shape.backward is None:
        return
    call = shape.backward.value
    words = {
        "args": shape.args_in(shape.trainer),
        "loss": call.func.value.id,
        "optimizer": shape.in_trainer(shape.optimizer),
        "given": ", ".join(f"{it.arg}={script.code(it.value)}" for it in call.keywords),
    }
    clippings = script.calls(shape.trainer, *_CLIPPERS)
    if shape.scale == "amp":
        script.replace(shape.backward, "backward", comments=False, **words)
        for call in clippings:  # apex updates its own fp32 copies of the parameters
            masters = f"amp.master_params({words['optimizer']}) if {words['args']}.amp else "
            script.insert(script.span(call.args[0])[0], masters)
    elif shape.forward:
        _scaler(script, shape, words, clippings)


def _scaler(script, shape, words, clippings):
    first, last = shape.forward[0], shape.forward[-1]
    indent, torch = script.indent(first), script.alias("torch")
    text = f"{indent}with {torch}.autocast({script.quoted('npu')}, enabled={words['args']}.amp):{script.newline}"
    text += "".join(script.shown(it, indent + script.unit, comments=it is not first) for it in shape.forward)
    script.edit_span(script.lines(first, comments=False)[0], script.lines(last)[1], text)
    script.edit(shape.backward.value.func.value, f"scaler.scale({words['loss']})")
    for call in clippings:
        script.before(script.statement(call), f"scaler.unscale_({words['optimizer']})", comments=False)
    script.replace(shape.step, "step", comments=False, **words)
    script.append(shape.trainer.args.args[-1], ", scaler")
    script.append(script.arguments(shape.call)[-1], ", scaler=scaler" if shape.call.keywords else ", scaler")
