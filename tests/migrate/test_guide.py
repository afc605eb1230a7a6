"""The guide's sixteen steps as data; notebook 07 runs what they make of the script."""

import ast

import pytest

from platforms.migrate import guide, migrate
from platforms.migrate.steps import OURS, STEPS


def test_each_of_the_sixteen_steps_can_be_done_alone_and_left_out():
    numbers = [step.number for step in guide.GUIDE]
    assert numbers == list(range(1, 17)) == [step.number for step in STEPS if step is not OURS]
    for step in guide.GUIDE[:-1]:
        alone = guide.script([step.number])
        assert alone != guide.script([]) and "@@ " + step.place in step.diff()
        ours = guide.OURS if step.number not in (2, 11) else ()
        for text in (alone, guide.script(leave_out=[step.number], ours=ours)):
            ast.parse(text)
    with pytest.raises(ValueError, match="step 6 needs these lines once, and finds them 0 times"):
        guide.GUIDE[5].apply("import torch\n")


def test_the_steps_write_what_the_guide_says_and_migrate_keeps_what_it_loses():
    text, ours = guide.script(), migrate(guide.script([]), name="main.py").result
    loaders = text[text.index("train_loader = ") : text.index("model = model.to(loc)")]
    assert loaders.count("pin_memory=False") == loaders.count("drop_last=True") == 2 and "shuffle=True" in loaders
    assert "scheduler.step()" not in text and '"scheduler"' not in text and text.count("amp.state_dict()") == 1
    assert text.count("target.to(torch.int32)") == 2 and text.count("non_blocking=False") == 4
    assert '"scheduler": scheduler.state_dict()' in ours and '"dynamic" if args.loss_scale == -1' in ours
    assert ours.count("drop_last=True") == 2  # the training loader, and the sampler that was there
    order = "set_device(loc)|val_loader = |model = model.to(loc)|torch.optim.SGD(|amp.initialize(".split("|")
    order += ["DistributedDataParallel(model, ", "torch.load("]
    for found, places in (text, [*order, "cudnn.benchmark = True"]), (ours, [*order, "scheduler.step()"]):
        assert sorted(places, key=found.index) == places
