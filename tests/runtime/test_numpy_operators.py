"""Gradients of `mx.np` that mxkit makes right (T140 to T145), and functions beside them (T146, T155)."""

import operator

import mxkit
import mxnet as mx
from mxnet import autograd
from mxnet.util import np_array, np_shape
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _switches():
    with np_shape(True), np_array(True):
        yield


X = np.array([[1.0, -1, 2], [-0.5, 0.3, -2]], "float32")
W = np.array([[0.4, 1.5, -0.9], [-1.2, 0.8, 0.3]], "float32")


def recorded(function, x, head=None):
    """Outputs of a recorded call and the gradient of its input."""
    x.attach_grad()
    with autograd.record():
        output = function(x)
    output.backward(head)
    return output.asnumpy(), x.grad.asnumpy()


@pytest.mark.filterwarnings("ignore:ndarray.as_in_context has been renamed")  # MXNet calls it for x[indices]
@pytest.mark.parametrize("kind", ["nd", "np"])
def test_negative_indices_in_arrays(kind):
    """T141."""
    array = mx.np.array if kind == "np" else mx.nd.array
    gather = mx.npx.gather_nd if kind == "np" else mx.nd.gather_nd
    values = np.arange(6, dtype="float32").reshape(3, 2)
    reads = {
        "list": lambda x: x[[-1, -1, 0]],
        "array": lambda x: x[array(np.array([-1, -1, 0]), dtype="int32")],
        "float array": lambda x: x[array(np.array([-1.0, -1, 0]))],
        "gather_nd": lambda x: gather(x, array(np.array([[-1, -1, 0]]), dtype="int32")),
    }
    for read in reads.values():
        output, gradient_of_x = recorded(read, array(values))
        np.testing.assert_array_equal(output, values[[-1, -1, 0]])
        np.testing.assert_array_equal(gradient_of_x, [[1, 1], [0, 0], [2, 2]])
    _, columns = recorded(lambda x: x[:, [-1]], array(values))
    np.testing.assert_array_equal(columns, [[0, 1]] * 3)


@pytest.mark.parametrize("kind", ["nd", "np"])
def test_assignment_at_indices(kind):
    """T141."""
    array = mx.np.array if kind == "np" else mx.nd.array
    x, expected = array(np.zeros((3, 2))), np.zeros((3, 2))
    for target in (x, expected):
        target[[-1, 0]] = 7
        target[:, [-2]] = 1
    np.testing.assert_array_equal(x.asnumpy(), expected)
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for axis 0 with size 3"):
            x[[0, index]] = 1


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_operators_that_write_at_indices_stay_inside_the_array(dtype):
    """T281."""

    def rows(*indices):
        index = mx.nd.array(indices, dtype=dtype)
        return mx.nd.contrib.index_copy(mx.nd.zeros((4, 2)), index, mx.nd.array([[1, 2], [3, 4]])).asnumpy()[:, 0]

    def places(*indices):
        return mx.nd.scatter_nd(mx.nd.array([1, 3]), mx.nd.array([indices], dtype=dtype), shape=(4,)).asnumpy()

    for write in (rows, places):
        assert write(0, 2).tolist() == [1, 0, 3, 0]
        assert write(0, -1).tolist() == [1, 0, 0, 3]
        for index in (4, -5, 10**6):
            with pytest.raises(IndexError, match=f"index {index} is out of bounds for axis 0 with size 4"):
                write(0, index)
    data, new = mx.nd.array([1.0, 3]), mx.nd.ones((2, 2))
    _, found = recorded(lambda x: mx.nd.scatter_nd(x, mx.nd.array([[0, -1]]), shape=(4,)) * mx.nd.arange(4), data)
    assert found.tolist() == [0, 3]
    old, factors = mx.nd.zeros((4, 2)), mx.nd.arange(8).reshape((4, 2))
    _, found = recorded(lambda x: mx.nd.contrib.index_copy(old, mx.nd.array([0, -1]), x) * factors, new)
    assert found.tolist() == [[0, 1], [6, 7]]


def test_at_least_so_many_axes():
    """T142."""
    for shape in ((), (3,), (2, 3), (2, 1, 3)):
        values = np.array(np.random.RandomState(0).randn(*shape))
        for name in ("atleast_1d", "atleast_2d", "atleast_3d"):
            function = getattr(mx.np, name)
            output, found = recorded(lambda a, f=function: f(a) * 2, mx.np.array(values))
            assert output.shape == getattr(np, name)(values).shape
            np.testing.assert_array_equal(found, np.full(shape, 2))


def test_functions_without_a_gradient_warn_once(monkeypatch):
    """T142."""
    monkeypatch.setattr("mxkit.runtime.operators._REPORTED", set())
    x = mx.np.array(X)
    with autograd.record():
        mx.np.percentile(x, 30)
    x.attach_grad()
    with autograd.record(), pytest.warns(mxkit.errors.TrapWarning, match="np.percentile has no gradient in MXNet"):
        mx.np.percentile(x * 2, 30)
    with autograd.record():
        mx.np.percentile(x, 30)
        mx.np.unique(x.detach())


