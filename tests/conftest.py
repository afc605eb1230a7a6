"""What every test may count on."""

import pytest

from helpers.data import sets


@pytest.fixture(scope="session", autouse=True)
def digits():
    """The default data set is there, whichever test comes first on a new machine."""
    sets.ensure("digits")
