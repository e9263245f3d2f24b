"""Shared pieces of the tests."""

import mxkit
import pytest


@pytest.fixture(autouse=True)
def _seeded():
    """Each test draws from the same start, whatever ran before it."""
    mxkit.seed_all(0)
