"""Features equal what hooks see in the unhybridized net, cost no layer too many, and leave the net as it was."""

from built_nets import by_hooks, hybrid_net, imported, plain_net, ready, stack
import mxkit
from mxkit.core.arrays import arrays_in, call, legacy, switches
from mxkit.core.blocks import blocks_by_path
from mxkit.errors import DeviceError, ForwardError, NotInitializedError, UnknownNameError
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
import numpy as np
import pytest
from sharing import Kind

# MXNet tells of a SymbolBlock's input, and of a Sequential that could be hybrid
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type", "ignore:All children of this Sequential")


def image(*shape):
    return mx.nd.array(np.random.RandomState(0).uniform(size=shape or (2, 3, 32, 32)))


def small_net(norm=False, prefix=None):
    """Three named parts: `stem`, `body` of two, `head`."""
    mxkit.seed_all(3)
    body = stack(nn.Dense(6, activation="tanh", in_units=5), nn.Dense(7, in_units=6))
    if norm:
        body.add(nn.BatchNorm(in_channels=7))
    return ready(
        hybrid_net(
            lambda net, F, x: net.head(net.body(net.stem(x))),
            prefix,
            stem=nn.Dense(5, activation="tanh", in_units=4),
            body=body,
            head=nn.Dense(2, in_units=7),
        )
    )


def same(found, expected):
    np.testing.assert_array_equal(found.asnumpy(), expected.asnumpy())


class Counting(gluon.Block):
    """Counts its calls, and is no HybridBlock."""

    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer or nn.Dense(3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def test_only_what_is_needed_is_computed_and_initialized():
    net, x = vision.resnet18_v1(), image()
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    parameters = net._collect_params_with_prefix()
    needed = {path for path in parameters if path.startswith(tuple(f"features.{i}." for i in range(5)))}
    deferred = {path for path, p in parameters.items() if p._data is None}
    assert deferred & needed
    assert deferred - needed
    features = mxkit.Features(net, "features.4")
    for device in [mx.cpu(1), mx.cpu(0), mx.cpu(1)]:
        found = features(x.as_in_context(device))["features.4"]
        assert found.context == device
        assert {path for path, p in parameters.items() if p._data is None} == deferred - needed
        same(found, net.features[:5](x.as_in_context(device)))
    net.hybridize()
    output = net(x)
    same(mxkit.Features(net, "")(x)[""], output)


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        ("body.0", ["body.0"]),
        (["head", "stem"], ["head", "stem"]),
        ("body.*", ["body.0", "body.0.act", "body.1"]),
        (["body.-1", "body.-2"], ["body.-1", "body.-2"]),
        ([{"first": "stem"}, "head"], ["first", "head"]),
        ({"a": "stem", "b": "stem"}, ["a", "b"]),
        ("*", ["stem", "stem.act", "body", "body.0", "body.0.act", "body.1", "head"]),
        ("body.[1-9]", ["body.1"]),
        (["", "stem"], ["", "stem"]),
        (["stem#0"], ["stem#0"]),
        (["*d*", "head"], ["body", "body.0", "body.0.act", "body.1", "head"]),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_names(names, paths, plain, kind):
    net, x = kind.net(small_net), kind.of(np.ones((2, 4)))
    if plain:
        net.stem.forward = lambda x, forward=net.stem.forward: forward(x + 0.0 * x.shape[0])
    features = mxkit.Features(net, names)
    found = features(x)
    assert list(found) == paths
    assert all(map(kind.holds, found.values()))
    assert ("run as it is" in repr(features)) == plain
    for name, path in {"body.-1": "body.1", "first": "stem", "a": "stem", "stem#0": "stem"}.items():
        if name in found:
            same(found[name], mxkit.Features(net, path)(x)[path])


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        ("body.2", UnknownNameError, "no block stands at 'body.2': did you mean 'body.*Paths of the net"),
        ("bdoy", UnknownNameError, "did you mean 'body'"),
        ("body.-3", UnknownNameError, "'body.-3'"),
        ("nothing", UnknownNameError, "'nothing': Paths of the net: stem, body, head"),
        ("*.conv", UnknownNameError, "no block fits"),
        ([], ValueError, "received no name"),
        ({"a": "body.*"}, ValueError, "alias"),
        ([{"stem": "head"}, "stem"], ValueError, "same name|the name 'stem'"),
        ("stem#x", ValueError, "number of a call"),
        ([3], TypeError, "names of layers are text"),
        ("stem#1", ValueError, "is called 1 times .*from #0"),
    ],
)
def test_wrong_names(names, error, text):
    with pytest.raises(error, match=text):
        mxkit.Features(small_net(), names)(mx.nd.ones((2, 4)))


