"""Every repaired operator beside MXNet's own, and beside NumPy in double precision, at numbers of 1e-8 to 1e8 (B21)."""

from pathlib import Path
import sys

import mxnet as mx
from mxnet import autograd, gluon
from mxnet.util import np_array, np_shape
import numpy as np
import pytest
from repaired_values import CASES, EAGER, EXPONENTS, OF_NUMPY, values, weights

SCRIPT = Path(__file__).with_name("repaired_values.py")
# Double rounding of the reference's own steps, and of float32's sums of six numbers.
CLOSE = 4e-6


def reference(name, exponent):
    """Outputs and gradient of the sum of outputs, in double precision: by central differences, if it is not given."""
    _, function, _, *given = CASES[name]
    x = values(name, exponent).astype("float64")
    outputs, gradient = np.asarray(function(x)), np.zeros_like(x)
    if given:
        return outputs, given[0](x) * weights(outputs)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = abs(x[place]) * 1e-4 or 10.0**exponent * 1e-4
        before, after = (np.asarray(function(x + sign * step)) for sign in (-1, 1))
        gradient[place] = np.sum((after - before) * weights(outputs)) / (2 * step[place])
    return outputs, gradient


@pytest.fixture(scope="module")
def found(with_and_without, tmp_path_factory):
    """Values of mxkit's operators, and of MXNet's."""
    return with_and_without(tmp_path_factory.mktemp("values"), SCRIPT, REPAIRED_VALUES="plain")


def error(array, expected):
    """The largest difference, by the size of the largest expected number."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = abs(array.astype("float64").reshape(expected.shape) - expected)
        return float(np.nanmax(difference) / max(abs(expected).max(), 1e-300)) if difference.size else 0.0


def apart(name, found):
    """Rows of a case: exponent, whether forward bits are MXNet's, and errors of both against double precision."""
    ours, plain = found
    for exponent in EXPONENTS:
        key = f"{name} {exponent}"
        outputs, gradient = reference(name, exponent)
        same = all(ours[each].tobytes() == plain[each].tobytes() for each in (key, f"{key} recorded"))
        errors = [error(one[f"{key} recorded"], outputs) for one in found]
        errors += [error(one[f"{key} gradient"], gradient) for one in found]
        yield exponent, same, errors


@pytest.mark.parametrize("name", CASES)
def test_a_repair_keeps_mxnets_outputs_and_has_the_right_gradient(found, name):
    for exponent, same, (ours, plain, gradient, of_plain) in apart(name, found):
        # other operators compute norms and products in float32 too
        allowed = max(plain, 1e-6 if name in EAGER else 0)
        assert same or ours <= allowed, f"10^{exponent}: off by {ours:.1e}, MXNet by {plain:.1e}"
        words = f"10^{exponent}: gradient off by {gradient:.1e}, MXNet's by {of_plain:.1e}"
        assert gradient <= max(CLOSE, of_plain), words


def added(run, leaf, predicts=False):
    """The mean gradient of three windows."""
    for _ in range(3):
        with autograd.record(train_mode=not predicts):
            output = run()
        make = mx.np.array if isinstance(output, mx.np.ndarray) else mx.nd.array
        output.backward(make(weights(output), ctx=output.ctx, dtype=output.dtype))
    return leaf.grad.asnumpy() / 3


@pytest.mark.parametrize("name", CASES)
def test_gradients_add(name):
    """T143."""
    with np_shape(True):
        x = mx.nd.array(values(name, 0))
        x.attach_grad("add")
        found = added(lambda: CASES[name][0](x), x, "predicting" in name)
    assert error(found, reference(name, 0)[1]) <= 2 * CLOSE


class Function(gluon.HybridBlock):
    """A function of one parameter, times an input."""

    def __init__(self, function, weight):
        super().__init__()
        self._function = function
        with self.name_scope():
            self.w = self.params.get("w", shape=weight.shape, grad_req="add")
        self.initialize()
        self.w.set_data(mx.np.array(weight))

    def hybrid_forward(self, F, x, w):  # noqa: N803
        return self._function(F.np, w) * x


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", OF_NUMPY)
def test_gradients_are_right_and_add_in_graphs(name, static):
    """T140, T142, T143."""
    with np_shape(True), np_array(True):
        net = Function(OF_NUMPY[name], values(name, 0))
        net.hybridize(static_alloc=static, static_shape=static)
        found = added(lambda: net(mx.np.ones(())), net.w.data())
    assert error(found, reference(name, 0)[1]) <= 2 * CLOSE


if __name__ == "__main__":  # the table of docs/runtime.md
    loaded = [np.load(file) for file in sys.argv[1:]]
    print("| operator | outputs | gradient off by at most | MXNet's gradient |\n|---|---|---:|---:|")
    for name in CASES:
        rows = list(apart(name, loaded))
        outputs = "MXNet's bits" if all(same for _, same, _ in rows) else "of other operators"
        worst = [max(errors[which] for *_, errors in rows) for which in (2, 3)]
        print(f"| {name} | {outputs} | {worst[0]:.0e} | {worst[1]:.0e} |")
