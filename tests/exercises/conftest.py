"""Makes the tests in `answers.Checks` from each notebook's tables."""

from answers import pytest_generate_tests  # noqa: F401
