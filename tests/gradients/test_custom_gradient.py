"""Functions with a custom gradient: arrays and graphs, every request, errors, threads, memory."""

import gc
import subprocess
import sys

from built_nets import hybrid_net, ready
import mxkit
from mxkit.core.arrays import switches
from mxkit.gradients.custom import (
    CustomGradient,
    callback_error,
    custom_gradient,
    gradient_reversal,
    round_ste,
    sign_ste,
)
from mxkit.gradients.functions import check_gradient, grad
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest

HOW = pytest.mark.parametrize("how", ["eager", "hybrid", "static"])

MUL = custom_gradient(lambda a, b: a * b, lambda dy, a, b, y: (dy * b, dy * a))


def leaf(*values, request="write"):
    made = mx.nd.array(values)
    made.attach_grad(request)
    return made


def backward_of(f, *inputs):
    with autograd.record():
        y = f(*inputs)
    y.backward()
    return y


def hybridized(net, how):
    if how != "eager":
        net.hybridize(static_alloc=how == "static", static_shape=how == "static")
    return net


def layer(how, *functions, **settings):
    return hybridized(CustomGradient(*functions, **settings), how)


def mul(how):
    return layer(how, MUL.forward, MUL.backward)


def numpy_tanh(x):
    assert mx.util.is_np_array() == isinstance(x, mx.np.ndarray)  # in a thread of MXNet, too
    return mx.nd.array(np.tanh(x.asnumpy()), ctx=x.ctx, dtype=x.dtype)


def numpy_tanh_backward(dy, x, y):
    assert mx.util.is_np_array() == all(isinstance(one, mx.np.ndarray) for one in (dy, x, y))
    return mx.nd.array(dy.asnumpy() * (1 - y.asnumpy() ** 2), ctx=x.ctx, dtype=x.dtype)


@HOW
def test_sigmoid(how):
    sigmoid = layer(how, lambda x: 1 / (1 + (-x).exp()), lambda dy, x, y: dy * y * (1 - y))
    x = leaf(-200, -1, 0, 1, 200)
    y = backward_of(sigmoid, x).asnumpy().astype("float64")
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.asnumpy().astype("float64"))), atol=1e-7)
    np.testing.assert_allclose(x.grad.asnumpy(), y * (1 - y), atol=1e-7)
    assert check_gradient(mul(how), leaf(1, 2, 200), leaf(3, 0, -1)).compared == 6
    with pytest.raises(ArithmeticError, match="the gradient is wrong at input 0"):
        check_gradient(layer(how, numpy_tanh, lambda dy, x, y: dy * (1 - y)), mx.nd.array([0.5, -1, 2]))


@HOW
def test_every_call_frozen_inputs_and_gradients_that_are_summed(how):
    f, b = mul(how), leaf(3)
    for factor, frozen in ((7, mx.nd.array([7])), (5, leaf(5, request="null"))):
        assert f(frozen, b).asscalar() == 3 * factor  # outside of record too
        backward_of(f, frozen, b)
        assert b.grad.asscalar() == factor
    a, b = leaf(7, request="add"), leaf(3, request="add")
    for step in (1, 2, 3):
        backward_of(f, a, b)
        assert (a.grad.asscalar(), b.grad.asscalar()) == (3 * step, 7 * step)


@HOW
def test_several_outputs_and_none(how, kind):
    f = layer(how, lambda x, y: (x * 2, y * 3, x + y), lambda da, db, dc, *_: (da * 2 + dc, None), outputs=3)
    x, y = kind.of([leaf(1, 2), leaf(3, 4)])
    y.grad[:] = 9
    with kind.switches():
        with autograd.record():
            a, _, c = f(x, y)
            loss = a + 5 * c
        loss.backward()
        np.testing.assert_array_equal(x.grad.asnumpy(), [7, 7])
        np.testing.assert_array_equal(y.grad.asnumpy(), [0, 0])
        np.testing.assert_array_equal(f(x, y)[1].asnumpy(), [9, 12])
    assert all(map(kind.holds, (a, c)))


