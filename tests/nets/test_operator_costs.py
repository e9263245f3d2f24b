"""Arithmetic of operators against what they compute of ones, closed forms, and other ways to write them."""

from built_nets import hybrid_net
from mxkit.core.graph import Graph
from mxkit.nets.layer_table import layers
from mxkit.nets.layer_table.costs import multiply_adds
import mxnet as mx
from mxnet.gluon import contrib, nn, rnn
import pytest


def ones(net, *shapes):
    """Outputs of a net whose parameters and inputs are all 1."""
    net.initialize(mx.init.One())
    net(*[mx.nd.ones(shape) for shape in shapes])
    for parameter in net.collect_params().values():
        parameter.set_data(mx.nd.ones(parameter.shape))
    return net(*[mx.nd.ones(shape) for shape in shapes])


# Where everything is 1 and nothing is padded, each multiply-add adds 1 to the sum of the outputs.
CONVOLUTIONS = [
    (nn.Conv1D(6, 3, groups=2, strides=2, dilation=2, use_bias=False), (2, 4, 11)),
    (nn.Conv2D(6, (3, 2), use_bias=False), (2, 4, 9, 8)),
    (nn.Conv2D(6, 3, strides=(2, 1), dilation=(1, 2), use_bias=False), (1, 4, 9, 8)),
    (nn.Conv2D(8, 3, groups=4, use_bias=False), (2, 4, 9, 8)),
    (nn.Conv3D(2, (2, 3, 1), strides=2, use_bias=False), (2, 3, 5, 6, 7)),
    (nn.Conv3D(4, 2, groups=2, dilation=2, use_bias=False), (1, 2, 5, 6, 7)),
    (nn.Conv1DTranspose(6, 3, strides=2, use_bias=False), (2, 4, 11)),
    (nn.Conv2DTranspose(6, (3, 2), strides=(2, 1), use_bias=False), (2, 4, 5, 6)),
    (nn.Conv2DTranspose(6, 4, strides=2, groups=2, dilation=2, use_bias=False, in_channels=4), (2, 4, 5, 6)),
    (nn.Conv3DTranspose(2, 2, strides=2, use_bias=False), (1, 3, 3, 4, 5)),
    (nn.Dense(5, use_bias=False), (2, 3, 4)),
    (nn.Dense(5, use_bias=False, flatten=False), (2, 3, 4)),
]


@pytest.mark.parametrize(
    ("layer", "shape"), CONVOLUTIONS, ids=[f"{number}-{one[0]._alias()}" for number, one in enumerate(CONVOLUTIONS)]
)
def test_products_cost_what_they_compute_of_ones(layer, shape):
    assert layers(layer, shape).macs == float(ones(layer, shape).sum().asscalar()) > 0


@pytest.mark.parametrize(
    ("numpy", "function", "shapes"),
    [
        (False, lambda F, a, b: F.dot(a, b), [(3, 4), (4, 5)]),
        (False, lambda F, a, b: F.dot(a, b, transpose_a=True), [(4, 3), (4, 5)]),
        (False, lambda F, a, b: F.dot(a, b, transpose_b=True), [(3, 4), (5, 4)]),
        (False, lambda F, a, b: F.batch_dot(a, b), [(2, 3, 4), (2, 4, 5)]),
        (False, lambda F, a, b: F.batch_dot(a, b, transpose_a=True, transpose_b=True), [(2, 4, 3), (2, 5, 4)]),
        (False, lambda F, a, b: F.linalg.gemm2(a, b), [(2, 3, 4), (2, 4, 5)]),
        (True, lambda F, a, b: F.np.tensordot(a, b, axes=1), [(3, 4), (4, 5)]),
        (True, lambda F, a, b: F.np.tensordot(a, b, axes=([0, 1], [2, 0])), [(3, 4, 2), (4, 5, 3)]),
        (True, lambda F, a, b: F.np.einsum("bij,kj->bki", a, b), [(2, 3, 4), (5, 4)]),
        (True, lambda F, a, b: F.npx.batch_dot(a, b, transpose_b=True), [(2, 3, 4), (2, 5, 4)]),
        (True, lambda F, a, b: F.np.matmul(a, b), [(3, 4), (4, 5)]),
        (True, lambda F, a, b: F.np.dot(a, b), [(3, 4), (4, 5)]),
    ],
)
def test_matrix_products_cost_what_they_compute_of_ones(numpy, function, shapes):
    net = nn.HybridLambda(function)
    with mx.util.np_shape(numpy), mx.util.np_array(numpy):
        table = layers(net, *shapes)
        assert table.macs == net(*map((mx.np if numpy else mx.nd).ones, shapes)).asnumpy().sum() > 0
    assert not table.not_counted


