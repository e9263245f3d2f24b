"""Shared pieces of the tests."""

import signal

import mxkit
import pytest

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: tests of Ctrl-C would
# wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded():
    """Each test draws from the same start, whatever ran before it."""
    mxkit.seed_all(0)
