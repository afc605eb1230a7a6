"""Where the kit keeps data sets and results.

Both live beside the package when it runs from a clone, so a notebook, a script and
`make run` see the same files whatever folder they were started in. The environment
variables HELPERS_DATA and HELPERS_RESULTS point elsewhere.
"""

import os
from pathlib import Path


def project_root() -> Path:
    """The clone the package runs from, or the current folder for an installed package."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def data_root() -> Path:
    """Folder of the prepared data sets."""
    return Path(os.environ.get("HELPERS_DATA") or project_root() / "data")


def results_root() -> Path:
    """Folder of the run records, predictions and reports."""
    return Path(os.environ.get("HELPERS_RESULTS") or project_root() / "results")
