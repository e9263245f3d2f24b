"""Channels of convolutions that are joined and cut (T250, T251), compared with MXNet without oneDNN."""

from pathlib import Path

from mxkit.runtime.graphs import repaired_graph
import mxnet as mx
from mxnet import autograd, nd
import numpy as np
import pytest
from sharing import LONG

SCRIPT = Path(__file__).with_name("cut_blocks.py")


def test_gradients_equal_those_without_onednn(with_and_without, tmp_path):
    """T250, T251."""
    found, expected = with_and_without(tmp_path, SCRIPT, "300" if LONG else "36", MXNET_MKLDNN_ENABLED="0")
    assert set(found) == set(expected)
    for name in expected:
        atol = 1e-4 * abs(expected[name]).max() + 1e-12
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=atol, err_msg=name)


X = mx.sym.var("x")


def _joined(parts, dim=1, **attributes):
    branches = [mx.sym.Convolution(X, kernel=(1, 1), num_filter=part, **attributes) for part in parts]
    return mx.sym.concat(*[mx.sym.Activation(one, act_type="relu") for one in branches], dim=dim)


@pytest.mark.parametrize(
    ("graph", "changes"),
    [
        (_joined([8, 8]), True),
        (_joined([12, 20]), True),
        (_joined([16, 32, 16]), False),  # Inception, DenseNet: nothing is copied
        (_joined([16, 32, 16]).get_backend_symbol("MKLDNN"), False),  # joined with their ReLUs, as by `optimize`
        (_joined([8, 16]), False),  # blocks of 8
        (_joined([10, 10]), False),  # no blocks
        (_joined([8, 8], dim=2), False),
        (_joined([8, 8], dim=-3), True),
        (mx.sym.concat(mx.sym.var("a"), mx.sym.var("b"), dim=1), True),  # unknown
        (mx.sym.concat(_joined([16, 16]), _joined([16, 32]), dim=1), False),
        (mx.sym.slice(_joined([16, 16]), begin=(None, 16), end=(None, None)), False),
        (mx.sym.slice(_joined([16, 16]), begin=(None, 3), end=(None, None)), True),
        (mx.sym.slice(_joined([16, 16]), begin=(0, 0, 1), end=(2, -4, 3)), True),
        (mx.sym.slice(_joined([16, 16]), begin=(0, 0, 1), end=(2, None, 3)), False),
        (mx.sym.slice(_joined([16, 16]), begin=(None, 3), end=(None, None), step=(1, 2)), False),  # not by oneDNN
        (mx.sym.slice(X, begin=(1,), end=(2,)), False),
    ],
)
def test_a_graph_is_changed_where_a_block_may_be_cut(graph, changes):
    """T250, T251."""
    repaired = repaired_graph(graph)
    assert (repaired is not graph) == changes
    assert repaired.list_arguments() == graph.list_arguments()
    shapes = {name: (2, 16, 4, 4) for name in graph.list_arguments() if len(name) == 1}
    assert repaired.infer_shape(**shapes) == graph.infer_shape(**shapes)
    assert list(graph.simple_bind(mx.cpu(), **shapes).output_dict) == graph.list_outputs()


RESHAPES = {
    "none": lambda y: y,
    "reshape": lambda y: mx.sym.reshape(y, (0, 16, -1)),
    "npx.reshape": lambda y: mx.sym.npx.reshape(y, (-2, 16, -1)),
    "np.reshape": lambda y: mx.sym.np.reshape(y, (2, 16, 64)),
    "reshape_like": lambda y: mx.sym.reshape_like(y, mx.sym.ones((2, 16, 64))),
}
READERS = {
    "softmax": (mx.sym.softmax, lambda y: np.exp(y) / np.exp(y).sum(-1, keepdims=True)),
    "log_softmax": (mx.sym.log_softmax, lambda y: y - np.log(np.exp(y).sum(-1, keepdims=True))),
    "transpose": (lambda y: mx.sym.transpose(y, (0, 2, 1)), lambda y: y.transpose(0, 2, 1)),
    "sum": (lambda y: y + mx.sym.ones((2, 16, 64)), lambda y: y + 1),
}


BLIND = [(one, reader) for one in RESHAPES for reader in READERS if one != "none" or "softmax" in reader]


