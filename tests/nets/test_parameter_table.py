"""The table of parameters: paths, counts, states, and norms against NumPy's."""

import sys

from built_nets import make_norms
import mxkit
from mxkit.core.blocks import UnknownPathError, parameters_by_path
from mxkit.errors import NotInitializedError, UnknownNameError
from mxkit.nets.parameter_table import count, parameters
from mxkit.nets.settings import freeze, set_multipliers
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest


class Shift(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.by = self.params.get_constant("by", mx.nd.ones(1))

    def hybrid_forward(self, F, x, by):
        return F.broadcast_add(x, by.reshape((1, 1)))


def make_shared():
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=3))
    net.add(nn.Dense(3, in_units=3, params=net[0].params), nn.Dense(3, in_units=3, params=net[0].params))
    return net


def lines(table):
    return str(table).splitlines()


def test_it_maps_paths_to_the_nets_own_parameters_in_order():
    net = gluon.model_zoo.vision.resnet18_v1()
    table = parameters(net)
    assert list(table.items()) == list(parameters_by_path(net).items())
    assert len(table) == 102
    assert table["features.0.weight"] is net.features[0].weight
    with pytest.raises(TypeError, match="does not support item assignment"):
        table["features.0.weight"] = net.output.weight


def test_t37_a_wrong_path_is_a_key_error_with_the_nearest_and_never_a_new_parameter():
    net = mxkit.models.mlp(hidden=[8])
    table, before = parameters(net), list(net.collect_params())
    with pytest.raises(KeyError) as caught:
        table["1.wieght"]
    told = "no parameter stands at '1.wieght': did you mean '1.weight'? Paths of the net: 1.weight, 1.bias, 2.weight, "
    assert str(caught.value) == told + "2.bias"
    assert isinstance(caught.value, UnknownNameError)
    assert "1.wieght" not in table
    assert table.get("1.wieght") is None
    assert list(net.collect_params()) == before
    with pytest.raises(UnknownPathError, match=r"this is its Gluon name, .*; use '2\.bias'\. Paths"):
        table[net[2].bias.name]
    with pytest.raises(UnknownPathError, match="no parameter stands at 3: Paths"):
        table[3]
    with pytest.raises(UnknownPathError, match=r"features\.1\.gamma, .* and 94 more$"):
        parameters(gluon.model_zoo.vision.resnet18_v1())["zzz"]


def test_columns_where_nothing_is_known_yet():
    net = make_norms()
    freeze(net, "4.bias")
    table = parameters(net)
    assert lines(table) == [
        "path            shape         dtype    count  state       devices",
        "0.weight        (4, ?, 3, 3)  float32      ?  trained     ?",
        "0.bias          (4,)          float32      4  trained     ?",
        "1.gamma         (?,)          float32      ?  trained     ?",
        "1.beta          (?,)          float32      ?  trained     ?",
        "1.running_mean  (?,)          float32      ?  statistics  ?",
        "1.running_var   (?,)          float32      ?  statistics  ?",
        "2.alpha         (1,)          float32      1  trained     ?",
        "3.gamma         (?,)          float32      ?  fixed       ?",
        "3.beta          (?,)          float32      ?  trained     ?",
        "4.weight        (3, ?)        float32      ?  trained     ?",
        "4.bias          (3,)          float32      3  frozen      ?",
        "11 parameters, 8 numbers, 32 bytes: 5 trained, 3 frozen; 8 of unknown shape are not counted",
    ]
    assert table.rows[0]["count"] is table.rows[0]["devices"] is None
    mxkit.initialize(net, devices="cpu:2")
    assert lines(table)[1].endswith("(4, ?, 3, 3)  float32      ?  trained     cpu(0), cpu(1)")
    with mx.util.np_shape(True):  # sizes that are not known are -1 there
        assert lines(table)[1].startswith("0.weight        (4, ?, 3, 3)  float32      ?")
    net = nn.HybridBlock()
    assert lines(parameters(net)) == ["0 parameters, 0 numbers, 0 bytes"]
    assert parameters(net).with_norms().rows == []
    net.free = gluon.Parameter("free", shape=None)
    assert lines(parameters(net))[1].split() == ["free", "?", "float32", "?", "trained", "?"]


