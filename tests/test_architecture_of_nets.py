"""`describe` and `build`: every block of MXNet's, its arguments, sharing, and descriptions from strangers."""

import inspect
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.architecture import build, describe, differences
from mxkit.architecture.stock import SUPPORTED, UNSUPPORTED
from mxkit.architecture.values import KINDS, kind_of, plain
from mxkit.blocks import parameters_by_path
from mxkit.checkpoint.loading import put_arrays
from mxkit.errors import ArchitectureError
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import contrib, nn, rnn
from mxnet.gluon.model_zoo import vision
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _seed():
    mxkit.seed_all(7)


def flat(out):
    if isinstance(out, (list, tuple)):
        return [one for part in out for one in flat(part)]
    return [out.asnumpy()]


def randomize(net):
    """Values that no initializer gives, so that a parameter in the wrong place shows."""
    for parameter in {id(one): one for one in parameters_by_path(net).values()}.values():
        parameter.set_data(mx.nd.random.uniform(0.1, 1, parameter.shape).astype(parameter.dtype))


def assert_same(net, call):
    """A net comes back through JSON: the same description, paths and, with the same values, outputs."""
    net.initialize()
    flat(call(net))
    randomize(net)
    told = describe(net)
    twin = build(json.loads(json.dumps(told, allow_nan=False)))
    assert describe(twin) == told
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    assert list(ours) == list(theirs)
    assert [one.shape for one in ours.values()] == [one.shape for one in theirs.values()]
    put_arrays(twin, {path: parameter.data() for path, parameter in ours.items()})
    for ours, theirs in zip(flat(call(net)), flat(call(twin))):
        assert ours.tobytes() == theirs.tobytes()
    return twin


def batch(*shape):
    return mx.nd.random.uniform(-1, 1, shape)


def on(*shape):
    x = batch(*shape)
    return lambda net: net(x)


def tokens(net):
    return net(mx.nd.array([[1, 2], [0, 4]]))


def unroll(net):
    net.reset()
    x = mx.nd.arange(24).reshape((2, 3, 4)) / 24
    return net.unroll(3, x, layout="NTC", merge_outputs=True)


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


