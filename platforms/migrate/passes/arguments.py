"""Arguments for cards, address and mixed precision, and exactly one for the backend: hccl."""

from ..script import WRITTEN


def add_arguments(script, shape):
    """Add what the script has not got; the backend's default becomes hccl."""
    _backend(script, shape)
    wanted = ["device_list", "addr", "port"] if shape.article else []
    if "MASTER_ADDR" in script.source:  # the script sets the address itself
        wanted = wanted[:1]
    if shape.scalable or shape.argument("amp"):
        wanted += ["amp", "opt_level", "loss_scale"] if shape.article else ["amp"]
    lines, start = [], f"{shape.parser}.add_argument("
    for dest in wanted:
        options, about = WRITTEN[dest].strip().split(" | ")
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