@pytest.mark.parametrize("record", [True, False])
def test_the_mean_of_nothing(record):
    """T145."""
    x, weight = mx.np.zeros((0, 3, 2)), mx.np.ones(2)
    x.attach_grad()
    weight.attach_grad()
    with autograd.record() if record else autograd.pause():
        for axis in (1, -1, (1, 2)):
            for keepdims in (False, True):
                values = x.mean(axis=axis, keepdims=keepdims)
                assert values.shape == np.zeros((0, 3, 2)).sum(axis=axis, keepdims=keepdims).shape
        loss = values.sum() + (weight * weight).sum() + x.mean(axis=0).sum()
    if record:
        loss.backward()
        assert weight.grad.asnumpy().tolist() == [2, 2]
    mx.nd.waitall()
    assert loss.item() == 2


def test_functions_that_mxnet_leaves_to_numpy():
    """T146."""
    x = mx.np.array([1.0, 2, 4])
    assert mx.np.ptp(x) == 3
    _, found = recorded(lambda a: np.float64(2) / a, x)
    np.testing.assert_allclose(found, [-2, -0.5, -0.125])
    with autograd.record():
        with pytest.raises(ValueError, match=r"MXNet leaves numpy\.ptp to NumPy, which records no gradients"):
            mx.np.ptp(x)
        with pytest.raises(ValueError, match=r"MXNet leaves numpy\.heaviside to NumPy, .*autograd\.record\(\)"):
            np.heaviside(x, 1.0)


REFUSED_BY_MXNET = {
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, 0),
    "broadcast_arrays of both": lambda x: np.broadcast_arrays(np.ones((2, 1)), x, 0),
    "concatenate": lambda x: np.concatenate([x, [5.0, 6.0]]),
    "stack of both": lambda x: np.stack([np.ones(3), x]),
    "hstack": lambda x: np.hstack([x, 7]),
    "append": lambda x: np.append(x, 5),
    "where of both": lambda x: np.where(np.array([True, False, True]), x, 0),
    "take": lambda x: np.take(x, [0, 2]),
    "zeros_like": lambda x: np.zeros_like(x, subok=False),
    "may_share_memory": lambda x: np.may_share_memory(np.ones(3), x),
    "array2string": lambda x: np.array2string(x),
    "result_type": lambda x: np.result_type(x, np.float64),
    "fft": lambda x: np.fft.fft(x),
    "left operand": lambda x: np.arange(3.0) - x,
    "in place": lambda x: operator.iadd(np.arange(3.0), x),
    "comparison": lambda x: np.float64(2) < x,
    "list": lambda x: np.add([1, 2, 3], x),
    "dtype": lambda x: np.exp(x, dtype="float64"),
    "reduce": lambda x: np.add.reduce(x),
    "accumulate": lambda x: np.maximum.accumulate(x),
    "outer": lambda x: np.multiply.outer(x, np.arange(2.0)),
    "floor_divide": lambda x: np.floor_divide(np.arange(3.0), x),
}


@pytest.mark.parametrize("call", REFUSED_BY_MXNET.values(), ids=REFUSED_BY_MXNET)
def test_numpy_computes_calls_that_mxnet_refuses(call):
    """T279."""
    values = np.array([3.0, 1, 2], "float32")
    found, expected = call(mx.np.array(values)), call(values)
    if isinstance(expected, (str, np.dtype)):
        assert str(found) == str(expected)
        return
    several = isinstance(expected, (list, tuple))
    for one, other in zip(found, expected) if several else [(found, expected)]:
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-6)


def test_a_call_that_writes_into_a_copy_or_needs_a_gradient_is_refused():
    """T279."""
    x, values = mx.np.array([3.0, 1, 2]), np.arange(3.0)
    for write in (lambda: np.put(x, 0, 5), lambda: np.add.at(x, [0], 5), lambda: np.add(values, x, out=x)):
        with pytest.raises(TypeError):
            write()
    assert x.asnumpy().tolist() == [3, 1, 2]
    np.copyto(values, x)
    assert values.tolist() == [3, 1, 2]
    with autograd.record():
        for call in (lambda: values * x, lambda: np.concatenate([x, values]), lambda: np.concatenate([x, [1.0]])):
            with pytest.raises((TypeError, AssertionError)):
                call()
    assert values.flags.writeable