XAVIER = mx.init.Xavier(rnd_type="gaussian", factor_type="out", magnitude=2)
# Each class with arguments that differ from its defaults, and a call that shows them.
EXAMPLES = {
    nn.Sequential: (lambda: nn.Sequential(), on(2, 3)),
    nn.HybridSequential: (lambda: nn.HybridSequential(), on(2, 3)),
    nn.Dense: (lambda: nn.Dense(3, "tanh", flatten=False, weight_initializer=XAVIER), on(2, 3, 4)),
    nn.Dropout: (lambda: nn.Dropout(0.25, axes=(1,)), on(2, 3)),
    nn.Embedding: (lambda: nn.Embedding(5, 3, dtype="float64", sparse_grad=False), tokens),
    nn.BatchNorm: (lambda: nn.BatchNorm(2, 0.5, 1e-3, center=False, scale=False), on(2, 3, 4)),
    nn.BatchNormReLU: (lambda: nn.BatchNormReLU(epsilon=1e-2, use_global_stats=True), on(2, 3, 4, 4)),
    nn.InstanceNorm: (lambda: nn.InstanceNorm(axis=2, epsilon=0.1, scale=True), on(2, 3, 4)),
    nn.LayerNorm: (lambda: nn.LayerNorm(axis=1, epsilon=0.1, center=False), on(2, 3, 4)),
    nn.GroupNorm: (lambda: nn.GroupNorm(2, epsilon=0.1, scale=False), on(2, 4, 4)),
    nn.Flatten: (lambda: nn.Flatten(), on(2, 3, 4)),
    nn.Lambda: (lambda: nn.Lambda("softmax"), on(2, 3)),
    nn.HybridLambda: (lambda: nn.HybridLambda("tanh"), on(2, 3)),
    nn.Activation: (lambda: nn.Activation("softsign"), on(2, 3)),
    nn.LeakyReLU: (lambda: nn.LeakyReLU(0.3), on(2, 3)),
    nn.PReLU: (lambda: nn.PReLU(mx.init.Constant(0.5), in_channels=3), on(2, 3)),
    nn.ELU: (lambda: nn.ELU(0.7), on(2, 3)),
    nn.SELU: (lambda: nn.SELU(), on(2, 3)),
    nn.Swish: (lambda: nn.Swish(1.5), on(2, 3)),
    nn.GELU: (lambda: nn.GELU(), on(2, 3)),
    nn.Conv1D: (lambda: nn.Conv1D(4, 3, 2, 1, activation="relu"), on(2, 3, 8)),
    nn.Conv2D: (lambda: nn.Conv2D(4, (3, 2), (2, 1), (1, 0), (1, 2), groups=2, use_bias=False), on(2, 4, 8, 8)),
    nn.Conv3D: (lambda: nn.Conv3D(2, 2, dilation=2, activation="tanh"), on(1, 2, 4, 4, 4)),
    nn.Conv1DTranspose: (lambda: nn.Conv1DTranspose(4, 3, 2, 1, output_padding=1), on(2, 3, 5)),
    nn.Conv2DTranspose: (
        lambda: nn.Conv2DTranspose(4, 3, 2, 1, (1, 0), activation="relu"),
        on(2, 6, 4, 4),
    ),
    nn.Conv3DTranspose: (lambda: nn.Conv3DTranspose(2, 2, 2), on(1, 3, 2, 2, 2)),
    nn.MaxPool1D: (lambda: nn.MaxPool1D(3, 1, 1, ceil_mode=True), on(2, 3, 8)),
    nn.MaxPool2D: (lambda: nn.MaxPool2D((3, 2), 2, ceil_mode=True), on(2, 3, 8, 8)),
    nn.MaxPool3D: (lambda: nn.MaxPool3D(2, 1), on(1, 2, 4, 4, 4)),
    nn.AvgPool1D: (lambda: nn.AvgPool1D(3, padding=1, count_include_pad=False), on(2, 3, 8)),
    nn.AvgPool2D: (lambda: nn.AvgPool2D(3, padding=1, count_include_pad=False), on(2, 3, 8, 8)),
    nn.AvgPool3D: (lambda: nn.AvgPool3D(3, padding=1, count_include_pad=False), on(1, 2, 4, 4, 4)),
    nn.GlobalMaxPool1D: (lambda: nn.GlobalMaxPool1D(layout="NWC"), on(2, 3, 4)),
    nn.GlobalMaxPool2D: (lambda: nn.GlobalMaxPool2D(), on(2, 3, 4, 4)),
    nn.GlobalMaxPool3D: (lambda: nn.GlobalMaxPool3D(), on(1, 2, 3, 3, 3)),
    nn.GlobalAvgPool1D: (lambda: nn.GlobalAvgPool1D(), on(2, 3, 4)),
    nn.GlobalAvgPool2D: (lambda: nn.GlobalAvgPool2D(), on(2, 3, 4, 4)),
    nn.GlobalAvgPool3D: (lambda: nn.GlobalAvgPool3D(), on(1, 2, 3, 3, 3)),
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
    contrib.nn.Concurrent: (lambda: concurrent(contrib.nn.Concurrent), on(2, 3)),
    contrib.nn.HybridConcurrent: (lambda: concurrent(contrib.nn.HybridConcurrent), on(2, 3)),
    contrib.nn.Identity: (lambda: contrib.nn.Identity(), on(2, 3)),
    contrib.nn.SyncBatchNorm: (lambda: contrib.nn.SyncBatchNorm(num_devices=1, epsilon=0.1), on(2, 3, 4, 4)),
    contrib.nn.PixelShuffle1D: (lambda: contrib.nn.PixelShuffle1D(2), on(2, 4, 3)),
    contrib.nn.PixelShuffle2D: (lambda: contrib.nn.PixelShuffle2D((2, 3)), on(2, 6, 3, 3)),
    contrib.nn.PixelShuffle3D: (lambda: contrib.nn.PixelShuffle3D((1, 2, 3)), on(2, 6, 2, 2, 2)),
}
# It computes only with a Trainer; its description has a test of its own.
WITHOUT_EXAMPLE = {contrib.nn.SparseEmbedding}


