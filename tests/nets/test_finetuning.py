"""Fine-tuning: what is copied, frozen and replaced, and preprocessing."""

from collections import OrderedDict

from built_nets import hybrid_net, imported, ready, stack
import mxkit
from mxkit.core.arrays import call, switches
from mxkit.errors import DataError, NotInitializedError, TrapWarning, UnknownNameError
from mxkit.nets.finetuning import copy_net, finetune, preprocess
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np
from oracle import same, values
import pytest

X = np.random.RandomState(0).rand(6, 3, 12, 12).astype("float32")
Y = np.array([0, 1, 2, 0, 1, 2])


def small(classes=4):
    """Features and output, as the zoos' nets have them."""
    features = stack(nn.Conv2D(5, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Flatten())
    return hybrid_net(lambda net, F, x: net.output(net.features(x)), features=features, output=nn.Dense(classes))


def trained(net, devices="cpu", hybridize=False):
    """With other values on each device in BatchNorm's statistics, gradients, cached graphs and a Trainer."""
    mxkit.seed_all(1)
    mxkit.initialize(net, devices=devices)
    if hybridize:
        net.hybridize(static_alloc=True)
    mxkit.fit(net, [(X, Y)] * 4, loss="softmax_ce", trainer=("sgd", {"momentum": 0.9}), epochs=2, progress=False)
    return net


def trained_paths(net):
    return [path for path, parameter in mxkit.parameters(net).items() if parameter.grad_req != "null"]


def train(net):
    trainer = ("sgd", {"learning_rate": 0.1})
    mxkit.fit(net, [(X, Y)], loss="softmax_ce", trainer=trainer, epochs=2, progress=False)


class TestCopies:
    @pytest.mark.parametrize(("devices", "hybridize"), [("cpu", True), ("cpu:2", False)])
    def test_a_copy_computes_and_learns_as_the_net_does_and_shares_nothing(self, devices, hybridize, kind):
        net = kind.net(lambda: trained(small(3), devices, hybridize))
        twin = copy_net(net)
        before = values(net)
        assert all(map(kind.holds, twin.output.weight.list_data()))
        assert same(values(twin), before)
        assert twin._active is hybridize
        ours, theirs = {id(one) for one in mxkit.parameters(net).values()}, mxkit.parameters(twin).values()
        assert not ours & {id(one) for one in theirs}
        assert all(one._trainer is None for one in theirs)
        train(twin)
        learned = values(twin)
        assert not same(learned, before)
        assert same(values(net), before)
        train(net)
        assert same(values(net), learned)

    def test_the_original_keeps_its_graph_and_hooks(self):
        net = trained(small(3), hybridize=True)
        calls = []
        net.register_forward_hook(lambda *_: calls.append(1))
        graph = net._cached_op
        twin = copy_net(net)
        assert net._cached_op is graph
        twin(mx.nd.array(X))
        assert calls == []
        net(mx.nd.array(X))
        assert calls == [1]

    def test_shared_parameters_stay_shared_among_themselves(self):
        net = stack(nn.Dense(3, in_units=3))
        net.add(nn.Dense(3, in_units=3, params=net[0].params))
        mxkit.initialize(net, devices="cpu")
        twin = copy_net(net)
        assert twin[0].weight is twin[1].weight
        assert twin[0].weight is not net[0].weight
        twin.hybridize()
        x = mx.nd.ones((2, 3))
        np.testing.assert_array_equal(twin(x).asnumpy(), net(x).asnumpy())

    @pytest.mark.parametrize("switch", [False, True])
    def test_arrays_of_mx_np_that_a_block_keeps(self, switch):
        net = nn.Dense(3, in_units=3)
        with switches(True):
            net.initialize()
            net.table, net.gain = mx.np.ones((2,)), mx.np.array(2.0)
        with switches(switch):
            twin = copy_net(net)
            assert type(twin.gain) is type(twin.table) is mx.np.ndarray
            assert (twin.gain.asnumpy(), twin.table.asnumpy().tolist()) == (2, [1, 1])
            assert twin.gain is not net.gain

    def test_a_symbol_block(self, tmp_path):
        net = trained(small(3), hybridize=True)
        net.export(str(tmp_path / "net"))
        loaded = imported(tmp_path / "net")
        expected = loaded(mx.nd.array(X)).asnumpy()
        twin = copy_net(loaded)
        np.testing.assert_array_equal(twin(mx.nd.array(X)).asnumpy(), expected)
        for parameter in twin.collect_params().values():
            parameter.set_data(parameter.data() * 0)
        np.testing.assert_array_equal(loaded(mx.nd.array(X)).asnumpy(), expected)


class TestFinetune:
    @pytest.mark.parametrize(("devices", "hybridize"), [("cpu", False), ("cpu:2", True)])
    def test_only_the_new_head_is_trained_and_the_base_stays(self, devices, hybridize, kind):
        base = kind.net(lambda: trained(small(4), devices, hybridize))
        x = [kind.of(X)]
        before, outputs = values(base), call(base, x).asnumpy()
        net = finetune(base, 3)
        assert trained_paths(net) == ["output.weight", "output.bias"]
        assert net.output.weight.shape == (3, 5)
        assert net.output.weight.lr_mult == net.output.bias.lr_mult == 10
        assert call(net, x).shape == (6, 3)
        assert net._active is hybridize
        assert all(map(kind.holds, [net.output.weight.data(mx.cpu(0)), *net.output.weight.list_grad()]))
        start = values(net)
        train(net)
        for (path, device), found in values(net).items():
            assert (found == start[path, device]).all() == (not path.startswith("output"))
            if not path.startswith("output"):  # the first device's, as a Trainer's first step makes them (T98)
                np.testing.assert_array_equal(found, before[path, mx.cpu(0)])
        assert same(values(base), before)
        np.testing.assert_array_equal(call(base, x).asnumpy(), outputs)
        assert trained_paths(base) == [path for path in trained_paths(base) if "running" not in path]
        assert not base.features[1]._kwargs["use_global_stats"]

    def test_frozen_features_are_the_same_in_training_and_prediction(self):
        base = trained(small(4), hybridize=True)
        net = finetune(base, 3)
        x = mx.nd.array(X)
        with autograd.record():
            training = net.features(x)
        np.testing.assert_allclose(training.asnumpy(), net.features(x).asnumpy(), rtol=1e-5, atol=1e-6)
        with autograd.record():
            moving = base.features(x)
        assert np.abs(moving.asnumpy() - base.features(x).asnumpy()).max() > 1e-2

    def test_freezing_by_glob_or_not_at_all(self):
        base = trained(small(4))
        net = finetune(base, 3, freeze="features.0.*", head_multiplier=2)
        assert trained_paths(net) == ["features.1.gamma", "features.1.beta", "output.weight", "output.bias"]
        assert not net.features[1]._kwargs["use_global_stats"]
        assert net.output.weight.lr_mult == 2
        net = finetune(base, 3, freeze=None)
        assert trained_paths(net) == trained_paths(base)
        assert not net.features[1]._kwargs["use_global_stats"]

    def test_unfrozen_features_learn_with_fixed_statistics(self):
        net = finetune(trained(small(4)), 3)
        mxkit.unfreeze(net, "features.*")
        start = values(net)
        train(net)
        moved = {path for (path, _), found in values(net).items() if not (found == start[path, mx.cpu()]).all()}
        assert {"features.0.weight", "features.1.gamma", "output.weight"} <= moved
        assert "features.1.running_mean" not in moved

    def test_without_a_copy_the_base_is_changed(self):
        base = trained(small(4))
        with pytest.warns(TrapWarning, match="a Trainer exists over parameters of the net"):
            net = finetune(base, 3, copy=False)
        assert net is base
        assert base(mx.nd.array(X)).shape == (6, 3)

    @pytest.mark.parametrize(("name", "size"), [("mobilenet0.25", 32), ("squeezenet1.0", 224)])
    def test_nets_of_the_zoo(self, name, size):
        base = ready(mxkit.models.get_model(f"zoo:{name}", classes=10), devices="cpu")
        x = mx.nd.random.uniform(shape=(2, 3, size, size))
        base(x)
        net = finetune(base, 3)
        assert net(x).shape == (2, 3)
        assert base(x).shape == (2, 10)
        assert all(path.startswith("output") for path in trained_paths(net))
        assert mxkit.nets.build(mxkit.nets.describe(net))

    def test_any_net_by_the_path_of_its_head(self):
        base = stack(nn.Flatten(), nn.Dense(7, activation="relu"), nn.Dense(4, use_bias=False))
        trained(base)
        net = finetune(base, 3, head="2")
        assert net(mx.nd.array(X)).shape == (6, 3)
        assert net[2].bias is None
        assert trained_paths(net) == ["2.weight"]
        half = stack(nn.Dense(4, in_units=3))
        half.cast("float16")
        mxkit.initialize(half, devices="cpu")
        assert finetune(half, 3, head="0")[0].weight.data().dtype == np.float16
        with pytest.raises(ValueError, match="no layer of 'output or fc'.*head='2'"):
            finetune(base, 3)

    @pytest.mark.filterwarnings("ignore:Parameter .* is not used by any computation")
    @pytest.mark.parametrize("hybridize", [False, True])
    def test_a_head_that_the_forward_pass_does_not_use_is_none(self, hybridize):
        def net(forward, **children):
            children = {"features": nn.Dense(5), **{name: nn.Dense(4) for name in children}}
            made = ready(hybrid_net(forward, **children), sample=mx.nd.ones((2, 3)))
            for child in made._children.values():  # the unused ones get no shapes from a batch
                child(mx.nd.ones((2, 3 if child is made.features else 5)))
            made.hybridize(hybridize)
            return made

        x = mx.nd.array(np.random.RandomState(0).rand(2, 3))
        base = net(lambda net, F, x: net.fc(net.features(x)), output=0, fc=0)
        assert finetune(base, 7)(x).shape == (2, 7)
        with pytest.raises(ValueError, match="the forward pass uses no layer of 'output'.*head='fc'"):
            finetune(base, 7, head="output")
        base = net(lambda net, F, x: net.last(net.features(x)), output=0, last=0)
        with pytest.raises(ValueError, match="no layer of 'output or fc'.*head='last'"):
            finetune(base, 7)
        assert finetune(base, 7, head="last")(x).shape == (2, 7)
        two = ready(hybrid_net(lambda net, F, x, y: net.output(x + y), output=nn.Dense(4, in_units=3)))
        assert finetune(two, 7)(x, x).shape == (2, 7)  # it cannot be traced with one input

    def test_a_symbol_block_has_no_head(self, tmp_path):
        base = trained(small(4))
        graph = mx.sym.load(str(mxkit.export(base, tmp_path / "net").files["symbol"]))
        for head in (None, "output"):
            with pytest.raises(ValueError, match=r"a SymbolBlock is one graph.*load_exported\(..., outputs="):
                finetune(mxkit.load_exported(tmp_path / "net"), 3, head=head)
        (flat,) = [name for name in graph.get_internals().list_outputs() if "flatten" in name]
        features = mxkit.load_exported(tmp_path / "net", outputs=flat)
        net = stack(features, nn.Dense(4))
        mxkit.initialize(net[1])
        net(mx.nd.array(X))
        net = finetune(net, 3, head="1")
        train(net)
        assert net(mx.nd.array(X)).shape == (6, 3)

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"head": "outptu"}, UnknownNameError, "no block stands at 'outptu': did you mean 'output'"),
            ({"freeze": "feature.*"}, UnknownNameError, "no parameter fits 'feature.*'"),
            ({"head": "features.3"}, TypeError, "'features.3' is a GlobalAvgPool2D, and holds no Dense layer"),
            *(({"classes": classes}, ValueError, "finetune: classes") for classes in (0, 2.5, "3")),
            ({"head_multiplier": -1}, ValueError, "-1"),
        ],
    )
    def test_wrong_arguments_change_nothing(self, arguments, error, text):
        base = trained(small(4))
        before = values(base)
        with pytest.raises(error, match=text):
            finetune(base, **{"classes": 3, "copy": False, **arguments})
        assert same(values(base), before)
        assert base.output.weight.lr_mult == 1

    def test_a_base_without_values(self):
        late = ready(small(), devices="cpu")
        for base in (small(), late):
            with pytest.raises(NotInitializedError, match="'features.0.weight' of the base has no value yet"):
                finetune(base, 3)


