"""Shared pieces of the tests."""

import signal

import hypothesis
import mxkit
import pytest

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: tests of Ctrl-C would
# wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One state of the project gets one answer. To look further: pytest --hypothesis-profile=search
hypothesis.settings.register_profile("check", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("check")


@pytest.fixture(autouse=True)
def _seeded():
    """Each test draws from the same start, whatever ran before it."""
    mxkit.seed_all(0)
