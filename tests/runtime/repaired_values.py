"""Outputs and gradients of every operator that mxkit repairs, at small and large numbers: repaired_values.py FILE.

With REPAIRED_VALUES=plain, MXNet's own operators compute.
`test_repaired_values.py` compares both with NumPy in double precision.
"""

from functools import partial
import os
import sys

from mxkit.runtime import gluon_layers, graphs, operators

PLAIN = os.environ.get("REPAIRED_VALUES") == "plain"
if PLAIN:  # before MXNet is imported
    for module in (gluon_layers, operators):
        module.replace = lambda *_, **__: None
    graphs.repaired_graph = lambda graph: graph

import mxnet as mx  # noqa: E402
from mxnet import nd, np, npx  # noqa: E402
import numpy  # noqa: E402

# MXNet's own gradient of negative indices writes outside the array (T141)
LAST = [[1, 3], [0, 4]] if PLAIN else [[1, -1], [0, -2]]
INF = float("inf")
EXPONENTS = (-8, -4, 0, 4, 8)
SQUARE = numpy.random.RandomState(1).uniform(-1, 1, (3, 3)) + 4 * numpy.eye(3)


def selu(x):
    return 1.0507009873554805 * numpy.where(x > 0, x, 1.6732632423543772 * numpy.expm1(numpy.minimum(x, 0)))


# Name: call, reference in NumPy, shape of x ("square" is a regular matrix), and the gradient of the outputs' sum where
# differences of the reference are too coarse.
CASES = {
    "LeakyReLU selu": (lambda x: nd.LeakyReLU(x, act_type="selu"), selu, (4, 6)),
    "npx.leaky_relu selu": (lambda x: npx.leaky_relu(x.as_np_ndarray(), act_type="selu").as_nd_ndarray(), selu, (4, 6)),
    "reshape": (lambda x: nd.reshape(x, shape=(0, 2, -1)), lambda x: x.reshape(4, 2, 3), (4, 6)),
    "concat": (lambda x: nd.concat(x, 2 * x, dim=1), lambda x: numpy.concatenate([x, 2 * x], 1), (2, 8, 2, 2)),
    "slice": (lambda x: nd.slice(x, begin=(0, 3), end=(1, None)), lambda x: x[:1, 3:], (2, 16, 2, 2)),
    "BatchNorm, predicting": (
        lambda x: nd.BatchNorm(x, nd.ones(3), nd.zeros(3), nd.zeros(3), nd.ones(3), eps=0, fix_gamma=False),
        lambda x: x,
        (4, 3),
    ),
    "Pooling, predicting": (
        lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2)),
        lambda x: x.reshape(1, 2, 2, 2, 2, 2).max((3, 5)),
        (1, 2, 4, 4),
    ),
    "Dropout, predicting": (lambda x: nd.Dropout(x, p=0.5), lambda x: x, (4, 6)),
    "mean": (lambda x: nd.mean(x, axis=1), lambda x: x.mean(1), (4, 6)),
    "split_v2": (lambda x: nd.split_v2(x, 3, axis=1)[1], lambda x: x[:, 2:4], (4, 6)),
    "astype": (lambda x: x.astype("float64"), lambda x: x, (4, 6)),
    "as_in_context": (lambda x: x.as_in_context(mx.cpu(1)), lambda x: x, (4, 6)),
    "clip": (lambda x: nd.clip(x, -0.5, 0.5), lambda x: numpy.clip(x, -0.5, 0.5), (4, 6)),
    "flip": (lambda x: nd.flip(x, axis=1), lambda x: x[:, ::-1], (4, 6)),
    "cumsum": (lambda x: nd.cumsum(x, axis=1), lambda x: x.cumsum(1), (4, 6)),
    "moments": (lambda x: nd.moments(x, axes=[1])[1], lambda x: x.var(1), (4, 6)),
    "Crop": (lambda x: nd.Crop(x, offset=(1, 1), h_w=(2, 2)), lambda x: x[:, :, 1:3, 1:3], (1, 2, 4, 4)),
    "gather_nd": (lambda x: nd.gather_nd(x, nd.array(LAST)), lambda x: x[[1, -1], [0, -2]], (4, 6)),
    "boolean_mask": (lambda x: nd.contrib.boolean_mask(x, nd.array([1, 0, 1, 1])), lambda x: x[[0, 2, 3]], (4, 6)),
    "linalg.gemm2": (lambda x: nd.linalg.gemm2(x, x), lambda x: x @ x, "square"),
    "linalg.inverse": (lambda x: nd.linalg.inverse(x), lambda x: numpy.linalg.inv(x), "square"),
    "linalg.trmm": (lambda x: nd.linalg.trmm(x, x), lambda x: numpy.tril(x) @ x, "square"),
    "linalg.slogdet": (lambda x: nd.linalg.slogdet(x)[1], lambda x: numpy.linalg.slogdet(x)[1], "square"),
}