def test_an_output_that_has_a_gradient_of_its_own():
    weight = leaf(2)
    f = custom_gradient(lambda x: weight, lambda dy, x, y: dy * 5)
    for _ in range(2):
        x = leaf(1)
        backward_of(f, x)
        assert x.grad.asscalar() == 5


@HOW
def test_shapes_may_change_and_other_calls_repeat(how, kind):
    total = layer(how, lambda x: x.sum(axis=1), lambda dy, x, y: dy.reshape((-1, 1)) + 0 * x)
    for rows, columns in ((2, 3), (4, 1), (2, 3)):
        x = kind.of(np.ones((rows, columns)))
        x.attach_grad()
        with kind.switches():
            y = backward_of(lambda x=x: total(x) * 2)
        np.testing.assert_array_equal(y.asnumpy(), np.full(rows, 2.0 * columns))
        np.testing.assert_array_equal(x.grad.asnumpy(), np.full((rows, columns), 2))


@HOW
def test_arrays_of_mx_np_have_shapes_of_no_axes_and_of_size_0(how):
    total = layer(how, lambda x, w: (x * w).sum(), lambda dy, x, w, y: (dy * w + 0 * x, (dy * x).sum()))
    with switches(True):
        for shape in ((3,), (), *([(0, 2)] if how == "eager" else [])):  # MXNet's Custom takes no arrays of size 0
            x, w = mx.np.ones(shape), mx.np.array(5.0)
            for one in (x, w):
                one.attach_grad("add" if shape else "write")
            for _ in range(2):
                y = backward_of(total, x, w)
            assert (y.shape, y.item()) == ((), 5 * x.size)
            assert w.grad.item() == x.size * (2 if shape else 1)
            np.testing.assert_array_equal(x.grad.asnumpy(), np.full(shape, 10 if shape else 5))


@HOW
def test_an_output_that_is_an_input(how, kind):
    x = kind.of(leaf(1, 2))
    with kind.switches():
        backward_of(lambda: layer(how, lambda x: x, lambda dy, x, y: -dy)(x) * 3)
    np.testing.assert_array_equal(x.grad.asnumpy(), [-3, -3])
    with autograd.record():
        a, b = custom_gradient(lambda x: (x * 2,) * 2, lambda da, db, x, a, b: da + 10 * db, outputs=2)(x)
        loss = a + b
    loss.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), [11, 11])


@HOW
def test_in_a_net_on_several_devices_with_waits_inside(how, kind):
    def made(custom):
        mxkit.seed_all(3)
        layers = []
        for _ in range(3):
            tanh = CustomGradient(numpy_tanh, numpy_tanh_backward) if custom else gluon.nn.Activation("tanh")
            layers += [gluon.nn.Dense(5, in_units=5), tanh]
        return ready(*layers, devices="cpu:2")

    gradients = []
    for custom in (False, True):
        net = hybridized(kind.net(lambda custom=custom: made(custom)), how)
        inputs = kind.of([mx.nd.array(np.random.RandomState(n).randn(3, 5), ctx=mx.cpu(n)) for n in range(2)])
        for request in ("write", "add"):
            with kind.switches():
                net.collect_params().setattr("grad_req", request)
                for _ in range(2):
                    with autograd.record():
                        losses = [net(x).sum() for x in inputs]
                    autograd.backward(losses)
        found = [p.grad(ctx).asnumpy() for p in net.collect_params().values() for ctx in p.list_ctx()]
        gradients.append(found)
    for ours, theirs in zip(*gradients):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@HOW
def test_between_layers_whose_shapes_come_with_the_first_input(how, kind):
    with kind.switches():
        net = ready(gluon.nn.Dense(4), CustomGradient(numpy_tanh, numpy_tanh_backward), gluon.nn.Dense(2))
        hybridized(net, how)
        x = kind.of(np.ones((3, 5)))
        assert net(x).shape == (3, 2)
        expected = np.tanh(net[0](x).asnumpy())
        np.testing.assert_allclose(mxkit.Features(net, ["1"])(x)["1"].asnumpy(), expected, rtol=1e-6)
        assert "CustomGradient" in str(mxkit.layers(net, (3, 5)))
    assert check_gradient(net, x).compared == 15 + 24 + 10