def test_wrong_and_missing_devices():
    with pytest.raises(DeviceError, match=r"the batch lies on cpu\(1\), the net on \[cpu\(0\)\]"):
        mxkit.Features(small_net(), "stem")(mx.nd.ones((2, 4), ctx=mx.cpu(1)))
    net = small_net()
    net.head = nn.Dense(2)
    assert mxkit.Features(net, "body")(mx.nd.ones((2, 4)))["body"].shape == (2, 7)  # without the head's values
    with pytest.raises(NotInitializedError, match=r"head\.weight"):
        mxkit.Features(net, "head")(mx.nd.ones((2, 4)))


def test_a_layer_that_is_not_called_is_an_error_by_path_and_left_out_of_a_glob():
    net = small_net()
    net.spare = nn.Dense(1)
    net.spare.initialize()
    with pytest.raises(ValueError, match="'spare' .* is called 0 times"):
        mxkit.Features(net, ["*", "spare"])(mx.nd.ones((2, 4)))
    assert "spare" not in mxkit.Features(net, "*")(mx.nd.ones((2, 4)))


@pytest.mark.parametrize("when", ["never", "before", "after", "static", "called before"])
@pytest.mark.parametrize("switch", [False, True])
def test_hybridization_and_switches_do_not_matter(when, kind, switch):
    net, x = kind.net(small_net), kind.of(np.ones((2, 4)))
    nd = small_net()
    expected = nd.body(nd.stem(mx.nd.ones((2, 4))))
    if when == "before":
        net.hybridize()
    elif when == "static":
        net.hybridize(static_alloc=True, static_shape=True)
    elif when == "called before":
        net.hybridize()
        call(net, [x])
    features = mxkit.Features(net, "body")
    with switches(switch):
        if when == "after":
            features(x)
            net.hybridize()
            call(net, [x])
        for array in (x, x.as_nd_ndarray(), x.as_nd_ndarray().as_np_ndarray()):
            found = features(array)["body"]
            assert kind.holds(found)
            same(found, expected)
    assert net._active == (when != "never")


def test_prefixes_and_other_nets_do_not_matter():
    nets = [small_net(prefix="net_"), small_net(prefix="net_"), small_net(prefix="")]
    for number, net in enumerate(nets):
        net.stem.weight.set_data(mx.nd.full((5, 4), number))
    features = [mxkit.Features(net, ["stem", "head"]) for net in nets]
    x = mx.nd.ones((2, 4))
    for net, one in zip(nets, features):
        same(one(x)["stem"], net.stem(x))
        same(one(x)["head"], net(x))
    net = stack(nn.Dense(3, prefix="d_", in_units=4), nn.Dense(3, prefix="d_", in_units=3))
    for layer in net:
        layer.initialize(mx.init.Normal(1))
    same(mxkit.Features(net, "1")(x)["1"], net[1](net[0](x)))
    data, weight = mx.sym.var("data"), mx.sym.var("1.weight")  # named like a path
    net = stack(gluon.SymbolBlock(mx.sym.FullyConnected(data, weight, no_bias=True, num_hidden=2), data))
    net.add(nn.Dense(2, in_units=2, use_bias=False))
    net[0].initialize(mx.init.Constant(2))
    net[1].initialize(mx.init.Constant(3))
    assert mxkit.Features(net, "1")(x)["1"].asnumpy().tolist() == [[48, 48]] * 2


