"""Gradients by central differences in float64, for tests of losses."""

import mxnet as mx
from mxnet import autograd
import numpy as np


def check(function, *arrays, step=1e-5, tolerance=1e-7):
    """Compare MXNet's gradients of `sum(head * function(*arrays))` with central differences; heads are random."""
    arrays = [mx.nd.array(array, dtype="float64") for array in arrays]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        values = function(*arrays)
    head = np.random.RandomState(5).rand(*values.shape) + 0.5
    values.backward(mx.nd.array(head, dtype="float64"))
    for array in arrays:
        host = array.asnumpy()
        expected = np.empty_like(host)
        for index in np.ndindex(*host.shape):
            sides = []
            for sign in (1, -1):
                moved = host.copy()
                moved[index] += sign * step
                near = [mx.nd.array(moved, dtype="float64") if one is array else one for one in arrays]
                sides.append((function(*near).asnumpy() * head).sum())
            expected[index] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(array.grad.asnumpy(), expected, rtol=tolerance * 10, atol=tolerance)
