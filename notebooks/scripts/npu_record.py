"""Records what notebook 07 and its more/ show where no card can be had, and the cost of a lost schedule:

python -m notebooks.scripts.npu_record
"""

import copy
import datetime
import os
import platform
import sys

import torch
import torch.nn.functional as F

import helpers
from helpers.data import sets
from helpers.paths import project_root
from helpers.training import models
from platforms.npu import recorded

SEEDS, EPOCHS, FALL, BATCH, IMAGES, RATE = 20, 6, 4, 32, 320, 0.02


def schedule():
    """Accuracy (%) after each epoch of resnet8 on digits, with and without a rate that falls to a tenth; by seed."""
    sets.ensure("digits")
    train, test = (sets.load("digits", split) for split in ("train", "test"))
    data = [(it.images.float() / 255 - 0.5, it.labels) for it in (train, test)]
    runs = {"scheduler.step() kept": [], "lost, as in step 9": []}
    for seed in range(SEEDS):
        for label, accuracy in zip(runs, _train(seed, *data), strict=True):
            runs[label].append(accuracy)
            print(label, seed, [round(value, 1) for value in accuracy], flush=True)
    return {"runs": runs, "fall": FALL, "images": IMAGES, "rate": RATE}


def _train(seed, train, test):
    """(accuracy by epoch with the schedule, the same without): equal until the rate falls."""
    torch.manual_seed(seed)
    model = models.build("resnet8", classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)
    before = [_epoch(model, optimizer, train, test) for _ in range(FALL)]
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    random = torch.get_rng_state()
    after = []
    for factor in (0.1, 1.0):
        model.load_state_dict(weights)
        optimizer.load_state_dict(copy.deepcopy(state))
        torch.set_rng_state(random)
        optimizer.param_groups[0]["lr"] *= factor
        after.append([_epoch(model, optimizer, train, test) for _ in range(EPOCHS - FALL)])
    return [before + part for part in after]


def _epoch(model, optimizer, train, test):
    model.train()
    for part in torch.randperm(IMAGES).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(model(train[0][part]), train[1][part]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return 100 * (model(test[0]).argmax(1) == test[1]).float().mean().item()


def main():
    here = helpers.choose_devices(1)
    where = {
        "machine": platform.machine(),
        "cpu": f"{here.name}, {here.cores} cores",
        "torch": torch.__version__.split("+")[0],
        "date": datetime.date.today().isoformat(),
    }
    recorded.keep("07", {"where": where, "schedule": schedule()})
    if "--only" not in sys.argv:
        os.environ["HELPERS_NPU_RECORD"] = "1"
        from tools import render_notebooks

        paths = (project_root() / "notebooks").glob("**/07_*.ipynb")
        render_notebooks.main([str(path) for path in sorted(paths) if path.parent.name != "zh"])


if __name__ == "__main__":
    main()
