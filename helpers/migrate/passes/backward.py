"""The loss is scaled before the backward pass when mixed precision is asked for."""

from ..syntax import careful

STEP = 16

APEX = """
if $args.amp:
    with amp.scale_loss($loss, $optimizer) as scaled_loss:
        scaled_loss.backward($given)
else:
    $loss.backward($given)
"""
CLIPPERS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")


@careful
def apply(script):
    """amp.scale_loss, or autocast and the scaler's own steps in the modern style."""
    shape = script.shape
    if not shape.full or not shape.initialized or shape.training.backward is None:
        return None
    if shape.initialized == "apex":
        _apex(shape)
    elif shape.training.forward:
        _scaler(shape)
    return script.edited()


def _words(shape):
    training, call = shape.training, shape.training.backward.value
    return {
        "args": training.args_in(training.trainer),
        "loss": call.func.value.id,
        "optimizer": training.optimizer_in_trainer,
        "given": ", ".join(f"{it.arg}={shape.tree.code(it.value)}" for it in call.keywords),
    }


def _clippings(shape):
    return shape.tree.calls(shape.training.trainer, *CLIPPERS)


def _apex(shape):
    tree, words = shape.tree, _words(shape)
    tree.replace(shape.training.backward, APEX, comments=False, **words)
    for call in _clippings(shape):  # apex updates its own fp32 copies of the parameters
        old = tree.code(call.args[0])
        tree.edit(call.args[0], f"amp.master_params({words['optimizer']}) if {words['args']}.amp else {old}")


def _scaler(shape):
    tree, training, words = shape.tree, shape.training, _words(shape)
    torch, quote, script = tree.alias("torch"), tree.quote, shape.script
    first, last = training.forward[0], training.forward[-1]
    indent = tree.indent(first)
    text = f"{indent}with {torch}.autocast({quote}npu{quote}, enabled={words['args']}.amp):{script.newline}"
    text += "".join(tree.shown(it, indent + tree.unit, comments=it is not first) for it in training.forward)
    script.edit_span(tree.lines(first, comments=False)[0], tree.lines(last)[1], text)
    tree.edit(training.backward.value.func.value, f"scaler.scale({words['loss']})")
    for call in _clippings(shape):
        tree.before(tree.statement(call), f"scaler.unscale_({words['optimizer']})", comments=False)
    tree.replace(training.step, "scaler.step($optimizer)\nscaler.update()", comments=False, **words)
    if training.trainer is not shape.worker:
        parameters = training.trainer.args.args
        script.insert(tree.span(parameters[-1])[1], ", scaler")
        given = [*training.call.args, *(it.value for it in training.call.keywords)]
        named = ", scaler=scaler" if training.call.keywords else ", scaler"
        script.insert(max(tree.span(it)[1] for it in given), named)
