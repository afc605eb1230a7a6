"""What only the user can choose: cards, address, how to start, batch and learning rate."""

import libcst as cst

STEP = 1


def apply(script):
    """Add the notes that no pass has added before; the text stays."""
    if "torch_npu" not in script.source:
        return
    script.choose(
        None, "which cards",
        "ASCEND_RT_VISIBLE_DEVICES=0,1 before the command lets a process see only these; `npu-smi info` lists them.",
    )  # fmt: skip
    groups = _calls(script, "torch.distributed.init_process_group")
    if groups:
        script.choose(
            groups[0], "address and port",
            "All processes must agree on MASTER_ADDR and MASTER_PORT: one address that every host reaches (127.0.0.1 "
            "on a single one) and a port that is free. torchrun sets both.",
        )  # fmt: skip
    script.choose(None, "launch", _launch(script, bool(groups)))
    optimizers = [node for node in script.of(cst.Call) if any("torch.optim." in each for each in script.names(node))]
    if optimizers:
        script.choose(
            optimizers[0], "batch and learning rate",
            "They were chosen for other devices. With n processes of batch b a step sees n × b samples: keep the "
            "learning rate where n × b stays what it was, else scale it in proportion and watch the loss. A batch "
            "that is a multiple of 16 suits the NPU's matrix unit.",
        )  # fmt: skip


def _calls(script, name):
    return [node for node in script.of(cst.Call) if name in script.names(node)]


def _launch(script, distributed):
    name = script.name if script.name.endswith(".py") else "main.py"
    if _calls(script, "torch.multiprocessing.spawn"):
        return f"python {name} …: the script starts a process for every card itself."
    if distributed:
        return f"torchrun --nproc_per_node=8 {name} …, with the number of your cards for 8."
    return f"python {name} …: one process, which uses card 0 unless the script chooses another."
