"""Makes the tests in `exercises.Checks` from each notebook's tables, and gives ranks time on a busy machine."""

import pytest
from exercises import pytest_generate_tests  # noqa: F401

from helpers.check import ranks


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 60)
