"""Every block of MXNet's comes back with all its arguments."""

import inspect

import mxkit
from mxkit.core.forward_errors import WITHOUT_NUMPY
from mxkit.nets.architecture import build, describe
from mxkit.nets.architecture.arguments import plain
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import contrib, nn, rnn
import numpy as np
import pytest
from round_trip import assert_same, batch, flat, on, rebuilt, tokens, unroll
from sharing import Kind


def stacked(kind):
    net = kind()
    net.add(rnn.LSTMCell(3))
    net.add(rnn.DropoutCell(0.5))
    net.add(rnn.ResidualCell(rnn.GRUCell(3)))
    return net


def concurrent(kind):
    net = kind(axis=1)
    net.add(nn.Dense(2), nn.Dense(3))
    return net


def convolving(kind, sides):
    """A convolutional cell with arguments that differ from its defaults, without channels last on the CPU."""
    return kind(
        (2, *(6,) * sides),
        3,
        i2h_kernel=(3,) * sides,
        h2h_kernel=3,
        i2h_pad=1,
        i2h_dilate=(1,) * sides,
        h2h_dilate=2,
        h2h_weight_initializer=XAVIER,
        activation="softsign",
    )


def walking(sides):
    x = batch(1, 2, 2, *(6,) * sides)
    return lambda net: (net.reset(), net.unroll(2, x, layout="NTC", merge_outputs=True))[1]


