"""Rows of SEEDS.md on devices, loops, metrics, accumulation and hyper-parameters; see test_seed_rows.py."""

import mxkit
from mxkit.errors import (
    DeviceError,
    ForwardError,
    LossShapeError,
    NotInitializedError,
    TrapWarning,
    UnknownNameError,
    UnusedParameterError,
)
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
import numpy as np
import pytest
from seed_code import ONE_BATCH, X, backward_of, stack, stepped, train

# H: devices


def test_row_55_a_gpu_that_is_not_there():
    if mx.context.num_gpus():
        pytest.skip("there is one")
    for wrong in (lambda: nd.zeros(3, ctx=mx.gpu()), lambda: nn.Dense(1, in_units=1).initialize(ctx=mx.gpu())):
        with pytest.raises(mx.MXNetError, match=r"not implemented for GPU|GPU is not enabled|GPU usage requires"):
            wrong()

    assert mxkit.devices("auto") == [mx.cpu(0)]
    with pytest.raises(DeviceError, match=r"gpu\(0\) does not exist: .*'auto'"):
        mxkit.devices("gpu")


def test_rows_58_and_59_moving_a_net():
    net, new = stack(nn.Dense(1, in_units=2)), nn.Dense(1, in_units=2)
    with pytest.warns(UserWarning, match="already initialized, ignoring"):
        net.initialize(ctx=mx.cpu(1))
    assert net[0].weight.list_ctx() == [mx.cpu(0)]
    with pytest.raises(ValueError, match="because it has not been initialized"):
        new.collect_params().reset_ctx(mx.cpu(1))

    for one in (net, new):
        assert mxkit.to(one, mx.cpu(1)).collect_params().list_ctx() == [mx.cpu(1)]


# J and K: loops and metrics


def test_row_78_a_short_last_batch():
    batches = [(np.ones((size, 2), "float32"), np.zeros(size)) for size in (64, 3)]
    moved = []
    for form in ("nominal", "true", "mxkit"):
        mxkit.seed_all(1)
        net = stack(nn.Dense(3, in_units=2))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        before = net[0].weight.data().asnumpy()
        if form == "mxkit":
            train(net, batches[1:], trainer=trainer)
        else:
            with autograd.record():
                losses = gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.array(batches[1][0])), nd.zeros(3))
            losses.backward()
            trainer.step(64 if form == "nominal" else 3)
        moved.append((net[0].weight.data().asnumpy() - before)[0, 0])
    assert moved[0] / moved[1] == pytest.approx(3 / 64, rel=1e-3)
    assert moved[2] == moved[1]


def test_row_79_a_mean_of_batch_means():
    scores = nd.array([[1, 0]] * 5)
    batches = [(scores[:4], nd.zeros(4)), (scores[4:], nd.ones(1))]
    theirs = np.mean([nd.mean(x.argmax(axis=1) == y).asscalar() for x, y in batches])
    assert theirs == 0.5

    assert mxkit.evaluate(nn.HybridLambda("identity"), batches, metrics=["accuracy"])["accuracy"] == 0.8


def test_row_84_evaluating_inside_record():
    net, x = stack(nn.Dropout(0.5)), nd.ones((1000, 1))
    with autograd.record():
        assert 0.4 < (net(x) == 0).mean().asscalar() < 0.6
        assert (mxkit.predict(net, x) == 1).asnumpy().all()


def test_rows_86_and_87_shapes_and_softmax_twice():
    assert (nd.ones((10, 1)) - nd.ones(10)).shape == (10, 10)
    twice = gluon.loss.SoftmaxCrossEntropyLoss()(nd.softmax(nd.array([[10, 0]])), nd.zeros(1)).asscalar()
    assert twice == pytest.approx(0.313, abs=1e-3)

    column = np.ones((4, 1), "float32")
    with pytest.raises(LossShapeError, match=r"expected shape \(4,\) .*received \(4, 4\)"):
        train(stack(nn.Dense(1)), [(column, np.ones(4))], loss=lambda o, y: nd.broadcast_sub(o, y.reshape((1, -1))))
    with pytest.warns(TrapWarning, match="applies a softmax to them again"):
        train(stack(nn.Dense(3), nn.HybridLambda("softmax")))