def public_blocks():
    for module in (nn, rnn, contrib.nn):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, gluon.Block) and not name.startswith("_"):
                yield value


@pytest.mark.parametrize("kind", sorted(set(public_blocks()), key=lambda kind: kind.__name__))
def test_every_public_block_is_supported_or_says_why_not(kind):
    assert (SUPPORTED.get(kind.__name__, (None,))[0] is kind) != (kind in UNSUPPORTED)
    assert kind in UNSUPPORTED or kind in EXAMPLES or kind in WITHOUT_EXAMPLE


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_every_argument_of_a_constructor_is_read(name):
    kind, stock = SUPPORTED[name]
    if not stock.assembled:
        extra = {"use_sequence_length"} if kind in (rnn.RNN, rnn.LSTM, rnn.GRU) else set()
        taken = {one for one, parameter in inspect.signature(kind).parameters.items() if parameter.kind != 4}
        assert (taken - {"prefix", "params"}) | extra == set(stock.arguments) | set(stock.parts)
    for argument in stock.arguments:
        assert kind_of(argument).expected
    assert set(KINDS) <= {argument for _, stock in SUPPORTED.values() for argument in stock.arguments}


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_block_comes_back_with_its_arguments(kind):
    make, call = EXAMPLES[kind]
    net = make()
    assert type(assert_same(net, call)) is kind
    fresh = make()
    told = describe(fresh)
    assert describe(build(json.loads(json.dumps(told)))) == told


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
    for layer in (
        nn.Conv2D(4, 3, layout="NHWC", groups=2, in_channels=6),
        nn.Conv2DTranspose(4, 3, layout="NHWC", groups=2, in_channels=6),
    ):
        told = describe(layer)
        assert describe(build(told)) == told
        assert build(told).weight.shape == layer.weight.shape


ZOO = ["resnet18_v1", "resnet18_v2", "squeezenet1.0", "mobilenet0.25", "mobilenetv2_0.25"]


@pytest.mark.parametrize("name", ZOO)
def test_nets_of_the_zoo_come_back(name):
    assert_same(
        vision.get_model(name, classes=7), on(1, 3, 224 if "squeeze" in name else 64, 224 if "squeeze" in name else 64)
    )


@pytest.mark.parametrize("name", mxkit.models.model_names("zoo"))
def test_every_net_of_the_zoo_is_described_and_built(name):
    net = vision.get_model(name, classes=7)
    told = describe(net)
    twin = build(json.loads(json.dumps(told)))
    assert describe(twin) == told
    assert list(parameters_by_path(twin)) == list(parameters_by_path(net))


def test_a_net_of_the_zoo_that_was_changed_is_rebuilt_as_it_is():
    net = vision.resnet18_v1()
    net.output = nn.Dense(3, activation="sigmoid")
    net.features.add(nn.Dropout(0.5))
    twin = assert_same(net, on(1, 3, 64, 64))
    assert len(twin.features) == len(net.features)
    assert twin.output.act._act_type == "sigmoid"


