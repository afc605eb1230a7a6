"""What others have measured and published, and the cost model held against it.

The figures are data, each with its source and how it was read, in recorded/published.
"""

import json

from .. import paths
from .model import Compute, Link, all_reduce, step

BACKWARD = 2 / 3  # of a step on one device: two products for each of forward's
PIECES = 128  # in which a model's gradients become ready


def load(name) -> dict:
    """A file of recorded/published: "devices", "interconnects" or "scaling". Raises FileNotFoundError."""
    return json.loads((paths.project_root() / "recorded" / "published" / f"{name}.json").read_text(encoding="utf-8"))


def links() -> dict:
    """{name: Link} of published interconnects."""
    return {name: Link(of["latency"], 1 / of["bandwidth"]) for name, of in load("interconnects")["links"].items()}


def against(name) -> list:
    """The rows of a scaling table with the model's figure beside each.

    Returns:
        dicts with name, devices, published, model, residual (of the speed: model / published - 1, and the inverse
        of seconds), and `given`: whether the model was made from that row, so that its residual says nothing.
    """
    table = load("scaling")["tables"][name]
    ladder, found = name == "cifar ladder", []  # in seconds an epoch
    for row, value in zip(table["rows"], _ladder(table) if ladder else _images(table), strict=True):
        numbers = {"published": row["value"], "model": value, "given": row["devices"] <= (2 if ladder else 1)}
        residual = (row["value"] / value if ladder else value / row["value"]) - 1
        found.append({"name": row["name"], "devices": row["devices"], **numbers, "residual": residual})
    return found


def _ladder(table):
    """Seconds an epoch. With as many samples a device as ever, n devices need 1/n of the steps, each of them longer by
    what a ring takes, 2 (n-1)/n of the bytes; how long a byte takes is read off the row of two devices."""
    epoch = {row["devices"]: row["value"] for row in table["rows"]}
    longer = 2 * epoch[2] / epoch[1] - 1  # exchange between two devices, in steps of one device
    return [epoch[1] * (1 + sum(all_reduce(1.0, n, Link(0.0, longer)))) / n for n in epoch]


def _images(table):
    """Images a second, from the row of one device, the size of the model and the network; nothing is fitted."""
    compute = typical(table["batch"] / table["rows"][0]["value"], table["batch"], table["bytes"])
    inside = links()["PCI Express 4.0 ×16"]
    between = Link(table["network"]["latency"], 1 / table["network"]["bandwidth"])
    for row in table["rows"]:
        link = inside if row["devices"] <= table["per_host"] and "K80" in table["title"] else between
        yield step(compute, link, row["devices"], table["batch"]).rate


def typical(seconds, batch, size) -> Compute:
    """A model of which only the step on one device (seconds, samples) and the size of its gradients are known.

    Two thirds of the step are backward, in which gradients become ready evenly.
    """
    sample = seconds / batch
    gradients = tuple((size / PIECES, (k + 1) / PIECES) for k in range(PIECES))
    return Compute((0.0, (1 - BACKWARD) * sample), (0.0, BACKWARD * sample), gradients=gradients)
