"""The scripts in tests/scripts and the guide's example: what migrate makes of them stays as it is, in both styles.

bank.json holds digests of every result and of the steps of its changes, and kind, line and line of the source of every
note. A change that is meant is recorded by `python tests/migrate/test_migrate_bank.py`; look at the results before.
"""

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest

from platforms.migrate import guide, migrate

BANK = Path(__file__).with_name("bank.json")
SCRIPTS = {path.name: path for path in [*sorted((BANK.parents[1] / "scripts").glob("*.py")), guide.EXAMPLE]}
CASES = [f"{name}, {style}" for name in SCRIPTS for style in ("article", "modern")]


def facts(case):
    name, style = case.split(", ")
    migration = migrate(SCRIPTS[name].read_text(encoding="utf-8"), style=style, name=name)
    notes = [f"{note.kind} {note.line} {note.source_line}" for note in migration.notes]
    steps = "\n".join(f"{it.step} {it.line} {it.removed}" for it in migration.changes)
    digests = {"result": migration.result, "steps": steps}
    digests = {key: hashlib.sha256(text.encode()).hexdigest()[:16] for key, text in digests.items()}
    return {**digests, "notes": notes}


@cache
def bank():
    return json.loads(BANK.read_text())


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_script_stays(case):
    assert facts(case) == bank()[case]


def test_the_bank_has_every_script():
    assert sorted(bank()) == sorted(CASES)


if __name__ == "__main__":
    BANK.write_text(json.dumps({case: facts(case) for case in CASES}, indent=1) + "\n")