def test_vectors_have_the_covariance_that_was_asked_for_and_follow_the_seed():
    """T155."""
    covariance = np.array([[4, 1.5], [1.5, 1]], "float32")
    drawn = []
    for _ in range(2):
        mxkit.seed_all(3)
        drawn.append(mx.np.random.multivariate_normal(mx.np.array([1.0, -1]), mx.np.array(covariance), size=20000))
    np.testing.assert_array_equal(drawn[0].asnumpy(), drawn[1].asnumpy())
    np.testing.assert_allclose(np.cov(drawn[0].asnumpy().T), covariance, atol=0.1)
    np.testing.assert_allclose(drawn[0].asnumpy().mean(axis=0), [1, -1], atol=0.05)
    several = mx.np.random.multivariate_normal(mx.np.zeros((5, 2)), mx.np.array(covariance), size=(3, 1))
    assert several.shape == (3, 1, 5, 2)


@pytest.mark.parametrize("numpy", [True, False], ids=["eigh", "moments"])
def test_the_second_output_alone_is_right_in_a_graph(numpy):
    """T239."""
    matrix = np.float32([[4, 1, 0.5], [1, 3, 0.25], [0.5, 0.25, 2]])
    function = (lambda F, x: F.np.linalg.eigh(x)) if numpy else (lambda F, x: F.moments(x, axes=(0,)))
    expected = np.linalg.eigh(matrix) if numpy else (matrix.mean(axis=0), matrix.var(axis=0))
    with np_array(numpy), np_shape(numpy):
        x = (mx.np if numpy else mx.nd).array(matrix)
        for place in (0, 1):
            net = mx.gluon.nn.HybridLambda(lambda F, x, place=place: function(F, x)[place])
            net.hybridize()
            signs = [1, 1, 1] if place == 0 or not numpy else np.sign(net(x).asnumpy()[0] * expected[1][0])
            np.testing.assert_allclose(net(x).asnumpy() * signs, expected[place], rtol=1e-4, atol=1e-5)
            graph = function(mx.sym, mx.sym.var("x").as_np_ndarray() if numpy else mx.sym.var("x"))[place]
            output = graph.bind(mx.cpu(), {"x": mx.nd.array(matrix)}).forward()[0].asnumpy()
            np.testing.assert_allclose(output * signs, expected[place], rtol=1e-4, atol=1e-5)


def test_a_number_with_a_fraction_beside_integers():
    """T240."""
    values = np.array([2, 0, 1], "int32")
    x, doubled = mx.np.array(values, dtype="int32"), mx.np.array(values, dtype="int32")
    for ours, expected in (
        (x * 0.5, values * 0.5), (2.5 - x, 2.5 - values), (x**0.5, values**0.5), (mx.np.maximum(x, 0.5), [2, 0.5, 1]),
        (x == 2.5, values == 2.5), (mx.np.array([7, 200], dtype="uint8") * 0.1, np.array([7, 200]) * 0.1),
        (mx.np.arctan2(0.5, x), np.arctan2(0.5, values)), (mx.np.hypot(x, 2), np.hypot(values, 2)),
        (mx.np.copysign(x, -1), -values.astype("float64")),
    ):  # fmt: skip
        np.testing.assert_allclose(ours.asnumpy(), expected, rtol=1e-6)
    graph = mx.sym.np.hypot(mx.sym.var("x").as_np_ndarray(), 2).bind(mx.cpu(), {"x": x.as_nd_ndarray()})
    np.testing.assert_allclose(graph.forward()[0].asnumpy(), np.hypot(values, 2))
    assert (x * 0.5).dtype == np.float64
    assert (x * 2).dtype == (x * 2.0).dtype == np.int32
    doubled *= 2.5  # written into integers
    assert doubled.tolist() == [4, 0, 2]


def test_the_variance_of_integers_is_no_integer():
    """T241."""
    x = mx.np.array([2, 0, 1], dtype="int32")
    np.testing.assert_allclose([x.var().item(), mx.np.std(x).item()], [2 / 3, (2 / 3) ** 0.5], rtol=1e-6)
    assert mx.np.var(x).dtype == np.float32
    assert mx.np.array([7, 200], dtype="uint8").std().item() == 96.5
    assert mx.np.var(x, dtype="float64").dtype == np.float64
    for one in (x, mx.np.array([7, 200], dtype="uint8"), mx.np.array([0.5, 3], dtype="float64")):
        for function in ("var", "std"):
            graph = getattr(mx.sym.np, function)(mx.sym.var("x").as_np_ndarray())
            found = mx.nd.CachedOp(graph)(one)
            assert found.item() == getattr(mx.np, function)(one).item()
            assert found.dtype == getattr(mx.np, function)(one).dtype


def test_rayleigh_has_the_same_scale_in_graphs():
    """T242."""
    drawn = mx.sym.np.random.rayleigh(size=(4000,)).bind(mx.cpu(), {}).forward()[0].asnumpy()
    np.testing.assert_allclose(drawn.mean(), (np.pi / 2) ** 0.5, rtol=0.05)
    doubled = mx.sym.np.random.rayleigh(2.0, size=(4000,)).bind(mx.cpu(), {}).forward()[0].asnumpy()
    np.testing.assert_allclose(doubled.mean(), 2 * (np.pi / 2) ** 0.5, rtol=0.05)
