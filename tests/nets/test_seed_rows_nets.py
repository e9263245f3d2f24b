"""Rows of SEEDS.md on models, parameters, modes and model zoos; see test_seed_rows.py."""

import mxkit
from mxkit.errors import (
    CheckpointError,
    DownloadError,
    ForwardError,
    TrapWarning,
)
import mxnet as mx
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision
import numpy as np
import pytest
import requests
from seed_code import stack, stepped, without_network

# I: models


def test_rows_60_to_71_sequentials_that_cannot_be_exported(tmp_path):
    def tutorials(kind):
        return stack(nn.Conv2D(20, 5, activation="relu"), nn.MaxPool2D(2, 2), nn.Dense(10), kind=kind)

    with pytest.raises(AttributeError, match="has no attribute 'export'"):
        tutorials(nn.Sequential).export(str(tmp_path / "net"))
    with pytest.raises(RuntimeError, match=r"first call block.hybridize\(\) and then run forward"):
        tutorials(nn.HybridSequential).export(str(tmp_path / "net"))

    net = mxkit.models.lenet(in_channels=1, input_size=28)
    mxkit.initialize(net, devices="cpu")
    assert mxkit.export(net, tmp_path / "lenet").symbol.exists()


def test_rows_60_to_71_an_image_that_is_too_small(capfd):
    net = stack(nn.Conv2D(20, 5), nn.MaxPool2D(2, 2), nn.Conv2D(50, 5), nn.MaxPool2D(2, 2), nn.Dense(10))
    with pytest.raises(ValueError, match="kernel size exceed input"):
        net(nd.ones((1, 1, 8, 8)))
    capfd.readouterr()

    net = mxkit.models.lenet()
    mxkit.initialize(net, devices="cpu")
    with pytest.raises(ForwardError, match=r"'2' \(Conv2D\) .* the net takes 16 x 16 and larger"):
        net(nd.ones((1, 1, 8, 8)))


def test_row_71_nin_gives_40_classes():
    def mlpconv(channels, kernel_size, padding, strides=1, max_pooling=True):
        out = nn.Sequential()
        out.add(nn.Conv2D(channels, kernel_size, strides, padding, activation="relu"))
        out.add(nn.Conv2D(channels, 1, activation="relu"), nn.Conv2D(channels, 1, activation="relu"))
        if max_pooling:
            out.add(nn.MaxPool2D(pool_size=3, strides=2))
        return out

    last = stack(mlpconv(10, 3, 1, max_pooling=False), nn.AvgPool2D(pool_size=5), nn.Flatten(), kind=nn.Sequential)
    assert last(nd.ones((1, 384, 10, 10))).shape == (1, 40)  # what 355 x 355 has become by then
    first = stack(mlpconv(1, 11, 0, strides=4), mlpconv(1, 5, 2), mlpconv(384, 3, 1), kind=nn.Sequential)
    assert first(nd.ones((1, 3, 355, 355))).shape == (1, 384, 10, 10)

    with pytest.raises(ValueError, match="40 numbers a sample in place of 10.*takes 195 x 195 to 354 x 354"):
        mxkit.models.nin(input_size=355)


def test_row_72_shapes_block_by_block():
    rows = mxkit.layers(mxkit.models.googlenet(), (1, 3, 96, 96))
    assert rows[""].outputs == ((1, 10),)


def test_row_73_filters_counted_on_the_wrong_axis():
    w, b, data = nd.arange(24).reshape((3, 2, 2, 2)), nd.array([1, 2, 3]), nd.arange(18).reshape((1, 2, 3, 3))
    with pytest.raises(mx.MXNetError, match=r"Provided = \[3,2,2,2\], inferred shape=\(2,2,2,2\)"):
        nd.Convolution(data, w, b, kernel=w.shape[2:], num_filter=w.shape[1])
    assert nd.Convolution(data, w, b, kernel=w.shape[2:], num_filter=w.shape[0]).shape == (1, 3, 2, 2)


def test_row_74_strides_of_pooling():
    x = nd.ones((1, 1, 6, 6))
    assert nd.Pooling(data=x, pool_type="max", kernel=(2, 2)).shape == (1, 1, 5, 5)
    assert mxkit.layers(stack(nn.MaxPool2D(2)), x.shape)["0"].outputs == ((1, 1, 3, 3),)


