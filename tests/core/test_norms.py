"""Sums of squares against NumPy in float64, where MXNet's own go wrong."""

import mxkit
from mxkit.core.arrays import sum_of_squares
import mxnet as mx
from mxnet import gluon
import numpy as np
import pytest


@pytest.mark.parametrize(
    "shapes", [[(1,)], [(3, 5), (16_384,), (16_385,)], [(262_144,), (262_145,)], [(2048, 1024), (7,)], [(5,)] * 300]
)
def test_large_arrays_are_summed_as_exactly_as_small_ones(shapes):
    """T100."""
    generator = np.random.RandomState(0)
    arrays = [generator.randn(*shape).astype(np.float32) for shape in shapes]
    expected = sum((array.astype(np.float64) ** 2).sum() for array in arrays)
    assert float(sum_of_squares([mx.nd.array(array) for array in arrays]).asscalar()) == pytest.approx(expected, 1e-5)


def test_half_precision_does_not_overflow():
    arrays = [mx.nd.full((1000,), 300.0, dtype="float16"), mx.nd.full((20_000,), 300.0, dtype="float16")]
    assert float(sum_of_squares(arrays).asscalar()) == pytest.approx(21_000 * 9e4, 1e-5)


def test_the_norm_that_clipping_uses():
    """T100."""
    net = gluon.nn.Dense(2048, in_units=2048, use_bias=False)
    mxkit.initialize(net, "xavier")
    x = mx.nd.array(np.random.RandomState(0).rand(4, 2048))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    update = next(mxkit.updates(net, [(x, mx.nd.zeros((4, 2048)))], loss="l2", trainer=trainer, clip_norm=1e9))
    exact = np.sqrt((net.weight.grad().asnumpy().astype(np.float64) ** 2).sum()) / 4
    assert update.grad_norm == pytest.approx(exact, 1e-5)