def test_new_values_and_dtypes_show_at_once():
    net, x = small_net(norm=True), mx.nd.ones((2, 4))
    net.hybridize(static_alloc=True, static_shape=True)
    features = mxkit.Features(net, ["stem", "body"])
    first = features(x)
    kept = first["body"].asnumpy()
    net.stem.weight.set_data(mx.nd.ones((5, 4)))
    same(features(x)["body"], net.body(net.stem(x)))
    net.initialize(mx.init.One(), force_reinit=True)
    same(features(x)["body"], net.body(net.stem(x)))
    net.cast("float64")
    assert features(x.astype("float64"))["body"].dtype == np.float64
    np.testing.assert_array_equal(first["body"].asnumpy(), kept)


def test_a_replaced_child_is_noticed():
    net, x = small_net(), mx.nd.ones((2, 4))
    features = mxkit.Features(net, ["stem", "body.*"])
    features(x)
    net.stem = nn.Dense(5, in_units=4)
    net.stem.initialize(mx.init.One())
    same(features(x)["stem"], net.stem(x))
    net.body._children["1"] = nn.Dense(9, in_units=6)
    net.body[1].initialize(mx.init.One())
    assert features(x)["body.1"].shape == (2, 9)
    net.body.add(nn.Dense(3, in_units=9))
    net.body[2].initialize()
    assert list(features(x)) == ["stem", "body.0", "body.0.act", "body.1", "body.2"]


def test_a_plain_net_stops_early():
    net = ready(stack(Counting(), Counting(), Counting(), kind=nn.Sequential))
    features = mxkit.Features(net, ["1", "0.layer"])
    x = mx.nd.ones((2, 3))
    for _ in range(3):
        found = features(x)
    same(found["1"], net[1](net[0](x)))
    assert list(found) == ["1", "0.layer"]
    # the first of the three runs finds out which calls are needed; the other 1 is of the line above
    assert [block.calls for block in net] == [4, 4, 1]
    assert net[2].layer.weight.shape == (3, 3)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_a_net_that_catches_exceptions(caught):
    def forward(net, x):
        try:
            return net.a(x)
        except caught:
            return net.b(x)

    net = ready(plain_net(forward, a=Counting(), b=Counting()))
    features = mxkit.Features(net, "a")
    for _ in range(2):
        same(features(mx.nd.ones((1, 2)))["a"], net.a(mx.nd.ones((1, 2))))
    assert net.b.calls == (caught is BaseException)


@pytest.mark.parametrize("request_", ["write", "add"])
def test_gradients_equal_those_of_a_net_cut_by_hand(request_, kind):
    def run(cut, kind):
        net = kind.net(lambda: small_net(norm=True))
        with kind.switches():
            net.collect_params().setattr("grad_req", request_)
        net.hybridize()
        features = mxkit.Features(net, ["body", "stem"])
        x = kind.of(np.random.RandomState(1).randn(3, 4))
        x.attach_grad(request_)
        for _ in range(2):
            with autograd.record():
                stem = net.stem(x) if cut else None
                found = {"stem": stem, "body": net.body(stem)} if cut else features(x)
                found = {name: legacy(array) for name, array in found.items()}
                loss = (found["body"] * found["body"].sigmoid()).sum() + found["stem"].sum()
            loss.backward()
        named = net._collect_params_with_prefix().items()
        values = {f"value of {path}": p.data().asnumpy() for path, p in named}  # statistics have moved
        gradients = {path: p.grad().asnumpy() for path, p in named if p.grad_req != "null"}
        return {**gradients, **values, "x": x.grad.asnumpy()}

    found, expected = run(False, kind), run(True, Kind(False))
    assert abs(found["x"]).max() > 0
    for path, gradient in expected.items():
        np.testing.assert_array_equal(found[path], gradient, err_msg=path)


