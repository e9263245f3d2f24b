"""Blocks of one's own: what `register_block` remembers, and what it refuses."""

import copy
import inspect
import json

from built_nets import ready, stack
from mxkit.errors import ArchitectureError
from mxkit.nets.architecture import build, describe, register_block
from mxkit.nets.architecture.catalog import REGISTERED
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from round_trip import assert_same, batch, on


@register_block
class Residual(gluon.HybridBlock):
    """A block with arguments of each plain kind."""

    def __init__(self, channels, sizes=(3, 1), activation="relu", *, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale
        with self.name_scope():
            self.body = nn.HybridSequential()
            for size in sizes:
                self.body.add(nn.Conv2D(channels, size, padding=size // 2, activation=activation))

    def hybrid_forward(self, F, x):
        return x + self.scale * self.body(x)


@register_block
class Squeezed(Residual):
    """A registered subclass, which remembers its own call and not that of its base."""

    def __init__(self, width, **kwargs):
        super().__init__(2 * width, sizes=[1], **kwargs)


@register_block
class Around(gluon.HybridBlock):
    """A block around others that it is given."""

    def __init__(self, *, body, branches=(), norm=nn.BatchNorm, init=None, dtype="float32", options=None):
        super().__init__()
        self.body = body
        for branch in branches:
            self.register_child(branch)
        self.norm = norm()
        self.head = nn.Dense(2, weight_initializer=init, dtype=dtype)
        self.options = options

    def hybrid_forward(self, F, x):
        x = self.body(x)
        for name in ("1", "2"):
            x = x + self._children[name](x) if name in self._children else x
        return self.head(self.norm(x))


@register_block
class Graded(gluon.HybridBlock):
    """A block with a constant."""

    def __init__(self, grades):
        super().__init__()
        self.grades = self.params.get_constant("grades", mx.nd.array(grades))

    def hybrid_forward(self, F, x, grades):
        return F.broadcast_add(x, grades)


class Undescribed(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x + 1


class Older(Residual):
    """Not registered: its forward may be another one."""


def residual_net():
    return stack(nn.Conv2D(4, 1), Residual(4, (3, 3), scale=0.5), nn.Dense(2))


def test_a_block_of_ones_own_is_built_from_its_arguments():
    net = residual_net()
    net[1].body[0].weight.grad_req = "null"
    twin = assert_same(net, on(2, 3, 5, 5))
    told = describe(net)
    assert told["net"]["children"][1] == {
        "class": "Residual",
        "arguments": {"channels": 4, "sizes": {"$tuple": [3, 3]}, "activation": "relu", "scale": 0.5},
    }
    assert told["parameters"]["1.body.0.weight"] == {"shape": [4, 4, 3, 3], "grad_req": "null"}
    assert type(twin[1]) is Residual
    assert twin[1].scale == 0.5


def test_a_subclass_remembers_its_own_call():
    net = Squeezed(width=2, scale=3, prefix="mine_")
    assert describe(net)["net"] == {"class": "Squeezed", "arguments": {"width": 2, "scale": 3}}
    assert_same(net, on(1, 4, 3, 3))
    with pytest.raises(ArchitectureError, match=r"Older.*mxkit.nets.register_block\(Older\)"):
        describe(Older(4))


def test_blocks_classes_initializers_and_dtypes_among_the_arguments():
    shared = nn.Dense(4, in_units=4, activation="tanh")
    net = stack(
        Around(
            body=nn.Dense(4),
            branches=[shared, Residual(4)],
            norm=nn.LayerNorm,
            init=mx.init.Normal(0.5),
            dtype=np.float32,
            options={"depth": [1, (2,)], "none": None},
        ),
        shared,
    )
    told = describe(net)
    node = told["net"]["children"][0]
    assert node["arguments"] == {
        "body": {"$child": "body"},
        "branches": [{"$child": "1"}, {"$child": "2"}],
        "norm": {"$class": "LayerNorm"},
        "init": {"$initializer": ["normal", {"sigma": 0.5}]},
        "dtype": {"$dtype": "float32"},
        "options": {"depth": [1, {"$tuple": [2]}], "none": None},
    }
    assert [child.get("name") for child in node["children"]] == ["body", None, None]
    assert told["net"]["children"][1] == {"shared": "0.1"}
    twin = build(json.loads(json.dumps(told)))
    assert describe(twin) == told
    assert twin[0]._children["1"] is twin[1]
    assert twin[0].options == {"depth": [1, (2,)], "none": None}
    assert type(twin[0].norm) is nn.LayerNorm
    net = Around(body=nn.Dense(4), branches=[nn.Dense(4)])
    assert describe(net)["net"]["arguments"]["norm"] == {"$class": "BatchNorm"}
    assert_same(net, on(3, 5))


def test_what_is_remembered_is_what_was_given():
    sizes = [1]
    net = Residual(2, sizes)
    sizes.append(3)
    assert describe(net)["net"]["arguments"]["sizes"] == [1]
    assert describe(copy.deepcopy(net)) == describe(net)
    assert list(inspect.signature(Residual).parameters)[:2] == ["channels", "sizes"]
    with pytest.raises(TypeError, match="channels"):
        Residual()


def test_a_default_that_has_no_form_in_json_stays_the_constructors():
    @register_block
    class Scored(gluon.HybridBlock):
        def __init__(self, units, score=lambda x: x):
            super().__init__()
            self.dense = nn.Dense(units)
            self.score = score

    assert describe(Scored(2))["net"] == {"class": "Scored", "arguments": {"units": 2}}
    assert_same(Scored(2), lambda net: net.score(net.dense(mx.nd.ones((1, 2)))))
    with pytest.raises(ArchitectureError, match="score: .*has no form in JSON"):
        describe(Scored(2, score=lambda x: -x))


def test_a_constant_is_the_constructors_affair():
    net = Graded([1.0, 2.0])
    assert describe(net)["net"]["arguments"] == {"grades": [1.0, 2.0]}
    net.initialize()
    twin = ready(build(describe(net)))
    x = batch(3, 2)
    assert (twin(x) == net(x)).asnumpy().all()
    net.grades.value[:] = 5
    with pytest.raises(ArchitectureError, match="grades: its constant value would be lost"):
        describe(net)


def test_an_initializer_that_only_the_constructor_knows_is_no_loss():
    class Odd(mx.init.Initializer):
        """Not registered with MXNet."""

    @register_block
    class WithOdd(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.weight = self.params.get("weight", shape=(2,), init=Odd())

    assert describe(WithOdd()) == {"format": 1, "net": {"class": "WithOdd"}}
    net = WithOdd()
    net.weight.init = Odd(scale=3)
    with pytest.raises(ArchitectureError, match=r"parameter weight: .*@mx\.init\.register"):
        describe(net)


def made_with(**arguments):
    return lambda: Around(body=nn.Dense(1), **arguments)


LOST = [
    (lambda: Residual(2), lambda net: setattr(net, "scale", 2.0), "its scale is 2.0, and would be 1.0. Make it"),
    (lambda: Residual(2), lambda net: net.body.add(nn.Dense(1)), "it would be rebuilt as Hybrid"),
    (lambda: Residual(2), lambda net: net._children.update(body=nn.Dense(1)), "would be rebuilt as HybridSequential"),
    (lambda: Residual(2), lambda net: net.body[0]._kwargs.update(stride=(2, 2)), r"body\.0 .*its _kwargs is"),
    (lambda: Residual(2), lambda net: setattr(net, "forward", len), "its method forward was replaced"),
    (made_with(), lambda net: setattr(net, "body", nn.Dense(1)), "body: the Dense .* no longer, its child"),
    (made_with(norm=Undescribed), None, "norm: the class Undescribed is not known"),
    (made_with(options=lambda: 0), None, "options: .*has no form in JSON"),
    (made_with(options=float("nan")), None, "options: .*has no form in JSON"),
    (made_with(options=mx.nd.ones(1)), None, "(?s)options: .*has no form in JSON"),
    (made_with(options={"$child": "x"}), None, r"options: .*do not begin with \$"),
    (made_with(options={1: 2}), None, "options: .*text for keys"),
    (made_with(options=type("Listed", (list,), {})([1])), None, "options: .*not a plain list"),
    (lambda: nn.HybridLambda(lambda F, x: x * 2), None, r"the net \(mxnet.*HybridLambda\): function"),
    (Undescribed, None, r"the net .*Undescribed.*mxkit.nets.register_block\(Undesc"),
    (made_with(init=type("Own", (mx.init.Initializer,), {})()), None, "init: the initializer Own"),
]


@pytest.mark.parametrize(("make", "change", "text"), LOST)
def test_what_would_be_lost_of_a_block_of_ones_own_is_an_error(make, change, text):
    net = make()
    if change:
        change(net)
    with pytest.raises(ArchitectureError, match=text):
        describe(net)


def test_a_block_made_before_its_class_was_registered():
    class Late(gluon.HybridBlock):
        """Registered only below."""

    net = Late()
    register_block(Late)
    with pytest.raises(ArchitectureError, match="made before its class was registered"):
        describe(net)
    assert describe(Late())["net"] == {"class": "Late"}
    init = Late.__init__
    assert register_block(Late) is Late
    assert Late.__init__ is init


def cell(units):
    @register_block
    class FromACell(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(units)

    return FromACell


def test_a_cell_that_runs_again_registers_its_class_anew():
    first = cell(1)()
    second = cell(2)
    assert REGISTERED["FromACell"] is second
    assert build(describe(second())).dense._units == 2
    with pytest.raises(ArchitectureError, match="FromACell"):
        describe(first)


def test_somebody_elses_class_can_be_registered():
    cnn = gluon.contrib.cnn.DeformableConvolution
    try:
        register_block(cnn)
        told = describe(cnn(4, kernel_size=(3, 3), in_channels=2, padding=1))
        assert describe(build(told)) == told
        assert told["net"]["arguments"]["kernel_size"] == {"$tuple": [3, 3]}
    finally:
        cnn.__init__ = cnn.__init__.__wrapped__
        del REGISTERED["DeformableConvolution"]


def test_classes_are_checked():
    class Starred(gluon.Block):
        def __init__(self, *blocks):
            super().__init__()

    elsewhere = type("Residual", (gluon.Block,), {"__module__": "elsewhere"})
    dense = type("Dense", (gluon.Block,), {"__module__": nn.Dense.__module__, "__qualname__": "Dense"})
    for kind, text in [
        (len, "expected a subclass of gluon.Block"),
        (Residual(2), "expected a subclass of gluon.Block"),
        (elsewhere, "two blocks are called 'Residual'"),
        (dense, "two blocks are called 'Dense'"),
        (nn.Dense, "two blocks are called 'Dense'"),
        (Starred, r"Starred takes \*blocks without a name"),
    ]:
        with pytest.raises(ArchitectureError, match=text):
            register_block(kind)
    assert REGISTERED["Residual"] is Residual


DENSE = {"class": "Dense", "arguments": {"units": 2}}


def node(children=(), **arguments):
    return {"class": "Around", "arguments": arguments, "children": list(children)}


def deep(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"class": "Undescribed"}, "unknown class 'Undescribed'.* @mxkit.nets.register_block"),
        ({"class": "Residual", "arguments": {"chanels": 3}}, "Residual.* is refused.*missing.*channels"),
        ({"class": "Residual", "arguments": {"channels": "many"}}, "Residual.* is refused"),
        ({"class": "Residual", "arguments": {"channels": 2}, "children": [DENSE]}, "makes its children by itself"),
        (node(body={"$child": "body"}), "KeyError: 'body'"),
        (node([{"name": "other", **DENSE}], body={"$child": "other"}), "does not take other"),
        (node([{"name": "body", **DENSE}], body={"$child": "body"}, norm={"$class": "os"}), r"\$class"),
        (node(body={"$initializer": ["load", {"param": "x"}]}), "unknown initializer"),
        (node(body={"$dtype": "object"}), "dtype: expected one of"),
        (node(body={"$import": "os"}), r"expected \$tuple.*\$import"),
        *((node(body=value), "is refused") for value in ({"$initializer": 3}, {"$tuple": 3}, {3: 1})),
        (node(body={"$tuple": [], "x": 1}), "is refused"),
        (node(body=deep(2000)), "RecursionError"),
        (node(body=float("inf")), "no form in JSON"),
        (node(body=object()), "no form in JSON"),
    ],
)
def test_hostile_descriptions_of_registered_blocks(told, text):
    with pytest.raises(ArchitectureError, match=text) as caught:
        build({"format": 1, "net": told})
    assert len(str(caught.value)) < 2000