SIDE = 64
MARKS = {
    "small_ssd": {"classes": ["cat", "dog", "hen"]},
    "small_yolo3": {"classes": ["cat", "dog", "hen"]},
    "small_centernet": {"classes": ["cat", "dog", "hen"]},
    "small_fcn": {"classes": ["cat", "dog", "hen"], "size": SIDE},
    "small_pose": {"points": 5, "channels": (4, 6, 8, 8, 8)},
}


def marking(name):
    """A net of boxes, masks or points with values, hybridized."""
    net = mxkit.models.get_model(name, **{"channels": (4, 6, 8), **MARKS[name]})
    mxkit.initialize(net, devices="cpu", sample=(1, 3, SIDE, SIDE))
    mxkit.nets.hybridize(net)
    for path, parameter in mxkit.parameters(net).items():
        if path.endswith("bias"):
            parameter.set_data(mx.nd.random.uniform(shape=parameter.shape))
    return net


def of_heads(net):
    """Values of the trained layers, without device."""
    return {path: mxkit.parameters(net)[path].data().asnumpy() for path in trained_paths(net)}


class TestNetsOfGluoncv:
    @pytest.mark.parametrize(("name", "before"), [("small_ssd", 1), ("small_yolo3", 5)])
    def test_classes_in_common_keep_what_gluoncv_lets_them_keep(self, name, before):
        base = marking(name)
        net, oracle = finetune(base, ["hen", "bat"], initializer="zeros"), copy_net(base)
        oracle.reset_class(["hen", "bat"], reuse_weights=["hen"])
        assert list(net.classes) == list(oracle.classes) == ["hen", "bat"]
        for path, found in of_heads(net).items():
            theirs = mxkit.parameters(oracle)[path].data().asnumpy()
            size = before + 2
            ours, theirs = (one.reshape((-1, size, *one.shape[1:])) for one in (found, theirs))
            np.testing.assert_array_equal(ours[:, : before + 1], theirs[:, : before + 1])
            assert not np.isin(ours[:, before + 1], values(base)[path, mx.cpu()]).any()

    def test_a_number_of_classes_keeps_no_class_but_the_boxes(self):
        """T273: gluoncv gives the boxes random weights if no class is in common."""
        base = marking("small_yolo3")
        net = finetune(base, 2, initializer="zeros")
        assert list(net.classes) == ["0", "1"]
        before = values(base)
        for path, found in of_heads(net).items():
            ours, old = found.reshape((3, 7, -1)), before[path, mx.cpu()].reshape((3, 8, -1))
            np.testing.assert_array_equal(ours[:, :5], old[:, :5])
            assert (ours[:, 5:] == 0).all()
        oracle = copy_net(base)
        oracle.reset_class(["a", "b"], reuse_weights=[])
        theirs = oracle.yolo_outputs[0].prediction.weight.data().asnumpy().reshape((3, 7, -1))[:, :5]
        assert (theirs != net.yolo_outputs[0].prediction.weight.data().asnumpy().reshape((3, 7, -1))[:, :5]).any()

    @pytest.mark.parametrize("name", MARKS)
    def test_the_new_layers_are_trained_and_the_rest_stays(self, name):
        base = marking(name)
        x, before = mx.nd.array(np.random.RandomState(1).rand(2, 3, SIDE, SIDE)), values(base)
        outputs = [one.asnumpy() for one in flat(base(x))]
        net = finetune(base, 2 if name == "small_pose" else ["hen", "bat"])
        boxes = np.array([[[4, 4, 30, 40, 1, 0]], [[-1, -1, -1, -1, -1, 0]]], np.float32)
        masks = np.random.RandomState(2).randint(-1, 2, (2, SIDE, SIDE))
        points = np.random.RandomState(3).uniform(1, SIDE, (2, 2, 3)).astype(np.float32)
        label = {"small_fcn": masks, "small_pose": points}.get(name, boxes)
        loss = {"small_fcn": "pixel_ce", "small_pose": "pose"}.get(name, name[len("small_") :])
        start = of_heads(net)
        mxkit.fit(net, [(x, mx.nd.array(label))], loss=loss, trainer="adam", epochs=2, progress=False)
        still = {path for path, found in of_heads(net).items() if (found == start[path]).all()}
        assert still <= {f"class_predictors.3.predictor.{one}" for one in ("weight", "bias")}  # its map has no anchor
        for path, parameter in mxkit.parameters(net).items():
            if path not in start:
                np.testing.assert_array_equal(parameter.data().asnumpy(), before[path, mx.cpu()])
        if loss in ("ssd", "yolo3", "centernet"):
            assert net(x)[0].max().asscalar() <= 1
        else:
            assert {one.shape[1] for one in flat(net(x))} == {2}
        assert all((one.asnumpy() == two).all() for one, two in zip(flat(base(x)), outputs))
        assert same(values(base), before)

    def test_masks_keep_classes_in_common_in_the_auxiliary_layer_too(self):
        base = marking("small_fcn")
        net = finetune(base, ["bat", "hen"], initializer="zeros", freeze="base.*")
        for name in ("head", "auxlayer"):
            found, old = (getattr(one, name).block[4].weight.data().asnumpy() for one in (net, base))
            np.testing.assert_array_equal(found, [np.zeros_like(old[0]), old[2]])
        assert net.classes == ["bat", "hen"]
        assert not any(path.startswith("base") for path in trained_paths(net))

    def test_predictors_keep_their_arguments(self):
        """T273: gluoncv makes kernels of 3 x 3, and heat maps for the channels of the base."""
        from gluoncv.model_zoo.center_net.center_net import CenterNet

        net, x = marking("small_ssd"), mx.nd.ones((1, 3, SIDE, SIDE))
        for number, old in enumerate([one.predictor for one in net.class_predictors]):
            new = ready(nn.Conv2D(old.weight.shape[0], 1, in_channels=old.weight.shape[1]), devices="cpu")
            mxkit.nets.replace(net, f"class_predictors.{number}.predictor", new)
        assert finetune(net, 2).class_predictors[0].predictor.weight.shape[2:] == (1, 1)
        oracle = copy_net(net)
        oracle.reset_class(["a", "b"])
        assert oracle.class_predictors[0].predictor.weight.shape[2:] == (3, 3)
        heads = {name: {"num_output": 2} for name in ("heatmap", "wh", "reg")}
        wide = CenterNet(nn.Conv2D(4, 4, strides=4), OrderedDict(heads), ["a", "b"], head_conv_channel=6)
        mxkit.initialize(wide, devices="cpu", sample=x)
        assert len(flat(finetune(wide, 3)(x))) == 3
        wide.reset_class(["a", "b", "c"])
        with pytest.raises(mx.MXNetError, match="Shape inconsistent"):
            mx.nd.waitall(wide(x))

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ({"classes": ["hen", "hen"]}, "finetune: classes: expected a number, or different names; received"),
            ({"classes": []}, "finetune: classes: expected a number, or different names"),
            ({"head": "class_predictors"}, "head: the last layers of a SSD are known"),
            ({"freeze": "base.*"}, "no parameter fits 'base"),
        ],
    )
    def test_wrong_arguments(self, arguments, text):
        base = marking("small_ssd")
        before = values(base)
        with pytest.raises(ValueError, match=text):
            finetune(base, **{"classes": 2, "copy": False, **arguments})
        assert same(values(base), before)
        other = hybrid_net(lambda net, F, x: net.output(x), output=nn.Dense(3, in_units=2))
        type(other).reset_class = None
        with pytest.raises(ValueError, match="is not known. Call net.reset_class"):
            finetune(other, 3)


