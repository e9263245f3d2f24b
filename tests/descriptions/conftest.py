"""One seed for the tests of descriptions."""

import mxkit
import pytest


@pytest.fixture(autouse=True)
def _seed():
    mxkit.seed_all(7)
