"""Networks by name, and the arguments that they take."""

import mxkit
from mxkit.errors import UnknownNameError
from mxkit.models import get_model, mlp, model_names
import mxnet as mx
import numpy as np
import pytest

IMAGES = np.random.RandomState(0).rand(3, 1, 28, 28).astype("float32")


def test_dropout_works_in_training_only():
    net = mlp(dropout=0.5)
    mxkit.initialize(net, devices="cpu")
    images = mx.nd.array(IMAGES)
    calm = net(images).asnumpy()
    np.testing.assert_array_equal(net(images).asnumpy(), calm)
    with mx.autograd.record():
        assert (net(images).asnumpy() != calm).any()
    with pytest.raises(ValueError, match="mlp: dropout must be at least 0 and below 1; received 1"):
        mlp(dropout=1)
    with pytest.raises(ValueError, match=r"expected one dropout for each of 1 hidden layers.* received \(0.2, 0.5\)"):
        mlp(dropout=(0.2, 0.5))
    rates = [layer._rate for layer in mlp(hidden=(8, 8), dropout=(0.2, 0.5)) if isinstance(layer, mx.gluon.nn.Dropout)]
    assert rates == [0.2, 0.5]


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("zoo:resnet18_v2", (1, 3, 32, 32), 7), ("gluoncv:cifar_resnet20_v1", (2, 3, 32, 32), 10), ("mlp", (2, 5), 10)],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of gluoncv's own imports
def test_get_model_reaches_the_zoos(name, shape, classes):
    net = get_model(name, classes=classes)
    mxkit.initialize(net, devices="cpu")
    assert net(mx.nd.ones(shape)).shape == (shape[0], classes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_names_are_listed_by_source():
    assert {"lenet", "mlp", "resnet18", "softmax_regression"} <= set(model_names())
    others = {"Siamese", "SizedNet", "get_model", "model_names", "usable_sizes"}
    assert model_names() == sorted(set(mxkit.models.__all__) - others)
    assert {"resnet18_v2", "alexnet", "mobilenetv2_1.0"} <= set(model_names("zoo"))
    assert "cifar_resnet20_v1" in model_names("gluoncv")
    with pytest.raises(UnknownNameError, match="unknown source of models 'torch': Known: gluoncv, zoo"):
        model_names("torch")


@pytest.mark.parametrize("name", ["mlp", "zoo:resnet18_v2"])
def test_arguments_that_a_net_does_not_take(name):
    with pytest.raises(TypeError, match=f"model '{name}' refuses its arguments .*clases"):
        get_model(name, clases=10)