def test_a_forward_pass_that_differs_in_training():
    def forward(net, F, x):
        return (net.a(x), net.b(x)) if autograd.is_training() else F.softmax(net.a(x))

    net = ready(hybrid_net(forward, a=nn.Dense(2, in_units=3), b=nn.Dense(2, in_units=3)))
    features, x = mxkit.Features(net, ["*"]), mx.nd.ones((1, 3))
    assert list(features(x)) == ["a"]
    with autograd.train_mode():
        assert list(features(x)) == ["a", "b"]
        with pytest.raises(ValueError, match=r"'b' \(Dense\) is called 1 times in training"):
            mxkit.Features(net, "b#1")(x)
    with pytest.raises(ValueError, match="called 0 times outside of training"):
        mxkit.Features(net, "b")(x)


def test_a_gradient_through_layers_with_one_output():
    net = ready(handing_on())
    x = mx.nd.ones((1, 2))
    x.attach_grad()
    with autograd.record():
        loss = mxkit.Features(net, ["2", {"again": "1"}, "1"])(x)["1"].sum()
    loss.backward()
    same(x.grad, net[1].weight.data().sum(axis=0, keepdims=True))


def test_what_is_no_array_is_left_out_or_named():
    def forward(net, x, scale, **_):
        net.nothing(x)
        return net.layer(net.sizes(x)[0]) * scale["by"]

    sizes, nothing = nn.Lambda(lambda x: (x, x.shape)), nn.Lambda(lambda x: None)
    net = ready(plain_net(forward, sizes=sizes, nothing=nothing, layer=nn.Dense(2)))
    x = mx.nd.ones((1, 2))
    assert list(mxkit.Features(net, "*")(x, {"by": 2})) == ["layer"]
    for name in ["sizes", "nothing"]:
        with pytest.raises(ValueError, match="returns arrays or lists"):
            mxkit.Features(net, name)(x, {"by": 2})
    same(mxkit.Features(net, "")(x, {"by": 2})[""], net(x, {"by": 2}))


def test_a_layer_that_does_not_fit_a_deferred_net_is_named():
    """T38."""
    net = ready(nn.Conv2D(4, 3), nn.Dense(3, in_units=16))
    expected = r"'1' \(Dense\) is built for 16 inputs per sample and got shape \(2, 4, 6, 6\)"
    with pytest.raises(ForwardError, match=expected):
        mxkit.Features(net, ["0", "1"])(mx.nd.ones((2, 1, 8, 8)))


def test_a_layer_that_mxnet_has_for_the_other_kind_only_is_named():
    with Kind(True).switches():
        net = ready(hybrid_net(lambda net, F, x: net.cell(x, [x])[0], cell=gluon.rnn.RNNCell(4)))
        expected = r"'cell' \(RNNCell\) has no version for mx\.np: MXNet 1\.9\.1 wrote it with operators of mx\.nd only"
        with pytest.raises(ForwardError, match=expected):
            mxkit.Features(net, "cell")(mx.np.ones((2, 4)))
    with Kind(False).switches():
        net = stack(nn.Conv2D(4, 3))
    expected = r"'0' \(Conv2D\) was made for mx\.nd and got arrays of mx\.np: a convolution is bound to the switches"
    with Kind(True).switches(), pytest.raises(ForwardError, match=expected):
        mxkit.initialize(net, sample=(2, 3, 8, 8))


def twice(layer):
    return hybrid_net(lambda net, F, x: net.layer(net.layer(x)), layer=layer)


def handing_on():
    return stack(nn.Dropout(0), nn.Dense(2, in_units=2), nn.HybridSequential(), nn.HybridLambda(lambda F, x: x))


def pairs():
    pair = hybrid_net(lambda net, F, x, y=None: (x + 1, [x * 2, None if y is None else (y * 3, y)]))
    return hybrid_net(lambda net, F, x, y=None: net.pair(x, y)[0] - 1, pair=pair)