def test_interleaved_attention_is_attention():
    steps, batch, heads, size = 7, 2, 3, 4

    def own(F, both):
        scores = F.contrib.interleaved_matmul_selfatt_qk(both, heads=heads)
        return F.contrib.interleaved_matmul_selfatt_valatt(both, scores, heads=heads)

    def across(F, queries, both):
        scores = F.contrib.interleaved_matmul_encdec_qk(queries, both, heads=heads)
        return F.contrib.interleaved_matmul_encdec_valatt(both, scores, heads=heads)

    table = layers(nn.HybridLambda(own), (steps, batch, 3 * heads * size))
    assert table.macs == 2 * batch * heads * steps * steps * size
    table = layers(nn.HybridLambda(across), (5, batch, heads * size), (steps, batch, 2 * heads * size))
    assert table.macs == 2 * batch * heads * 5 * steps * size


def unrolled(net, F, x):
    return net.cell.unroll(7, x, begin_state=net.cell.begin_state(2, F.zeros), layout="TNC")[0]


@pytest.mark.parametrize(
    ("layer", "cell"),
    [
        (rnn.RNN(5, activation="tanh"), lambda: rnn.RNNCell(5, input_size=3)),
        (rnn.LSTM(5), lambda: rnn.LSTMCell(5, input_size=3)),
        (rnn.GRU(5), lambda: rnn.GRUCell(5, input_size=3)),
        (rnn.LSTM(5, projection_size=2), lambda: contrib.rnn.LSTMPCell(5, 2, input_size=3)),
    ],
    ids=["rnn", "lstm", "gru", "lstmp"],
)
def test_a_recurrent_layer_costs_what_its_cells_cost(layer, cell):
    table = layers(layer, (7, 2, 3))
    assert table.macs == layers(hybrid_net(unrolled, cell=cell()), (7, 2, 3)).macs > 0


def test_layers_and_directions_of_recurrent_layers():
    for layer, gates in [(rnn.LSTM, 4), (rnn.GRU, 3), (rnn.RNN, 1)]:
        products = 2 * gates * 5 * (3 + 5) + 2 * gates * 5 * (10 + 5)
        assert layers(layer(5, 2, bidirectional=True), (7, 2, 3)).macs == 7 * 2 * products


IMAGE = (2, 4, 6, 6)
OTHERS = [
    (nn.HybridLambda(lambda F, x: F.add_n(F.softmax(x), F.broadcast_mul(x * 2, x.sum(axis=1, keepdims=True)))), IMAGE)
]
OTHERS += [(kind(), IMAGE) for kind in (nn.GlobalAvgPool2D, nn.BatchNorm, nn.LayerNorm, nn.InstanceNorm, nn.PReLU)]
OTHERS += [(kind(), IMAGE) for kind in (nn.GELU, nn.Swish, nn.SELU, nn.ELU, nn.Flatten)]
OTHERS += [(nn.MaxPool2D(2), IMAGE), (nn.GroupNorm(2), IMAGE), (nn.LeakyReLU(0.1), IMAGE), (nn.Dropout(0.5), IMAGE)]
OTHERS += [(nn.Embedding(9, 8), (2, 4)), (nn.HybridLambda("sigmoid"), (2, 4)), (nn.ReflectionPad2D(1), IMAGE)]
OTHERS += [(contrib.nn.SyncBatchNorm(in_channels=4, num_devices=1), IMAGE), (contrib.nn.PixelShuffle2D(2), IMAGE)]


@pytest.mark.parametrize(("layer", "shape"), OTHERS, ids=lambda value: str(value).split("(")[0])
def test_what_is_known_to_be_no_product_costs_nothing(layer, shape):
    table = layers(layer, shape)
    assert (table.macs, table.not_counted) == (0, {})


def test_a_deformable_convolution_and_unknown_operators():
    table = layers(contrib.cnn.DeformableConvolution(4, 3, padding=1, num_deformable_group=1), (2, 3, 6, 6))
    assert table.macs == 2 * 18 * 36 * 27 + 2 * 4 * 36 * 27  # offsets, and the convolution
    table = layers(nn.HybridLambda(lambda F, x: F.topk(F.topk(x, k=3), k=2)), (2, 5))
    assert (table.macs, table.not_counted) == (0, {"topk": 2})
    assert str(table).endswith("not counted: topk (2)")


@pytest.mark.parametrize(
    "expression",
    [lambda a: 2 / (1 - (a * 2 + 1) / 3 - 1) ** 2, lambda a: (a + a) * a / a - a, lambda a: mx.sym.maximum(a, 1) > 2],
)
def test_pythons_operators_are_known(expression):
    for node in Graph.of(expression(mx.sym.var("a"))).nodes:
        assert node.is_variable or multiply_adds(node, [(2, 3), (2, 3)], [(2, 3)]) == 0, node.operator
