"""What tests of several rooms share."""

import os

import pytest

LONG = os.environ.get("MXKIT_LONG") == "1"  # `make long`

# Half of MXNet's import is that of two packages that it can do without.
LEAN = 'import sys; sys.modules["sklearn"] = sys.modules["scipy.stats"] = None\n'


def examples(number):
    """How many examples of hypothesis: `number` in `.ci/run`, a quarter in `make test`."""
    return number if LONG else max(number // 4, 4)


def long(*values, **arguments):
    """One more set of `parametrize`, in `.ci/run` only."""
    return pytest.param(*values, marks=pytest.mark.long, **arguments)