def test_graphs_made_with_attributes():
    f = mul("hybrid")
    with mx.AttrScope(__a__="1", ctx_group="b"):
        assert f(leaf(2), leaf(3)).asscalar() == 6


def test_shapes_that_cannot_be_known_are_mxnets_error(capfd):
    function = custom_gradient(lambda x, w: x + w.asnumpy().max(), lambda dy, x, w, y: (dy, None))
    net = hybrid_net(lambda net, F, x, weight: function(x, weight))
    net.weight = net.params.get("weight", shape=(0,), allow_deferred_init=True)
    net.initialize()
    with pytest.raises(ValueError, match="shape cannot be inferred"):
        net(mx.nd.ones(3))
    assert "Error in mxkit" not in "".join(capfd.readouterr())  # the functions were not run


def import_elsewhere(path):
    other = layer("hybrid", lambda x: x * 5, lambda dy, x, y: dy)
    other(mx.nd.ones(2))
    with pytest.raises(mx.MXNetError, match="mxkit_"):
        mx.gluon.SymbolBlock.imports(path, ["data"])(mx.nd.ones(2)).asnumpy()


def test_exported_graphs_run_here_and_are_refused_elsewhere(tmp_path, forks):
    net = layer("hybrid", lambda x: x * 2, lambda dy, x, y: dy)
    y = net(mx.nd.array([1, 2])).asnumpy()
    net.export(str(tmp_path / "net"))
    path = str(tmp_path / "net-symbol.json")
    symbol = mx.gluon.SymbolBlock.imports(path, ["data"])
    np.testing.assert_array_equal(symbol(mx.nd.array([1, 2])).asnumpy(), y)
    done = forks.run("test_custom_gradient:import_elsewhere", path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("backward", "text"),
    [
        (lambda dy, a, b, y: dy, r"for each of the 2 inputs.*it returned \[\('NDArray', \(2,\)\)\]"),
        (lambda dy, a, b, y: (dy, dy.reshape((1, 2))), r"it returned .* \('NDArray', \(1, 2\)\)"),
        (lambda dy, a, b, y: (dy.asnumpy(), dy), r"it returned \[\('ndarray', \(2,\)\)"),
        (lambda dy, a, b, y: {}["my own text"], "my own text"),
    ],
)
@HOW
def test_errors_of_backward_keep_their_text_and_break_nothing(how, backward, text, capfd):
    f, a, b = layer(how, lambda a, b: a + b, backward), leaf(1, 2), leaf(3, 4)
    backward_of(f, a, b)
    with pytest.raises(mx.MXNetError):
        a.grad.wait_to_read()
    told = callback_error()
    with pytest.raises(type(told), match=text):
        raise told
    assert callback_error() is None
    assert type(told).__name__ in "".join(capfd.readouterr())  # MXNet's threads have only the terminal
    a, b = leaf(1, 2), leaf(3, 4)
    backward_of(MUL, a, b)
    np.testing.assert_array_equal(a.grad.asnumpy(), b.asnumpy())


