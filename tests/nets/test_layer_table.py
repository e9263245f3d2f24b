"""The table of layers against hooks on running nets, published figures, and what must not change."""

import io
import sys

from built_nets import by_hooks, hybrid_net, plain_net, ready, stack
import mxkit
from mxkit.core.arrays import switches
from mxkit.core.blocks import blocks_by_path, parameters_by_path
from mxkit.errors import ForwardError, NotInitializedError, UnknownNameError
from mxkit.nets.layer_table import layers
from mxkit.nets.parameter_table import count
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision
import numpy as np
import pytest
from sharing import Kind


def convolutional():
    return stack(
        nn.Conv2D(4, 3, strides=2), nn.BatchNorm(), nn.MaxPool2D(2), nn.Flatten(), nn.Dense(3, activation="relu")
    )


def recurrent():
    return stack(nn.Embedding(50, 6), rnn.LSTM(5, 2, layout="NTC", bidirectional=True), nn.Dense(3, flatten=False))


class Two(gluon.HybridBlock):
    """Two inputs, two outputs, one of them through a block that is called twice."""

    def __init__(self):
        super().__init__()
        self.left, self.twice, self.spare = nn.Conv2D(4, 3, padding=1), nn.Conv2D(4, 1, in_channels=4), nn.Dense(2)

    def hybrid_forward(self, F, x, y):
        x = self.twice(self.left(x))
        return x, [self.twice(F.concat(x, y, dim=2))]


def plain(inner):
    return plain_net(lambda net, *inputs: net.inner(*inputs), inner=inner)


def untraceable():
    def forward(net, F, x):
        x = net.first(x)
        return net.last(x.reshape((x.shape[0], -1)))

    return hybrid_net(forward, first=nn.Conv2D(4, 3), last=nn.Dense(3))


NETS = [
    (convolutional, [(2, 3, 9, 9)]),
    (recurrent, [(2, 7)]),
    (Two, [(2, 3, 5, 5), (2, 4, 5, 5)]),
    (lambda: vision.ResNetV1(vision.BasicBlockV1, [1, 2], [4, 4, 8], 3, thumbnail=True), [(1, 3, 16, 16)]),
]
IDS = ["convolutional", "recurrent", "two", "resnet"]


def zeros(shapes):
    return [mx.nd.zeros(shape) for shape in shapes]


def hooked(net, inputs):
    """Shapes of the outputs of the first call of each block, by path."""
    return {path: tuple(one.shape for one in calls[0]) for path, calls in by_hooks(net, inputs).items()}


@pytest.mark.parametrize(("make", "shapes"), NETS, ids=IDS)
def test_a_table_is_that_of_the_running_net_whatever_its_state(make, shapes):
    table = layers(make(), *shapes)
    before = str(table)
    net = ready(make())
    deferred = layers(plain(net), *shapes)
    net(*zeros(shapes))
    assert {row.path: row.outputs for row in table if row.calls} == hooked(net, zeros(shapes))
    blocks = dict(blocks_by_path(net))
    if make is not Two:  # the shape of a block that is never called is not known
        assert [row.parameters for row in table] == [count(blocks[row.path]) for row in table]
        assert sum(row.own_parameters for row in table) == table.parameters == count(net)
        assert (table.trained, table.not_trained) == (count(net, trainable=True), count(net, trainable=False))
        assert table.parameter_bytes == 4 * count(net)
    assert str(layers(net, *shapes)) == before == str(layers(net, *zeros(shapes)))
    ran = layers(plain(net), *shapes)
    assert list(ran) == list(deferred)
    net.hybridize()
    if make is not Two:  # Gluon warns of the block that is never called
        net(*zeros(shapes))
    assert str(layers(net, *shapes)) == before
    assert str(layers(plain(net), *shapes)) == str(ran)
    inside = {row.path: row for row in ran}
    for row in layers(net, *shapes):
        path = f"inner.{row.path}" if row.path else "inner"
        assert inside[path] == row._replace(path=path)


@pytest.mark.parametrize(("make", "shapes"), [NETS[0], NETS[1], NETS[3]], ids=["convolutional", "recurrent", "resnet"])
@pytest.mark.filterwarnings("ignore:ndarray.context has been renamed")  # which MXNet's recurrent layers read
def test_a_net_of_mx_np_has_the_table_of_the_net_of_mx_nd(make, shapes):
    expected = str(layers(make(), *shapes))
    with Kind(True).switches():
        net = make()
        assert str(layers(net, *shapes)) == expected
        net.initialize()
        net(*[mx.np.zeros(shape) for shape in shapes])
    for switch in (False, True):
        with switches(switch):
            for one in (net, plain(net)):
                table = layers(one, *zeros(shapes))
                assert table.macs == layers(make(), *shapes).macs
            net.hybridize()
            assert str(layers(net, *shapes)) == expected


