"""The ten steps of the vendor's article, as changes of one_device.py: {step: [(old, new), …]}."""

from pathlib import Path

PLAIN = Path(__file__).with_name("one_device.py").read_text(encoding="utf-8")
EDITS = {
    1: [("import sets\n", "import sets\nimport platforms.horovod.torch as hvd\n")],
    2: [('"training.log"\n', '"training.log"\nhvd.init()\n')],
    3: [("device.of_rank(0)", "device.of_rank(hvd.local_rank())")],
    4: [("lr=0.05,", "lr=0.05 * hvd.size(),")],
    5: [
        (
            "momentum=0.9)\n",
            "momentum=0.9)\n"
            "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())\n",
        )
    ],
    6: [
        (
            "\nlog = open",
            "\nhvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"
            "hvd.broadcast_optimizer_state(optimizer, root_rank=0)\nlog = open",
        )
    ],
    7: [
        ("import DataLoader,", "import DataLoader, DistributedSampler,"),
        (
            "loader = DataLoader(train, 32, shuffle=True,",
            "sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())\n"
            "loader = DataLoader(train, 32, sampler=sampler,",
        ),
    ],
    8: [("nn.DataParallel(model.to(gpu))", "model.to(gpu)")],
    9: [
        ('log = open(LOG, "a")', 'log = open(LOG if hvd.rank() == 0 else os.devnull, "a")'),
        ('torch.save({"model"', 'if hvd.rank() == 0:\n    torch.save({"model"'),
        ('print(f"the last', 'if hvd.rank() == 0:\n    print(f"the last'),
    ],
    10: [("if os.path", "if hvd.rank() == 0 and os.path")],
}


def script(*left_out):
    """one_device.py with all steps but those `left_out`."""
    text = PLAIN
    for step, edits in EDITS.items():
        for old, new in edits if step not in left_out else ():
            text = text.replace(old, new)
    return text
