"""What the tests of descriptions share: a net that comes back through JSON, with the same outputs."""

import json

import mxkit
from mxkit.core.arrays import of_kind
from mxkit.core.blocks import parameters_by_path
from mxkit.nets.architecture import build, describe
from mxkit.storage.loading import put_arrays
import mxnet as mx


def flat(out):
    """Arrays of any output, as bytes."""
    if isinstance(out, (list, tuple)):
        return [one for part in out for one in flat(part)]
    return [out.asnumpy().tobytes()]


def randomize(net):
    """Values that no initializer gives, so that a parameter in the wrong place shows."""
    for parameter in {id(one): one for one in parameters_by_path(net).values()}.values():
        shape = parameter.list_data()[0].shape
        parameter.set_data(mx.nd.random.uniform(0.1, 1, shape).astype(parameter.dtype))


def rebuilt(net):
    """What is built from a net's description, which goes through JSON and is the same text afterwards."""
    told = describe(net)
    text = json.dumps(told, allow_nan=False)
    twin = build(json.loads(text))
    assert describe(twin) == told
    assert json.dumps(describe(twin)) == text
    return twin


def training(net, call):
    """Outputs of a training pass, the same for the same net."""
    mxkit.seed_all(5)
    with mx.autograd.train_mode():
        return flat(call(net))


def assert_same(net, call):
    """A net comes back, before and after its first batch: description, paths and, with the same values, outputs."""
    rebuilt(net)
    for parameter in parameters_by_path(net).values():
        if parameter._data is None and not parameter._deferred_init:
            # not with its own initializer, which may not fit its shape
            parameter.initialize(mx.init.Uniform())
    flat(call(net))
    randomize(net)
    twin = rebuilt(net)
    ours, theirs = parameters_by_path(net), parameters_by_path(twin)
    assert list(ours) == list(theirs)
    assert [one.list_data()[0].shape for one in ours.values()] == [one.shape for one in theirs.values()]
    put_arrays(twin, {path: parameter.data() for path, parameter in ours.items()})
    assert flat(call(twin)) == flat(call(net))
    assert training(twin, call) == training(net, call)
    return twin


def batch(*shape):
    return mx.nd.random.uniform(-1, 1, shape)


def on(*shape):
    """A call on one batch, of the kind that the switches choose."""
    x = batch(*shape)
    return lambda net: net(of_kind(x, mx.util.is_np_array()))


def tokens(net):
    return net(mx.nd.array([[1, 2], [0, 4]]))


def unroll(net):
    net.reset()
    x = mx.nd.arange(24).reshape((2, 3, 4)) / 24
    return net.unroll(3, x, layout="NTC", merge_outputs=True)
