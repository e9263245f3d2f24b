"""Uses of arrays, graphs and nets, for calls/*.txt."""

from pathlib import Path

from api_parts import folder, of, ramp
import numpy as np


def csr(dtype="float32"):
    """A sparse matrix, the graph of three nodes."""
    import mxnet as mx

    return mx.nd.sparse.csr_matrix(np.array([[0, 1, 2], [3, 0, 0], [0, 4, 0]], dtype), dtype=dtype)


def multi(operator, arrays, weights, **named):
    """An operator that updates several weights, which `mx.nd` writes to `out`.

    Args:
        weights: Places of the weights; None if the first argument is a list of them.
    """
    if "symbol" in operator.__module__:
        return operator(*arrays, **named)
    return operator(*arrays, out=arrays[0] if weights is None else [arrays[place] for place in weights], **named)


def rsp():
    import mxnet as mx

    return mx.nd.sparse.row_sparse_array(np.float32([[1, 2], [0, 0], [3, 4]]))


def saved(function, mx, buffer=False, saves=False):
    """What `load`, `load_frombuffer` or `save` makes of arrays or of a graph."""
    path, symbols = str(folder() / "file"), "symbol" in function.__module__
    kind = mx.sym if symbols else mx.nd
    if symbols:
        (mx.sym.var("x") * 2).save(path)
        return function(path).list_arguments()
    (function if saves else kind.save)(path, {"a": of((2, 3)), "b": of((4,))})
    loaded = function(Path(path).read_bytes()) if buffer else (kind.load if saves else function)(path)
    return sorted(loaded.items())


def looped(function, mx, kind, array):
    """A loop of `contrib`, of arrays or in a graph."""
    contrib = mx.sym if "symbol" in function.__module__ else mx.nd
    x, start = array(ramp(3, 2), "float32"), array(np.zeros(2), "float32")
    if kind == "foreach":
        return function(lambda one, state: (one * 2 + state, one + state), x, start)
    if kind == "cond":
        arguments = contrib.sum(x) > 0, lambda: x * 2, lambda: x - 1
        return function(*arguments)
    return function(
        lambda n, s: n < 3,
        lambda n, s: (n * s, (n + 1, s + n)),
        (array([0.0]), array([1.0])),
        max_iterations=np.int64(5),
    )


def saved_numpy(function, saves=False):
    import mxnet as mx

    path = str(folder() / "file")
    arrays = {"a": mx.np.array(ramp(2, 3)), "b": mx.np.array(ramp(4))}
    (function if saves else mx.npx.save)(path, arrays)
    return sorted((mx.npx.load if saves else function)(path).items())


def switched(function):
    """The switches of `mx.np` after a call, which are put back."""
    import mxnet as mx

    function()
    found = mx.util.is_np_array(), mx.util.is_np_shape()
    mx.npx.reset_np()
    return found


def put(array, key, value):
    array[key] = value
    return array


def gradient(array):
    import mxnet as mx

    x = array(ramp(2, 3))
    x.attach_grad()
    with mx.autograd.record():
        y = x * x * np.float32(2)
    y.backward()
    return x.grad


def zoo(make):
    """Names, shapes of parameters and the outputs' shape of a net of MXNet's zoo."""
    import mxnet as mx

    net = make(classes=np.int64(7))
    side = 299 if "inception" in make.__name__.lower() else 224
    data = mx.nd.zeros((1, 3, side, side))
    net.infer_shape(data)
    shapes = [parameter.shape for parameter in net.collect_params().values()]
    return [len(shapes), sorted(shapes)[-20:], net(mx.sym.var("data")).infer_shape(data=data.shape)[1]]
