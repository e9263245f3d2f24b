"""Recalibration of BatchNorm against NumPy, Monte-Carlo dropout, and recording apart from training."""

import as_on_a_gpu
from built_nets import hybrid_net, ready
import mxkit
from mxkit.core.statistics import running_statistics
from mxkit.errors import DataError, EmptyDataError, ForwardError, TrapWarning
from mxkit.gradients import mode
from mxkit.training.evaluation import predict_mc_dropout
from mxkit.training.passes import recalibrate_batch_norm
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
from oracle import array
import pytest

RANDOM = np.random.RandomState(0)
X = (RANDOM.randn(23, 3, 4, 5) * [[[[2.0]], [[0.1]], [[30.0]]]] + [[[[5.0]], [[-70.0]], [[0.0]]]]).astype("float32")


def cut(x, *sizes):
    ends = np.cumsum(sizes)
    return [x[end - size : end] for size, end in zip(sizes, ends)]


def statistics(layer):
    return [
        (layer.running_mean.data(device).asnumpy(), layer.running_var.data(device).asnumpy())
        for device in layer.running_mean.list_ctx()
    ]


def make(devices="cpu", hybridize=False, dropout=0.0):
    layers = nn.Conv2D(4, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dropout(dropout), nn.Flatten()
    net = ready(*layers, nn.Dense(6), nn.BatchNorm(momentum=0.99), nn.Dense(2), devices=devices)
    net.hybridize(hybridize)
    return net


class TestRecalibration:
    @pytest.mark.parametrize("devices", ["cpu", "cpu:2", "cpu:3"])
    @pytest.mark.parametrize("hybridize", [False, True])
    @pytest.mark.parametrize("sizes", [(23,), (8, 8, 7), (2, 19, 2)])
    def test_one_layer_gets_numpys_mean_and_variance(self, devices, hybridize, sizes):
        net = ready(nn.BatchNorm(), devices=devices)
        net.hybridize(hybridize)
        data = [(part, np.zeros(len(part))) for part in cut(X, *sizes)]
        assert recalibrate_batch_norm(net, data) == [""]  # without T18's warning: images have height and width
        for mean, variance in statistics(net):
            np.testing.assert_allclose(mean, X.mean((0, 2, 3), "float64"), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(variance, X.var((0, 2, 3), "float64"), rtol=1e-5)

    @pytest.mark.usefixtures("switched")
    @pytest.mark.parametrize("hybridize", [False, True])
    def test_inner_layers_get_those_of_their_inputs(self, hybridize):
        net = make(hybridize=hybridize)
        assert recalibrate_batch_norm(net, [X]) == ["1", "6"]
        with autograd.train_mode():
            first = net[0](array(X))
            second = net[5](net[4](net[2](net[1](first))))
        for layer, seen, axes in ((net[1], first, (0, 2, 3)), (net[6], second, (0,))):
            mean, variance = statistics(layer)[0]
            np.testing.assert_allclose(mean, seen.asnumpy().mean(axes, "float64"), rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(variance, seen.asnumpy().var(axes, "float64"), rtol=1e-4)

    @pytest.mark.parametrize("axis", [-1, 1])
    def test_another_axis_and_layers_called_twice(self, axis):
        net = ready(hybrid_net(lambda net, F, a, b: net.norm(a) + net.norm(b), norm=nn.BatchNorm(axis=axis)))
        other = X[:, :, ::-1] * 2
        recalibrate_batch_norm(net, [((X, other), np.zeros(23))])
        axes = tuple({0, 1, 2, 3} - {axis % 4})
        both = np.concatenate([X, other])
        np.testing.assert_allclose(statistics(net.norm)[0][0], both.mean(axes, "float64"), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(statistics(net.norm)[0][1], both.var(axes, "float64"), rtol=1e-5)

    @pytest.mark.parametrize("hybridize", [False, True])
    def test_everything_else_stays(self, hybridize):
        net = make(hybridize=hybridize, devices="cpu:2")
        mxkit.fit(net, [(X, np.arange(23) % 2)], loss="softmax_ce", trainer="sgd", epochs=1, progress=False)
        graph = net._cached_op
        calls = []
        net[7].register_forward_hook(lambda *_: calls.append(1))
        before = {p: one.data(mx.cpu(1)).asnumpy() for p, one in mxkit.parameters(net).items()}
        loader = mxkit.data.ArrayLoader(X, None, 8, shuffle=True, seed=0)
        recalibrate_batch_norm(net, loader)
        assert loader.epoch == 0
        assert net._active is hybridize
        assert net._cached_op is graph
        assert not net[1]._forward_pre_hooks
        assert net[1]._kwargs["momentum"] == 0.9
        assert not autograd.is_training()
        for path, old in before.items():
            now = mxkit.parameters(net)[path].data(mx.cpu(1)).asnumpy()
            assert (now == old).all() == ("running" not in path), path
        first, second = statistics(net[1])
        np.testing.assert_array_equal(first, second)

    def test_a_trainers_first_step_does_not_undo_it(self):
        net = make(devices="cpu:2")
        net(mx.nd.array(X))
        recalibrate_batch_norm(net, [X[:11], X[11:]])
        before = statistics(net[1])
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0})
        trainer._init_kvstore()
        trainer._init_params()  # the first step: other devices get the first one's values (T98)
        np.testing.assert_array_equal(statistics(net[1]), before)

    def test_float16_images_do_not_overflow(self):
        net = ready(nn.BatchNorm())
        recalibrate_batch_norm(net, [mx.nd.array(X * 100, dtype="float16")])
        half = (X * 100).astype("float16").astype("float64")
        np.testing.assert_allclose(statistics(net)[0][0], half.mean((0, 2, 3)), rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(statistics(net)[0][1], half.var((0, 2, 3)), rtol=1e-4)

    def test_frozen_statistics_are_kept(self):
        net = make()
        net[1]._kwargs["use_global_stats"] = True
        assert recalibrate_batch_norm(net, [X]) == ["6"]
        assert not statistics(net[1])[0][0].any()

    def test_refusals(self):
        with pytest.raises(ValueError, match="recalibrate_batch_norm: the net has no BatchNorm that takes"):
            recalibrate_batch_norm(ready(nn.Dense(2)), [X])
        net = make()
        with pytest.raises(EmptyDataError):
            recalibrate_batch_norm(net, [])
        net(mx.nd.array(X))
        with pytest.raises(ForwardError, match="'0'"):
            recalibrate_batch_norm(net, [X, X[:, :2]])
        assert not statistics(net[1])[0][0].any()
        assert not net[1]._forward_pre_hooks
        with pytest.warns(TrapWarning, match="a batch of one sample, of which BatchNorm .* makes zeros"):
            recalibrate_batch_norm(ready(nn.BatchNorm(in_channels=2)), [np.ones((1, 2), "float32")])

    @pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
    def test_an_error_leaves_statistics_that_moved_in_the_forward_pass(self, devices):
        """T126."""
        net = ready(as_on_a_gpu.BatchNorm(in_channels=3), nn.Dense(2), devices=devices, sample=mx.nd.array(X[:4]))
        with pytest.raises(ForwardError, match="'1'"):
            recalibrate_batch_norm(net, [X[:8], X[:8, :, 1:]])
        for mean, variance in statistics(net[0]):
            assert not mean.any()
            assert (variance == 1).all()

    @pytest.mark.filterwarnings("ignore:.*Cannot decide type")
    @pytest.mark.parametrize("function", [recalibrate_batch_norm, predict_mc_dropout])
    def test_batch_norm_in_a_graph_is_out_of_reach(self, function):
        net = make(dropout=0.5)
        net(mx.nd.array(X))
        symbols = gluon.SymbolBlock(net(mx.sym.var("data")), mx.sym.var("data"), params=net.collect_params())
        with pytest.raises(ValueError, match="is a SymbolBlock with BatchNorm in its graph"):
            function(symbols, X)


def test_a_net_without_batch_norm_has_nothing_to_recalibrate():
    with pytest.raises(ValueError, match="has no BatchNorm"):
        recalibrate_batch_norm(ready(mx.gluon.nn.Dense(2), sample=X), [X])


class TestMonteCarloDropout:
    @pytest.mark.parametrize("hybridize", [False, True])
    @pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
    def test_dropout_is_on_and_batch_norm_predicts(self, hybridize, devices):
        net = make(devices, hybridize, dropout=0.5)
        recalibrate_batch_norm(net, [X])
        expected = mxkit.predict(net, X).asnumpy()
        graph = net._cached_op
        draws = predict_mc_dropout(net, X, draws=30)
        assert draws.shape == (30, 23, 2)
        assert (draws.asnumpy().std(0) > 0).mean() > 0.9
        assert net._cached_op is graph
        np.testing.assert_array_equal(mxkit.predict(net, X).asnumpy(), expected)
        for layer in net:
            layer._rate = 0.0 if isinstance(layer, nn.Dropout) else None
        net.hybridize(hybridize)
        with running_statistics(net), autograd.train_mode():
            calm = net(mx.nd.array(X)).asnumpy()
        np.testing.assert_allclose(calm, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("hybridize", [False, True])
    def test_samples_do_not_depend_on_their_batch(self, hybridize):
        net = make(hybridize=hybridize, dropout=1e-9)
        recalibrate_batch_norm(net, [X])
        few = mx.nd.array(X[:5])
        with autograd.train_mode():  # a graph of training is cached, and dropout of nearly nothing changes nothing
            moved = net(few).asnumpy()
        expected = mxkit.predict(net, few).asnumpy()
        assert np.abs(moved - expected).max() > 0.01
        draws = predict_mc_dropout(net, few, draws=2).asnumpy()
        np.testing.assert_allclose(draws, [expected, expected], rtol=1e-4, atol=1e-5)

    @pytest.mark.usefixtures("switched")
    def test_seeded_draws_and_batches(self):
        net = make(dropout=0.5)
        net(array(X))
        found = []
        for data in (X, [X], [(X, np.zeros(23))]):
            mxkit.seed_all(3)
            found.append(predict_mc_dropout(net, data, draws=3).asnumpy())
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])
        assert predict_mc_dropout(net, cut(X, 8, 15), draws=2).shape == (2, 23, 2)

    def test_dropout_of_recurrent_layers_does_nothing_on_the_cpu(self, monkeypatch):
        monkeypatch.delenv("MXNET_USE_MKLDNN_RNN", raising=False)
        net = ready(gluon.rnn.LSTM(4, 2, layout="NTC", dropout=0.5, input_size=3))
        with pytest.raises(ValueError, match="needs MXNET_USE_MKLDNN_RNN=0"):
            predict_mc_dropout(net, mx.nd.ones((2, 5, 3)))

    def test_refusals(self):
        net = make()
        with pytest.raises(ValueError, match="has no dropout, so all draws would be equal"):
            predict_mc_dropout(net, X)
        net = make(dropout=0.5)
        with pytest.raises(ValueError, match="predict_mc_dropout: draws"):
            predict_mc_dropout(net, X, draws=0)
        with pytest.raises(DataError, match="the loader shuffles"):
            predict_mc_dropout(net, mxkit.data.ArrayLoader(X, None, 8, shuffle=True))
        net(mx.nd.array(X))
        with pytest.raises(ForwardError, match="'0'"):
            predict_mc_dropout(net, X[:, :2])
        assert not net[1]._kwargs["use_global_stats"]


class TestMode:
    def test_recording_and_training_apart(self):
        for record in (False, True):
            for train in (False, True):
                with mode(record=record, train=train):
                    assert (autograd.is_recording(), autograd.is_training()) == (record, train)
                    with mode(train=not train):
                        assert (autograd.is_recording(), autograd.is_training()) == (record, not train)
                    assert (autograd.is_recording(), autograd.is_training()) == (record, train)
        assert (autograd.is_recording(), autograd.is_training()) == (False, False)

    def test_errors_put_it_back(self):
        with pytest.raises(KeyError), mode(record=True, train=True):
            raise KeyError
        assert not autograd.is_recording()
        assert not autograd.is_training()
