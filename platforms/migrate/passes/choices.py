"""The notes about what only the user can choose: the command, the cards, where processes meet, the batch."""

import ast

from helpers.language import N_, Message


def leave_choices(script):
    """Add the notes to a script that is on NPUs now."""
    if "torch_npu" not in script.source:
        return
    shape = script.shape
    cards = N_("ASCEND_RT_VISIBLE_DEVICES=0,1 before the command lets a process see only these")
    if shape and shape.argument("device_list"):
        cards = N_("All of this host are taken; --device-list 0,1 takes only these")
    script.choose(None, N_("which cards"), Message("{cards}; `npu-smi info` lists them.", cards=Message(cards)))
    groups = _calls(script, "torch.distributed.init_process_group")
    if groups:
        options = N_(" (--addr and --port set them)") if shape and shape.argument("port") else ""
        advice = Message(
            "All processes must agree on MASTER_ADDR and MASTER_PORT{options}: one address that every host reaches "
            "(127.0.0.1 on a single one) and a port that no other run uses. torchrun sets both.",
            options=Message(options),
        )
        script.choose(groups[0], N_("address and port"), advice)
    script.choose(None, N_("launch"), _command(script, shape, bool(groups)))
    if optimizers := _calls(script, "torch.optim."):
        advice = N_(
            "They were chosen for other devices. With n processes of batch b a step sees n × b samples: keep the "
            "learning rate where n × b stays what it was, else scale it in proportion and watch the loss. A batch "
            "that is a multiple of 16 suits the NPU's matrix unit."
        )
        script.choose(optimizers[0], N_("batch and learning rate"), advice)


def _calls(script, start):
    return [node for node in script.of(ast.Call) if any(name.startswith(start) for name in script.names(node))]


def _command(script, shape, distributed):
    name = script.file.replace("\\", "/").rpartition("/")[2]
    name = name if name.endswith(".py") else "main.py"
    if shape:
        options = ["--amp"] * bool(shape.scale) + ["--opt-level O2"] * (shape.scale == "amp")
        if script.style == "modern":
            started = " ".join(["torchrun --nproc_per_node=2", name, *options, "…"])
            return Message("On two cards: {started}", started=started)
        spawned = " ".join(["python", name, *_spawning(shape), "--device-list 0,1", *options, "…"])
        alone = " ".join(["python", name, "--device-list 0", *options, "…"])
        return Message("On two cards: {spawned} On one: {alone}", spawned=spawned, alone=alone)
    if _calls(script, "torch.multiprocessing.spawn"):
        return Message("python {name} …: the script starts a process for every card itself.", name=name)
    if distributed:
        return Message("torchrun --nproc_per_node=8 {name} …, with the number of your cards for 8.", name=name)
    return Message("python {name} …: one process, which uses card 0 unless the script chooses another.", name=name)


def _spawning(shape):
    wanted = ((shape.spawned, ""), (shape.world_size, " 1"), (shape.rank, " 0"))
    for text, value in wanted:
        argument = shape.argument(text.rpartition(".")[2])
        if argument is not None:
            yield argument.options[-1] + value
