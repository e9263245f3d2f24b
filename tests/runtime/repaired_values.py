"""Outputs and gradients of every operator that mxkit repairs, at small and large numbers: repaired_values.py FILE.

With --plain, MXNet's own operators compute. `test_repaired_values.py` compares both with NumPy in double precision.
"""

import sys

from mxkit.runtime import gluon_layers, graphs, operators

if "--plain" in sys.argv:  # before MXNet is imported
    for module in (gluon_layers, operators):
        module.replace = lambda *_, **__: None
    graphs.repaired_graph = lambda graph: graph

import mxnet as mx  # noqa: E402
from mxnet import nd, np, npx  # noqa: E402
import numpy  # noqa: E402

# MXNet's own gradient of negative indices writes outside the array (T141)
LAST = [[1, 3], [0, 4]] if "--plain" in sys.argv else [[1, -1], [0, -2]]
EXPONENTS = (-8, -5, -2, 0, 2, 5, 8)
SQUARE = numpy.random.RandomState(1).uniform(-1, 1, (3, 3)) + 4 * numpy.eye(3)


def inverse_of(x):
    return numpy.linalg.inv(x)


# Name: call, reference in NumPy, shape of x ("square" is a regular matrix), and the gradient of the outputs' sum where
# differences of the reference are too coarse.
CASES = {
    "LeakyReLU selu": (
        lambda x: nd.LeakyReLU(x, act_type="selu"),
        lambda x: 1.0507009873554805 * numpy.where(x > 0, x, 1.6732632423543772 * numpy.expm1(numpy.minimum(x, 0))),
        (4, 6),
    ),
    "npx.leaky_relu selu": (
        lambda x: npx.leaky_relu(x.as_np_ndarray(), act_type="selu").as_nd_ndarray(),
        lambda x: 1.0507009873554805 * numpy.where(x > 0, x, 1.6732632423543772 * numpy.expm1(numpy.minimum(x, 0))),
        (4, 6),
    ),
    "reshape": (lambda x: nd.reshape(x, shape=(0, 2, -1)), lambda x: x.reshape(4, 2, 3), (4, 6)),
    "concat": (
        lambda x: nd.concat(x, 2 * x, dim=1),
        lambda x: numpy.concatenate([x, 2 * x], 1),
        (2, 8, 2, 2),
    ),
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
    "clip": (lambda x: nd.clip(x, -0.5, 0.5), lambda x: numpy.clip(x, -0.5, 0.5), (4, 6)),
    "flip": (lambda x: nd.flip(x, axis=1), lambda x: x[:, ::-1], (4, 6)),
    "cumsum": (lambda x: nd.cumsum(x, axis=1), lambda x: x.cumsum(1), (4, 6)),
    "moments": (lambda x: nd.moments(x, axes=[1])[1], lambda x: x.var(1), (4, 6)),
    "Crop": (lambda x: nd.Crop(x, offset=(1, 1), h_w=(2, 2)), lambda x: x[:, :, 1:3, 1:3], (1, 2, 4, 4)),
    "gather_nd": (lambda x: nd.gather_nd(x, nd.array(LAST)), lambda x: x[[1, -1], [0, -2]], (4, 6)),
    "boolean_mask": (
        lambda x: nd.contrib.boolean_mask(x, nd.array([1, 0, 1, 1])),
        lambda x: x[[0, 2, 3]],
        (4, 6),
    ),
    "linalg.gemm2": (lambda x: nd.linalg.gemm2(x, x), lambda x: x @ x, "square"),
    "linalg.inverse": (lambda x: nd.linalg.inverse(x), inverse_of, "square"),
    "linalg.trmm": (lambda x: nd.linalg.trmm(x, x), lambda x: numpy.tril(x) @ x, "square"),
    "linalg.slogdet": (lambda x: nd.linalg.slogdet(x)[1], lambda x: numpy.linalg.slogdet(x)[1], "square"),
    "np.mean": (lambda x: np.mean(x.as_np_ndarray(), axis=1).as_nd_ndarray(), lambda x: x.mean(1), (4, 6)),
    "np.var": (lambda x: np.var(x.as_np_ndarray(), axis=1).as_nd_ndarray(), lambda x: x.var(1), (4, 6)),
    "np.std": (lambda x: np.std(x.as_np_ndarray(), axis=1).as_nd_ndarray(), lambda x: x.std(1), (4, 6)),
    "np.where, number": (
        lambda x: np.where(x.as_np_ndarray() > 0, x.as_np_ndarray(), 0.25).as_nd_ndarray(),
        lambda x: numpy.where(x > 0, x, 0.25),
        (4, 6),
    ),
    "np.arctan2, number first": (
        lambda x: np.arctan2(0.5, x.as_np_ndarray()).as_nd_ndarray(),
        lambda x: numpy.arctan2(0.5, x),
        (4, 6),
        lambda x: -0.5 / (x**2 + 0.25),
    ),
    "np.arctan2, number second": (
        lambda x: np.arctan2(x.as_np_ndarray(), 0.5).as_nd_ndarray(),
        lambda x: numpy.arctan2(x, 0.5),
        (4, 6),
        lambda x: 0.5 / (x**2 + 0.25),
    ),
    "np.hypot, number": (
        lambda x: np.hypot(x.as_np_ndarray(), 3).as_nd_ndarray(),
        lambda x: numpy.hypot(x, 3),
        (4, 6),
        lambda x: x / numpy.hypot(x, 3),
    ),
    "np.clip": (
        lambda x: np.clip(x.as_np_ndarray(), -0.5, 0.5).as_nd_ndarray(),
        lambda x: numpy.clip(x, -0.5, 0.5),
        (4, 6),
    ),
    "np.cumsum": (lambda x: np.cumsum(x.as_np_ndarray(), axis=1).as_nd_ndarray(), lambda x: x.cumsum(1), (4, 6)),
    "np.flip": (lambda x: np.flip(x.as_np_ndarray(), 1).as_nd_ndarray(), lambda x: x[:, ::-1], (4, 6)),
    "np.rot90": (lambda x: np.rot90(x.as_np_ndarray()).as_nd_ndarray(), numpy.rot90, (4, 6)),
    "np.diff": (lambda x: np.diff(x.as_np_ndarray()).as_nd_ndarray(), numpy.diff, (4, 6)),
    "np.trace": (lambda x: np.trace(x.as_np_ndarray()).reshape(1).as_nd_ndarray(), lambda x: numpy.trace(x), (4, 6)),
    "np.moveaxis": (
        lambda x: np.moveaxis(x.as_np_ndarray(), 0, 1).as_nd_ndarray(),
        lambda x: numpy.moveaxis(x, 0, 1),
        (4, 6),
    ),
    "np.split": (lambda x: np.split(x.as_np_ndarray(), [2], axis=1)[1].as_nd_ndarray(), lambda x: x[:, 2:], (4, 6)),
    "np.linalg.norm": (
        lambda x: np.linalg.norm(x.as_np_ndarray(), axis=(0, 1)).reshape(1).as_nd_ndarray(),
        lambda x: numpy.linalg.norm(x),
        (4, 6),
    ),
    "np.linalg.inv": (lambda x: np.linalg.inv(x.as_np_ndarray()).as_nd_ndarray(), inverse_of, "square"),
    "np.linalg.solve": (
        lambda x: np.linalg.solve(x.as_np_ndarray(), np.ones((3, 1))).as_nd_ndarray(),
        lambda x: numpy.linalg.solve(x, numpy.ones((3, 1))),
        "square",
    ),
    "np.tensordot": (
        lambda x: np.tensordot(x.as_np_ndarray(), x.as_np_ndarray(), axes=[[1], [1]]).as_nd_ndarray(),
        lambda x: numpy.tensordot(x, x, [[1], [1]]),
        (4, 6),
    ),
    "np.einsum, optimized": (
        lambda x: np.einsum("ij,kj->ik", x.as_np_ndarray(), x.as_np_ndarray(), optimize=True).as_nd_ndarray(),
        lambda x: numpy.einsum("ij,kj->ik", x, x),
        (4, 6),
    ),
    "np.matmul, batches": (
        lambda x: np.matmul(x.as_np_ndarray(), np.ones((5, 1, 6, 2))).as_nd_ndarray(),
        lambda x: numpy.matmul(x, numpy.ones((5, 1, 6, 2))),
        (4, 6),
    ),
    "np.polyval": (
        lambda x: np.polyval(np.array([2.0, 3.0]), x.as_np_ndarray()).as_nd_ndarray(),
        lambda x: 2 * x + 3,
        (4, 6),
        lambda x: 2 + 0 * x,
    ),
    "np.atleast_3d": (lambda x: np.atleast_3d(x.as_np_ndarray()).as_nd_ndarray(), numpy.atleast_3d, (4, 6)),
}


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
            y.backward()
            found[f"{name} {exponent} gradient"] = x.grad.asnumpy()
    numpy.savez(sys.argv[1], **found)
