"""Who publishes the kit: what tools/publish.toml says, or GitHub's workflows."""

import os
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]


def repository() -> str:
    """The account and the repository's name, such as "me/training-helpers"; "" while there is no account."""
    kept = tomllib.loads((ROOT / "tools" / "publish.toml").read_text(encoding="utf-8"))
    found = f"{kept['account']}/{kept['repository']}" if kept["account"] else ""
    return os.environ.get("GITHUB_REPOSITORY") or found