X = mx.sym.var("x", dtype="float32")
XAVIER = mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
# Each class with arguments that differ from its defaults, and a call that shows them.
EXAMPLES = {
    nn.Sequential: (nn.Sequential, on(2, 3)),
    nn.HybridSequential: (nn.HybridSequential, on(2, 3)),
    nn.Dense: (lambda: nn.Dense(3, "tanh", flatten=False, weight_initializer=XAVIER), on(2, 3, 4)),
    nn.Dropout: (lambda: nn.Dropout(0.25, axes=(1,)), on(2, 3)),
    nn.Embedding: (lambda: nn.Embedding(5, 3, dtype="float64", sparse_grad=False), tokens),
    nn.BatchNorm: (lambda: nn.BatchNorm(2, 0.5, 1e-3, center=False, scale=False), on(2, 3, 4)),
    nn.BatchNormReLU: (lambda: nn.BatchNormReLU(epsilon=1e-2, use_global_stats=True), on(2, 3, 4, 4)),
    nn.InstanceNorm: (lambda: nn.InstanceNorm(axis=2, epsilon=0.1, scale=True), on(2, 3, 4)),
    nn.LayerNorm: (lambda: nn.LayerNorm(axis=1, epsilon=0.1, center=False), on(2, 3, 4)),
    nn.GroupNorm: (lambda: nn.GroupNorm(2, epsilon=0.1, scale=False), on(2, 4, 4)),
    nn.Flatten: (nn.Flatten, on(2, 3, 4)),
    nn.Lambda: (lambda: nn.Lambda("softmax"), on(2, 3)),
    nn.HybridLambda: (lambda: nn.HybridLambda("tanh"), on(2, 3)),
    nn.Activation: (lambda: nn.Activation("softsign"), on(2, 3)),
    nn.LeakyReLU: (lambda: nn.LeakyReLU(0.3), on(2, 3)),
    nn.PReLU: (lambda: nn.PReLU(mx.init.Constant(0.5), in_channels=3), on(2, 3)),
    nn.ELU: (lambda: nn.ELU(0.7), on(2, 3)),
    nn.SELU: (nn.SELU, on(2, 3)),
    nn.Swish: (lambda: nn.Swish(1.5), on(2, 3)),
    nn.GELU: (nn.GELU, on(2, 3)),
    nn.Conv1D: (lambda: nn.Conv1D(4, 3, 2, 1, activation="relu"), on(2, 3, 8)),
    nn.Conv2D: (lambda: nn.Conv2D(4, (3, 2), (2, 1), (1, 0), (1, 2), groups=2, use_bias=False), on(2, 4, 8, 8)),
    nn.Conv3D: (lambda: nn.Conv3D(2, 2, dilation=2, activation="tanh"), on(1, 2, 4, 4, 4)),
    nn.Conv1DTranspose: (lambda: nn.Conv1DTranspose(4, 3, 2, 1, output_padding=1), on(2, 3, 5)),
    nn.Conv2DTranspose: (lambda: nn.Conv2DTranspose(4, 3, 2, 1, (1, 0), activation="relu"), on(2, 6, 4, 4)),
    nn.Conv3DTranspose: (lambda: nn.Conv3DTranspose(2, 2, 2), on(1, 3, 2, 2, 2)),
    nn.MaxPool1D: (lambda: nn.MaxPool1D(3, 1, 1, ceil_mode=True), on(2, 3, 8)),
    nn.MaxPool2D: (lambda: nn.MaxPool2D((3, 2), 2, ceil_mode=True), on(2, 3, 8, 8)),
    nn.MaxPool3D: (lambda: nn.MaxPool3D(2, 1), on(1, 2, 4, 4, 4)),
    nn.AvgPool1D: (lambda: nn.AvgPool1D(3, padding=1, count_include_pad=False), on(2, 3, 8)),
    nn.AvgPool2D: (lambda: nn.AvgPool2D(3, padding=1, count_include_pad=False), on(2, 3, 8, 8)),
    nn.AvgPool3D: (lambda: nn.AvgPool3D(3, padding=1, count_include_pad=False), on(1, 2, 4, 4, 4)),
    nn.GlobalMaxPool1D: (lambda: nn.GlobalMaxPool1D(layout="NWC"), on(2, 3, 4)),
    nn.GlobalMaxPool2D: (nn.GlobalMaxPool2D, on(2, 3, 4, 4)),
    nn.GlobalMaxPool3D: (nn.GlobalMaxPool3D, on(1, 2, 3, 3, 3)),
    nn.GlobalAvgPool1D: (nn.GlobalAvgPool1D, on(2, 3, 4)),
    nn.GlobalAvgPool2D: (nn.GlobalAvgPool2D, on(2, 3, 4, 4)),
    nn.GlobalAvgPool3D: (nn.GlobalAvgPool3D, on(1, 2, 3, 3, 3)),
    nn.ReflectionPad2D: (lambda: nn.ReflectionPad2D((0, 0, 0, 0, 1, 2, 2, 1)), on(2, 3, 4, 4)),
    rnn.RNN: (lambda: rnn.RNN(3, 2, "tanh", dropout=0.3), on(3, 2, 4)),
    rnn.LSTM: (lambda: rnn.LSTM(3, 2, "NTC", bidirectional=True), on(2, 3, 4)),
    rnn.GRU: (lambda: rnn.GRU(3, h2h_weight_initializer="orthogonal"), on(3, 2, 4)),
    rnn.RNNCell: (lambda: rnn.RNNCell(3, "relu"), unroll),
    rnn.LSTMCell: (lambda: rnn.LSTMCell(3, activation="softsign", recurrent_activation="tanh"), unroll),
    rnn.GRUCell: (lambda: rnn.GRUCell(3), unroll),
    rnn.SequentialRNNCell: (lambda: stacked(rnn.SequentialRNNCell), unroll),
    rnn.HybridSequentialRNNCell: (lambda: stacked(rnn.HybridSequentialRNNCell), unroll),
    rnn.DropoutCell: (lambda: rnn.DropoutCell(0.5), unroll),
    rnn.ZoneoutCell: (lambda: rnn.ZoneoutCell(rnn.RNNCell(3), 0.2, 0.3), unroll),
    rnn.ResidualCell: (lambda: rnn.ResidualCell(rnn.RNNCell(4)), unroll),
    rnn.BidirectionalCell: (lambda: rnn.BidirectionalCell(rnn.LSTMCell(3), rnn.GRUCell(2), "two_"), unroll),
    contrib.rnn.VariationalDropoutCell: (
        lambda: contrib.rnn.VariationalDropoutCell(rnn.LSTMCell(3), 0.1, 0.2, 0.3),
        unroll,
    ),
    contrib.rnn.LSTMPCell: (lambda: contrib.rnn.LSTMPCell(4, 2, h2r_weight_initializer=XAVIER), unroll),
    **{
        kind: (lambda kind=kind, sides=sides: convolving(kind, sides), walking(sides))
        for sides in (1, 2, 3)
        for kind in (getattr(contrib.rnn, f"Conv{sides}D{name}Cell") for name in ("RNN", "LSTM", "GRU"))
    },
    nn.SymbolBlock: (lambda: nn.SymbolBlock(mx.sym.exp(X) * 2, X), on(2, 3)),
    contrib.nn.Concurrent: (lambda: concurrent(contrib.nn.Concurrent), on(2, 3)),
    contrib.nn.HybridConcurrent: (lambda: concurrent(contrib.nn.HybridConcurrent), on(2, 3)),
    contrib.nn.Identity: (contrib.nn.Identity, on(2, 3)),
    contrib.nn.SyncBatchNorm: (lambda: contrib.nn.SyncBatchNorm(num_devices=1, epsilon=0.1), on(2, 3, 4, 4)),
    contrib.nn.PixelShuffle1D: (lambda: contrib.nn.PixelShuffle1D(2), on(2, 4, 3)),
    contrib.nn.PixelShuffle2D: (lambda: contrib.nn.PixelShuffle2D((2, 3)), on(2, 6, 3, 3)),
    contrib.nn.PixelShuffle3D: (lambda: contrib.nn.PixelShuffle3D((1, 2, 3)), on(2, 6, 2, 2, 2)),
}
# It computes only with a Trainer; its description has a test of its own.
WITHOUT_EXAMPLE = {contrib.nn.SparseEmbedding}


