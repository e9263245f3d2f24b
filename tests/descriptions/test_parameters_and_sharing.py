"""What a description keeps beside blocks and arguments: sizes, sharing, states of parameters, names of children."""

import json

from built_nets import ready, stack
import mxkit
from mxkit.core.blocks import parameters_by_path
from mxkit.nets.architecture import build, describe, differences
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
from round_trip import assert_same, on


def test_what_parameters_say_comes_along():
    net = stack(nn.Dense(3, in_units=2), nn.BatchNorm(in_channels=3), nn.Dense(1, in_units=3), nn.Conv2D(2, 1))
    net.cast("float16")
    net.note = "an attribute that no forward reads"
    net[0].weight.grad_req = "null"
    net[0].bias.lr_mult, net[2].bias.wd_mult = 0.5, 0.0
    net[2].weight.init = mx.init.Constant(3)
    told = describe(net)
    assert told["parameters"] == {
        "0.weight": {"grad_req": "null"},
        "0.bias": {"lr_mult": 0.5},
        "2.bias": {"wd_mult": 0.0},
        "3.weight": {"dtype": "float16"},
        "3.bias": {"dtype": "float16"},
    }
    assert told["net"]["children"][2]["arguments"]["weight_initializer"] == ["constant", {"value": 3}]
    twin = build(json.loads(json.dumps(told)))
    assert describe(twin) == told
    dtypes = [np.dtype(one.dtype).name for one in parameters_by_path(twin).values()]
    assert dtypes[:3] == ["float16", "float16", "float32"]
    twin.initialize()
    assert (twin[2].weight.data() == 3).asnumpy().all()
    assert twin[0].weight.grad_req == "null"


def test_children_under_names_keep_them_and_their_order():
    net = stack(nn.Dense(2))
    net.head = nn.Dense(3)
    net.register_child(nn.Dense(4), "forward")
    net.add(*[nn.Dense(5) for _ in range(9)])
    twin = assert_same(net, on(2, 3))
    assert list(twin._children) == ["0", "head", "forward", *map(str, range(3, 12))]
    assert twin.head is twin[1]
    assert callable(twin.forward)


def test_describing_and_building_leave_the_net_and_its_hybridization():
    net = ready(mxkit.models.lenet())
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


def test_differences_name_the_block():
    def net(activation="relu", units=3):
        return stack(nn.Dense(units, activation=activation), mxkit.models.mlp(2))

    assert differences(describe(net()), describe(net())) == []
    assert differences(describe(net()), describe(net("tanh"))) == ["0: activation: 'relu' here, 'tanh' there"]
    assert differences(describe(net(units=4)), describe(net())) == ["0: units: 4 here, 3 there"]
    assert "class: 'Dense' here" in differences(describe(nn.Dense(2)), describe(nn.Flatten()))[0]
    run = ready(net())
    run(mx.nd.ones((2, 5)))
    assert differences(describe(net()), describe(run)) == []
    assert describe(run)["net"]["children"][0]["arguments"]["in_units"] == 5