def test_multipliers_and_sharing_have_columns_where_there_are_any():
    net = make_shared()
    mxkit.initialize(net)
    set_multipliers(net, {"*.bias": {"wd": 0, "lr": 2}})
    assert lines(parameters(net)) == [
        "path      shape   dtype    count  state    lr_mult  wd_mult  devices  shared_with",
        "0.weight  (3, 3)  float32      9  trained        1        1  cpu(0)   1.weight, 2.weight",
        "0.bias    (3,)    float32      3  trained        2        0  cpu(0)   1.bias, 2.bias",
        "1.weight  (3, 3)  float32      9  trained        1        1  cpu(0)   0.weight, 2.weight",
        "1.bias    (3,)    float32      3  trained        2        0  cpu(0)   0.bias, 2.bias",
        "2.weight  (3, 3)  float32      9  trained        1        1  cpu(0)   0.weight, 1.weight",
        "2.bias    (3,)    float32      3  trained        2        0  cpu(0)   0.bias, 1.bias",
        "2 parameters, 12 numbers, 48 bytes: 12 trained",
    ]
    assert parameters(net).shared == {"0.weight": ["1.weight", "2.weight"], "0.bias": ["1.bias", "2.bias"]}
    assert len(parameters(net)) == 6
    assert count(net) == 12


def test_totals():
    net = make_norms()
    net.add(Shift())
    mxkit.initialize(net)
    net(mx.nd.zeros((1, 2, 6, 6)))
    net[4].cast("float16")
    table = parameters(net)
    freeze(net, "4.weight")  # a table shows what the net is now
    weights = 3 * 4 * 4 * 4
    trained = 4 * 2 * 9 + 4 + 8 + 1 + 4 + 3
    assert table.totals == {
        "parameters": 12,
        "count": trained + weights + 8 + 5,
        "trained": trained,
        "frozen": weights,
        "statistics": 8,
        "fixed": 4 + 1,
        "bytes": 4 * (trained - 3 + 8 + 5) + 2 * (weights + 3),
        "unknown": 0,
    }
    assert table.totals["count"] == count(net)
    assert table.totals["bytes"] == sum(one.data().asnumpy().nbytes for one in table.values())
    told = "12 parameters, 297 numbers, 798 bytes: 92 trained, 192 frozen, 8 statistics, 5 fixed"
    assert lines(table)[-1] == told


def test_to_dataframe(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="Parameters.to_dataframe needs pandas: pip install pandas"):
        parameters(nn.Dense(2)).to_dataframe()
    monkeypatch.undo()
    frame = pytest.importorskip("pandas") and parameters(nn.Dense(2, in_units=3)).to_dataframe()
    assert list(frame.index) == ["weight", "bias"]
    assert list(frame["count"]) == [6, 2]


def norm(array):
    return float(np.linalg.norm(array.astype("float32").asnumpy().astype(np.float64)))


def backward(net, x):
    with autograd.record():
        losses = [net(part).square().sum() for part in x]
    autograd.backward(losses)


def test_norms_equal_numpys():
    net = make_norms()
    mxkit.initialize(net)
    freeze(net, "0.bias")
    backward(net, [mx.nd.random.normal(shape=(4, 2, 6, 6))])
    for row in parameters(net).with_norms().rows:
        parameter = parameters(net)[row["path"]]
        assert row["norm"] == pytest.approx(norm(parameter.data()), rel=1e-12)
        if parameter.grad_req == "null":
            assert row["gradient_norm"] is None
        else:
            assert row["gradient_norm"] == pytest.approx(norm(parameter.grad()), rel=1e-12)
        assert row["update_ratio"] is None
    assert "update_ratio" not in lines(parameters(net).with_norms())[0]