def test_errors_of_forward_come_at_once_with_arrays():
    with pytest.raises(ZeroDivisionError):
        custom_gradient(lambda x: x / (1 // 0), lambda dy, x, y: dy)(leaf(1))
    with pytest.raises(ValueError, match="outputs=1 NDArrays; it returned .'NDArray', 'NDArray'"):
        custom_gradient(lambda x: (x, x), lambda dy, x, y: dy)(leaf(1))
    with pytest.raises(ValueError, match="outputs=1 NDArrays; it returned .'ndarray'"):
        custom_gradient(lambda x: x.asnumpy(), lambda dy, x, y: dy)(leaf(1))
    assert not autograd.is_recording()


def test_errors_of_forward_in_a_graph(capfd):
    with pytest.raises(mx.MXNetError):  # found with the shapes
        layer("hybrid", lambda x: x / (1 // 0), lambda dy, x, y: dy)(leaf(1))
    assert "ZeroDivisionError" in "".join(capfd.readouterr())
    late = layer("hybrid", lambda x: x / (1 // int(x.asnumpy()[0] == 1)), lambda dy, x, y: dy)
    assert late(leaf(1)).asscalar() == 1
    with pytest.raises(mx.MXNetError):
        late(leaf(2)).asnumpy()
    assert isinstance(callback_error(), ZeroDivisionError)
    assert late(leaf(1)).asscalar() == 1
    other = layer("hybrid", lambda x: x.astype("float64"), lambda dy, x, y: dy)
    with pytest.raises(mx.MXNetError):
        other(leaf(2)).asnumpy()
    assert "the first input's dtype float32; forward returned (1,), float64" in str(callback_error())
    capfd.readouterr()


def test_wrong_calls():
    with pytest.raises(TypeError, match="expected two functions"):
        custom_gradient(mx.nd.relu, None)
    with pytest.raises(TypeError, match="expected two functions; received .*CustomGradient"):
        custom_gradient(mx.nd.relu, CustomGradient)
    for inputs in [(), (1.0,), (leaf(1), np.ones(1)), (leaf(1), mx.sym.var("x"))]:
        with pytest.raises(TypeError, match="expected NDArrays, or Symbols in a hybridized net"):
            MUL(*inputs)


def test_no_second_derivative():
    texts = {
        "eager": "no second derivative of the operator 'custom_gradient'",
        "hybrid": "no second derivatives of a hybridized",
    }
    for how, text in texts.items():
        f = layer(how, lambda x: x.square(), lambda dy, x, y: dy * 2 * x)
        assert grad(f)(mx.nd.array([3])).asscalar() == 6
        for around in (f, lambda x, f=f: f(x) + x.square(), lambda x, f=f: f(x.square())):
            with pytest.raises(NotImplementedError, match=text):
                grad(grad(around))(mx.nd.array([3]))


def test_nothing_is_kept_of_calls_without_backward():
    held = autograd.Function._registry.ref_holder
    gc.collect()
    before = len(held)
    for _ in range(5):
        with autograd.record():
            y = MUL(leaf(1), leaf(2)) * 2
    del y
    gc.collect()
    assert len(held) == before
    for _ in range(50):
        with autograd.record():
            y = MUL(leaf(1), leaf(2))
        y.backward(retain_graph=True)
        y.backward()
    mx.nd.waitall()
    assert len(held) < before + 5  # MXNet's threads let go of the last ones a little later


@HOW
def test_straight_through(how, kind):
    def forward(net, F, x):
        return sign_ste(x) * 2 + round_ste(x) * 3 + gradient_reversal(x, scale=0.5) * 4

    x = kind.of(leaf(-1.5, 0, 0.4))
    with kind.switches():
        y = backward_of(hybridized(hybrid_net(forward), how), x)
    assert kind.holds(sign_ste(x))
    np.testing.assert_allclose(y.asnumpy(), [-2 - 6 - 6, 0, 2 + 0 + 1.6], rtol=1e-6)
    np.testing.assert_array_equal(x.grad.asnumpy(), [2 + 3 - 2] * 3)


STEPS = """
import faulthandler, time
import mxkit
from mxkit.gradients.custom import CustomGradient
import mxnet as mx
from mxnet import autograd, gluon

faulthandler.dump_traceback_later(30, exit=True)
square = mxkit.gradients.custom_gradient(lambda x: x * x, lambda dy, x, y: 2 * dy * x)
net = gluon.nn.Dense(2, in_units=3)
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
for _ in range(8):
    with autograd.record():
        penalty = square(net.weight.data()).sum() + 0 * net.bias.data().sum()
    penalty.backward()
    trainer.step(1)
print(penalty.asscalar() > 0)
for hybrid in (False, True):  # they still run where the program ends (T113)
    f = CustomGradient(lambda x: x * 2, lambda dy, x, y: (time.sleep(0.5), print("ended\\n", end=""), dy)[2])
    f.hybridize(hybrid)
    x = mx.nd.ones(2)
    x.attach_grad()
    with autograd.record():
        y = f(x)
    y.backward()
"""


def test_a_function_of_a_parameter_does_not_wait_for_the_step_that_waits_for_it():
    """T113, T175."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True", "ended", "ended"], done.stderr
