"""How the processes start: where they meet, how many there are, and which card each of them gets."""

import ast

from helpers.launcher.language import marked

from ..edits import delete_items
from .kinds import shaped

MAP_FUNCTION = """
def device_id_to_process_device_map(device_list):
    ${quotes}{number of a process: its card} for cards such as 1,0; None stands for all cards of this host.${quotes}
    count = $torch.npu.device_count()
    devices = range(count) if device_list is None else sorted(int(card) for card in device_list.split(','))
    if len(set(devices)) < len(devices):
        raise ValueError(f'--device-list {device_list} names a card twice: it would get two processes')
    missing = [card for card in devices if not 0 <= card < count]
    if missing or not devices:
        raise ValueError(f'--device-list {device_list}: this host has {count} cards, counted from 0')
    return dict(enumerate(devices))
"""
ADDRESS = """
# HCCL meets here; what torchrun has set stays
os.environ.setdefault('MASTER_ADDR', $args.addr)
os.environ.setdefault('MASTER_PORT', str($args.port))
"""
FIXED_ADDRESS = """
os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
os.environ.setdefault('MASTER_PORT', '29688')
"""
TORCHRUN = """
if 'LOCAL_RANK' in os.environ:  # started by torchrun, which counts the processes
    $args.$card = int(os.environ['LOCAL_RANK'])
    $rank = int(os.environ['RANK'])
    $world_size = int(os.environ['WORLD_SIZE'])
    $spawned = False
""" + FIXED_ADDRESS.lstrip()
COUNTS = ("torch.cuda.device_count", "torch.npu.device_count", "torch.accelerator.device_count")
TAKE_CARDS = ("cuda", "npu", "to", "set_device", "device", "synchronize", "mem_get_info", "memory_allocated")
MAP = "process_device_map = device_id_to_process_device_map($args.device_list)\n"
SPAWNED = (
    MAP
    + """\
if $spawned:
    $card = process_device_map[$process]
elif $process is None:  # torchrun says which process this is; without it, it is the only one
    $card = process_device_map[int(os.environ.get('LOCAL_RANK', 0))]
else:
    $card = $process  # one card, chosen by its own number
"""
)
ALWAYS = MAP + "$card = process_device_map[$process]"


@shaped(3)
def add_process_map(script, shape):
    """Put the function that says which card a process gets before main."""
    if script.style == "article" and "def device_id_to_process_device_map(" not in script.source:
        text = script.write(MAP_FUNCTION, torch=script.alias("torch"), quotes='"""') + 2 * script.newline
        script.insert(script.lines(script.top(shape.main, script.module))[0], text)


@shaped(4)
def set_address(script, shape):
    """Set MASTER_ADDR and MASTER_PORT in main, unless the script knows them; take over what torchrun has settled."""
    if "MASTER_ADDR" in script.source:
        return
    script.need("os")
    if script.style == "modern":
        _torchrun(script, shape)
    elif shape.parsed in shape.main.body:
        script.after(shape.parsed, ADDRESS, args=shape.args_in_main)
    else:
        script.before(shape.first_of(shape.main), ADDRESS, args=shape.args_in_main)


def _torchrun(script, shape):
    args, own, first = shape.args_in_main, f"{shape.args}.", shape.first_of(shape.main)
    words = {"rank": shape.group_keyword("rank"), "world_size": shape.group_keyword("world_size")}
    words["spawned"] = shape.spawned
    if not shape.card_statement or not all(it and it.startswith(own) for it in words.values()):
        script.before(first, FIXED_ADDRESS)
        script.left(
            shape.main,
            "torchrun cannot start this script: rank and world size are not kept in args",
            "Start it as before; its own spawn works.",
        )
        return
    words = {name: f"{args}.{text.removeprefix(own)}" for name, text in words.items()}
    uses = {words["world_size"], words["spawned"], shape.distributed.replace(shape.args, args, 1)}
    for statement in shape.main.body:  # the first one that asks how it was started
        if any(isinstance(it, ast.Attribute) and script.code(it) in uses for it in script.walk(statement)):
            first = statement
            break
    script.before(first, TORCHRUN, args=args, card=shape.card_statement.targets[0].attr, **words)


@shaped(5)
def count_processes(script, shape):
    """One process for every card: in main the process map, or torchrun, takes the place of the count of devices."""
    for call in script.calls(shape.main, *COUNTS):
        if script.style == "article":
            script.edit(call, f"len(device_id_to_process_device_map({shape.args_in_main}.device_list))")
        elif "LOCAL_WORLD_SIZE" not in script.code(script.parent(call)):
            name = f"{script.quote}LOCAL_WORLD_SIZE{script.quote}"
            script.edit(call, f"int(os.environ.get({name}, {script.alias('torch')}.npu.device_count()))")
            script.need("os")


@shaped(6)
def look_up_card(script, shape):
    """Look the card of a process up; in the modern style the number of the process is the card."""
    card = shape.card_statement
    _count_by_process(script, shape)
    words = {"card": shape.card, "process": shape.process, "args": shape.args, "spawned": shape.spawned}
    if script.style == "modern":
        if card is not None and isinstance(card.value, ast.Name) and shape.spawned:
            script.edit(card.value, f"{shape.process} or 0")
    elif "process_device_map[" not in script.code(shape.worker):
        text = SPAWNED if shape.spawned else ALWAYS
        if card is None:
            script.before(shape.first_of(shape.worker), text, **words)
        else:
            script.replace(card, text if card in shape.worker.body else ALWAYS[len(MAP) :], comments=False, **words)
        script.need("os")


def _count_by_process(script, shape):
    """args.gpu is the number of a card now: what counts processes has to use the process's own number."""
    if shape.card_statement is None:
        return
    for node in script.of(ast.Compare):
        if not isinstance(getattr(node.comparators[0], "value", None), int):
            continue
        if script.function(node) is shape.worker and script.code(node.left) == shape.card:
            script.edit(node.left, shape.process)
        elif getattr(node.left, "attr", "") == shape.card_statement.targets[0].attr:
            text = marked(f"{script.code(node)} compares a card, not a process")
            script.left(node, text, "Compare the rank instead: the first process need not have card 0.")
    for node in script.of(ast.Assign):
        if script.function(node) is shape.worker and script.code(node.targets[0]) == shape.group_keyword("rank"):
            for inner in script.walk(node.value):
                if isinstance(inner, ast.Attribute) and script.code(inner) == shape.card:
                    script.edit(inner, shape.process)


@shaped(8)
def name_card(script, shape):
    """`x.cuda(gpu)` and its like, with the number of the process, name the card that the process got instead."""
    if shape.card == shape.process:
        return
    known = [it.lineno for it in script.of(ast.Assign) if script.code(it.targets[0]) == shape.card]
    for call in script.of(ast.Call):
        if getattr(call.func, "attr", "") not in TAKE_CARDS or script.function(call) is not shape.worker:
            continue
        for part in call.args:
            if getattr(part, "id", "") == shape.process and known and call.lineno > known[0]:
                script.edit(part, shape.card)


@shaped(7)
def meet_at_address(script, shape):
    """Drop `init_method` from init_process_group: the processes meet where main has put address and port."""
    parts = script.arguments(shape.group)
    method = next((part for part in parts if getattr(part, "arg", "") == "init_method"), None)
    if method is not None:
        delete_items(script, parts, [method])
        advice = marked("MASTER_ADDR and MASTER_PORT do.")
        if shape.argument("port"):
            advice = marked("--addr and --port do.")
        script.left(shape.group, f"{script.code(method.value)} no longer says where the processes meet", advice)
