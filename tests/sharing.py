"""Helpers for tests of several rooms."""

from contextlib import redirect_stderr, redirect_stdout
import io
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


def command(*arguments):
    """Run the `mxkit` command in this process: exit code, standard output, standard error."""
    from mxkit.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0, out.getvalue(), err.getvalue()
