"""The order of model, loss, optimizer and loaders.

An optimizer is made after its model has moved: on an NPU a move makes new parameters, and it would train the old ones.
PyTorch moves a module in place only between devices that share their kind of tensor, as the CPU and CUDA do
(torch.nn.Module._apply).
"""

import ast

from helpers.language import N_, Message

_WHY = N_("On an NPU a move makes new parameters, and the optimizer trains the old ones: make it after the move.")
_SWAP = N_(
    "Or begin the script with torch.__future__.set_swap_module_params_on_conversion(True), with which the parameters "
    "stay the same objects."
)
_WHY_OR_SWAP = Message("{why} {swap}", why=Message(_WHY), swap=Message(_SWAP))


def regroup(script, shape):
    """Loss, optimizer and resume go behind the data loaders, as in the guide: out in step 9, in again in step 11.

    They move where nothing between the two places needs them; elsewhere they are mended where they are.
    """
    schedulers = {it.targets[0].id for it in script.assigned(shape.worker, "torch.optim.lr_scheduler.*")}
    for call in script.calls(shape.worker, *(f"{name}.step" for name in schedulers)):
        advice = N_("The guide's step 9 takes it out, and then the learning rate never falls.")
        script.left(call, Message("{call} stays", call=script.code(call)), advice)
    group, between = _places(script, shape)
    if not group or script.style != "article" or _depends(script, group, between):
        return
    start, end = script.lines(group[0])[0], script.lines(group[-1])[1]
    script.edit_span(start, end, "")
    script.insert(script.lines(between[-1])[1], script.newline + script.source[start:end], 11)


def _places(script, shape):
    """(statements from the loss to the resume, those behind them up to the last loader); empty where unclear."""
    body = shape.worker.body
    marks = [*shape.losses, shape.optimizer_statement, *script.calls(shape.worker, "torch.load")]
    loaders = [body.index(it) for it in script.assigned(shape.worker, "*.DataLoader") if it in body]
    tops = [script.inside(it, shape.worker) for it in marks if it is not None]
    if shape.optimizer_statement is None or not loaders:
        return [], []
    places = [body.index(it) for it in tops]
    group, between = body[min(places) : max(places) + 1], body[max(places) + 1 : loaders[-1] + 1]
    return (group, between) if loaders[0] > max(places) else ([], [])


def _depends(script, group, between):
    (read, written), (read_later, written_later) = (_names(script, part) for part in (group, between))
    return bool(written & (read_later | written_later) or written_later & read)


def _names(script, statements):
    nodes = [it for part in statements for it in ast.walk(part) if isinstance(it, (ast.Name, ast.Attribute))]
    kinds = ([it for it in nodes if isinstance(it.ctx, ast.Load) == load] for load in (True, False))
    return [{script.code(it) for it in kind} for kind in kinds]


def optimize_after_move(script):
    """Remark on models that move after their optimizer was made, here or by the caller."""
    made = [(call, path) for call in script.of(ast.Call) for path in _models(call)]
    for move in script.methods("cuda", "npu", "to"):
        function, path, device = script.function(move), script.code(move.func.value), _device(script, move)
        later = [call for call, model in made if device and model == path and call.lineno < move.lineno]
        names = [it.arg for it in [*function.args.args, *function.args.kwonlyargs]] if function else []
        if device and path in names and any("optim" in it.lower() for it in names):
            text = N_("a model moves after its optimizer was made, unless it is there already")
            script.left(move, text, _WHY_OR_SWAP)
        for call in later:
            if script.function(call) is function:
                script.left(call, N_("an optimizer is made before its model moves"), _WHY)


def _models(call):
    """The texts of the models whose parameters a call gets, where its name is that of a class."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = [*call.args, *(it.value for it in call.keywords)][:1] if name[:1].isupper() else []
    parameters = (it for part in given for it in ast.walk(part) if getattr(it, "attr", "").endswith("parameters"))
    return [ast.unparse(it.value) for it in parameters]


def _device(script, move):
    """Whether `x.cuda(…)`, `x.npu(…)` or `x.to(…)` gets something that can be a device."""
    codes = [script.code(it) for it in [*move.args, script.keyword(move, "device")] if it]
    return move.func.attr != "to" or any(not it.startswith("torch.") or "device" in it for it in codes)
