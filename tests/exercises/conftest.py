"""Makes the tests in `answers.Checks` from each notebook's tables, and gives ranks time on a busy machine."""

import pytest
from answers import pytest_generate_tests  # noqa: F401

from exercises import ranks


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 60)