def test_rows_88_and_89_labels_of_whole_numbers():
    with pytest.raises(mx.MXNetError, match="expected float32, got int32"):
        nd.ones((4, 3)).argmax(axis=1) == nd.zeros(4, dtype="int32")  # noqa: B015
    assert np.isnan(mx.metric.Accuracy().get()[1])

    for dtype in ("int32", "int64", "uint8", "float32"):
        data = [(np.eye(4, dtype="float32"), np.array([0, 1, 2, 0], dtype))]
        assert mxkit.evaluate(nn.HybridLambda("identity"), data, metrics=["accuracy"])["accuracy"] == 0.75


# L: accumulation


def test_row_91_accumulating_by_a_condition():
    x, y = mxkit.data.digits().train
    batches = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 44, 4)]

    def trained(form):
        mxkit.seed_all(1)
        net = stack(nn.Flatten(), nn.Dense(10, in_units=64))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        if form == "joined":
            pairs = [batches[i : i + 2] for i in range(0, 11, 2)]
            train(net, [tuple(map(np.concatenate, zip(*pair))) for pair in pairs], trainer=trainer)
        elif form == "mxkit":
            train(net, batches, trainer=trainer, accumulate=2)
        else:
            net.collect_params().setattr("grad_req", "add")
            for i, (data, label) in enumerate(batches):
                with autograd.record():
                    loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.array(data)), nd.array(label))
                loss.backward()
                if (i % 2) == 0 and i != 0:
                    trainer.step(4 * 2)
                    net.collect_params().zero_grad()
        return net[1].weight.data().asnumpy()

    truth = trained("joined")
    assert np.abs(trained("theirs") - truth).max() > 5e-3
    np.testing.assert_allclose(trained("mxkit"), truth, atol=1e-6)


def test_row_92_batch_norm_sees_micro_batches():
    with pytest.warns(TrapWarning, match="BatchNorm takes its statistics from each micro-batch alone: 1"):
        train(stack(nn.Dense(3), nn.BatchNorm()), ONE_BATCH * 2, accumulate=2)


def test_row_95_a_step_without_a_gradient():
    net = stack(nn.Dense(3, in_units=2))
    with pytest.raises(UserWarning, match="has not been updated by backward since last `step`"):
        gluon.Trainer(net.collect_params(), "sgd").step(1)

    class Unused(nn.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.used, self.other = nn.Dense(3, in_units=2), nn.Dense(3, in_units=2)

        def hybrid_forward(self, F, x):
            return self.used(x)

    net = Unused()
    mxkit.initialize(net, devices="cpu")
    with pytest.raises(UnusedParameterError, match="other.weight"):
        train(net)


# M: learning rates and hyper-parameters


def test_row_97_a_multiplier_of_one_layer():
    theirs, ours = (stack(nn.Dense(1, in_units=2, use_bias=False)) for _ in range(2))
    theirs[0].weight.lr_mult = 2.0
    mxkit.nets.set_multipliers(ours, {"0.*": {"lr": 2}})
    for net in (theirs, ours):
        before = net[0].weight.data().asnumpy()
        stepped(net, gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}))
        np.testing.assert_allclose(before - net[0].weight.data().asnumpy(), 0.2 * X.asnumpy(), rtol=1e-5)