@st.composite
def layers(draw):
    """A layer that takes images (N, C, H, W), or is put where it fits, with random arguments."""
    choice = draw(st.sampled_from(["conv", "deconv", "norm", "pool", "act", "leaky", "drop", "branch", "nest"]))
    ints = st.integers(1, 3)
    if choice == "conv":
        return nn.Conv2D(
            draw(ints) * 2,
            (draw(ints), draw(ints)),
            (draw(ints), draw(ints)),
            (draw(ints), draw(ints)),
            activation=draw(st.sampled_from([None, "relu", "tanh"])),
            use_bias=draw(st.booleans()),
        )
    if choice == "deconv":
        return nn.Conv2DTranspose(draw(ints), 3, 2, draw(st.integers(0, 1)), draw(st.integers(0, 1)))
    if choice == "norm":
        kind = draw(st.sampled_from([nn.BatchNorm, nn.InstanceNorm, nn.LayerNorm]))
        axis = -1 if kind is nn.LayerNorm else 1
        return kind(
            axis=axis,
            epsilon=draw(st.integers(1, 500).map(lambda part: part / 1000)),
            center=draw(st.booleans()),
            scale=draw(st.booleans()),
        )
    if choice == "pool":
        kind = draw(st.sampled_from([nn.MaxPool2D, nn.AvgPool2D]))
        more = {"count_include_pad": draw(st.booleans())} if kind is nn.AvgPool2D else {}
        return kind(draw(st.integers(2, 3)), draw(ints), 1, ceil_mode=draw(st.booleans()), **more)
    if choice == "act":
        return draw(st.sampled_from([nn.GELU(), nn.SELU(), nn.Activation("softrelu"), nn.HybridLambda("sigmoid")]))
    if choice == "leaky":
        alpha = draw(st.integers(0, 200).map(lambda part: part / 100))
        return draw(st.sampled_from([nn.LeakyReLU(alpha), nn.ELU(alpha), nn.Swish(alpha), nn.PReLU()]))
    if choice == "drop":
        return nn.Dropout(draw(st.integers(0, 90).map(lambda part: part / 100)))
    inner = contrib.nn.HybridConcurrent(axis=1) if choice == "branch" else nn.HybridSequential()
    for _ in range(draw(st.integers(1, 2))):
        inner.add(nn.Conv2D(draw(ints), 1) if choice == "branch" else draw(layers()))
    return inner


@st.composite
def sequentials(draw):
    net = draw(st.sampled_from([nn.Sequential, nn.HybridSequential]))()
    for _ in range(draw(st.integers(1, 5))):
        net.add(draw(layers()))
    net.add(nn.Dense(draw(st.integers(1, 3)), flatten=draw(st.booleans())))
    return net


@settings(max_examples=40, deadline=None, derandomize=True)
@given(sequentials())
def test_random_sequentials_come_back(net):
    told = describe(net)
    assert describe(build(told)) == told
    assert_same(net, on(2, 3, 9, 9))


def test_sizes_are_told_once_they_are_known():
    net = nn.Dense(3)
    assert describe(net)["net"]["arguments"]["in_units"] == 0
    net.initialize()
    net(mx.nd.ones((2, 5)))
    assert describe(net)["net"]["arguments"]["in_units"] == 5


def test_a_shared_block_stays_one_block():
    net, shared = nn.HybridSequential(), nn.Dense(4, in_units=4)
    net.add(shared, nn.Activation("relu"), shared)
    assert describe(net)["net"]["children"][2] == {"shared": "0"}
    twin = assert_same(net, on(2, 4))
    assert twin[0] is twin[2]


def test_shared_parameters_stay_one_parameter():
    net = nn.HybridSequential()
    net.add(nn.Embedding(6, 4))
    net.add(nn.Dense(6, flatten=False, in_units=4, params=net[0].params))
    assert describe(net)["shared_parameters"] == {"1.weight": "0.weight"}
    twin = assert_same(net, tokens)
    assert twin[1].weight is twin[0].weight
    assert set(twin[1].collect_params().values()) == {twin[0].weight, twin[1].bias}
    assert len(list(twin.collect_params())) == len(list(net.collect_params())) == 2
    assert describe(twin) == describe(net)
    # a Trainer moves it once, and both layers see it
    trainer = gluon.Trainer(twin.collect_params(), "sgd", {"learning_rate": 1.0})
    with mx.autograd.record():
        loss = tokens(twin).sum()
    loss.backward()
    trainer.step(1)
    assert (twin[0].weight.data() == twin[1].weight.data()).asnumpy().all()


