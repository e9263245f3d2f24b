"""Blocks put in the place of others, and what must not be left of the old ones."""

from built_nets import ready, stack
import mxkit
from mxkit.core.blocks import UnknownPathError, blocks_by_path, parameters_by_path
from mxkit.errors import TrapWarning
from mxkit.nets.finetuning import replace
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import pytest

X = mx.nd.array(np.arange(12).reshape(3, 4) / 10)


class Model(nn.HybridBlock):
    """features, then output; keeps its blocks as attributes."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.features.add(nn.Dense(4, in_units=4), nn.Dense(4, in_units=4, activation="relu"))
            self.output = nn.Dense(3, in_units=4)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


class Plain(nn.Block):
    def forward(self, x):
        return x


def make(hybridize=None):
    net = ready(Model())
    if hybridize is not None:
        net.hybridize(**hybridize)
        net(X)
    return net


def dense(units, value=None, **arguments):
    block = nn.Dense(units, in_units=4, **arguments)
    mxkit.initialize(block, "xavier" if value is None else ("constant", {"value": value}))
    return block


def oracle(net, x):
    """What the blocks of the net compute one by one, without a graph of its own."""
    net.hybridize(False)
    return net(x).asnumpy()


@pytest.mark.parametrize(
    "flags", [None, {}, {"static_alloc": True, "static_shape": True}, {"inline_limit": 0}], ids=str
)
@pytest.mark.parametrize("path", ["features.0", "features.1", "output"])
def test_the_net_computes_with_the_new_block_from_the_next_call_on(path, flags):
    """T36."""
    net = make(flags)
    before = net(X).asnumpy()
    new = dense(5 if path == "output" else 4, 0.5)
    old = replace(net, path, new)
    after = net(X).asnumpy()
    assert after.shape[1] == (5 if path == "output" else 3)
    np.testing.assert_array_equal(after, oracle(net, X))
    assert replace(net, path, old) is new
    np.testing.assert_allclose(net(X).asnumpy(), before, rtol=1e-6)


def test_children_attributes_and_order_are_those_of_the_new_block():
    net = make()
    new, old = stack(dense(4), dense(2)), net.output
    net.head = old
    assert replace(net, "output", new) is old
    assert net.output is net._children["output"] is net.head is net._children["head"] is new
    net._children.pop("head")
    assert list(net._children) == ["features", "output"]
    first = dense(4)
    replace(net, "features.0", first)
    assert net.features[0] is first
    assert list(net.features._children) == ["0", "1"]
    assert list(parameters_by_path(net)) == [
        *("features.0.weight", "features.0.bias", "features.1.weight", "features.1.bias"),
        *("output.0.weight", "output.0.bias", "output.1.weight", "output.1.bias"),
    ]
    assert set(net.collect_params()) == {parameter.name for parameter in parameters_by_path(net).values()}
    assert net(X).shape == (3, 2)


def test_an_activation_inside_of_a_layer():
    net = make({})
    replace(net, "features.1.act", nn.LeakyReLU(0.5))
    assert isinstance(net.features[1].act, nn.LeakyReLU)
    np.testing.assert_array_equal(net(X).asnumpy(), oracle(net, X))
    replace(net, "output", dense(5, prefix=net.output.prefix))  # names of the old block are free
    assert net(X).shape == (3, 5)
    net.collect_params()


def test_a_plain_sequential_takes_any_block_and_its_hybrid_ancestors_are_cleared():
    net = stack(make({}), dense(2), kind=nn.Sequential)
    inner = net[0]
    graph = inner._cached_op
    assert graph is not None
    net.add(Plain())
    replace(net, "2", Plain())
    assert inner._cached_op is graph  # not above it
    replace(net, "0.features.0", dense(4, 0.5))
    assert inner._cached_op is None
    replace(net, "0", Plain())
    assert net(X).shape == (3, 2)


def test_the_new_block_is_hybridized_as_the_old_one_was():
    net = make({"static_alloc": True})
    new = stack(dense(4))
    replace(net, "features.0", new)
    for one in (new, new[0]):
        assert one._active
        assert dict(one._flags) == {"static_alloc": True, "static_shape": False, "inline_limit": 2}
    net = make()
    new = dense(4)
    replace(net, "features.0", new)
    assert not new._active


def test_a_block_under_several_paths_is_replaced_under_all_of_them():
    shared = dense(4)
    inner = stack(shared)
    net = stack(shared, dense(4), inner, inner)
    net.hybridize()
    net(X)
    new = dense(4, 0.5)
    replace(net, "2.0", new)
    assert net[0] is inner[0] is net[3][0] is new
    np.testing.assert_array_equal(net(X).asnumpy(), oracle(net, X))


def test_a_wrapper_may_hold_the_old_block():
    net = make({})
    before = net(X).asnumpy()
    wrapper = stack(net.features, nn.Dropout(0.5))
    replace(net, "features", wrapper)
    np.testing.assert_allclose(net(X).asnumpy(), before, rtol=1e-6)
    assert "features.0.1.weight" in parameters_by_path(net)


def state(net):
    return [(path, id(one)) for path, one in blocks_by_path(net)], net.features._cached_op, net._cached_op


def around(features):
    return stack(nn.Dropout(0.5), features)


def holding(net, container):
    net.blocks = container
    return dense(3)


CYCLE = "the new block holds a block that 'features.0' is part of"
KEEPS = "the Model above 'output' keeps it in its {} 'blocks' too"
REFUSED = {
    "a typing error": ("outptu", dense, UnknownPathError, "no block stands at 'outptu': did you mean 'output'.* Paths"),
    "past the end": ("features.2", dense, UnknownPathError, "did you mean 'features"),
    "a number": (0, dense, UnknownPathError, "no block stands at 0: Paths of the net: features"),
    "no block": ("output", lambda net: mx.nd.ones(3), TypeError, "'output': expected a gluon Block; received"),
    "the net": ("", dense, ValueError, "'' is the net itself, with nothing above it"),
    "plain": ("features.0", lambda net: Plain(), ValueError, "part of a HybridSequential, which takes Hybrid"),
    "cycle": ("features.0", lambda net: net, ValueError, CYCLE),
    "deeper cycle": ("features.0", lambda net: around(net.features), ValueError, CYCLE),
    "list": ("output", lambda net: holding(net, [net.output]), ValueError, KEEPS.format("list")),
    "tuple": ("output", lambda net: holding(net, (net.output,)), ValueError, KEEPS.format("tuple")),
    "dict": ("output", lambda net: holding(net, {"x": net.output}), ValueError, KEEPS.format("dict")),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_before_harm(kind):
    """T37."""
    path, make_block, error, text = REFUSED[kind]
    net = make({})
    block = dense(3) if make_block is dense else make_block(net)
    before = state(net)
    with pytest.raises(error, match=text):
        replace(net, path, block)
    assert state(net) == before
    assert before[2] is not None


def test_a_trainer_over_the_net_is_told_of():
    """T19."""
    net = make()
    old = net.output
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    before = state(net)
    with pytest.raises(TrapWarning):  # pytest makes errors of warnings
        replace(net, "output", dense(3))
    assert state(net) == before
    with pytest.warns(TrapWarning, match="does not train weight, bias, of the old one it still holds weight"):
        replace(net, "output", dense(3))
    replace(net, "features.1.act", nn.LeakyReLU(0.5))
    with pytest.warns(TrapWarning, match="does not train nothing, of the old one it still holds weight, bias"):
        replace(net, "features.0", nn.Dropout(0.5))
    assert old.weight._trainer is trainer
    wrapper = stack(net.features)
    gluon.Trainer(net.collect_params(), "sgd")
    replace(net, "features", wrapper)  # the Trainer holds all of it
    mxkit.freeze(net, "output.*")
    frozen = dense(3)
    mxkit.freeze(frozen)
    replace(net, "output", frozen)