def test_norms_of_large_arrays_and_small_numbers():
    """MXNet's own norms add up in float32."""
    net = nn.Dense(1024, in_units=1024, use_bias=False)
    net.initialize(mx.init.Constant(1.1))
    net.weight.grad()[:] = 1e-25
    row = parameters(net).with_norms().rows[0]
    assert row["norm"] == pytest.approx(1024 * float(np.float32(1.1)), rel=1e-10)
    assert row["gradient_norm"] == pytest.approx(1024e-25, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16", "int8"])
def test_norms_of_other_dtypes(dtype):
    kind = np.dtype([("bfloat16", np.uint16)]) if dtype == "bfloat16" else dtype
    net = nn.HybridBlock()
    net.w = gluon.Parameter("w", shape=(300, 300), dtype=kind, grad_req="null")
    net.w._load_init((mx.nd.ones((300, 300)) * 100).astype(kind), mx.cpu())
    row = parameters(net).with_norms().rows[0]
    assert row["norm"] == 30000  # its square is above float16's range
    assert row["dtype"] == dtype
    assert parameters(net).totals["bytes"] == 90000 * {"float64": 8, "int8": 1}.get(dtype, 2)


def test_t29_more_than_200_parameters_in_one_table():
    net = nn.HybridSequential()
    for number in range(201):
        net.add(nn.Dense(1, in_units=1, use_bias=False, weight_initializer=mx.init.Constant(number)))
    net.initialize()
    assert [row["norm"] for row in parameters(net).with_norms().rows] == list(range(201))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_update_ratios_between_two_looks(dtype):
    net = make_shared()
    mxkit.initialize(net)
    net.cast(dtype)
    net[0].bias.set_data(mx.nd.zeros(3, dtype=dtype))
    before = parameters(net).copies()
    old = net[0].weight.data().astype("float32").asnumpy().astype(np.float64)
    net[0].weight.set_data(net[0].weight.data() * 1.001 + 0.01)
    net[0].bias.set_data(mx.nd.ones(3, dtype=dtype))
    new = net[0].weight.data().astype("float32").asnumpy()
    rows = parameters(net).with_norms(since=before).rows
    assert rows[0]["update_ratio"] == pytest.approx(np.linalg.norm(new - old) / np.linalg.norm(old), rel=1e-12)
    assert rows[2]["update_ratio"] == rows[0]["update_ratio"]  # the same one
    assert rows[1]["update_ratio"] is None  # it was 0
    assert set(before) == {"0.weight", "0.bias"}
    assert "update_ratio" in lines(parameters(net).with_norms(since=before))[0]
    before = parameters(net).copies()
    assert parameters(net).with_norms(since=before).rows[0]["update_ratio"] == 0
    before["0.weight"] = mx.nd.ones((3, 2))
    net.add(nn.Dense(2))
    rows = parameters(net).with_norms(since=before).rows
    assert rows[0]["update_ratio"] is rows[6]["update_ratio"] is rows[6]["norm"] is None


@pytest.mark.parametrize("on_kvstore", [False, True])
def test_whose_gradient_it_is_on_two_devices(on_kvstore):
    net = nn.Dense(1, in_units=3, use_bias=False)
    mxkit.initialize(net, devices="cpu:2")
    trainer = gluon.Trainer(net.collect_params(), "sgd", update_on_kvstore=on_kvstore)
    backward(net, [mx.nd.ones((1, 3), ctx=mx.cpu(0)), mx.nd.ones((1, 3), ctx=mx.cpu(1)) * 2])
    own, other = (norm(one) for one in net.weight.list_grad())
    assert other == pytest.approx(4 * own)
    assert parameters(net).with_norms().rows[0]["gradient_norm"] == pytest.approx(own)
    trainer.step(2)
    expected = own if on_kvstore else own + other
    assert parameters(net).with_norms().rows[0]["gradient_norm"] == pytest.approx(expected)
    sparse = nn.Embedding(5, 2, sparse_grad=True)
    mxkit.initialize(sparse)
    with autograd.record():
        out = sparse(mx.nd.array([1, 3, 3]))
    out.backward()
    assert parameters(sparse).with_norms().rows[0]["gradient_norm"] == pytest.approx((2 * 1 + 2 * 4) ** 0.5)


def test_norms_where_numpys_arrays_are_switched_on():
    mx.npx.set_np()
    try:
        net = nn.Dense(1, in_units=4, use_bias=False)
        net.initialize(mx.init.One())
        before = parameters(net).copies()
        net.weight.data()[:] = 2
        row = parameters(net).with_norms(since=before).rows[0]
    finally:
        mx.npx.reset_np()
    assert (row["norm"], row["gradient_norm"], row["update_ratio"]) == (4, 0, 1)


def test_count():
    net = make_norms()
    with pytest.raises(NotInitializedError, match=r"the shape of '0.weight' is \(4, 0, 3, 3\), not known yet. Run one"):
        count(net)
    mxkit.initialize(net)
    net(mx.nd.zeros((1, 2, 6, 6)))
    assert count(net) == sum(data.data().size for data in parameters_by_path(net).values())
    freeze(net, "4.*")
    assert count(net, trainable=True) == (4 * 2 * 9 + 4) + 8 + 1 + 4
    assert count(net, trainable=True) + count(net, trainable=False) == count(net)