def test_what_parameters_say_comes_along():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3), nn.Dense(1, in_units=3))
    net.cast("float16")
    net[0].weight.grad_req = "null"
    net[0].bias.lr_mult, net[2].bias.wd_mult = 0.5, 0.0
    net[2].weight.init = mx.init.Constant(3)
    told = describe(net)
    assert told["parameters"] == {
        "0.weight": {"grad_req": "null"},
        "0.bias": {"lr_mult": 0.5},
        "2.bias": {"wd_mult": 0.0},
    }
    assert told["net"]["children"][2]["arguments"]["weight_initializer"] == ["constant", {"value": 3}]
    twin = build(json.loads(json.dumps(told)))
    assert describe(twin) == told
    assert [np.dtype(one.dtype).name for one in parameters_by_path(twin).values()][:3] == [
        "float16",
        "float16",
        "float32",
    ]
    twin.initialize()
    assert (twin[2].weight.data() == 3).asnumpy().all()
    assert twin[0].weight.grad_req == "null"


def test_an_initializer_that_is_not_registered_is_an_error():
    class Normal(mx.init.Initializer):
        """Not MXNet's."""

    with pytest.raises(ArchitectureError, match=r"weight_initializer: .*@mx\.init\.register"):
        describe(nn.Dense(2, weight_initializer=Normal()))


def test_casts_that_no_argument_tells_are_kept():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(2, 1, in_channels=1), rnn.LSTM(2, input_size=2))
    net.cast("float64")
    told = describe(net)
    assert told["parameters"]["0.weight"] == {"dtype": "float64"}
    assert describe(build(told)) == told


def test_children_under_names_keep_them_and_their_order():
    net = nn.HybridSequential()
    net.add(nn.Dense(2))
    net.head = nn.Dense(3)
    net.register_child(nn.Dense(4), "forward")
    net.add(*[nn.Dense(5) for _ in range(9)])
    twin = assert_same(net, on(2, 3))
    assert list(twin._children) == ["0", "head", "forward", *map(str, range(3, 12))]
    assert twin.head is twin[1]
    assert callable(twin.forward)


def test_an_activation_that_is_a_block_is_kept():
    dense = nn.Dense(3)
    dense.act = nn.LeakyReLU(0.4)
    assert assert_same(dense, on(2, 4)).act._alpha == 0.4
    cell = rnn.RNNCell(3, activation=nn.LeakyReLU(0.4))
    x, state = batch(2, 4), [batch(2, 3)]
    assert assert_same(cell, lambda net: net(x, state))._activation._alpha == 0.4


def test_describing_and_building_leave_the_net_and_its_hybridization():
    net = mxkit.models.lenet()
    net.initialize()
    x = mx.nd.ones((1, 1, 28, 28))
    net.hybridize()
    before = net(x).asnumpy()
    names = list(net.collect_params())
    following = int("".join(filter(str.isdigit, nn.HybridSequential().prefix)))
    describe(net)
    # T37: the process's counters did not move either
    assert int("".join(filter(str.isdigit, nn.HybridSequential().prefix))) == following + 1
    assert list(net.collect_params()) == names
    assert net._active
    assert (net(x).asnumpy() == before).all()