def looping():
    def forward(net, F, x):
        return F.contrib.foreach(lambda row, state: (net.cell(row) + state,) * 2, net.first(x), F.zeros((1, 2)))[0]

    return hybrid_net(forward, first=nn.Dense(2, in_units=2, flatten=False), cell=nn.Dense(2, in_units=2))


def unrolled():
    forward = lambda net, F, x: net.cell.unroll(3, x, merge_outputs=True)[0]  # noqa: E731
    return hybrid_net(forward, cell=gluon.rnn.LSTMCell(3, input_size=2))


def with_states():
    return hybrid_net(lambda net, F, x, states: net.inner(x, states), inner=gluon.rnn.LSTM(3))


def with_hidden():
    hidden = ready(nn.Dense(2, in_units=2))
    return hybrid_net(lambda net, F, x: net.last(hidden(x)), last=nn.Dense(1, in_units=2))


def shared():
    layer = nn.Dense(3, in_units=3)
    return stack(stack(layer), stack(layer), kind=nn.Sequential)


SPLIT = (nn.HybridLambda(lambda F, x: F.split(x, 3)), nn.HybridLambda(lambda F, x: x[0] + x[1]))
STRUCTURES = {
    "one input of two": (pairs, (2, 2)),
    "two inputs, nested outputs": (pairs, (2, 2), (2, 2)),
    "layers that hand on their input": (handing_on, (1, 2)),
    "several outputs of an operator": (lambda: stack(nn.Dense(3), *SPLIT), (1, 2)),
    "called twice": (lambda: twice(nn.Dense(3, in_units=3)), (1, 3)),
    "under two paths": (shared, (1, 3)),
    "cells": (unrolled, (2, 3, 2)),
    "a recurrent layer": (lambda: stack(nn.Dense(2, flatten=False), gluon.rnn.LSTM(3), nn.Dense(1)), (4, 2, 5)),
    "a recurrent layer with states": (with_states, (4, 2, 5), [(1, 2, 3)] * 2),
    "a loop in the graph": (looping, (3, 1, 2)),
    "a block outside of the children": (with_hidden, (1, 2)),
    "activations": (lambda: stack(nn.Dense(3, activation="relu"), nn.Dense(2, activation="relu")), (1, 2)),
}


