"""Arguments for cards, address and mixed precision, and exactly one for the backend: hccl."""

import ast

from .kinds import shaped

PLACES = (
    ("device_list", "'--device-list', '--device_list', default=None, type=str",
     "help='cards to train on, such as 0,1 (default: all of this host)'"),
    ("addr", "'--addr', default='127.0.0.1', type=str", "help='address of the first host'"),
    ("port", "'--port', default='29688', type=str", "help='port of the first host, the same on all hosts'"),
)  # fmt: skip
AMP = ("amp", "'--amp', action='store_true'", "help='train in mixed precision'")
APEX = (
    ("opt_level", "'--opt-level', '--opt_level', default='O2', type=str", "help='O0 to O3: what apex makes half'"),
    ("loss_scale", "'--loss-scale', '--loss_scale', default=1024., type=float",
     "help='static loss scale of apex; -1: dynamic'"),
)  # fmt: skip


@shaped(2)
def add_arguments(script, shape):
    """Add what the script has not got; the backend's default becomes hccl."""
    _backend(shape)
    _address(shape)
    article = script.style == "article"
    wanted = PLACES if article else ()
    if any(getattr(it, "value", None) == "MASTER_ADDR" for it in shape.script.walk(shape.script.module)):
        wanted = wanted[:1]  # the script sets the address itself
    if shape.scalable or shape.argument("amp"):
        wanted += (AMP, *APEX) if article else (AMP,)
    lines = [_line(shape, *words) for dest, *words in wanted if not shape.argument(dest)]
    if lines:
        pad = " " * len(f"{shape.parser}.add_argument(")
        shape.script.after(shape.last_argument, "\n".join(lines), parser=shape.parser, pad=pad)


def _line(shape, options, about):
    """An add_argument statement on one line or on two, as the others of the script."""
    one = f"$parser.add_argument({options}, {about})"
    short = [it for it in shape.arguments if it.call.lineno == it.call.end_lineno]
    if 2 * len(short) > len(shape.arguments) and len(one) < 115:
        return one
    return one.replace(", help=", ",\n${pad}help=")


def _backend(shape):
    """One --dist-backend: of two with one name, the default of the first wins, whatever the second says."""
    script = shape.script
    found = [it for it in shape.arguments if it.dest in ("dist_backend", "backend")]
    if not found:
        return
    default = found[0].keyword("default")
    if default is not None and script.code(default) not in ('"hccl"', "'hccl'"):
        script.edit(default, script.quote + "hccl" + script.quote)
    known = {option for it in shape.arguments for option in it.options}
    if script.style == "article" and "--dist-backend" in found[0].options and "--dist_backend" not in known:
        option = next(it for it in found[0].call.args if getattr(it, "value", "") == "--dist-backend")
        script.insert(script.span(option)[1], f", {script.quote}--dist_backend{script.quote}")
    for again in found[1:]:
        if again.dest == found[0].dest:
            script.replace(script.statement(again.call), "")


def _address(shape):
    """--dist-url does not say any more where the processes meet."""
    script, argument = shape.script, shape.argument("dist_url")
    method = shape.group_keyword("init_method")
    if argument is None or method != f"{shape.args}.dist_url":
        return
    article = script.style == "article"
    read = [it for it in ast.walk(script.module) if isinstance(it, ast.Compare) and "dist_url" in script.code(it)]
    about = argument.keyword("help")
    if about is not None:
        text = "env:// where WORLD_SIZE and RANK are set" if read else "not used"
        script.edit(about, script.quote + text + script.quote)
    script.left(
        argument.call.lineno, "--dist-url no longer says where the processes meet",
        ("--addr and --port" if article else "MASTER_ADDR and MASTER_PORT") + " do: leave --dist-url out"
        + (", or keep env:// where a launcher sets WORLD_SIZE and RANK." if read else "."),
    )  # fmt: skip
