"""How the processes start: where they meet, how many there are, and which card each of them gets."""

import ast
import re

from helpers.language import N_, Message

from ..edits import delete_items
from ..tree import Unclear

_COUNTS = ("torch.cuda.device_count", "torch.npu.device_count", "torch.accelerator.device_count")
_TAKE_CARDS = ("cuda", "npu", "to", "set_device", "device", "synchronize", "mem_get_info", "memory_allocated")
SETTERS = ("torch.cuda.set_device", "torch.npu.set_device", "torch.accelerator.set_device_index")


def add_process_map(script, shape):
    """Put the function that says which card a process gets before main."""
    if shape.article and "def device_id_to_process_device_map(" not in script.source:
        text = script.write("process map", torch=script.alias("torch"), quotes='"""') + 2 * script.newline
        script.insert(script.lines(script.inside(shape.main, script.module))[0], text)


def set_address(script, shape):
    """Set MASTER_ADDR and MASTER_PORT in main, unless the script knows them; take over what torchrun has settled."""
    if "MASTER_ADDR" in script.source:
        return
    script.need("os")
    if not shape.article:
        _torchrun(script, shape)
    else:
        script.after(shape.parsed, "address", args=shape.args_in_main)


def _torchrun(script, shape):
    args, own, first = shape.args_in_main, f"{shape.args}.", shape.first_of(shape.main)
    words = {name: getattr(shape, name) for name in ("rank", "world_size", "spawned")}
    words = {name: f"{args}.{text.removeprefix(own)}" for name, text in words.items()}
    uses = {words["world_size"], words["spawned"], shape.distributed.replace(shape.args, args, 1)}
    for statement in shape.main.body:  # the first one that asks how it was started
        if any(isinstance(it, ast.Attribute) and script.code(it) in uses for it in script.walk(statement)):
            first = statement
            break
    script.before(first, "torchrun", args=args, card=shape.card_statement.targets[0].attr, **words)


def count_processes(script, shape):
    """One process for every card: in main the process map, or torchrun, takes the place of the count of devices."""
    for call in script.calls(shape.main, *_COUNTS):
        if shape.article:
            script.edit(call, f"len(device_id_to_process_device_map({shape.args_in_main}.device_list))")
        elif "LOCAL_WORLD_SIZE" not in script.code(script.parent(call)):
            torch = script.alias("torch")
            script.edit(call, f"int(os.environ.get({script.quoted('LOCAL_WORLD_SIZE')}, {torch}.npu.device_count()))")
            script.need("os")


def look_up_card(script, shape):
    """Look the card of a process up; in the modern style the number of the process is the card."""
    card = shape.card_statement
    _count_by_process(script, shape)
    if not shape.article:
        if isinstance(card.value, ast.Name):
            script.edit(card.value, f"{shape.process} or 0")
    elif "process_device_map[" not in script.code(shape.worker) and card in shape.worker.body:
        words = {"card": shape.card, "process": shape.process, "args": shape.args, "spawned": shape.spawned}
        script.replace(card, "card", comments=False, **words)
        script.need("os")


def _count_by_process(script, shape):
    """args.gpu is the number of a card now: what counts processes has to use the process's own number."""
    for node in script.of(ast.Compare):
        number = isinstance(getattr(node.comparators[0], "value", None), int)
        if number and getattr(node.left, "attr", "") == shape.card_statement.targets[0].attr:
            text = Message("{node} compares a card, not a process", node=script.code(node))
            script.left(node, text, N_("Compare the rank instead: the first process need not have card 0."))


def name_card(script, shape):
    """`x.cuda(gpu)` and its like, with the number of the process, name the card that the process got instead."""
    for call in script.methods(*_TAKE_CARDS):
        for part in call.args if script.function(call) is shape.worker else ():
            if getattr(part, "id", "") == shape.process and call.lineno > shape.card_statement.lineno:
                script.edit(part, shape.card)


def meet_at_address(script, shape):
    """Drop `init_method` from init_process_group: the processes meet where main has put address and port."""
    parts = script.arguments(shape.group)
    for part in parts:
        if getattr(part, "arg", "") == "init_method":
            delete_items(script, parts, [part])
            text = Message("{value} no longer says where the processes meet", value=script.code(part.value))
            advice = N_("--addr and --port do.") if shape.argument("port") else N_("MASTER_ADDR and MASTER_PORT do.")
            script.left(shape.group, text, advice)


def place_process(script, shape):
    """Write `loc` (or a torch.device) and set_device after the card is known; move the shares out of branches."""
    setters = script.calls(shape.worker, *SETTERS)
    if not any(script.code(call.args[0]) == shape.place for call in setters if call.args):
        _place(script, shape, setters)
    _share_batch(script, shape)


def _place(script, shape, setters):
    torch, number = script.alias("torch"), f"f'npu:{{{shape.card}}}'"
    value = number if shape.article else f"{torch}.device({number})"
    lines = [f"{shape.place} = {value}", f"{torch}.npu.set_device({shape.place})"]
    place = script.inside(shape.card_statement, shape.worker)
    for node in shape.devices:
        new = f"{shape.device} = {torch}.device(loc)"
        if shape.article and node.lineno >= place.lineno:
            script.edit(node, new)
            continue
        script.delete(node)
        lines += [new] if shape.article else []
    for call in setters:
        if script.statement(call) in shape.worker.body:
            script.delete(script.statement(call))
    text = script.write("\n".join(lines), script.indent(place))
    script.insert(script.lines(place)[1], text)


def _share_batch(script, shape):
    """Batch and workers of a process are divided before, not inside, the branch that makes the model."""
    by_count = re.compile(rf"//?=?\s*{shape.count}\b")  # args.batch_size = int(args.batch_size / count), or //= count
    shares = (it for it in script.walk(shape.worker) if isinstance(it, (ast.Assign, ast.AugAssign)))
    shares = [it for it in shares if by_count.search(script.code(it))]
    branch = script.parent(shares[0]) if shares else None
    if not isinstance(branch, ast.If) or branch not in shape.worker.body or branch.body == shares:
        return
    if any(it not in branch.body for it in shares):
        text = N_("batch and workers are divided in several places")
        raise Unclear(shares[0], text, N_("Divide them before the model."))
    indent = script.indent(branch)
    text = f"{indent}if {script.code(branch.test)}:{script.newline}"
    text += "".join(script.shown(it, indent + script.unit) for it in shares)
    script.insert(script.lines(branch)[0], text)
    for it in shares:
        script.replace(it, "")
