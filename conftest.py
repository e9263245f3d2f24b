"""What the examples in docstrings find without an import. `import mxkit` first: MXNet does not import without it."""

import mxkit
import mxnet as mx
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(mxkit=mxkit, mx=mx, np=np)
