"""What tests of several rooms share."""

import os

import pytest

LONG = os.environ.get("MXKIT_LONG") == "1"  # `make long`


def examples(number):
    """How many examples of hypothesis: `number` in `.ci/run`, a quarter in `make test`."""
    return number if LONG else max(number // 4, 4)


def long(*values, **arguments):
    """One more set of `parametrize`, in `.ci/run` only."""
    return pytest.param(*values, marks=pytest.mark.long, **arguments)


def pairs(many, few):
    """Every pair of two independent parameters, of which `make test` takes one for each of `many`."""
    return [
        (one, other) if i % len(few) == j else long(one, other)
        for i, one in enumerate(many)
        for j, other in enumerate(few)
    ]
