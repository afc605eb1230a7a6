"""Where the kit keeps data sets, results and caches: beside the package where it runs from a clone.

The environment variables HELPERS_DATA, HELPERS_RESULTS and HELPERS_CACHE point elsewhere.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

PROBE = 2**16  # bytes: more than a record of a run has


class NotWritable(OSError):
    """Nothing can be written to a folder; the message says what to do."""


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
    """Folder of what can be made again: compiled libraries, environments for benchmarks."""
    return Path(os.environ.get("HELPERS_CACHE") or project_root() / ".cache")


def replace_file(path, content) -> None:
    """Write text or bytes to `path` in one step, so that a crash leaves the old file or the new one.

    An OSError names the file.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_writable(folder, what, remedy) -> None:
    """Raises NotWritable where `what` cannot be written to `folder`, which is made if it is missing."""
    probe = Path(folder, f".{secrets.token_hex(4)}.probe")
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        replace_file(probe, bytes(PROBE))
        probe.unlink()
    except OSError as error:
        raise NotWritable(f"{what} cannot be written to {folder} ({error.strerror}): {remedy}") from None