def flat(outputs):
    return outputs if isinstance(outputs, (list, tuple)) else [outputs]


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_what_is_frozen_gives_the_same_numbers_in_training_and_prediction(read, hybridize, kind, tmp_path):
    """T265."""
    x = (np.random.RandomState(0).rand(8, 3, 6, 6) * 9).astype("float32")

    def made():
        first = nn.BatchNorm(scale=False, center=False)  # it has nothing to train
        body = stack(first, nn.Conv2D(5, 3), nn.BatchNorm(), nn.ELU(), nn.Conv2D(4, 3), nn.BatchNorm(), nn.Flatten())
        mxkit.initialize(body, "xavier", sample=kind.of(mx.nd.array(x)))
        return body

    def started():
        return ready(nn.Dense(2, in_units=16))

    body = kind.net(made)
    if read:
        mxkit.export(body, tmp_path / "net")
        body = mxkit.load_exported(tmp_path / "net")
    features = mxkit.predict(body, x).asnumpy()
    assert mxkit.freeze(body)
    losses = []
    for base, batch in ((body, x), (None, features)):  # the head alone on the features is the oracle
        mxkit.seed_all(0)
        head = kind.net(started)
        net = head if base is None else stack(base, head)
        net.hybridize(hybridize)
        data = [(kind.of(mx.nd.array(batch)), kind.of(mx.nd.array(np.arange(8) % 2)))]
        trainer = ("sgd", {"learning_rate": 0.01})
        fitted = mxkit.fit(net, data, loss="softmax_ce", trainer=trainer, epochs=5, progress=False)
        losses.append([fitted[-1]["train_loss"], mxkit.evaluate(net, data, loss="softmax_ce")["loss"]])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


