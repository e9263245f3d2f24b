"""Gradients of functions, the seeds' puzzles by their rows, and the check against differences."""

from built_nets import ready, stack
import mxkit
from mxkit.core.arrays import switches
from mxkit.errors import NotInitializedError
from mxkit.gradients.functions import check_gradient, grad, jacobian, value_and_grad
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest

X = mx.nd.array([[1, 2, 3], [4, 5, 6]])
COARSE = {"dtype": "float32", "eps": 1e-2, "rtol": 1e-2, "atol": 1e-3}


def equal(found, expected):
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5)


# the puzzles of the seeds


def test_the_head_is_summed():
    value, gradient = value_and_grad(lambda x: x * 3)(X)
    equal(value, X.asnumpy() * 3)
    equal(gradient, np.full((2, 3), 3))
    weights = mx.nd.array([[1, 0, 0], [0, 0, 2]])
    equal(grad(lambda x: x.square(), head=weights)(X), weights.asnumpy() * 2 * X.asnumpy())
    with pytest.raises(ValueError, match=r"head must have the shape .* value, \(2, 3\); received \(3,\)"):
        grad(lambda x: x * 2, head=mx.nd.ones(3))(X)


def test_means_and_maxima_and_a_mean_plus_two_x(kind):
    x = kind.of(X)
    equal(grad(lambda x: x.mean())(x), np.full((2, 3), 1 / 6))
    equal(grad(lambda x: x.max())(x), [[0, 0, 0], [0, 0, 1]])

    def f(x):
        assert mx.util.is_np_array() == kind.numpy
        return x.mean() + 2 * x

    gradient, jacobians = grad(f)(x), jacobian(f)(x)
    assert kind.holds(gradient)
    assert kind.holds(jacobians)
    equal(gradient, np.full((2, 3), 3))
    rows = jacobians.asnumpy().reshape(6, 6)
    np.testing.assert_allclose(rows, 2 * np.eye(6) + 1 / 6, rtol=1e-6)
    np.testing.assert_allclose(rows.sum(axis=0), np.full(6, 3), rtol=1e-6)
    assert check_gradient(f, x).compared == 6


def test_arrays_of_shape_without_axes():
    with switches(True):
        x = mx.np.array(3.0)
    for made in (grad, jacobian):
        derivative = made(lambda x: x * x)(x)
        assert (derivative.shape, derivative.item()) == ((), 6.0)
    assert check_gradient(lambda x: x * x, x).place == ()
    with pytest.raises(ArithmeticError, match=r"wrong at input 0\[\]: autograd says 3, a difference says 6"):
        check_gradient(lambda x: x.detach() * x, x)


def test_recording_and_training_are_two_things():
    def f(x):
        return mx.nd.Dropout(x, p=0.5) * autograd.is_training() + x * autograd.is_recording()

    x = mx.nd.ones((1000,))
    equal(grad(f)(x), np.ones(1000))
    seen = set(grad(f, train_mode=True)(x).asnumpy().tolist())
    assert seen == {1.0, 3.0}


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: mx.nd.array(x.asnumpy() ** 2),
        lambda x: x.detach() ** 2,
        lambda x: mx.nd.array([x.sum().asscalar()]),
        lambda x: mx.nd.ones(2),
    ],
)
def test_what_cuts_the_graph_is_told(cut):
    weight = mx.nd.ones(1)
    weight.attach_grad()
    for f in (grad(cut), jacobian(cut), grad(lambda x: mx.nd.broadcast_mul(cut(x), weight))):
        with pytest.raises(ValueError, match="does not depend on the argument by recorded operators. NumPy"):
            f(X)
    with pytest.raises(ArithmeticError, match=r"autograd says 0, a difference says"):
        check_gradient(lambda x: mx.nd.array(x.asnumpy() ** 2, dtype=x.dtype), X)


def test_arguments_and_parameters_keep_their_gradients(kind):
    net, x = kind.net(lambda: ready(gluon.nn.Dense(2, in_units=3))), kind.of(X.copy())
    x.attach_grad()
    x.grad[:] = 5
    net.weight.grad()[:] = 7
    expected = np.tile(net.weight.data().asnumpy().sum(axis=0), (2, 1))
    for made in (x, kind.of(X), X):  # the net decides the kind
        equal(grad(net)(made), expected)
        assert kind.holds(grad(net)(made))
    equal(x.grad, np.full((2, 3), 5))
    equal(net.weight.grad(), np.full((2, 3), 7))


