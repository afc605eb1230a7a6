"""Where the kit keeps data sets, results and caches.

All live beside the package when it runs from a clone, so a notebook, a script and
`make run` see the same files whatever folder they were started in. The environment
variables HELPERS_DATA, HELPERS_RESULTS and HELPERS_CACHE point elsewhere.
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


def cache_root() -> Path:
    """Folder of what can be made again: which plan was the fastest for a model."""
    return Path(os.environ.get("HELPERS_CACHE") or project_root() / ".cache")


def replace_file(path, content) -> None:
    """Write text or bytes to `path` in one step, so that a crash leaves the old file or the new one."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
