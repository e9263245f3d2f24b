"""What tests of several rooms share."""

import pytest

# Half of MXNet's import is that of two packages that it can do without.
LEAN = 'import sys; sys.modules["sklearn"] = sys.modules["scipy.stats"] = None\n'


def long(*values, **arguments):
    """One more set of `parametrize`, in `.ci/run` only."""
    return pytest.param(*values, marks=pytest.mark.long, **arguments)