class Residual(gluon.HybridBlock):
    def __init__(self, channels, sizes=(3, 1), activation="relu", **kwargs):
        super().__init__(**kwargs)
        self._arguments = {"channels": channels, "sizes": sizes, "activation": activation}
        with self.name_scope():
            self.body = nn.HybridSequential()
            for size in sizes:
                self.body.add(nn.Conv2D(channels, size, padding=size // 2, activation=activation))

    def describe_arguments(self):
        return self._arguments

    def hybrid_forward(self, F, x):
        return x + self.body(x)


class Forgetful(Residual):
    def describe_arguments(self):
        return {**self._arguments, "activation": "tanh"}


class Undescribed(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x + 1


def residual_net(kind=Residual):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 1), kind(4, (3, 3)), nn.Dense(2))
    return net


def test_a_block_of_ones_own_is_built_from_its_arguments():
    net = residual_net()
    net.initialize()
    net(batch(1, 3, 5, 5))
    net[1].body[0].weight.grad_req = "null"
    told = describe(net)
    assert told["net"]["children"][1] == {
        "class": "Residual",
        "arguments": {"channels": 4, "sizes": [3, 3], "activation": "relu"},
    }
    assert told["parameters"]["1.body.0.weight"] == {"shape": [4, 4, 3, 3], "grad_req": "null"}
    twin = build(json.loads(json.dumps(told)), classes=[Residual])
    assert describe(twin) == told
    put_arrays(twin, {path: one.data() for path, one in parameters_by_path(net).items()})
    x = batch(2, 3, 5, 5)
    assert (twin(x) == net(x)).asnumpy().all()


def test_blocks_that_would_be_lost_are_named_with_the_way_out():
    net = nn.Sequential()
    net.add(nn.Dense(2), Undescribed(), nn.HybridLambda(lambda F, x: x * 2), nn.Lambda(lambda x: x))
    with pytest.raises(ArchitectureError) as caught:
        describe(net)
    text = str(caught.value)
    assert "1 (" in text
    assert "Undescribed" in text
    assert "describe_arguments(self)" in text
    assert "2 (mxnet.gluon.nn.basic_layers.HybridLambda): function" in text
    assert "3 (mxnet.gluon.nn.basic_layers.Lambda): function" in text


def test_a_function_named_like_an_operator_is_not_taken_for_it():
    def tanh(F, x):
        return x * 2

    with pytest.raises(ArchitectureError, match="function"):
        describe(nn.HybridLambda(tanh))
    with pytest.raises(ArchitectureError, match="function"):
        describe(nn.Lambda(lambda x: x))


def test_a_function_of_ones_own_named_like_an_operator_is_refused_in_a_lambda():
    def tanh(x):
        return x * 2

    with pytest.raises(ArchitectureError, match="function"):
        describe(nn.Lambda(tanh))


def test_a_description_that_would_not_give_the_block_back_is_refused():
    with pytest.raises(ArchitectureError, match=r"1\.body\.0.*act"):
        describe(residual_net(Forgetful))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda net: setattr(net[0], "forward", len), "its method forward was replaced"),
        (lambda net: setattr(net[0], "_flatten", "maybe"), "flatten: expected true or false"),
        (lambda net: net[0]._children.update(extra=nn.Dense(1)), "does not use a child of this name"),
        (lambda net: net[1]._kwargs.update(cudnn_off=True), "its _kwargs is"),
        (lambda net: net[0].weight.__setattr__("init", Undescribed()), "no form in JSON"),
        (lambda net: net.register_child(nn.Dense(1), "a.b"), "a child's name has dots"),
        (lambda net: net._children.update(me=net), "its own descendant"),
        (lambda net: net.add(Undescribed()), "it is no block of MXNet's"),
        (
            lambda net: net.add(
                gluon.SymbolBlock(mx.sym.var("a", dtype="float32") + 1, mx.sym.var("a", dtype="float32"))
            ),
            "mxkit.export",
        ),
    ],
)
def test_what_cannot_be_kept_is_an_error(change, text):
    net = nn.HybridSequential()
    net.add(nn.Dense(2), nn.Conv2D(2, 1))
    change(net)
    with pytest.raises(ArchitectureError, match=text):
        describe(net)