def test_row_98_names_that_an_optimizer_does_not_know():
    net = stack(nn.Dense(3, in_units=2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'weight_decay'"):
        gluon.Trainer(net.collect_params(), "sgd", {"weight_decay": 0.1})
    with pytest.raises(ValueError, match="Cannot find optimizer sdg"):
        gluon.Trainer(net.collect_params(), "sdg")

    with pytest.raises(TypeError, match=r"optimizer 'sgd' refuses its arguments \{'weight_decay': 0.1\}"):
        train(net, trainer=("sgd", {"weight_decay": 0.1}))
    with pytest.raises(UnknownNameError, match="unknown optimizer 'sdg': did you mean 'sgd'"):
        train(net, trainer="sdg")


def test_row_99_there_is_no_set_wd():
    net = stack(nn.Dense(1, in_units=2))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    assert not hasattr(trainer, "set_wd")
    stepped(net, trainer)
    trainer.optimizer.momentum = 0.9
    with pytest.raises(AssertionError, match="but got None"):
        stepped(net, trainer)

    mxkit.nets.set_hyperparameters(trainer, wd=1e-4, learning_rate=0.01, momentum=0.9)
    stepped(net, trainer)
    assert (trainer.optimizer.wd, trainer.learning_rate, trainer.optimizer.momentum) == (1e-4, 0.01, 0.9)


def test_row_100_weight_decay_on_biases():
    ends = []
    for ours in (False, True):
        net = stack(nn.Dense(1, in_units=2), nn.BatchNorm(in_channels=1))
        net[0].bias.set_data(nd.ones(1))
        if ours:
            mxkit.nets.no_weight_decay(net)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "wd": 0.5})
        backward_of(lambda net=net: net(X) * 0)
        trainer.step(1)
        ends.append([net[0].bias.data().asscalar(), net[1].gamma.data().asscalar()])
    np.testing.assert_allclose(ends, [[0.95, 0.95], [1, 1]], rtol=1e-6)


def test_row_101_a_decay_that_compounds():
    trainer = gluon.Trainer(stack(nn.Dense(1)).collect_params(), "sgd", {"learning_rate": 0.2})
    rates = []
    for epoch in range(6):
        if epoch > 2:
            trainer.set_learning_rate(trainer.learning_rate * 0.1)
        rates.append(trainer.learning_rate)
    np.testing.assert_allclose(rates, [0.2, 0.2, 0.2, 0.02, 0.002, 0.0002])

    once = mxkit.training.schedule("multi_step", base=0.2, at=["2 epochs"])
    np.testing.assert_allclose(once.rates(6, updates_per_epoch=1), [0.2, 0.2, 0.02, 0.02, 0.02, 0.02])


def test_row_102_a_scheduler_counts_updates():
    net = stack(nn.Dense(3, in_units=2))
    arguments = {"lr_scheduler": mx.lr_scheduler.FactorScheduler(step=2, factor=0.1, base_lr=0.5)}
    theirs = gluon.Trainer(net.collect_params(), "sgd", arguments)
    for _ in range(4):  # batches of the first epoch
        stepped(net, theirs)
    assert theirs.learning_rate == pytest.approx(0.05)
    with pytest.raises(UserWarning, match="LRScheduler of the optimizer has already been defined"):
        theirs.set_learning_rate(0.2)

    falling = mxkit.callbacks.LearningRate(("step", {"base": 0.5, "every": "2 epochs"}))
    history = mxkit.fit(
        net, ONE_BATCH * 4, loss="softmax_ce", trainer="sgd", epochs=4, callbacks=[falling], progress=False
    )
    np.testing.assert_allclose(history.column("learning_rate"), [0.5, 0.05, 0.05, 0.005])  # of the next update


def test_row_103_optimizers_that_do_not_do_as_told():
    net = stack(nn.Dense(1, in_units=2, use_bias=False))
    before = net[0].weight.data().asnumpy()
    stepped(net, gluon.Trainer(net.collect_params(), "rmsprop", {"learning_rate": 0.03, "gamma1": 0.999}))
    np.testing.assert_allclose(before - net[0].weight.data().asnumpy(), 0.95, atol=0.01)  # 32 times the rate
    theirs = gluon.Trainer(net.collect_params(), "adadelta", {"learning_rate": 0.0})
    before = net[0].weight.data().asnumpy()
    stepped(net, theirs)
    assert (net[0].weight.data().asnumpy() != before).all()

    with pytest.raises(ValueError, match="AdaDelta ignores the learning rate"):
        mxkit.nets.set_hyperparameters(theirs, learning_rate=0.1)


