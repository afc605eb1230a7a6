"""Makes the tests in `exercises.Checks` from each notebook's tables."""

from exercises import pytest_generate_tests  # noqa: F401