def public_blocks():
    for module in (nn, rnn, contrib.nn, contrib.rnn):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, gluon.Block) and not name.startswith("_"):
                yield value


def test_every_public_block_has_an_example():
    abstract = {gluon.Block, gluon.HybridBlock, rnn.RecurrentCell, rnn.HybridRecurrentCell, rnn.ModifierCell}
    assert set(public_blocks()) - abstract == set(EXAMPLES) | WITHOUT_EXAMPLE


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_block_comes_back_with_its_arguments(kind):
    make, call = EXAMPLES[kind]
    assert type(assert_same(make(), call)) is kind


REQUIRED = {
    **{getattr(nn, f"Conv{axes}D{end}"): (4, 3) for axes in (1, 2, 3) for end in ("", "Transpose")},
    **dict.fromkeys((nn.BatchNorm, nn.BatchNormReLU, nn.InstanceNorm, nn.LayerNorm, nn.GroupNorm, nn.PReLU), ()),
    **dict.fromkeys((nn.Dense, rnn.RNN, rnn.LSTM, rnn.GRU, rnn.RNNCell, rnn.LSTMCell, rnn.GRUCell), (3,)),
    **dict.fromkeys((nn.Embedding, contrib.rnn.LSTMPCell), (5, 3)),
}


@pytest.mark.parametrize("kind", REQUIRED, ids=lambda kind: kind.__name__)
def test_every_initializer_and_flag_comes_back(kind):
    arguments = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in ("sparse_grad", "use_bias") or (kind, name) == (rnn.LSTM, "h2r_weight_initializer"):
            continue  # the others would mean nothing, or MXNet refuses it
        if name.endswith("_initializer"):
            arguments[name] = mx.init.Constant(len(arguments) + 2)
        elif isinstance(parameter.default, bool):
            arguments[name] = not parameter.default
    told = describe(kind(*REQUIRED[kind], **arguments))
    for name, value in arguments.items():
        expected = ["constant", {"value": value.value}] if name.endswith("_initializer") else value
        assert told["net"]["arguments"][name] == expected, name
    assert describe(build(told)) == told


# Those that MXNet has for mx.np, too; the float64 Embedding fails there, and cells are not unrolled.
BY_NAME = {nn.Lambda, nn.HybridLambda, nn.SymbolBlock, nn.Embedding}
WITH_NUMPY = [kind for kind in EXAMPLES if kind not in BY_NAME and not issubclass(kind, WITHOUT_NUMPY)]


@pytest.mark.filterwarnings("ignore:ndarray.context has been renamed")  # which MXNet's recurrent layers read
def test_blocks_of_mx_np_have_the_description_of_those_of_mx_nd():
    for kind in WITH_NUMPY:
        make, call = EXAMPLES[kind]
        told = describe(make())
        with Kind(True).switches():
            net = make()
            assert describe(net) == told, kind
            twin = rebuilt(net)
            outputs = []
            for one in (net, twin):
                mxkit.seed_all(1)
                one.initialize()
                outputs.append(flat(call(one)))
            assert outputs[0] == outputs[1], kind
        assert describe(net) == describe(twin), kind


def test_a_sparse_embedding_is_described():
    told = describe(contrib.nn.SparseEmbedding(5, 3))
    assert describe(build(told)) == told
    assert build(told).weight._stype == "row_sparse"


def test_layers_of_lstm_keep_what_only_keywords_say():
    net = rnn.LSTM(3, projection_size=2, state_clip_min=-1, state_clip_max=1.5, state_clip_nan=True)
    told = describe(net)["net"]["arguments"]
    assert (told["projection_size"], told["state_clip_min"], told["state_clip_nan"]) == (2, -1, True)
    assert describe(build(describe(net))) == describe(net)
    assert build(describe(rnn.GRU(3, use_sequence_length=True)))._use_sequence_length is True


def test_layouts_with_channels_last():
    arguments = {"layout": "NHWC", "groups": 2, "in_channels": 6}
    for layer in (nn.Conv2D(4, 3, **arguments), nn.Conv2DTranspose(4, 3, **arguments)):
        told = describe(layer)
        assert describe(build(told)) == told
        assert build(told).weight.shape == layer.weight.shape


def test_an_activation_that_is_a_block_is_kept():
    dense = nn.Dense(3)
    dense.act = nn.LeakyReLU(0.4)
    assert assert_same(dense, on(2, 4)).act._alpha == 0.4
    cell = rnn.RNNCell(3, activation=nn.LeakyReLU(0.4))
    x, state = batch(2, 4), [batch(2, 3)]
    assert assert_same(cell, lambda net: net(x, state))._activation._alpha == 0.4


def test_plain_values():
    assert plain([np.int32(3), (np.float64(0.5), True)]) == [3, [0.5, True]]
    for value in (float("inf"), {1: 2}, object(), int):
        with pytest.raises(TypeError, match="no form in JSON"):
            plain(value)