def test_row_104_the_default_start_is_small_and_uniform():
    theirs, ours = (stack(nn.Dense(64, in_units=64, bias_initializer="ones")) for _ in range(2))
    theirs.initialize(force_reinit=True)
    assert 0.06 < np.abs(theirs[0].weight.data().asnumpy()).max() <= 0.07
    assert np.abs(ours[0].weight.data().asnumpy()).max() > 0.2  # Xavier
    assert theirs[0].bias.data().asnumpy().all()


def test_row_105_the_order_of_initialize_and_trainer():
    def late():
        net = stack(nn.Dense(3, in_units=2))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        new = stack(nn.Dense(3, in_units=3))
        net.add(new)
        return net, trainer, new[0].weight

    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    with pytest.raises(RuntimeError, match="has not been initialized"):
        net(X)
    with pytest.raises(TypeError, match="'NoneType' object is not iterable"):
        gluon.Trainer(nn.Sequential().params, "sgd")
    theirs, trainer, added = late()
    before = added.data().asnumpy()
    stepped(theirs, trainer)
    np.testing.assert_array_equal(added.data().asnumpy(), before)  # T19

    with pytest.raises(NotInitializedError, match=r"parameter '0.weight' has no value. Call mxkit.initialize\(net"):
        train(net)
    theirs, trainer, _ = late()
    with pytest.raises(
        ValueError, match=r"1\.0\.weight, 1\.0\.bias\. They were added to the net after the Trainer was made"
    ):
        train(theirs, trainer=trainer)
    train(theirs)  # it makes its own Trainer, last


# S: several devices, graphs, late errors


def test_row_130_batches_that_do_not_divide():
    net, two = stack(nn.Dense(3, in_units=2), devices="cpu:2"), mxkit.devices("cpu:2")
    with pytest.raises(ValueError, match="cannot be evenly split into 2 slices"):
        gluon.utils.split_and_load(nd.ones((5, 2)), two)
    with pytest.raises(mx.MXNetError, match="inferring shapes failed"):
        [net(part) for part in gluon.utils.split_and_load(nd.ones((1, 2)), two, even_split=False)]

    batches = [(np.ones((size, 2), "float32"), np.zeros(size)) for size in (5, 1)]
    assert [update.samples for update in train(net, batches)] == [5, 1]


def test_row_134_what_a_trace_freezes():
    class Branching(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return x if x.sum() > 0 else -x

    theirs = Branching()
    theirs.hybridize()
    with pytest.raises(mx.base.NotImplementedForSymbol, match="__bool__"):
        theirs(X)

    found = mxkit.nets.try_hybridize(theirs, X)
    assert not found
    assert found.place.endswith("return x if x.sum() > 0 else -x")
    np.testing.assert_array_equal(theirs(X).asnumpy(), X.asnumpy())


def test_row_136_a_child_replaced_after_hybridize():
    net, new = stack(nn.Dense(2, in_units=2), nn.Dense(2, in_units=2)), nn.Dense(7, in_units=2)
    mxkit.initialize(new, devices="cpu")
    net.hybridize()
    net(X)
    old = net[1]
    net._children["1"] = new
    assert net(X).shape == (1, 2)
    net._children["1"] = old

    mxkit.nets.replace(net, "1", new)
    assert net(X).shape == (1, 7)


def test_row_137_errors_come_late():
    late = nd.random.normal(scale=-1, shape=(2,))
    with pytest.raises(mx.MXNetError, match="scale parameter in gaussian has to be positive"):
        late.asnumpy()

    net = stack(nn.Dense(2, in_units=2), nn.HybridLambda(lambda F, x: x + F.random.normal(scale=-1, shape=(1, 2))))
    with pytest.raises(ForwardError, match=r"'1' \(HybridLambda\)"):
        mxkit.predict(net, X)