@pytest.mark.parametrize(("reshape", "reader"), BLIND)
def test_blocks_of_a_convolution_are_read_in_graphs(reshape, reader):
    """T124, T275."""
    first = mx.sym.Convolution(X, kernel=(3, 3), pad=(1, 1), num_filter=16, name="first")
    blocks = mx.sym.Convolution(mx.sym.relu(first), kernel=(1, 1), num_filter=16, name="second")
    numpy = reshape.startswith("np")
    changed = RESHAPES[reshape](blocks.as_np_ndarray() if numpy else blocks)
    read, oracle = READERS[reader]
    read = read(changed.as_nd_ndarray() if numpy else changed)
    executor = mx.sym.Group([read, mx.sym.BlockGrad(blocks)]).simple_bind(mx.cpu(), x=(2, 3, 8, 8))
    for array in executor.arg_dict.values():
        array[:] = nd.random.uniform(-1, 1, shape=array.shape)
    found, values = (one.asnumpy() for one in executor.forward())
    values = values if reshape == "none" else values.reshape(2, 16, 64)
    np.testing.assert_allclose(found, oracle(values), rtol=1e-4, atol=1e-5)


def test_inside_loops_and_beside_other_outputs():
    """T250."""

    def body(x, state):
        return nd_or_symbol(x).concat(x, state, dim=1), state

    def nd_or_symbol(x):
        return mx.sym if isinstance(x, mx.sym.Symbol) else nd

    outputs, states = mx.sym.contrib.foreach(body, X, mx.sym.var("s"))
    graph = mx.sym.Group([outputs, states, mx.sym.split(X, num_outputs=2, axis=1)[1]])
    x, s = nd.random.normal(shape=(3, 2, 8, 4, 4)), nd.random.normal(shape=(2, 8, 4, 4))
    found = [one.asnumpy() for one in graph.bind(mx.cpu(), {"x": x, "s": s}).forward()]
    np.testing.assert_array_equal(found[0], np.stack([np.concatenate([one, s.asnumpy()], 1) for one in x.asnumpy()]))
    np.testing.assert_array_equal(found[1], s.asnumpy())
    np.testing.assert_array_equal(found[2], x.asnumpy()[:, 1:])


@pytest.mark.parametrize("key", [np.s_[:, 3:], np.s_[:, :5], np.s_[1:, 2:7, 1], np.s_[:, -5:-1, :, 1:3], np.s_[0, 4:]])
@pytest.mark.parametrize("numpy", [False, True])
def test_indexing_the_output_of_a_convolution(key, numpy):
    """T251."""
    x, weight = nd.random.normal(shape=(2, 3, 5, 5)), nd.random.normal(shape=(16, 3, 1, 1))
    weight.attach_grad()
    with autograd.record():
        y = nd.Convolution(x, weight, kernel=(1, 1), num_filter=16, no_bias=True)
        part = (y.as_np_ndarray() if numpy else y)[key]
    part.backward()
    usual = (y * 1).asnumpy()
    np.testing.assert_array_equal(part.asnumpy(), usual[key])
    chosen = np.zeros_like(usual)
    chosen[key] = 1
    expected = np.einsum("bihw,bohw->oi", x.asnumpy(), chosen)
    np.testing.assert_allclose(weight.grad.asnumpy()[:, :, 0, 0], expected, rtol=1e-5, atol=1e-5)


def test_slice_takes_what_mxnet_takes():
    """T251."""
    x, sparse = nd.arange(24).reshape((4, 6)), nd.ones((4, 6)).tostype("csr")
    for one in (sparse[1:3], sparse[2], nd.slice(sparse, begin=1, end=3), nd.slice(sparse, begin=(1,), end=(3,))):
        assert one.stype == "csr"
    for number in (1, np.int64(1), (1,), [1], (1, None)):
        assert nd.slice(x, begin=number, end=[3, 6][: np.size(number)]).shape == (2, 6)
    image = nd.ones((2, 16, 3, 3))
    assert nd.slice(image, begin=1, end=2).shape == nd.slice(image, 1, 2, 1).shape == (1, 16, 3, 3)
    assert nd.slice(image, begin=(0, 3), end=(2, 7), step=(1, 2)).shape == (2, 2, 3, 3)
    assert nd.slice(nd.ones((2, 16, 3, 3)), begin=(0, 3), end=(2, 7), step=(1, 1)).shape == (2, 4, 3, 3)