def test_an_attribute_from_outside_that_no_forward_reads_is_left():
    net = nn.Dense(2)
    net.note = "mine"
    assert describe(net) == describe(nn.Dense(2))


DENSE = {"class": "Dense", "arguments": {"units": 2}}


def layer(name, **arguments):
    return {"class": name, "arguments": arguments}


def stack(*nodes):
    return {"class": "HybridSequential", "children": list(nodes)}


def deep(levels):
    node = DENSE
    for _ in range(levels):
        node = stack(node)
    return node


def laughing(levels):
    """A few nodes that stand for 2 ** levels blocks."""
    node, path = stack(DENSE, {"shared": "0." * levels + "0"}), "0." * levels
    for level in range(levels):
        path = "0." * (levels - level - 1)
        node = stack(node, {"shared": path + "0"})
    return node


CIRCLE = stack()
CIRCLE["children"].append(CIRCLE)

HOSTILE = [
    (DENSE, "the description: expected format"),
    ([], "the description: expected a dict"),
    ({"format": 2, "net": DENSE}, "format 2"),
    ({"format": True, "net": DENSE}, "format True"),
    ({"format": 1, "net": "Dense"}, "the net: expected a dict"),
    ({"format": 1, "net": DENSE, "code": "x"}, "'code'"),
    (layer("os.system"), "unknown class 'os.system'"),
    (layer("Dens", units=2), "did you mean 'Dense'"),
    (layer(["Dense"]), "unknown class"),
    (layer("Residual", channels=2), "classes="),
    (layer("Block"), "unknown class"),
    (layer("SymbolBlock"), "unknown class"),
    ({**DENSE, "module": "os"}, "'module'"),
    (layer("Dense", units="2"), "units: expected a whole number"),
    (layer("Dense", units=True), "units: expected a whole number"),
    (layer("Dense", units=2.0), "units: expected a whole number"),
    (layer("Dense", units=0), "units: expected a whole number"),
    (layer("Dense", units=2**31), "units: expected a whole number"),
    (layer("Dense", unit=2), "did you mean 'units'"),
    (layer("Dense"), "Dense refuses"),
    (layer("Dense", units=2, params={}), "no argument 'params'"),
    (layer("Dense", units=2, activation="nothing"), "activation: expected null, or one of"),
    (layer("Dense", units=2, weight_initializer=["load", {"param": "/etc/passwd"}]), "weight_initializer: expected"),
    (layer("Dense", units=2, weight_initializer=["xavier", {"magnitud": 2}]), "weight_initializer: expected"),
    (layer("Dense", units=2, weight_initializer=["xavier"]), "weight_initializer: expected"),
    (layer("Dense", units=2, dtype="object"), "dtype: expected one of"),
    # these two end the process in MXNet (SIGFPE)
    (layer("Conv2D", channels=4, kernel_size=3, groups=0, in_channels=4), "groups: expected a whole number"),
    (layer("GroupNorm", num_groups=0), "num_groups: expected a whole number"),
    (layer("Conv2D", channels=4, kernel_size=[3, 3, 3]), "Conv2D refuses"),
    (layer("Conv2D", channels=4, kernel_size=[[3], 3]), "kernel_size: expected"),
    (layer("Conv2D", channels=4, kernel_size=3, layout="NCW"), "Conv2D refuses"),
    (layer("LSTM", hidden_size=4, num_layers=10**9), "num_layers: expected"),
    (layer("Dropout", rate="0.5"), "rate: expected a number"),
    (layer("Dropout", rate=float("nan")), "rate: expected a number"),
    (layer("Dropout", rate=0.5, axes=[0] * 99), "axes: expected"),
    (layer("Lambda", function="load"), "function: expected"),
    (layer("Lambda", function="save"), "function: expected"),
    (layer("Lambda", function="__class__"), "function: expected"),
    (layer("HybridLambda", function="Custom"), "function: expected"),
    (layer("LinearBottleneck"), "expected|needs|children"),
    (layer("ResNetV1"), "has the children features, output"),
    ({"class": "Flatten", "children": [DENSE]}, "has the children"),
    ({"class": "ResidualCell"}, "has the children base_cell"),
    ({"class": "ResidualCell", "children": [{"name": "base_cell", **DENSE}]}, "ResidualCell refuses"),
    ({"class": "HybridSequential", "children": [layer("Lambda", function="tanh")]}, "must also be HybridBlock"),
    ({"class": "HybridSequential", "children": {"0": DENSE}}, "children: expected a list"),
    (stack({"name": "a", **DENSE}, {"name": "a", **DENSE}), "names that differ"),
    (stack({"name": "a.b", **DENSE}), "names that differ"),
    (stack({"name": 3, **DENSE}), "names that differ"),
    (stack({"shared": ""}), "path of a block before it"),
    (stack({"shared": "1"}, DENSE), "path of a block before it"),
    (stack({"shared": {}}, DENSE), "path of a block before it"),
    (deep(150), "nested deeper"),
    (CIRCLE, "nested deeper"),
    (laughing(40), "more than 100000 blocks"),
    ({"format": 1, "net": DENSE, "parameters": {"weigt": {}}}, "did you mean 'weight'"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"grad_req": "all"}}}, "'grad_req': expected one of"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"_data": 1}}}, "expected one of"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"shape": [3, 3]}}}, "refuses shape"),
    ({"format": 1, "net": DENSE, "parameters": {"weight": {"shape": [2, 0]}}}, "'shape': expected"),
    ({"format": 1, "net": DENSE, "parameters": []}, "parameters: expected a dict"),
    ({"format": 1, "net": DENSE, "shared_parameters": {"bias": "weight"}}, "their shapes differ"),
    ({"format": 1, "net": DENSE, "shared_parameters": {"bias": 3}}, "no parameter 3"),
]


