"""Where the processes meet, and in the modern style what torchrun has already settled."""

import ast

from ..syntax import careful

STEP = 4

ARTICLE = """
# HCCL meets here; what torchrun has set stays
os.environ.setdefault('MASTER_ADDR', $args.addr)
os.environ.setdefault('MASTER_PORT', str($args.port))
"""
MODERN = """
if 'LOCAL_RANK' in os.environ:  # started by torchrun, which counts the processes
    $args.$card = int(os.environ['LOCAL_RANK'])
    $rank = int(os.environ['RANK'])
    $world_size = int(os.environ['WORLD_SIZE'])
    $spawned = False
os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
os.environ.setdefault('MASTER_PORT', '29688')
"""


@careful
def apply(script):
    """Set MASTER_ADDR and MASTER_PORT in main, unless the script knows them."""
    shape = script.shape
    if not shape.full:
        return None
    tree, args = shape.tree, shape.args_in_main
    if any(getattr(it, "value", None) == "MASTER_ADDR" for it in tree.walk(tree.module)):
        return None
    if script.style == "article":
        if shape.parsed in shape.main.body:
            tree.after(shape.parsed, ARTICLE, args=args)
        else:
            tree.before(_first(shape.main), ARTICLE, args=args)
    else:
        _modern(script, shape, tree, args)
    tree.need("os")
    return script.edited()


def _modern(script, shape, tree, args):
    rank, world_size = shape.group_keyword("rank"), shape.group_keyword("world_size")
    own = [f"{shape.args}.", *([] if shape.spawned else ["?"])]
    known = rank and world_size and shape.card_statement and all(it.startswith(own[0]) for it in (rank, world_size))
    if not known or not shape.spawned.startswith(own[0]):
        tree.before(_first(shape.main, args), "\n".join(MODERN.strip().splitlines()[-2:]))
        script.left(
            shape.main.lineno, "torchrun cannot start this script: rank and world size are not kept in args",
            "Start it as before; its own spawn works.",
        )  # fmt: skip
        return
    words = {"rank": rank, "world_size": world_size, "spawned": shape.spawned}
    words = {name: args + "." + text.removeprefix(own[0]) for name, text in words.items()}
    card = shape.card_statement.targets[0].attr
    uses = (words["world_size"], words["spawned"], shape.distributed.replace(shape.args, args, 1))
    used_in = (it for it in shape.main.body for node in ast.walk(it) if _is_one_of(tree, node, uses))
    statement = next(used_in, None)
    tree.before(statement or _first(shape.main, args), MODERN, args=args, card=card, **words)


def _is_one_of(tree, node, attributes):
    return isinstance(node, ast.Attribute) and tree.code(node) in attributes


def _first(main, args=None):
    """The first statement of main after its docstring, its `global` and where it parses `args`."""
    for node in main.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        parses = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == args
        if not (is_text or parses or isinstance(node, ast.Global)):
            return node
    return main.body[-1]