def state_of(net):
    """All that a call must leave as it was."""
    found = []
    for _, one in blocks_by_path(net):
        hooks = dict(one._forward_hooks), dict(one._forward_pre_hooks)
        found.append((*hooks, *(vars(one).get(name) for name in ("_active", "_cached_op"))))
    for one in parameters_by_path(net).values():
        values = [data.asnumpy().tobytes() for data in one._data or ()]
        found.append((one.shape, one._deferred_init, id(one._var), values, one.grad_req))
    return found


@pytest.mark.parametrize("state", ["new", "deferred", "run", "hybridized", "plain", "deferred plain", "failing"])
def test_nothing_is_changed(state):
    net, shape = convolutional(), (2, 3, 9, 9)
    net.add(nn.Dropout(0.5))  # draws numbers in training
    if state != "new":
        net.initialize()
    if state in ("run", "hybridized", "plain", "failing"):
        net(mx.nd.ones(shape))
    if state != "new" and state != "run":
        net.hybridize()
    if state == "hybridized":
        net(mx.nd.ones(shape))
    net[0].register_forward_hook(lambda *arguments: pytest.fail("a hook of the user's was called"))
    net = plain(net) if "plain" in state or state == "failing" else net
    before = state_of(net)
    mx.random.seed(7)
    expected = mx.nd.random.uniform(shape=(3,)).asnumpy()
    mx.random.seed(7)
    if state == "failing":
        with pytest.raises(ForwardError):
            layers(net, (2, 5, 9, 9))
    else:
        with autograd.record():
            layers(net, shape)
    assert state_of(net) == before
    if state != "deferred plain":  # its initial values were drawn, and dropped
        assert np.array_equal(mx.nd.random.uniform(shape=(3,)).asnumpy(), expected)
    # a hybridized net that is called in a table keeps the attributes of its graph
    cached = getattr(net, "_cached_graph", ())
    assert not cached or "__mxkit" not in cached[1].tojson()


# GMACs of one image as published, 224 pixels (Inception 299): torchvision's table of models (alexnet, resnet18,
# inception_v3); https://arxiv.org/abs/1512.03385 table 1 (3.8 and 11.3: strides in the 1x1, as
# in MXNet's v1); https://arxiv.org/abs/1704.04861 table 8 (MobileNet 0.569).
PUBLISHED = {
    "alexnet": (0.714, 61_100_840),
    "resnet18_v1": (1.81, 11_689_512),
    # torchvision's parameters, and the biases that the zoo's v1 has in the 1x1 convolutions of its bodies
    "resnet50_v1": (3.86, 25_557_032 + 5 * (3 * 64 + 4 * 128 + 6 * 256 + 3 * 512)),
    "mobilenet1.0": (0.569, 4_231_976),
    "inceptionv3": (5.71, 23_834_568),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    size = 299 if name == "inceptionv3" else 224
    table = layers(vision.get_model(name), (1, 3, size, size))
    gmacs, trained = PUBLISHED[name]
    assert table.macs / 1e9 == pytest.approx(gmacs, rel=0.005)
    assert table.trained == sum(row.own_parameters for row in table) - table.not_trained == trained
    assert not table.not_counted
    assert sum(row.macs for row in table if row.kind in ("Conv2D", "Dense")) == table.macs
    if name == "resnet18_v1":
        assert layers(vision.get_model(name), (3, 3, size, size)).macs == 3 * table.macs


def test_called_twice_not_called_and_unknown():
    table = layers(Two(), (1, 3, 5, 5), (1, 4, 5, 5))
    assert (table["twice"].calls, table["twice"].note) == (2, "called 2 times")
    assert table["twice"].macs == 4 * 4 * (5 * 5 + 10 * 5)
    assert table["twice"].outputs == ((1, 4, 5, 5),)
    assert (table["spare"].calls, table["spare"].note, table["spare"].parameters) == (0, "not called", None)
    assert table.unknown == 1
    assert table.parameters == (4 * 27 + 4) + (16 + 4) + 2
    assert "; 1 of unknown shape are not in it" in str(table)
    assert table[""].outputs == ((1, 4, 5, 5), (1, 4, 10, 5))


def test_shared_blocks_and_parameters_count_once():
    net = stack(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4))
    net.add(nn.Dense(4, in_units=4, params=net[0].params))
    net.add(net[1])
    table = layers(net, (2, 4))
    assert [row.parameters for row in table] == [40, 20, 20, 20, 20]
    assert [row.own_parameters for row in table] == [0, 20, 20, 0, 0]
    assert table.parameters == count(net) == 40
    assert [row.note for row in table][1:] == ["", "called 2 times", "shares 0.weight, 0.bias", "the same block as 1"]
    assert table.macs == 4 * 2 * 16


