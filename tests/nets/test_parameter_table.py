"""The table of parameters: paths, counts, states, and norms against NumPy's."""

from built_nets import make_norms, ready, stack
import mxkit
from mxkit.core.blocks import UnknownPathError, parameters_by_path
from mxkit.errors import NotInitializedError, UnknownNameError
from mxkit.nets.parameter_table import count, parameters
from mxkit.nets.settings import freeze, set_multipliers
import mxnet as mx
from mxnet import gluon
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
    net = stack(nn.Dense(3, in_units=3))
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


def test_a_wrong_path_is_a_key_error_with_the_nearest_and_never_a_new_parameter():
    """T37."""
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
        assert table.rows[0]["shape"] == (4, 0, 3, 3)
    net = nn.HybridBlock()
    assert lines(parameters(net)) == ["0 parameters, 0 numbers, 0 bytes"]
    assert parameters(net).rows == []
    net.free = gluon.Parameter("free", shape=None)
    net.half = gluon.Parameter("half", shape=(3,), dtype=np.dtype([("bfloat16", np.uint16)]))
    assert lines(parameters(net))[1].split() == ["free", "?", "float32", "?", "trained", "?"]
    assert parameters(net).rows[1]["dtype"] == "bfloat16"
    assert parameters(net).totals["bytes"] == 2 * 3


def test_multipliers_and_sharing_have_columns_where_there_are_any():
    net = ready(make_shared())
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
