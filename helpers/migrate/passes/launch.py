"""How the processes start: where they meet, how many there are, and which card each of them gets."""

import ast

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
MAP = "process_device_map = device_id_to_process_device_map($args.device_list)\n"
SPAWNED = MAP + """\
if $spawned:
    $card = process_device_map[$process]
elif $process is None:  # torchrun says which process this is; without it, it is the only one
    $card = process_device_map[int(os.environ.get('LOCAL_RANK', 0))]
else:
    $card = $process  # one card, chosen by its own number
"""
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
    if any(getattr(it, "value", None) == "MASTER_ADDR" for it in script.walk(script.module)):
        return
    script.need("os")
    args = shape.args_in_main
    if script.style == "modern":
        _torchrun(script, shape, args)
    elif shape.parsed in shape.main.body:
        script.after(shape.parsed, ADDRESS, args=args)
    else:
        script.before(_first(shape.main), ADDRESS, args=args)


def _torchrun(script, shape, args):
    rank, world_size, own = shape.group_keyword("rank"), shape.group_keyword("world_size"), f"{shape.args}."
    known = rank and world_size and shape.card_statement
    if not known or not all(it.startswith(own) for it in (rank, world_size, shape.spawned)):
        script.before(_first(shape.main, args), FIXED_ADDRESS)
        script.left(
            shape.main, "torchrun cannot start this script: rank and world size are not kept in args",
            "Start it as before; its own spawn works.",
        )  # fmt: skip
        return
    words = {"rank": rank, "world_size": world_size, "spawned": shape.spawned}
    words = {name: args + "." + text.removeprefix(own) for name, text in words.items()}
    uses = (words["world_size"], words["spawned"], shape.distributed.replace(shape.args, args, 1))
    readers = (it for it in shape.main.body for node in script.walk(it) if _is_one_of(script, node, uses))
    statement = next(readers, None) or _first(shape.main, args)
    script.before(statement, TORCHRUN, args=args, card=shape.card_statement.targets[0].attr, **words)


def _is_one_of(script, node, attributes):
    return isinstance(node, ast.Attribute) and script.code(node) in attributes


def _first(main, args=None):
    """The first statement of main after its docstring, its `global` and where it parses `args`."""
    for node in main.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        parses = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == args
        if not (is_text or parses or isinstance(node, ast.Global)):
            return node
    return main.body[-1]


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
            script.before(shape.first_of_worker, text, **words)
        else:
            script.replace(card, text if card in shape.worker.body else ALWAYS[len(MAP) :], comments=False, **words)
        script.need("os")


def _count_by_process(script, shape):
    """args.gpu is the number of a card now: what counts processes has to use the process's own number."""
    if shape.card_statement is None:
        return
    for node in script.walk(shape.worker):
        if _compares_number(node) and script.code(node.left) == shape.card:
            script.edit(node.left, shape.process)
        if isinstance(node, ast.Assign) and script.code(node.targets[0]) == shape.group_keyword("rank"):
            for inner in script.walk(node.value):
                if isinstance(inner, ast.Attribute) and script.code(inner) == shape.card:
                    script.edit(inner, shape.process)
    for node in script.walk(script.module):
        if _compares_number(node) and script.function(node) not in (shape.worker, shape.main, None):
            if isinstance(node.left, ast.Attribute) and node.left.attr == shape.card_statement.targets[0].attr:
                script.left(
                    node, f"{script.code(node)} compares a card, not a process",
                    "Compare the rank instead: the first process need not have card 0.",
                )  # fmt: skip


def _compares_number(node):
    return isinstance(node, ast.Compare) and isinstance(getattr(node.comparators[0], "value", None), int)


@shaped(7)
def meet_at_address(script, shape):
    """Drop `init_method` from init_process_group: the processes meet where main has put address and port."""
    parts = script.arguments(shape.group)
    place = next((n for n, part in enumerate(parts) if getattr(part, "arg", "") == "init_method"), None)
    if place is None:
        return
    start, end = script.span(parts[place])
    if place:  # with the comma before it, so that the next one stays on its own line
        start = script.span(parts[place - 1])[1]
    elif len(parts) > 1:
        end = script.span(parts[1])[0]
    script.edit_span(start, end, "")


@shaped(1)
def advise_on_launch(script, shape):
    """What only the user can choose: the command, the cards, the port, the batch. Nothing is changed."""
    name = script.file.replace("\\", "/").rpartition("/")[2]
    name = name if name.endswith(".py") else "main.py"
    spawned, article = _options(shape), script.style == "article"
    rest = " --amp" if shape.initialized else ""
    rest += " --opt-level O2" if article and shape.initialized == "apex" else ""
    rest = " ".join([rest, *_positionals(shape)])
    if article:
        several = f"python {name} {spawned} --device-list 0,1{rest}"
        single = f"python {name} --device-list 0{rest}"
    else:
        several = f"torchrun --nproc_per_node=2 {name}{rest}"
        single = f"python {name}{rest}"
        single += f"; without torchrun on all cards: python {name} {spawned}{rest}" if spawned else ""
    several, single = " ".join(several.split()), " ".join(single.split())
    script.choose(shape.spawn, "launch", f"On two cards: {several}. On one: {single}")
    cards = "--device-list" if article else "ASCEND_RT_VISIBLE_DEVICES"
    script.choose(shape.spawn, "which cards", f"All of this host are taken; {cards} says which, such as 0,1.")
    own = "--port, 29688 by default" if shape.argument("port") else "MASTER_PORT, which the script sets"
    port = own if article else "MASTER_PORT (torchrun: --master_port)"
    text = f"The port has to be free, and two runs on one host need two: {port}."
    script.choose(shape.spawn, "address and port", text)
    script.choose(
        shape.spawn, "batch and learning rate",
        "Both are as they were, and the batch is the host's: with more cards each gets less. "
        "Where you raise the batch, raise the learning rate with it and warm up.",
    )  # fmt: skip


def _options(shape):
    """The options that make it spawn, with world size and rank of one host."""
    parts = []
    argument = shape.argument(shape.spawned.rpartition(".")[2])
    if argument and any(it.startswith("--") for it in argument.options):
        parts.append(_long(argument))
    for keyword, value in (("world_size", "1"), ("rank", "0")):
        text = shape.group_keyword(keyword) or ""
        argument = shape.argument(text.rpartition(".")[2]) if text.startswith(f"{shape.args}.") else None
        if argument:
            parts.append(f"{_long(argument)} {value}")
    return " ".join(parts)


def _long(argument):
    return next((it for it in argument.options if it.startswith("--")), argument.options[0])


def _positionals(shape):
    """The positional arguments, in capitals."""
    options = [argument.options[0] for argument in shape.arguments if argument.options]
    return [it.upper() for it in options if not it.startswith("-")]