def test_without_inputs():
    net = mxkit.models.mlp(hidden=[8])
    table = layers(net)
    assert [row.parameters for row in table] == [None, 0, None, 0, None]
    assert (table.macs, table.output_bytes, table.unknown) == (None, None, 2)
    assert str(table).splitlines()[0].split() == ["path", "type", "parameters"]
    net = nn.Dense(3, in_units=4)
    assert [row.own_parameters for row in layers(net)] == [15]


def test_depth_leaves_rows_out_and_keeps_numbers():
    net, shape = vision.resnet18_v1(), (1, 3, 32, 32)
    whole, cut = layers(net, shape), layers(net, shape, depth=1)
    assert [row.path for row in cut] == ["", "features", "output"]
    assert list(cut) == [whole[""], whole["features"], whole["output"]]
    assert len(layers(net, shape, depth=0)) == 1
    with pytest.raises(UnknownNameError, match="no row for 'features.4': it lies below `depth`"):
        cut["features.4"]
    with pytest.raises(ValueError, match="depth: expected a whole number, at least 0; received -1"):
        layers(net, depth=-1)


def test_rows_and_dataframe():
    table = layers(convolutional(), (1, 3, 9, 9))
    assert table[1] is table["0"]
    assert table[1:3] == [table["0"], table["1"]]
    assert len(table) == len(list(table)) == 7
    with pytest.raises(KeyError, match=r"no block stands at '4.atc': did you mean '4.act'\?"):
        table["4.atc"]
    frame = pytest.importorskip("pandas").DataFrame(table)
    assert frame["own_parameters"].sum() == table.parameters


def test_text_is_aligned_and_fits_the_terminal(monkeypatch):
    table = layers(Two(), (1, 3, 5, 5), (1, 4, 5, 5))
    lines = str(table).splitlines()
    assert lines[0] == "Two for (1, 3, 5, 5), (1, 4, 5, 5) float32"
    columns = [lines[1].index(name) for name in ("type", "output", "note")]
    assert all(line[column - 1] == " " for line in lines[2:6] for column in columns if len(line) > column)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "70")
    cut = str(table).splitlines()
    assert max(map(len, cut[1:6])) <= 70
    assert [line.split()[0] for line in cut[2:6]] == ["(net)", "left", "twice", "spare"]
    assert "…" in cut[2]


def test_dtypes():
    net = convolutional()
    net.cast("float16")
    table = layers(net, (1, 3, 9, 9))
    assert table.input_dtypes == ["float16"]
    assert {dtype for row in table for dtype in row.dtypes} == {"float16"}
    mixed = layers(nn.HybridLambda(lambda F, x: (x, F.Cast(x, dtype="float64"))), mx.nd.zeros((1, 2), dtype="int32"))
    assert mixed[0].dtypes == ("int32", "float64")
    assert mixed.output_bytes == 2 * 8  # the other output is the input itself


def test_states_none_and_lists_as_inputs():
    layer = rnn.LSTM(5, input_size=3)
    table = layers(layer, (7, 2, 3), [(1, 2, 5), (1, 2, 5)])
    assert table[0].outputs == ((7, 2, 5), (1, 2, 5), (1, 2, 5))
    alone = layers(layer, (7, 2, 3), None)
    assert alone[0].outputs == ((7, 2, 5),)
    layer.initialize()
    assert layers(plain(layer), (7, 2, 3), [(1, 2, 5), (1, 2, 5)]).macs == table.macs > 0
    inside = layers(plain(layer), (7, 2, 3))  # where it makes its own states
    assert inside["inner"] == alone[0]._replace(path="inner")
    assert inside.output_bytes == alone.output_bytes == 4 * 7 * 2 * 5


