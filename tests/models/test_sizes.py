"""Sizes that a net does not take are refused by layer, with those that it takes, before the engine sees them."""

import copy
import json

from built_nets import hybrid_net, stack
import mxkit
from mxkit.errors import ForwardError
from mxkit.models import SizedNet, get_model, lenet, mlp, nin, sizes, softmax_regression, usable_sizes
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import long

# Name, arguments, channels, smallest size, and the layer that is the first to refuse a size one below.
BORDERS = [
    ("lenet", {}, 1, 16, "3"),
    ("lenet", {"kernel_sizes": (5, 3)}, 1, 12, "3"),
    ("lenet5", {}, 1, 12, "5"),
    long("alexnet", {}, 3, 67, "7"),
    ("alexnet", {"small": True}, 3, 15, "7"),
    ("vgg11", {}, 3, 32, "4.2"),
    long("nin", {}, 3, 195, "5"),
    ("nin", {"small": True}, 3, 15, "2.3"),
    long("googlenet", {}, 3, 93, "4.2"),
    ("googlenet", {"small": True}, 3, 7, "3.5"),
    long("densenet121", {}, 3, 29, "9.3"),
    long("densenet121", {"small": True}, 3, 8, "6.3"),
]


def started(net):
    mxkit.initialize(net, devices="cpu")
    return net


def unchecked(net, x):
    """What MXNet does without mxkit's look at the size."""
    return nn.HybridSequential.__call__(net, x)


@pytest.mark.parametrize(("name", "arguments", "channels", "least", "layer"), BORDERS)
def test_one_below_the_smallest_is_refused_by_layer(name, arguments, channels, least, layer, kind, capfd):
    with kind.switches():
        _check_refusal(name, arguments, channels, least, layer, kind)
    assert capfd.readouterr().out == ""


def _check_refusal(name, arguments, channels, least, layer, kind):
    net = started(get_model(name, **arguments))
    x = kind.of(mx.nd.zeros((2, channels, least - 1, least - 1)))
    with pytest.raises(ForwardError, match=rf"got (shape )?\(2, .*the net takes {least} x {least} ") as caught:
        net(x)
    assert caught.value.path == layer
    assert str(caught.value).startswith(repr(layer))
    assert all(parameter._data is None for parameter in net.collect_params().values() if parameter._deferred_init)
    with pytest.raises(mx.MXNetError, match="exceeds input"):
        unchecked(net, x).wait_to_read()  # MXNet agrees, and names no layer
    with pytest.raises(ValueError, match=rf"^{name}\(input_size={least - 1}\): '{layer}' .*takes {least} x {least}"):
        get_model(name, input_size=least - 1, in_channels=channels, **arguments)


def test_nin_of_355_does_not_give_40_numbers_in_silence():
    net = started(nin())
    net.hybridize()
    net(mx.nd.zeros((1, 3, 195, 195)))
    assert net(mx.nd.zeros((1, 3, 354, 200))).shape == (1, 10)
    x = mx.nd.zeros((1, 3, 355, 355))
    assert unchecked(net, x).shape == (1, 40)
    text = (
        r"'6' \(Flatten\) gets 2 x 2 .* 40 numbers a sample in place of 10.*Of square images with 3 channels the net "
    )
    with pytest.raises(ForwardError, match=f"{text}takes 195 x 195 to 354 x 354$"):
        net(x)
    with pytest.raises(ForwardError, match="'6'.* gets 1 x 2 positions"):
        net(mx.nd.zeros((2, 3, 200, 355)))
    with pytest.raises(ValueError, match=r"^nin\(input_size=355\): '6' .*small=True makes it for images like CIFAR's$"):
        nin(input_size=355)
    assert usable_sizes(nin(small=True)) == [15, sizes.LARGEST]


@pytest.mark.parametrize("hybridized", [False, True])
def test_after_the_first_batch_only_sizes_that_its_dense_layers_take(hybridized, kind):
    with kind.switches():
        _check_later_sizes(hybridized, kind)


def _check_later_sizes(hybridized, kind):
    net = started(lenet())
    if hybridized:
        net.hybridize()
    net(kind.of(mx.nd.zeros((2, 1, 28, 28))))
    assert usable_sizes(net, 1) == [28, 31]
    assert net(kind.of(mx.nd.zeros((5, 1, 31, 28)))).shape == (5, 10)
    with pytest.raises(ForwardError, match=r"'5' \(Dense\) is built for 800 .* the net takes 28 x 28 to 31 x 31$"):
        net(kind.of(mx.nd.zeros((2, 1, 32, 32))))
    with pytest.raises(ForwardError, match=r"'0' \(Conv2D\) is built for 1 channels .*seem to be last: x.transpose"):
        net(kind.of(mx.nd.zeros((2, 28, 28, 1))))
    with pytest.raises(ForwardError, match=r"'0' \(Conv2D\) reads 4 axes"):
        net(kind.of(mx.nd.zeros((2, 28, 28))))
    one = started(softmax_regression())
    one(kind.of(mx.nd.zeros((2, 784))))
    with pytest.raises(ForwardError, match=r"'1' \(Dense\) is built for 784 .* the net takes 28 x 28 only$"):
        one(kind.of(mx.nd.zeros((2, 1, 29, 29))))
    assert usable_sizes(one, 3) == []


