"""Jobs as d2l's second edition writes them, under `npx.set_np()`: a loop by hand, and mxkit with the same start.

Each module `job_*.py` has `make`, which gives a net and its data, and two trainings that take both. They return a row
for each epoch, whose first number is the loss.
"""

import importlib

import mxkit
import mxnet as mx
from mxnet import npx
import numpy as np
import pytest

# Gluon's own code, as for a[[0, 1]], calls methods of `mx.np` by their old names.
pytestmark = pytest.mark.filterwarnings("ignore:ndarray.* has been renamed:DeprecationWarning")

# The name of a job, an argument of its `make`, and why its two trainings round differently; None if the last bits are
# equal.
JOBS = {
    "softmax": ("images", ("softmax",), None),
    "mlp": ("images", ("mlp",), None),
    "lenet": ("images", ("lenet",), None),
    "rnn": ("rnn", ("RNN",), "d2l takes the mean over all tokens, and clips by a number of Python"),
    "gru": ("rnn", ("GRU",), "as for rnn"),
    "lstm": ("rnn", ("LSTM",), "as for rnn"),
}


@pytest.fixture(autouse=True)
def _numpy():
    npx.set_np()
    yield
    npx.reset_np()


def end_of(job, form, options):
    """The rows of a training, and the parameters of its net on each device."""
    mxkit.seed_all(1)
    net, *data = job.make(*options)
    rows = getattr(job, form)(net, *data)
    arrays = [array for parameter in net.collect_params().values() for array in parameter.list_data()]
    assert {type(array) for array in arrays} == {mx.np.ndarray}
    return np.array(rows, dtype="float64").reshape(len(rows), -1), [array.asnumpy() for array in arrays]


@pytest.mark.parametrize("name", JOBS)
def test_fit_and_updates_end_like_the_loop_of_d2l(name):
    module, options, reason = JOBS[name]
    job = importlib.import_module(f"job_{module}")
    (expected, by_hand), (rows, with_mxkit) = [end_of(job, form, options) for form in ("by_hand", "with_mxkit")]
    assert rows[-1, 0] < 0.95 * rows[0, 0]
    np.testing.assert_allclose(rows, expected, rtol=1e-5)
    assert len(by_hand) == len(with_mxkit)
    for found, array in zip(with_mxkit, by_hand):
        np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-6 if reason else 0)
        if not reason:
            np.testing.assert_array_equal(found, array)