def test_a_loop_in_the_graph_is_run():
    def forward(net, F, x):
        return F.contrib.foreach(net.cell, x, net.cell.begin_state(2, func=F.zeros))[0]

    net = ready(hybrid_net(forward, cell=rnn.LSTMCell(4, input_size=3)))
    table = layers(net, (5, 2, 3))
    assert (table["cell"].calls, table.macs) == (5, 5 * 2 * 16 * (3 + 4))


def test_plain_blocks_are_run_and_their_parts_traced():
    def forward(net, x):
        x = net.a(x)
        return net.c(net.b(x) if x.mean().asscalar() > 5 else net.b(net.b(x)) + x)

    hybrid = stack(nn.Dense(3), nn.Dense(2), kind=nn.Sequential)
    assert layers(hybrid, (4, 5)).macs == 4 * (15 + 6)  # a plain Sequential need not run
    net = plain_net(forward, a=nn.Conv2D(4, 3, strides=2), b=nn.Conv2D(4, 3, padding=1), c=untraceable())
    with pytest.raises(NotInitializedError, match="plain Blocks.* parameter 'a.weight' is not initialized"):
        layers(net, (1, 3, 9, 9))
    net.initialize()
    deferred = layers(net, (1, 3, 9, 9))
    assert net.a.weight.shape == (4, 0, 3, 3)
    net(mx.nd.zeros((1, 3, 9, 9)))
    table = layers(net, (1, 3, 9, 9))
    assert list(deferred) == list(table)
    assert {row.path: row.outputs for row in table} == hooked(net, [mx.nd.zeros((1, 3, 9, 9))])
    assert [row.calls for row in table] == [1, 1, 2, 1, 1, 1]
    assert table["b"].macs == 2 * 16 * 36 * 4
    assert table.macs == sum(table[path].macs for path in ("a", "b", "c.first", "c.last"))


def test_a_symbol_block():
    inner = ready(convolutional())
    x = mx.sym.var("data", dtype="float32")
    net = stack(gluon.SymbolBlock(inner(x), x), nn.Dense(2))
    table = layers(net, (1, 3, 9, 9))
    reference = layers(inner, (1, 3, 9, 9))
    assert table["0"].macs == reference.macs
    assert table["1"].macs == 3 * 2


def test_a_shape_that_does_not_fit_names_the_layer(capsys):
    """T38."""
    net = stack(nn.Conv2D(4, 3), stack(nn.Conv2D(4, 3, in_channels=7), nn.Dense(2)))
    text = r"^'1\.0' \(Conv2D\) is built for 7 channels \(NCHW\) and got shape \(1, 4, 6, 6\), which has 4"
    with pytest.raises(ForwardError, match=text) as caught:
        layers(net, (1, 3, 8, 8))
    assert (caught.value.path, caught.value.block) == ("1.0", net[1][0])
    with pytest.raises(ForwardError, match=r"^'0' \(Conv2D\) got \(1, 3, 2, 2\): .*kernel size"):
        layers(net, (1, 3, 2, 2))
    with pytest.raises(ForwardError, match=r"^the net \(LSTM\) is built for 3 features on the last axis"):
        layers(rnn.LSTM(5, input_size=3), (7, 2, 4))
    assert capsys.readouterr().out == ""  # MXNet prints the arguments
    net = untraceable()
    with pytest.raises(NotInitializedError, match=r"no graph \(.*shape.*\).* parameter 'first.weight'"):
        layers(net, (1, 3, 9, 9))
    net.initialize()
    net(mx.nd.zeros((1, 3, 9, 9)))
    with pytest.raises(ForwardError, match=r"^'last' \(Dense\) is built for 196 inputs per sample"):
        layers(net, (1, 3, 8, 8))
    own = nn.HybridLambda(lambda F, x: F.dot(x, x))
    with pytest.raises(ForwardError, match=r"^the net \(HybridLambda\) got \(2, 3\) float32: "):
        layers(own, (2, 3))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((1, 3, 8, 8), r"an NDArray or its shape, .* received 1 \(int\)"),
        (([1, 3, 8, 8],), r"received \[1, 3, 8, 8\] \(list\)"),
        ((np.zeros((1, 3)),), r"\(ndarray\)"),
        (((0, 3, 8, 8),), r"sizes of at least 1 .*received \(0, 3, 8, 8\)"),
        (("data",), r"received 'data' \(str\)"),
    ],
)
def test_wrong_inputs(inputs, text):
    with pytest.raises(ValueError, match=text):
        layers(convolutional(), *inputs)
