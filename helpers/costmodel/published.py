"""What others have measured and published.

The figures are data, each with its source and how it was read, in recorded/published.
"""

import json

from .. import paths
from .model import Link

BACKWARD = 2 / 3  # of a step on one device: two products for each of forward's


def load(name) -> dict:
    """A file of recorded/published: "devices", "interconnects" or "scaling". Raises FileNotFoundError."""
    return json.loads((paths.project_root() / "recorded" / "published" / f"{name}.json").read_text(encoding="utf-8"))


def links() -> dict:
    """{name: Link} of published interconnects."""
    return {name: Link(of["latency"], 1 / of["bandwidth"]) for name, of in load("interconnects")["links"].items()}