# several arguments, higher derivatives, errors


def test_several_arguments():
    def f(a, scale, b):
        return a * b * scale

    a, b = mx.nd.array([2]), mx.nd.array([5])
    equal(grad(f)(a, 3, b), [15])
    equal(grad(f, wrt=2)(a, 3, b), [6])
    first, second = grad(f, wrt=(0, 2))(a, 3, b)
    equal(first, [15])
    equal(second, [6])
    first, second = jacobian(f, wrt=[0, 2])(a, 3, b)
    assert first.shape == second.shape == (1, 1)
    assert jacobian(lambda x: x.sum(axis=1))(X).shape == (2, 2, 3)


def test_second_derivatives(kind):
    x, operators = kind.of(mx.nd.array([0.5, 2])), mx.np if kind.numpy else mx.nd
    equal(grad(grad(operators.sin))(x), -np.sin(x.asnumpy()))
    equal(grad(grad(operators.exp))(x), np.exp(x.asnumpy()))
    with pytest.raises(NotImplementedError, match="no second derivative of the operator '.*broadcast_mul'"):
        grad(grad(lambda x: x * x))(x)
    x.attach_grad()
    with kind.switches(), autograd.record():  # a gradient penalty
        penalty = operators.square(grad(operators.square)(x)).sum()
    penalty.backward()
    equal(x.grad, 8 * x.asnumpy())
    with autograd.record(), pytest.raises(ValueError, match="inside autograd.record\\(\\) the argument itself must"):
        grad(operators.sin)(x * 2)


@pytest.mark.parametrize("name", ["arcsinh", "arccosh"])
def test_second_derivatives_with_the_wrong_sign_are_refused(name, kind):
    """T172."""
    x, function = kind.of(mx.nd.array([2.0])), getattr(mx.np if kind.numpy else mx.nd, name)
    check_gradient(function, x)
    with pytest.raises(NotImplementedError, match=f"no second derivative of the operator '{name}'"):
        grad(grad(function))(x)


@pytest.mark.parametrize("make", [value_and_grad, grad, jacobian])
def test_wrong_calls(make):
    with pytest.raises(TypeError, match="argument 0 must be an NDArray of floating point .*; got NDArray of .*int32"):
        make(mx.nd.square)(mx.nd.array([1], dtype="int32"))
    with pytest.raises(TypeError, match="argument 0 must be an NDArray of floating point .*; got ndarray"):
        make(mx.nd.square)(np.ones(1))
    with pytest.raises(IndexError):
        make(mx.nd.square, wrt=3)(X)
    with pytest.raises(TypeError, match="must return one NDArray; it returned tuple"):
        make(lambda x: (x, x))(X)
    assert not autograd.is_recording()


# check_gradient


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("train_mode", [False, True])
def test_a_net_is_checked_with_its_parameters_and_left_as_it_was(hybrid, train_mode, kind):
    x = kind.of(mx.nd.random.normal(shape=(3, 2, 5, 5)))
    with kind.switches():
        layers = gluon.nn.Conv2D(2, 3), gluon.nn.BatchNorm(), gluon.nn.Dense(3, activation="tanh")
        net = ready(*layers, gluon.nn.LayerNorm(), devices="cpu:2")
        net.hybridize(hybrid)
        net[0].bias.grad_req = "null"
        net(x)
    before = {name: (p.data().asnumpy(), p.dtype) for name, p in net.collect_params().items()}
    found = check_gradient(net, x, train_mode=train_mode)
    sizes = [p.data().size for p in net.collect_params().values() if p.grad_req != "null"]
    assert found.compared == sum(min(size, 100) for size in [*sizes, x.size])
    assert found.excess < 0.1
    for name, p in net.collect_params().items():
        np.testing.assert_array_equal(p.data().asnumpy(), before[name][0])
        assert kind.holds(p.data())
        assert (p.dtype, p.data().dtype, len(p.list_data())) == (before[name][1], np.float32, 2)
    with kind.switches():
        assert net(x).dtype == np.float32