#: Functions of `mx.np`, called with MXNet's module, also in graphs, and with NumPy.
OF_NUMPY = {
    "np.mean": lambda np, x: np.mean(x, axis=1),
    "x.mean": lambda np, x: x.mean().reshape(1),
    "np.var": lambda np, x: np.var(x, axis=1),
    "np.var, ddof": lambda np, x: np.var(x, axis=0, ddof=1),
    "x.var": lambda np, x: x.var(axis=-1),
    "np.std": lambda np, x: np.std(x, axis=1),
    "np.std, all axes": lambda np, x: np.std(x, axis=(0, -1), keepdims=True),
    "np.where, number": lambda np, x: np.where(x > 0, x, 0.25),
    "np.where, number first": lambda np, x: np.where(x > 0, 0.25, x),
    "np.where, two arrays": lambda np, x: np.where(x > 0, x, np.mean(x, axis=1, keepdims=True)),
    "np.arctan2, number first": lambda np, x: np.arctan2(0.5, x),
    "np.arctan2, number second": lambda np, x: np.arctan2(x, 0.5),
    "np.hypot, number": lambda np, x: np.hypot(x, 3),
    "np.clip": lambda np, x: np.clip(x, -0.5, 0.5),
    "np.cumsum": lambda np, x: np.cumsum(x, axis=1),
    "np.flip": lambda np, x: np.flip(x, 1),
    "np.rot90": lambda np, x: np.rot90(x, 2),
    "np.diff": lambda np, x: np.diff(x),
    "np.trace": lambda np, x: np.trace(x).reshape(1),
    "np.moveaxis": lambda np, x: np.moveaxis(x, 0, 1),
    "np.split": lambda np, x: np.split(x, [2], axis=1)[1],
    "np.linalg.norm": lambda np, x: np.linalg.norm(x, axis=(0, 1)).reshape(1),
    "np.linalg.norm of all": lambda np, x: np.linalg.norm(x).reshape(1),
    "np.linalg.inv": lambda np, x: np.linalg.inv(x),
    "np.linalg.solve": lambda np, x: np.linalg.solve(x, np.ones((3, 1))),
    "np.tensordot": lambda np, x: np.tensordot(x, x, axes=[[1], [1]]),
    "np.einsum, optimized": lambda np, x: np.einsum("ij,kj->ik", x, x, optimize=True),
    "np.dot of three axes": lambda np, x: np.dot(x, np.ones((2, 6, 2))),
    "np.matmul, batches": lambda np, x: np.matmul(x, np.ones((5, 1, 6, 2))),
}
#: The same, which mxkit repairs outside of graphs alone.
EAGER = {
    "np.polyval": lambda np, x: np.polyval(np.array([2.0, 3.0]), x),
    "np.polyval, coefficients": lambda np, x: np.polyval(x[0], np.ones(2)),
    "np.atleast_3d": lambda np, x: np.atleast_3d(x),
    "np.matmul, first of length 1": lambda np, x: np.matmul(x, np.ones((4, 3, 2))),
    "np.matmul, second of length 1": lambda np, x: np.matmul(np.ones((5, 4, 2, 2)), x),
    **{f"np.linalg.norm, {n}": lambda np, x, n=n: np.linalg.norm(x, n).reshape(1) for n in (1, -1, 2, -2, INF, -INF)},
    "np.linalg.norm, axes": lambda np, x: np.linalg.norm(x, 1, (1, 0), keepdims=True),
    "np.linalg.norm, axes reversed": lambda np, x: np.linalg.norm(x, -INF, (-1, 0)).reshape(1),
}
SHAPES = {
    **dict.fromkeys(("np.linalg.inv", "np.linalg.solve"), "square"),
    **dict.fromkeys(("np.matmul, first of length 1", "np.matmul, second of length 1"), (5, 1, 2, 3)),
}
GRADIENTS = {
    "np.arctan2, number first": lambda x: -0.5 / (x**2 + 0.25),
    "np.arctan2, number second": lambda x: 0.5 / (x**2 + 0.25),
    "np.hypot, number": lambda x: x / numpy.hypot(x, 3),
    "np.polyval": lambda x: 2 + 0 * x,
}
for name, function in {**OF_NUMPY, **EAGER}.items():
    given = [GRADIENTS[name]] if name in GRADIENTS else []
    call = lambda x, function=function: function(np, x.as_np_ndarray()).as_nd_ndarray()  # noqa: E731
    CASES[name] = (call, partial(function, numpy), SHAPES.get(name, (4, 6)), *given)


def weights(outputs):
    """A factor of its own for each output, whose sum the gradient is of."""
    return (0.5 + numpy.arange(outputs.size)).reshape(outputs.shape) / outputs.size


def values(name, exponent):
    """The input of a case: numbers of both signs, scaled; no two alike, none near a threshold of 0.5."""
    shape = CASES[name][2]
    scale = 10.0**exponent
    if shape == "square":
        return (SQUARE * scale).astype("float32")
    drawn = numpy.random.RandomState(len(name)).uniform(0.6, 2.0, shape)
    signs = numpy.where(numpy.arange(drawn.size).reshape(shape) % 3, 1, -1)
    return (drawn * signs * scale).astype("float32")


if __name__ == "__main__":
    npx.set_np(shape=True, array=False)
    found = {}
    for name, (call, *_) in CASES.items():
        for exponent in EXPONENTS:
            x = nd.array(values(name, exponent))
            found[f"{name} {exponent}"] = call(x).asnumpy()
            x.attach_grad()
            with mx.autograd.record(train_mode="predicting" not in name):
                y = call(x)
            found[f"{name} {exponent} recorded"] = y.asnumpy()
            y.backward(nd.array(weights(y), ctx=y.context, dtype=y.dtype))
            found[f"{name} {exponent} gradient"] = x.grad.asnumpy()
    numpy.savez(sys.argv[1], **found)