@pytest.mark.parametrize(("description", "text"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_descriptions_are_clear_errors(description, text):
    if isinstance(description, dict) and "class" in description and description is not DENSE:
        description = {"format": 1, "net": description}
    with pytest.raises(ArchitectureError, match=text) as caught:
        build(description)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 2000


def test_classes_are_checked():
    for classes, text in [
        ([Undescribed], "describe_arguments"),
        ([len], "subclasses of gluon.Block"),
        ([type("Dense", (Residual,), {})], "two blocks have the name 'Dense'"),
    ]:
        with pytest.raises(ArchitectureError, match=text):
            build({"format": 1, "net": DENSE}, classes=classes)
    with pytest.raises(ArchitectureError, match="makes its children by itself"):
        build({"format": 1, "net": {"class": "Residual", "children": [DENSE]}}, classes=[Residual])
    with pytest.raises(ArchitectureError, match="Residual refuses"):
        build({"format": 1, "net": layer("Residual", chanels=3)}, classes=[Residual])


def test_differences_name_the_block():
    def net(activation="relu", units=3):
        made = nn.HybridSequential()
        made.add(nn.Dense(units, activation=activation), mxkit.models.mlp(2))
        return made

    assert differences(describe(net()), describe(net())) == []
    assert differences(describe(net()), describe(net("tanh"))) == ["0: activation: 'relu' here, 'tanh' there"]
    assert differences(describe(net(units=4)), describe(net())) == ["0: units: 4 here, 3 there"]
    assert "class: 'Dense' here" in differences(describe(nn.Dense(2)), describe(nn.Flatten()))[0]
    run = net()
    run.initialize()
    run(mx.nd.ones((2, 5)))
    assert differences(describe(net()), describe(run)) == []


def test_plain_values():
    assert plain([np.int32(3), (np.float64(0.5), True)]) == [3, [0.5, True]]
    for value in (float("inf"), {1: 2}, object(), int):
        with pytest.raises(TypeError, match="no form in JSON"):
            plain(value)
