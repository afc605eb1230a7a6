"""What only the user can choose: the command, the cards, the port, the batch."""

STEP = None


def apply(script):
    """Add the notes; nothing is changed."""
    shape = script.shape
    if not shape.full:
        return None
    line = shape.spawn.lineno
    name = script.name.replace("\\", "/").rpartition("/")[2]
    name = name if name.endswith(".py") else "main.py"
    spawned = _options(shape)
    data = " ".join(_positionals(shape))
    precision = " --amp" if shape.initialized else ""
    if script.style == "article":
        precision += " --opt-level O2" if shape.initialized == "apex" else ""
        several = f"python {name} {spawned} --device-list 0,1{precision} {data}"
        single = f"python {name} --device-list 0{precision} {data}"
    else:
        several = f"torchrun --nproc_per_node=2 {name}{precision} {data}"
        single = f"python {name}{precision} {data}"
        if spawned:
            single += f"; without torchrun on all cards: python {name} {spawned}{precision} {data}"
    several, single = " ".join(several.split()), " ".join(single.split())
    script.choose(line, "launch", f"On two cards: {several}. On one: {single}")
    cards = "--device-list" if script.style == "article" else "ASCEND_RT_VISIBLE_DEVICES"
    script.choose(line, "which cards", f"All of this host are taken; {cards} says which, such as 0,1.")
    own = "--port, 29688 by default" if shape.argument("port") else "MASTER_PORT, which the script sets"
    port = own if script.style == "article" else "MASTER_PORT (torchrun: --master_port)"
    script.choose(line, "address and port", f"The port has to be free, and two runs on one host need two: {port}.")
    script.choose(
        line, "batch and learning rate",
        "Both are as they were, and the batch is the host's: with more cards each gets less. "
        "Where you raise the batch, raise the learning rate with it and warm up.",
    )  # fmt: skip
    return None


def _options(shape):
    """The options that make it spawn, with world size and rank of one host."""
    parts = []
    attribute = shape.spawned.rpartition(".")[2]
    argument = shape.argument(attribute)
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
    for argument in shape.arguments:
        if argument.options and not argument.options[0].startswith("-"):
            yield argument.options[0].upper()
