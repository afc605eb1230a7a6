"""The notes about what only the user can choose: the command, the cards, where processes meet, the batch."""

import ast

from .kinds import anywhere


@anywhere(1)
def leave_choices(script):
    """Add the notes to a script that is on NPUs now."""
    if "torch_npu" not in script.source:
        return
    shape = script.shape if script.shape.full else None
    cards = "ASCEND_RT_VISIBLE_DEVICES=0,1 before the command lets a process see only these"
    if shape and shape.argument("device_list"):
        cards = "All of this host are taken; --device-list 0,1 takes only these"
    script.choose(None, "which cards", f"{cards}; `npu-smi info` lists them.")
    groups = _calls(script, "torch.distributed.init_process_group")
    if groups:
        options = " (--addr and --port set them)" if shape and shape.argument("port") else ""
        script.choose(
            groups[0],
            "address and port",
            f"All processes must agree on MASTER_ADDR and MASTER_PORT{options}: one address that every host reaches "
            "(127.0.0.1 on a single one) and a port that no other run uses. torchrun sets both.",
        )
    script.choose(None, "launch", _command(script, shape, bool(groups)))
    optimizers = _calls(script, "torch.optim.")
    if optimizers:
        script.choose(
            optimizers[0],
            "batch and learning rate",
            "They were chosen for other devices. With n processes of batch b a step sees n × b samples: keep the "
            "learning rate where n × b stays what it was, else scale it in proportion and watch the loss. A batch "
            "that is a multiple of 16 suits the NPU's matrix unit.",
        )


def _calls(script, start):
    return [node for node in script.of(ast.Call) if any(name.startswith(start) for name in script.names(node))]


def _command(script, shape, distributed):
    name = script.file.replace("\\", "/").rpartition("/")[2]
    name = name if name.endswith(".py") else "main.py"
    if shape:
        options = ["--amp"] * bool(shape.scale) + ["--opt-level O2"] * (shape.scale == "amp")
        if script.style == "modern":
            started = " ".join(["torchrun --nproc_per_node=2", name, *options, "…"])
            return f"On two cards: {started}"
        spawned = " ".join(["python", name, *_spawning(shape), "--device-list 0,1", *options, "…"])
        alone = " ".join(["python", name, "--device-list 0", *options, "…"])
        return f"On two cards: {spawned} On one: {alone}"
    if _calls(script, "torch.multiprocessing.spawn"):
        return f"python {name} …: the script starts a process for every card itself."
    if distributed:
        return f"torchrun --nproc_per_node=8 {name} …, with the number of your cards for 8."
    return f"python {name} …: one process, which uses card 0 unless the script chooses another."


def _spawning(shape):
    """The options that make a script spawn, with world size and rank of one host."""
    wanted = ((shape.spawned, ""), (shape.group_keyword("world_size"), " 1"), (shape.group_keyword("rank"), " 0"))
    for text, value in wanted:
        argument = shape.argument((text or "").rpartition(".")[2])
        if argument is not None:
            yield argument.options[-1] + value
