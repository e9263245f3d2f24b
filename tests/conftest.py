"""Shared pieces of the tests. `import mxkit` comes first: MXNet does not import without it."""

import mxkit  # isort: skip
import mxnet as mx
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _seeded():
    """Each test draws from the same start, whatever ran before it."""
    mxkit.seed_all(0)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(mxkit=mxkit, mx=mx, np=np)