@pytest.mark.parametrize("state", ["new", "plain", "hybridized"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_features_of_every_structure_are_what_hooks_see(name, state):
    make, *shapes = STRUCTURES[name]
    net = ready(make())
    inputs = [[image(*one) for one in shape] if isinstance(shape, list) else image(*shape) for shape in shapes]
    if state == "plain":
        net = plain_net(lambda net, *x: net.inner(*x), inner=net)
    first = mxkit.Features(net, "*")(*inputs)  # Gluon's own first call passes symbols too (T35)
    expected = {}
    for path, outputs in by_hooks(net, inputs).items():
        many = len(outputs) > 1
        expected.update({f"{path}#{number}" if many else path: one for number, one in enumerate(outputs) if path})
    if state == "hybridized":
        net.hybridize()
    features = mxkit.Features(net, ["*", ""])
    for found in (first, features(*inputs), features(*inputs)):
        assert set(found) - {""} == set(expected)
        for path, arrays in expected.items():
            for one, other in zip(arrays_in([found[path]]), arrays):
                np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-6, atol=1e-7)
            assert len(arrays_in([found[path]])) == len(arrays)


def test_names_of_a_block_that_is_called_twice():
    net = ready(twice(nn.Dense(3, in_units=3)))
    x = mx.nd.ones((1, 3))
    found = mxkit.Features(net, ["layer", "layer#1", {"one": "layer#1"}, {"all": "layer"}])(x)
    assert list(found) == ["layer#0", "layer#1", "one", "all#0", "all#1"]
    same(found["one"], net(x))
    with pytest.raises(ValueError, match="the name 'layer#0'"):
        mxkit.Features(net, ["layer", {"layer#0": "layer#1"}])(x)
    net = ready(shared())
    for names, paths in (("1.*", ["1.0#0", "1.0#1"]), ("1.0#1", ["1.0#1"]), ("1.0", ["1.0#0", "1.0#1"])):
        assert list(mxkit.Features(net, names)(x)) == paths
    net, x = ready(looping()), image(3, 1, 2)  # the graph holds the loop's body once
    same(mxkit.Features(net, "cell#2")(x)["cell#2"], by_hooks(net, [x])["cell"][2][0])
    with pytest.raises(ValueError, match="is called 3 times"):
        mxkit.Features(net, "cell#3")(x)


def test_a_number_of_calls_that_values_decide():
    def forward(net, x):
        x = net.cell(x)
        while x.max().asscalar() > 0:
            x = net.cell(x)
        return x

    features = mxkit.Features(plain_net(forward, cell=nn.HybridLambda(lambda F, x: x - 1)), "cell")
    assert list(features(mx.nd.ones(2))) == ["cell"]
    for count in [2, 4, 3]:
        assert list(features(mx.nd.full(1, count))) == [f"cell#{number}" for number in range(count)]


def hooks_of(net):
    return [(dict(b._forward_hooks), dict(b._forward_pre_hooks)) for _, b in blocks_by_path(net)]


@pytest.mark.parametrize("plain", [False, True])
def test_hooks_do_not_fire_and_are_back(plain):
    net = stack(small_net(), kind=nn.Sequential) if plain else small_net()
    fired = []
    for _, block in blocks_by_path(net):
        block.register_forward_hook(lambda *_: fired.append("after"))
        block.register_forward_pre_hook(lambda *_: fired.append("before"))
    before = hooks_of(net)
    features = mxkit.Features(net, "*")
    for _ in range(2):
        features(mx.nd.ones((2, 4)))
    path = "0.stem" if plain else "stem"
    with pytest.raises(ForwardError, match=rf"'{path}' \(Dense\) is built for 4 inputs per sample and got shape"):
        features(mx.nd.ones((2, 5)))  # T38
    assert not fired
    assert hooks_of(net) == before
    net(mx.nd.ones((2, 4)))
    assert len(fired) == 2 * len(before)


@pytest.mark.parametrize("plain", [False, True])
def test_a_forward_pass_that_raises(plain):
    def forward(net, *inputs):
        y = net.a(inputs[-1])
        if broken:
            raise KeyError("broken")
        return net.b(y)

    broken = True
    net = ready((plain_net if plain else hybrid_net)(forward, a=nn.Dense(2, in_units=2), b=nn.Dense(2, in_units=2)))
    net.hybridize()
    features = mxkit.Features(net, ["a", "b"])
    before = hooks_of(net)
    with pytest.raises(ForwardError, match="the net \\(Net\\): KeyError: 'broken'"):
        features(mx.nd.ones((1, 2)))
    assert hooks_of(net) == before
    assert net.a._active
    broken = False
    same(features(mx.nd.ones((1, 2)))["b"], net(mx.nd.ones((1, 2))))


def test_hybridized_blocks_inside_a_plain_one_stay_so_and_their_files_clean(tmp_path):
    net = stack(small_net(), Counting(nn.Dense(3, in_units=2)), kind=nn.Sequential)
    net[1].initialize()
    net.hybridize()
    x = mx.nd.ones((2, 4))
    for names in (["1"], ["0.stem", "0"]):
        found = mxkit.Features(net, names)(x)
    same(found["0.stem"], net[0].stem(x))
    assert all(block._active for block in [net[0], net[0].stem, net[0].body, net[1].layer])
    fresh = stack(small_net(), kind=nn.Sequential)
    fresh.hybridize()
    mxkit.Features(fresh, "0")(x)
    fresh[0].export(str(tmp_path / "net"))
    assert "mxkit" not in (tmp_path / "net-symbol.json").read_text()


@pytest.mark.parametrize(
    "cell",
    [
        lambda: gluon.contrib.rnn.VariationalDropoutCell(gluon.rnn.LSTMCell(2, input_size=2), drop_inputs=0.5),
        lambda: gluon.rnn.ZoneoutCell(gluon.rnn.LSTMCell(2, input_size=2), zoneout_outputs=0.5),
    ],
)
def test_cells_that_keep_arrays_can_go_on(cell):
    net, x = cell(), mx.nd.ones((1, 2))
    net.initialize()
    states = net.begin_state(batch_size=1, func=mx.nd.zeros)
    net(x, states)
    mxkit.Features(net, "*")(x, states)
    net(x, states)[0].wait_to_read()


def exported(folder, units=3, prefix="part_"):
    net = nn.HybridSequential(prefix=prefix)
    with net.name_scope():
        net.add(nn.Dense(units, activation="tanh"), nn.BatchNorm(), nn.Dense(4))
    net.initialize(mx.init.Normal(1))
    net.hybridize()
    net(mx.nd.ones((2, 4)))
    net.export(str(folder / "net"))
    return imported(folder / "net")


def test_symbol_blocks_of_both_kinds(kind):
    with kind.switches():
        x = kind.of(mx.sym.var("data"))
        F = mx.sym.np if kind.numpy else mx.sym
        graph = F.tanh(x) * 2
        net = ready(gluon.SymbolBlock(graph, x), nn.Dense(3), gluon.SymbolBlock(graph, x))
        array = kind.of(np.arange(8).reshape(2, 4) / 8)
        expected = net[0](array), net(array)
        features = mxkit.Features(net, ["0", "2"])
    for _ in range(2):
        for one, other in zip(features(array).values(), expected):
            assert kind.holds(one)
            same(one, other)
        assert graph.list_inputs() == ["data"]  # a graph of mx.np took the other one in (T164)


def test_symbol_blocks(tmp_path):
    block, x = exported(tmp_path), image(2, 4)
    net = stack(nn.Dense(4, in_units=4), twice(block), exported(tmp_path))
    net[0].initialize()
    features = mxkit.Features(net, ["1.layer", "2"])
    for _ in range(2):
        found = features(x)
        assert list(found) == ["1.layer#0", "1.layer#1", "2"]
        same(found["1.layer#1"], block(block(net[0](x))))
        same(found["2"], net(x))
    assert "run as it is" not in repr(features)
    same(mxkit.Features(block, "")(x)[""], block(x))
    weight = next(p for p in block.collect_params().values() if p.name.endswith("weight"))
    gradients = []
    for output in (lambda: features(x)["1.layer#1"], lambda: block(block(net[0](x)))):
        with autograd.record():
            loss = output().square().sum()
        loss.backward()
        gradients.append(weight.grad().asnumpy())
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_a_graph_that_mxnet_cannot_build():
    """MXNet fails to build NASNet's gradient if a layer with seven users is a result too."""
    net = pytest.importorskip("gluoncv").model_zoo.get_model("nasnet_4_1056", pretrained=False)
    net.initialize(mx.init.Xavier())
    x = image(2, 3, 32, 32)
    features = mxkit.Features(net, ["norm_3.2", "norm_3.2.conv_prev_1x1"])
    found = features(x)
    assert "MXNet cannot build this graph" in repr(features)
    same(mxkit.Features(net, "norm_3.2")(x)["norm_3.2"][0], found["norm_3.2"][0])


class TwiceOperator(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)


@mx.operator.register("mxkit_test_twice")
class TwiceProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=True)

    def create_operator(self, ctx, shapes, dtypes):
        return TwiceOperator()


def test_custom_operators_of_others_survive_a_trace():
    """T114. Its constructor takes no attributes; without the repair the process ends here."""

    net = ready(nn.HybridLambda(lambda F, x: F.Custom(x, op_type="mxkit_test_twice")), nn.Dense(2))
    features = mxkit.Features(net, "0")
    assert (features(mx.nd.ones((2, 3)))["0"].asnumpy() == 2).all()
    assert "run as it is" not in repr(features)
    with mx.AttrScope(__mine__="1"):
        assert net(mx.sym.var("x")).list_outputs()