class TestPreprocess:
    def test_bytes_and_floats_give_the_same_in_every_kind_of_array(self, kind):
        images = np.random.RandomState(0).randint(0, 256, (2, 3, 4, 5)).astype("uint8")
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        expected = (images / 255 - mean.reshape(3, 1, 1)) / std.reshape(3, 1, 1)
        for name in ("imagenet", "zoo:resnet18_v2"):
            for given in (images, images / 255, (images / 255).astype("float32")):
                found = preprocess(name)(given)
                assert found.dtype == np.float32
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
                array = kind.of(mx.nd.array(given, dtype=given.dtype, ctx=mx.cpu(1)))
                found = preprocess(name)(array)
                assert kind.holds(found)
                assert found.ctx == mx.cpu(1)
                np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-6)

    def test_sizes(self):
        assert preprocess("zoo:inceptionv3").size == 299
        assert preprocess("zoo:vgg11").size == 224
        assert preprocess("cifar10").size == preprocess("gluoncv:cifar_resnet20_v1").size == 32

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (np.full((1, 3, 2, 2), 200.0), "received 200 to 200: divide by 255, or pass uint8"),
            (mx.nd.ones((1, 3, 2, 2)) * 255, "received 255 to 255: divide by 255"),
            (np.full((1, 3, 2, 2), -0.5), "received -0.5 to -0.5"),
            (np.full((1, 3, 2, 2), np.nan), "received nan to nan"),
            (np.zeros((1, 3, 2, 2), "int32"), "expected uint8, or floats from 0 to 1; received int32"),
            (np.zeros((1, 2, 2, 3), "uint8"), r"\(N, 3, H, W\); received \(1, 2, 2, 3\)"),
            (np.zeros((3, 2, 2), "uint8"), r"received \(3, 2, 2\)"),
        ],
    )
    def test_wrong_batches(self, x, message):
        with pytest.raises(DataError, match=message):
            preprocess("imagenet")(x)
        with pytest.raises(UnknownNameError, match="unknown preprocessing 'imagnet': did you mean 'imagenet'"):
            preprocess("imagnet")


def test_a_net_whose_layers_ran_inside_another_one_is_copied():
    """T54."""
    nets = [small(5), small(5)]
    x = mx.nd.array(X)
    for net in nets:
        mxkit.initialize(net, sample=x)
        net.hybridize()
        net(x)
    base, other = nets
    other.features = base.features
    other(x)
    tuned = mxkit.finetune(base, 7)
    assert tuned(x).shape == (6, 7)
    assert (tuned.features(x) == base.features(x)).asnumpy().all()
    assert base(x).shape == (6, 5)