def test_a_net_is_left_as_it_was_by_an_error():
    net = stack(gluon.nn.Dense(2), gluon.nn.HybridLambda(lambda F, x: F.BlockGrad(x) * x))
    with pytest.raises(NotInitializedError):
        check_gradient(net, X)
    mxkit.initialize(net, "xavier", devices="cpu")
    with pytest.raises(ArithmeticError, match=r"the gradient is wrong at .*: autograd says .*, a difference says"):
        check_gradient(net, X)
    assert net[0].weight.data().dtype == np.float32
    assert net(X).dtype == np.float32


def test_the_worst_element_is_told():
    def f(x):
        return x.square().sum() + (x * mx.nd.array([[0, 0, 0], [0, 4, 0]], dtype=x.dtype)).sum().detach()

    with pytest.raises(ArithmeticError, match=r"input 0\[1, 1\]: autograd says 10, a difference says 14; 1 of 6"):
        check_gradient(f, X)
    found = check_gradient(lambda x: x.square().sum(), X)
    assert (found.array, found.kinks, found.compared) == ("input 0", 0, 6)
    assert found.numeric == pytest.approx(found.analytic, rel=1e-6)


def test_errors_cannot_cancel():
    # the elements of a softmax sum to 1, so an unweighted sum would have no slope at all
    with pytest.raises(ArithmeticError, match="6 of 6 elements differ"):
        check_gradient(lambda x: x.softmax().detach() + 0 * x, X / 3)


def test_kinks_are_told_and_can_be_left_out():
    x = mx.nd.array([-1, 0, 2])
    with pytest.raises(ArithmeticError, match=r"input 0\[1\].* kink or a jump: the slope is .* right of it and 0 left"):
        check_gradient(mx.nd.relu, x)
    found = check_gradient(mx.nd.relu, x, skip_kinks=True)
    assert (found.compared, found.kinks) == (2, 1)
    assert check_gradient(mx.nd.abs, mx.nd.zeros(1), skip_kinks=True).kinks == 0  # 0 is the mean of both slopes


def test_a_margin_where_only_the_second_derivative_jumps_is_no_kink():
    def bent(x):
        return (1 - x).relu().square() * 50

    assert mxkit.gradients.check_gradient(bent, mx.nd.array([1, 0.5])).kinks == 0
    with pytest.raises(ArithmeticError, match="kink or a jump"):
        mxkit.gradients.check_gradient(lambda x: (1 - x).relu(), mx.nd.array([1]))


def test_a_gradient_of_nan_is_wrong_even_at_a_kink():
    def seed(a, b):
        return (a - b).norm(axis=1)

    pair = mx.nd.ones((2, 3))
    for skip in (False, True):
        with pytest.raises(ArithmeticError, match="autograd says nan"):
            check_gradient(seed, pair, pair, skip_kinks=skip)
    assert check_gradient(lambda a, b: ((a - b).square().sum(axis=1) + 1e-6).sqrt(), pair, pair).compared == 12


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ValueError, match="gives other values when it is called again"):
        check_gradient(lambda x: mx.nd.random.uniform(shape=x.shape, dtype="float64") * x, X)
    with pytest.raises(ValueError, match="value is not finite at this point"):
        check_gradient(mx.nd.log, -X)
    layer, x = gluon.nn.LeakyReLU(0.1), mx.nd.array([0.31, -0.7])
    with pytest.raises(ArithmeticError, match="a layer may compute in float32 only.*pass dtype='float32', eps=1e-2"):
        check_gradient(layer, x)
    assert check_gradient(layer, x, **COARSE).compared == 2
    with pytest.raises(ValueError, match="computed float32, too coarse for a step of 1e-06"):
        check_gradient(lambda x: x.astype("float32").square(), X)
    assert check_gradient(lambda x: x * mx.nd.ones((2, 3)), X / 6, **COARSE).compared == 6


def test_which_inputs_are_checked():
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    label = mx.nd.array([0, 2])
    assert check_gradient(loss, X / 6, label, wrt=0).compared == 6
    assert check_gradient(loss, X / 6, label.astype("int32")).compared == 6
    assert check_gradient(lambda x, y: x * 2, X, mx.nd.ones(3)).compared == 9  # a zero that both agree on
    assert check_gradient(lambda x: x * 2, np.ones((300,)), limit=20).compared == 20
