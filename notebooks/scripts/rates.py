"""Which learning rate suits batch 32, and which batch 256: a sweep with SGD and Adam, kept in recorded/hvd/rates.json.

python -m notebooks.scripts.rates          # from the repository's root; about two minutes of one core

Each run is three epochs of a small net on the digits, in one process with the whole batch. (Ranks with parts of the
batch make the same updates, as notebook 08 shows.) The file is written after each rate.
"""

import json
import statistics
import time
from datetime import date

import torch
import torch.nn.functional as F
from torch import nn

from helpers import device, paths
from helpers.data import sets

RECORD = "recorded/hvd/rates.json"
RATES = {
    "SGD": [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6],
    "Adam": [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128],
}
BATCHES, SEEDS, EPOCHS = (32, 256), range(10), 3


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(1800, 10))


def order(seed, batch):
    """The numbers of the images in each batch, epoch after epoch; what does not fill a batch is left out."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        mixed = torch.randperm(1437, generator=random)
        yield from mixed[: 1437 // batch * batch].split(batch)


def score(model):
    """Accuracy on the 360 test images."""
    test = sets.load("digits", "test")
    with torch.no_grad():
        return (model(test.images / 255 - 0.5).argmax(1) == test.labels).float().mean().item()


def accuracy(name, rate, batch, seed):
    """Accuracy after three epochs in one process."""
    train, model = sets.load("digits", "train"), network(seed)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=rate)
    for mine in order(seed, batch):
        optimizer.zero_grad()
        F.cross_entropy(model(train.images[mine] / 255 - 0.5), train.labels[mine]).backward()
        optimizer.step()
    return score(model)


def main():
    torch.set_num_threads(1)
    sets.ensure("digits")
    file, began = paths.project_root() / RECORD, time.process_time()
    kept = {
        "date": date.today().isoformat(),
        "command": "python -m notebooks.scripts.rates",
        "conditions": f"one process, one thread; torch {torch.__version__}, {device.machine('cpu').name}",
        "epochs": EPOCHS,
        "seeds": len(SEEDS),
        "rows": [],
    }
    for name, rates in RATES.items():
        for batch in BATCHES:
            for rate in rates:
                found = [round(accuracy(name, rate, batch, seed), 4) for seed in SEEDS]
                kept["rows"].append({"optimizer": name, "batch": batch, "rate": rate, "accuracy": found})
                kept["cpu_s"] = round(time.process_time() - began)
                paths.replace_file(file, json.dumps(kept, indent=None).replace("}, ", "},\n ") + "\n")
                print(name, batch, rate, round(statistics.median(found), 3), kept["cpu_s"], "s", flush=True)


if __name__ == "__main__":
    main()
