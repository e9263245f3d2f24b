"""What the examples in docstrings find without an import. `import mxkit` first: MXNet does not import without it."""

import os

# Before MXNet is loaded, and for every process that tests start: they expect what they see on a machine without a GPU.
if os.environ.get("MXKIT_TESTS_GPU") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Before MXNet is loaded: pytest-xdist runs several processes, and threads without a core of their own wait for each
# other (T96); and sums, down to the last bit, depend on the number of threads (T67). Tests of the choice itself run
# processes without it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import mxkit
from mxkit.runtime import engine_settings
import mxnet as mx
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace.update(mxkit=mxkit, mx=mx, np=np)


@pytest.fixture(autouse=True)
def _switches_of_mxnet():
    """What `set_switches` notes stays what it was: its example in the docstring is no start of MXNet."""
    before = engine_settings._switches_loaded
    yield
    engine_settings._switches_loaded = before
