"""Blocks of libraries that mxkit knows by name: described without a decorator, and nothing else is imported."""

import sys

import mxkit
from mxkit.errors import ArchitectureError
from mxkit.nets.architecture import build, catalog, describe
from mxkit.runtime import gluon_layers
import mxnet as mx
import numpy as np
import pytest

LIBRARY = """
from mxnet import gluon
from mxnet.gluon import nn


class Body(gluon.HybridBlock):
    def __init__(self, sizes, act=nn.ELU, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.layers = nn.HybridSequential()
            for size in sizes:
                self.layers.add(nn.Dense(size), act())

    def hybrid_forward(self, F, x):
        return self.layers(x)


class Classifier(gluon.HybridBlock):
    class Head(nn.Dense):
        pass

    def __init__(self, body, classes=2, **kwargs):
        super().__init__(**kwargs)
        self.body = body
        with self.name_scope():
            self.head = Classifier.Head(classes)

    def hybrid_forward(self, F, x):
        return self.head(self.body(x))


class Many(gluon.Block):
    def __init__(self, *sizes):
        super().__init__()


class Sampled(Body):
    def __init__(self, samples=2, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.samples = samples


class Decoder(gluon.Block):
    pass


class Recurrent(Decoder, gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return x + 1


class Dropped(gluon.Parameter):
    pass


class Options:
    pass


def make(**arguments):
    return Classifier(Body([3]), **arguments)
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    (tmp_path / "small_library.py").write_text(LIBRARY)
    (tmp_path / "stranger.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (catalog, gluon_layers):
        monkeypatch.setattr(module, "PACKAGES", frozenset({"small_library"}))
    import small_library

    yield small_library
    for name in ("small_library", "stranger"):
        sys.modules.pop(name, None)


def test_a_net_of_a_librarys_blocks_is_saved_and_loaded(library, tmp_path):
    net = library.Classifier(library.Body((4, 3), act=mx.gluon.nn.SELU), classes=5)
    net.initialize()
    x = mx.nd.random.uniform(shape=(2, 6))
    expected = net(x)
    described = describe(net)["net"]
    assert described["class"] == "small_library:Classifier"
    assert described["arguments"] == {"body": {"$child": "body"}, "classes": 5}
    assert described["children"][0]["arguments"] == {"sizes": {"$tuple": [4, 3]}, "act": {"$class": "SELU"}}
    mxkit.save_net(tmp_path / "net", net)
    assert np.array_equal(mxkit.load_net(tmp_path / "net")(x).asnumpy(), expected.asnumpy())
    head = library.Classifier.Head(2)
    assert type(build(describe(head))) is library.Classifier.Head


def test_a_class_without_a_constructor_leaves_the_choice_of_the_next_one_to_python(library):
    @mxkit.nets.register_block
    class Own(mx.gluon.Block):
        pass

    class Both(Own, mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x + 1

    for net in (library.Recurrent(), Both()):
        net.hybridize()
        assert net(mx.nd.ones(1)).asscalar() == 2


def test_blocks_that_cannot_be_made_again_are_named(library):
    for net in (library.Many(1, 2), library.Sampled(2, [3])):
        with pytest.raises(ArchitectureError, match=f"small_library.{type(net).__name__}.*register_block"):
            describe(net)
    assert describe(library.Sampled(3, sizes=[2]))["net"]["arguments"]["samples"] == 3
    net = library.Body([2])
    net.layers[0]._reg_params["weight"] = library.Dropped("weight", shape=(2, 3))
    with pytest.raises(ArchitectureError, match="parameter layers.0.weight: its class Dropped would be lost"):
        describe(net)
    net = library.make()
    net.body.layers.add(mx.gluon.nn.Dense(3))  # the constructor would not
    with pytest.raises(ArchitectureError, match="body.layers .*would be rebuilt"):
        describe(net)
    import stranger

    with pytest.raises(ArchitectureError, match="stranger.Body.*register_block"):
        describe(stranger.Body([2]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stranger:Body", "is of none of the libraries small_library"),
        ("os:system", "is of none of the libraries"),
        ("small_library.os:system", "is not in the installed small_library"),
        ("small_library:make", "is no class of that module"),
        ("small_library:nn.Dense", "is no class of that module"),
        ("small_library:Options", "is no class of blocks"),
        ("small_library:gluon.nn.basic_layers.sys.exit", "is no class of that module|not in the installed"),
        ("small_library:Absent", "is not in the installed small_library"),
        ("small_library:", "is not in the installed small_library"),
    ],
)
def test_a_description_reaches_no_other_classes(library, name, text):
    before = set(sys.modules)
    with pytest.raises(ArchitectureError, match=text):
        build({"format": 1, "net": {"class": name, "arguments": {"sizes": [1]}}})
    assert "stranger" not in set(sys.modules) - before


def test_a_description_makes_families_of_distributions_alone(library):
    for name in ("small_library:Options", "gluonts.mx.distribution.absent:Absent"):
        body = {"class": "small_library:Body", "arguments": {"sizes": {"$distribution": [name, {}]}}}
        with pytest.raises(ArchitectureError, match="expected a class of gluonts|is not in the installed gluonts"):
            build({"format": 1, "net": body})


def test_families_of_distributions_are_arguments(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "gluonts" / "mx" / "distribution"
    folder.mkdir(parents=True)
    family = """class Output:
    def __init__(self, degree=1):
        self.__init_args__ = {"degree": degree}
"""
    (folder / "distribution_output.py").write_text(family)
    from gluonts.mx.distribution.distribution_output import Output

    encoded = catalog.encode({"family": Output(3)}, str)
    assert encoded == {
        "family": {"$distribution": ["gluonts.mx.distribution.distribution_output:Output", {"degree": 3}]}
    }
    decoded = catalog.decode(encoded, {})["family"]
    assert (type(decoded), decoded.__init_args__) == (Output, {"degree": 3})
