"""Graphs of single operators, and their comparison with ONNX."""

from mxkit.export.net_graph import Graph
from mxkit.export.to_onnx.onnx_model import onnx_model
from mxkit.export.to_onnx.onnx_proof import compare_onnx
import mxnet as mx
import numpy as np

S = mx.sym
BATCHES = (1, 4)


def graph_of_symbol(symbol, shapes, weights, numpy=False):
    """A graph of operators without a net; arrays of weights are drawn from a fixed seed."""
    outputs = symbol if isinstance(symbol, mx.sym.Symbol) else mx.sym.Group(symbol)
    random = np.random.RandomState(1)
    arrays = {}
    auxiliary = set(outputs.list_auxiliary_states())
    known = {
        **shapes,
        **{name: np.shape(value) if not isinstance(value, tuple) else value for name, value in weights.items()},
    }
    inferred = outputs.infer_shape(**known)
    every = {**dict(zip(outputs.list_arguments(), inferred[0])), **dict(zip(auxiliary, ()))}
    every.update(zip(outputs.list_auxiliary_states(), inferred[2]))
    for name, shape in every.items():
        if name not in shapes:
            value = weights.get(name)
            drawn = random.uniform(0.2, 1, shape) if value is None or isinstance(value, tuple) else np.asarray(value)
            arrays[f"{'aux' if name in auxiliary else 'arg'}:{name}"] = mx.nd.array(drawn, dtype="float32")
    return Graph(outputs, arrays, list(shapes), {}, numpy)


def compared(symbol, shapes, weights=None, dtypes=None, values=None, batch_axes=None):
    graph = graph_of_symbol(symbol, shapes, weights or {})
    types = [(dtypes or {}).get(name, "float32") for name in shapes]
    model = onnx_model(graph, list(shapes.values()), types, {}).SerializeToString()
    random = np.random.RandomState(0)
    batches = []
    for batch in BATCHES:
        given = {}
        for name, shape, dtype in zip(shapes, shapes.values(), types):
            axis = (batch_axes or {}).get(name, 0)
            full = (*shape[:axis], batch, *shape[axis + 1 :])
            drawn = (values or {}).get(name, lambda size: random.uniform(-2, 2, size))(full)
            given[name] = np.asarray(drawn).astype(dtype)
        batches.append(given)
    made = compare_onnx(graph, model, batches)
    assert [name for name in made.not_compared if not name.startswith("LeakyReLU")] == []  # rrelu's random slopes
    assert made.rows
    return made.rows


def words(text):
    return text.split()


def positive(shape):
    return np.random.RandomState(2).uniform(0.1, 2, shape)


def inside_one(shape):
    return np.random.RandomState(2).uniform(-0.9, 0.9, shape)


def whole(high, low=0):
    return lambda shape: np.random.RandomState(3).randint(low, high, shape)


def distinct_values(shape):
    return np.random.RandomState(4).permutation(int(np.prod(shape))).reshape(shape) / 7


def regions(shape):
    """Rows of an image's number and two corners."""
    low = np.random.RandomState(5).randint(0, 9, (shape[0], 2))
    corners = np.concatenate([low, low + [4, 6]], axis=1)  # MXNet ends the process at an empty region
    return np.concatenate([whole(2)((shape[0], 1)), corners], axis=1)


def boxes(shape):
    """Rows of a class, a score and two corners."""
    random = np.random.RandomState(6)
    low = random.uniform(0, 1, (*shape[:2], 2))
    scores = random.permutation(shape[0] * shape[1]).reshape(*shape[:2], 1) / (shape[0] * shape[1])
    return np.concatenate(
        [random.randint(0, 3, (*shape[:2], 1)), scores, low, low + random.uniform(0, 1, low.shape)], 2
    )


x, y, w, b = (S.var(name) for name in "xywb")
IMAGE = {"x": (2, 4, 7, 9)}
VOLUME = {"x": (2, 4, 5, 6, 7)}
LINE = {"x": (2, 4, 9)}
ROWS = {"x": (2, 6)}
TIME = {"x": (2, 5, 6)}
TWO = {"x": (2, 3, 4), "y": (2, 3, 4)}
WIDE = {"x": (2, 3, 4), "y": (2, 1, 4)}


def check(case):
    """Compare the operators of a case: a symbol, shapes of inputs, and arguments of `compared`."""
    symbol, shapes, *more = case
    worst = max(compared(symbol, shapes, *more), key=lambda row: row.relative)
    assert worst.relative <= 1e-5, worst