def test_row_75_batch_norm_by_hand():
    x = nd.arange(6).reshape((1, 1, 3, 2))
    assert not hasattr(nd, "arrange")
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    x_hat = (x - mean) / nd.sqrt(((x - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True) + 1e-5)
    with pytest.raises(ValueError, match="Cannot reshape array of size 2"):
        nd.array([1, 1]).reshape(mean.shape) * x_hat

    norm = stack(nn.BatchNorm())
    with mxkit.mode(train=True):
        np.testing.assert_allclose(norm(x).asnumpy(), x_hat.asnumpy(), rtol=1e-5)
    assert abs(norm(x).mean().asscalar() - 2.5) < 0.01  # in predict mode nothing has been seen yet


# N: parameters and deferred shapes


def get_net():
    net = nn.Sequential()
    with net.name_scope():
        net.add(nn.Dense(4, activation="relu"))
        net.add(nn.Dense(2))
    return net


def test_row_106_a_parameter_before_there_is_any():
    net = get_net()
    with pytest.raises(RuntimeError, match="has not been initialized"):
        net[0].weight.data()
    net.initialize()
    with pytest.raises(gluon.parameter.DeferredInitializationError, match="initialization was deferred"):
        net[0].weight.data()

    assert "0.weight  (4, ?)" in str(mxkit.parameters(net))
    mxkit.initialize(net, sample=(3, 4), force=True)
    assert net[0].weight.data().shape == (4, 4)


def test_row_107_parameters_by_names():
    net = get_net()
    params = net.collect_params()
    with pytest.raises(KeyError, match="sequential18_dense0_weight"):
        params["sequential18_dense0_weight"]
    before = len(list(params))
    params.get("dense9_bias")
    assert len(list(params)) == before + 1  # made by looking
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(params)

    ours = mxkit.parameters(net)
    assert ours["0.weight"] is net[0].weight
    assert len(ours) == 4
    with pytest.raises(KeyError, match="no parameter stands at '0.wieght': did you mean '0.weight'"):
        ours["0.wieght"]
    with pytest.raises(KeyError, match="its Gluon name, which another instance .* does not share; use '0.bias'"):
        ours[net[0].bias.name]


def test_row_108_shapes_of_0_before_data():
    net = get_net()
    net.initialize()
    assert net[0].weight.shape == (4, 0)
    assert mxkit.layers(net, (3, 4)).parameters == 4 * 4 + 4 + 2 * 4 + 2
    assert net[0].weight.shape == (4, 0)


def test_row_109_an_input_of_another_width():
    net = get_net()
    mxkit.initialize(net, devices="cpu", sample=(3, 4))
    with pytest.raises(mx.MXNetError, match=r"Provided = \[4,4\], inferred shape=\(4,5\)"):
        net(nd.ones((3, 5)))

    with pytest.raises(ForwardError, match=r"'0' \(Dense\) is built for 4 inputs a sample and got shape \(3, 5\)"):
        mxkit.predict(net, nd.ones((3, 5)))


def test_row_110_initializing_again():
    net = stack(nn.Dense(2, in_units=2))
    before = net[0].weight.data().asnumpy()
    with pytest.warns(UserWarning, match="already initialized, ignoring"):
        net.initialize(init.Normal(0.02))
    np.testing.assert_array_equal(net[0].weight.data().asnumpy(), before)

    with pytest.raises(ValueError, match=r"'0.weight' has a value already, .*force=True .* or .* mxkit.to\(net, \["):
        mxkit.initialize(net, ("normal", {"sigma": 0.02}))
    mxkit.initialize(net, ("normal", {"sigma": 0.02}), force=True)
    assert (net[0].weight.data().asnumpy() != before).all()


def test_row_111_shared_parameters():
    net = nn.Sequential()
    net.add(nn.Dense(4), nn.Dense(4))
    net.add(nn.Dense(4, params=net[-1].params), nn.Dense(2))
    mxkit.initialize(net, devices="cpu", sample=(1, 4))
    assert (len(list(net.collect_params())), len(mxkit.parameters(net))) == (6, 8)
    assert mxkit.parameters(net).shared == {"1.weight": ["2.weight"], "1.bias": ["2.bias"]}
    wrong = nn.Sequential()
    wrong.add(nn.Dense(5))
    wrong.add(nn.Dense(5, params=wrong[0].params))
    with pytest.raises(ForwardError, match=r"'1' \(Dense\) is built for 4 inputs a sample and got shape \(1, 5\)"):
        mxkit.initialize(wrong, devices="cpu", sample=(1, 4))


def test_row_112_an_initializer_of_ones_own():
    class MyInit(init.Initializer):
        def _init_weight(self, _, arr):
            nd.random.uniform(low=5, high=10, out=arr)

    net = get_net()
    mxkit.initialize(net, MyInit(), devices="cpu", sample=(3, 4))
    assert net[0].weight.data().asnumpy().min() >= 5
    assert not net[0].bias.data().asnumpy().any()


# O: training and predicting


def test_row_113_modes():
    net = stack(nn.Dense(64, in_units=4), nn.Dropout(0.5), nn.Dense(10))
    x = nd.array([[1, 2, 3, 4]])

    def random():
        return (net(x) != net(x)).asnumpy().any()

    assert not random()
    with autograd.record():
        assert random()
    with mxkit.mode(train=True):
        assert random()
        assert not autograd.is_recording()
    with mxkit.mode(record=True):
        assert not random()
    draws = mxkit.training.predict_mc_dropout(net, x, 20)
    assert draws.shape == (20, 1, 10)
    assert draws.asnumpy().std(axis=0).min() > 0


def test_row_114_dropout_scales_in_training():
    with mxkit.mode(train=True):
        values = nn.Dropout(0.75)(nd.ones(1000)).asnumpy()
    assert set(values.tolist()) == {0.0, 4.0}


def test_row_115_statistics_do_not_move_by_forward_passes():
    norm, x = nn.BatchNorm(in_channels=1), nd.array([[1], [2], [3]])
    mxkit.initialize(norm, devices="cpu")
    for _ in range(3):
        with autograd.record():
            norm(x)
    assert norm.running_mean.data().asscalar() == 0
    with autograd.train_mode():
        assert norm(nd.array([[5]])).asscalar() == 0  # of a batch of one

    mxkit.training.recalibrate_batch_norm(norm, [x])
    assert norm.running_mean.data().asscalar() == 2
    with pytest.warns(TrapWarning, match="a batch of one sample, of which BatchNorm .* makes zeros"):
        mxkit.training.recalibrate_batch_norm(norm, [x[:1]])


# R: model zoo and fine-tuning


def test_row_126_weights_without_a_network(tmp_path, monkeypatch, capfd):
    without_network(monkeypatch)
    x = nd.ones((1, 3, 32, 32))
    base = vision.mobilenet0_25()
    mxkit.initialize(base, devices="cpu", sample=x)
    mine = tmp_path / "mobilenet0.25-9f83e440.params"  # the name that Gluon looks for
    base.save_parameters(str(mine))
    with pytest.raises(requests.exceptions.ConnectionError):
        vision.mobilenet0_25(pretrained=True, root=str(tmp_path))
    assert "retrying, 1 attempt left" in capfd.readouterr().out

    net = mxkit.models.get_model("zoo:mobilenet0.25", weights=mine)
    np.testing.assert_array_equal(net(x).asnumpy(), base(x).asnumpy())
    with pytest.raises(CheckpointError, match=r"mobilenet0.25-9f83e440.params(?s:.)*weights="):
        mxkit.models.get_model("zoo:mobilenet0.25", weights="pretrained", root=tmp_path)
    with pytest.raises(DownloadError, match=r"MXKIT_OFFLINE(?s:.)*resnet18_v2-a81db45f.params"):
        mxkit.models.get_model("zoo:resnet18_v2", weights="pretrained", root=tmp_path)


def test_row_127_fine_tuning_trains_the_base_too():
    x = nd.random.normal(shape=(2, 3, 32, 32))

    def trained(net):
        stepped(net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}), x)

    pretrained_net = vision.mobilenet0_25()
    mxkit.initialize(pretrained_net, devices="cpu", sample=x)
    before = pretrained_net.features[0].weight.data().asnumpy()
    ours = mxkit.finetune(pretrained_net, 2, freeze=None)
    trained(ours)
    np.testing.assert_array_equal(pretrained_net.features[0].weight.data().asnumpy(), before)

    finetune_net = vision.mobilenet0_25(classes=2)
    finetune_net.features = pretrained_net.features
    finetune_net.output.initialize(init.Xavier())
    trained(finetune_net)
    assert (pretrained_net.features[0].weight.data().asnumpy() != before).any()


def test_rows_128_and_129_what_belongs_to_the_weights():
    image = nd.array(np.random.RandomState(0).randint(0, 256, (40, 60, 3)), dtype="uint8")
    theirs = nd.transpose(mx.image.CenterCropAug((224, 224))(image.astype("float32")), (2, 0, 1))
    assert theirs.shape == (3, 224, 224)  # made larger, and out of shape
    assert theirs.max().asscalar() > 200

    augment = mxkit.data.Augment([("resize", {"size": 224}), ("center_crop", {"size": 224}), "to_tensor"])
    ours = mxkit.nets.preprocess("zoo:resnet18_v2")(augment(image.asnumpy(), np.random.default_rng(0))[None])
    assert ours.shape == (1, 3, 224, 224)
    assert np.abs(ours).max() < 3
