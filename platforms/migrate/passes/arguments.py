"""Arguments for cards, address and mixed precision, and exactly one for the backend: hccl."""

_PLACES = {  # args.name: its options, its help
    "device_list": (
        "'--device-list', '--device_list', default=None, type=str",
        "help='cards to train on, such as 0,1 (default: all of this host)'",
    ),
    "addr": ("'--addr', default='127.0.0.1', type=str", "help='address of the first host'"),
    "port": ("'--port', default='29688', type=str", "help='port of the first host, the same on all hosts'"),
}
_AMP = {"amp": ("'--amp', action='store_true'", "help='train in mixed precision'")}
_APEX = {
    "opt_level": ("'--opt-level', '--opt_level', default='O2', type=str", "help='O0 to O3: what apex makes half'"),
    "loss_scale": (
        "'--loss-scale', '--loss_scale', default=1024., type=float",
        "help='static loss scale of apex; -1: dynamic'",
    ),
}


def add_arguments(script, shape):
    """Add what the script has not got; the backend's default becomes hccl."""
    _backend(script, shape)
    wanted = dict(_PLACES) if shape.article else {}
    if "MASTER_ADDR" in script.source:  # the script sets the address itself
        wanted.pop("addr", None), wanted.pop("port", None)
    if shape.scalable or shape.argument("amp"):
        wanted |= _AMP | _APEX if shape.article else _AMP
    lines, start = [], f"{shape.parser}.add_argument("
    for dest, (options, about) in wanted.items():
        between = ", " if len(start + options + about) < 110 else ",\n" + " " * len(start)
        lines += [] if shape.argument(dest) else [f"{start}{options}{between}{about})"]
    if lines:
        script.after(shape.last_argument, "\n".join(lines))


def _backend(script, shape):
    """One --dist-backend: of two with one name, the default of the first wins, whatever the second says."""
    found = [it for it in shape.arguments if it.dest in ("dist_backend", "backend")]
    for first in found[:1]:
        default = script.keyword(first.call, "default")
        if default is not None:
            script.edit(default, script.quoted("hccl"))
        if shape.article and "--dist-backend" in first.options and "--dist_backend" not in first.options:
            script.append(first.call.args[0], f", {script.quoted('--dist_backend')}")
    for again in found[1:]:
        if again.dest == found[0].dest:
            script.replace(script.statement(again.call), "")