def test_channels_that_stand_last_are_refused_where_the_number_is_known():
    # T13: 32 x 32 x 3 gives no error of MXNet's, which takes the width for channels
    x = mx.nd.zeros((2, 32, 32, 3))
    net = started(get_model("resnet18", in_channels=3, small=True))
    with pytest.raises(ForwardError, match="'0' .*built for 3 channels .* which has 32"):
        net(x)


def test_input_size_takes_no_other_size():
    net = started(get_model("resnet18", input_size=32, small=True))
    assert net(mx.nd.zeros((1, 3, 32, 32))).shape == (1, 10)
    for shape in ((1, 3, 64, 64), (1, 3, 32, 64)):
        with pytest.raises(ForwardError, match=r"^the net was made for images of 32 x 32 \(input_size\) and got shape"):
            net(mx.nd.zeros(shape))


def test_a_rebuilt_net_refuses_the_same():
    net = get_model("nin", input_size=200)
    twin = started(mxkit.nets.build(json.loads(json.dumps(mxkit.nets.describe(net)))))
    assert (type(twin), twin._input_size) == (SizedNet, 200)
    with pytest.raises(ForwardError, match="made for images of 200 x 200"):
        twin(mx.nd.zeros((1, 3, 355, 355)))
    twin = started(mxkit.nets.build(mxkit.nets.describe(nin())))
    with pytest.raises(ForwardError, match="'6'.* 40 numbers"):
        twin(mx.nd.zeros((1, 3, 355, 355)))
    twin = started(copy.deepcopy(nin()))
    with pytest.raises(ForwardError, match="'6'.* 40 numbers"):
        twin(mx.nd.zeros((1, 3, 355, 355)))


def test_a_shape_is_looked_at_once(monkeypatch):
    looked = []
    real = sizes.check_shape
    monkeypatch.setattr(sizes, "check_shape", lambda net, shape: looked.append(shape) or real(net, shape))
    net = started(lenet())
    for samples in (4, 2, 4):
        net(mx.nd.zeros((samples, 1, 28, 28)))
    net.hybridize()  # drops the graph, and what is known to fit
    for _ in range(2):
        net(mx.nd.zeros((2, 1, 28, 28)))
    assert looked == [(4, 1, 28, 28), (2, 1, 28, 28)]


def test_a_replaced_layer_is_looked_at_anew():
    net = started(mlp(hidden=[8]))
    net.hybridize()
    x = mx.nd.zeros((2, 6))
    net(x)
    mxkit.nets.replace(net, "1", started(nn.Dense(8, in_units=5)))
    with pytest.raises(ForwardError, match=r"'1' \(Dense\) is built for 5 inputs"):
        net(x)


@pytest.mark.parametrize("hybridized", [False, True])
def test_the_look_changes_nothing(hybridized):
    """Outputs, gradients, statistics and generators are those of the plain HybridSequential."""
    x = mx.nd.random.uniform(shape=(4, 1, 28, 28))
    found = []
    for call in (lambda net, x: net(x), unchecked):
        mxkit.seed_all(3)
        net = started(lenet(batch_norm=True))
        if hybridized:
            net.hybridize()
        seen = []
        net[0].register_forward_hook(lambda block, inputs, output, seen=seen: seen.append(type(output).__name__))
        with mx.autograd.record():
            loss = call(net, x).square().sum()
        loss.backward()
        values = [one.grad() if one.grad_req != "null" else one.data() for one in net.collect_params().values()]
        found.append(([one.asnumpy() for one in values], seen, mx.nd.random.uniform(shape=3).asnumpy()))
    np.testing.assert_equal(list(found[0][0]), list(found[1][0]))
    assert found[0][1] == found[1][1]
    np.testing.assert_array_equal(found[0][2], found[1][2])


def test_slices_and_nets_inside_others_work():
    net = started(lenet())
    net(mx.nd.zeros((1, 1, 28, 28)))
    assert net[:5](mx.nd.zeros((2, 1, 30, 30))).shape == (2, 800)
    outer = stack(net, nn.Activation("relu"))
    outer.hybridize()
    assert outer(mx.nd.zeros((2, 1, 28, 28))).shape == (2, 10)
    assert net(mx.sym.var("data")).list_outputs()


def test_a_block_that_takes_no_symbols_leaves_the_size_to_mxnet():
    net = SizedNet()
    net.add(hybrid_net(lambda net, F, x: x[:, : x.shape[1] // 2]), nn.Dense(3))
    started(net)
    assert net(mx.nd.ones((2, 6))).shape == (2, 3)
    assert usable_sizes(net) == []
    with pytest.raises(mx.MXNetError):
        net(mx.nd.ones((2, 8))).wait_to_read()
