"""The guide's sixteen steps as data, and trials of what they make of the script."""

import ast

import pytest
from npu_ranks import needs_npu

from platforms.migrate import guide, migrate, trial
from platforms.migrate.steps import OURS, STEPS

TWO = [
    "--multiprocessing-distributed",
    "--world-size",
    "1",
    "--rank",
    "0",
    "--device_list",
    "3,2",
    "--dist_backend",
    "hccl",
    *trial.SMALL,
]


def test_there_are_sixteen_steps_and_what_is_ours():
    assert [step.number for step in guide.GUIDE] == list(range(1, 17)) == [step.number for step in STEPS[:-1]]
    assert OURS is STEPS[-1] and str(OURS).startswith("ours")


@pytest.mark.parametrize("step", guide.GUIDE[:-1], ids=lambda step: step.title)
def test_a_step_can_be_done_alone_and_left_out(step):
    alone = guide.script([step.number])
    assert alone != guide.script([]) and "@@ " + step.place in step.diff()
    for text in (alone, guide.script(leave_out=[step.number], ours=guide.OURS if step.number not in (2, 11) else ())):
        ast.parse(text)


def test_a_step_says_which_lines_it_misses():
    with pytest.raises(ValueError, match="step 6 needs these lines once, and finds them 0 times"):
        guide.GUIDE[5].apply("import torch\n")


def test_the_steps_write_what_the_guide_says():
    text = guide.script()
    loaders = text[text.index("train_loader = ") : text.index("model = model.to(loc)")]
    assert loaders.count("pin_memory=False") == loaders.count("drop_last=True") == 2 and "shuffle=True" in loaders
    assert "scheduler.step()" not in text and '"scheduler"' not in text and text.count("amp.state_dict()") == 1
    assert text.count("target.to(torch.int32)") == 2 and text.count("non_blocking=False") == 4
    order = [
        "set_device(loc)",
        "val_loader = ",
        "model = model.to(loc)",
        "torch.optim.SGD(",
        "amp.initialize(",
        "DistributedDataParallel(model, ",
        "torch.load(",
        "cudnn.benchmark = True",
    ]
    assert sorted(order, key=text.index) == order


def test_migrate_keeps_the_guides_places_and_what_it_loses():
    text = migrate(guide.script([]), name="main.py").result
    order = [
        "set_device(loc)",
        "val_loader = ",
        "model = model.to(loc)",
        "torch.optim.SGD(",
        "amp.initialize(",
        "DistributedDataParallel(model, ",
        "StepLR(",
        "torch.load(",
        "scheduler.step()",
    ]
    assert sorted(order, key=text.index) == order
    assert '"scheduler": scheduler.state_dict()' in text and '"dynamic" if args.loss_scale == -1' in text
    assert text.count("drop_last=True") == 2  # the training loader, and the sampler that was there


@needs_npu
@pytest.mark.long  # notebook 07 shows such trials
def test_a_trial_says_what_the_processes_did(tmp_path):
    folder = trial.images(tmp_path)
    right = trial.run(guide.script(ours=["meters on the card"]), TWO, folder, cards=4)
    assert right["error"] == ""
    assert [list(process["cards"]) for process in right["processes"]] == [[2], [3]]
    assert [len(process["losses"]) for process in right["processes"]] == [2, 2]
    assert {process["validated"] for process in right["processes"]} == {32}
    literal = trial.run(guide.script(), TWO, folder, cards=4)
    assert literal == {"error": "RuntimeError: No backend type associated with device type cpu", "processes": []}
    refused = trial.run(guide.script([]), ["--device_list", "0"], folder, ranks=1)
    assert "unrecognized arguments: --device_list" in refused["error"]
