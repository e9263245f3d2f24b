"""Three training loops as tutorials write them, each beside its mxkit form: same data, same seed, same bits.

The ids are those of the tutorials that mxkit started from: S0 "the new interface Gluon", S2 the notes on "dive into
deep learning", S4 the notes on accumulation. The plain loops are the tutorials' own, except that nets and data are
arguments, results are returned, `mx.gpu()` is `mx.cpu()`, and S0's learning rate is 0.1: a LeNet dies at its 0.5 (T22).
Their mistakes are kept: data of whole batches hides them, other data shows them.
"""

import inspect

import mxkit
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
import numpy as np
from oracle import SOFTMAX, joined, requests, train_by_hand, weights
import pytest

EPOCHS = 2
SGD = ("sgd", {"learning_rate": 0.1})


# S0#5 and S0#6: LeNet on images (B, H, W, C)


def accuracy(output, label):
    return nd.mean(output.argmax(axis=1) == label).asscalar()


def s0_evaluate_accuracy(net, data_iter):
    acc = 0
    for data, label in data_iter:
        data = data.transpose((0, 3, 1, 2))
        data = data.as_in_context(mx.cpu())
        label = label.as_in_context(mx.cpu())
        output = net(data)
        acc += accuracy(output, label)
    return acc / len(data_iter)


def s0_plain(lenet, train_data, test_data, batch_size, epochs=EPOCHS):
    """Id S0#6: nominal count (T2), means of batch means (T16)."""
    softmax_loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(lenet.collect_params(), "sgd", {"learning_rate": 0.1})
    rows = []
    for _ in range(epochs):
        total_loss = 0
        for data, label in train_data:
            data = data.transpose((0, 3, 1, 2))
            data = data.as_in_context(mx.cpu())
            label = label.as_in_context(mx.cpu())
            with autograd.record():
                output = lenet(data)
                loss = softmax_loss(output, label)
            loss.backward()
            trainer.step(batch_size)
            total_loss += nd.mean(loss).asscalar()
        rows.append((total_loss / len(train_data), s0_evaluate_accuracy(lenet, test_data)))
    return rows


def s0_kit(lenet, train_data, test_data, epochs=EPOCHS):
    def nchw(loader):
        return lambda: ((data.transpose((0, 3, 1, 2)), label) for data, label in loader)

    train, valid, sgd = nchw(train_data), nchw(test_data), ("sgd", {"learning_rate": 0.1})
    history = mxkit.fit(lenet, train, loss="softmax_ce", trainer=sgd, epochs=epochs, valid=valid, metrics=["accuracy"])
    return list(zip(history.column("train_loss"), history.column("valid_accuracy")))


# S2#46: `utils.train` on several devices; the helpers that it leaves undefined are those of the book's own utils.py


def s2_get_batch(batch, ctx):
    data, label = batch
    return gluon.utils.split_and_load(data, ctx), gluon.utils.split_and_load(label, ctx), data.shape[0]


def s2_evaluate_accuracy_on(data_iterator, net, ctx):
    acc, n = nd.array([0]), 0.0
    for batch in data_iterator:
        data, label, _ = s2_get_batch(batch, ctx)
        for X, y in zip(data, label):
            acc += nd.sum(net(X).argmax(axis=1) == y).copyto(mx.cpu())
            n += y.size
        acc.wait_to_read()
    return acc.asscalar() / n


def devices_plain(train_data, test_data, net, loss, trainer, ctx, num_epochs):
    """Id S2#46: right if every batch divides by the devices; it waits twice per batch and device."""
    rows = []
    for _ in range(num_epochs):
        train_loss, train_acc, n, m = 0.0, 0.0, 0.0, 0.0
        for batch in train_data:
            data, label, batch_size = s2_get_batch(batch, ctx)
            losses = []
            with autograd.record():
                outputs = [net(X) for X in data]
                losses = [loss(yhat, y) for yhat, y in zip(outputs, label)]
            for one in losses:
                one.backward()
            train_acc += sum((yhat.argmax(axis=1) == y).sum().asscalar() for yhat, y in zip(outputs, label))
            train_loss += sum(one.sum().asscalar() for one in losses)
            trainer.step(batch_size)
            n += batch_size
            m += sum(y.size for y in label)
        test_acc = s2_evaluate_accuracy_on(test_data, net, ctx)
        rows.append((train_loss / n, train_acc / m, test_acc))
    return rows


def devices_kit(train, test, net, loss, trainer, epochs):
    history = mxkit.fit(net, train, loss=loss, trainer=trainer, epochs=epochs, valid=test, metrics=["accuracy"])
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]


# S4#0: accumulation over 2 batches; the tutorial's fragment in the loop of S2#3


def accumulation_plain(net, train_data, test_data, batch_size, epochs=EPOCHS, is_due=lambda i: i % 2 == 0 and i != 0):
    """Id S4#0: windows that do not fit (T3), frozen parameters thawed (T5), grad_req left at "add"."""
    softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    for p in net.collect_params().values():
        p.grad_req = "add"
    rows = []
    for _ in range(epochs):
        train_loss = 0.0
        train_acc = 0.0
        for i, (data, label) in enumerate(train_data):
            with autograd.record():
                output = net(data)
                loss = softmax_cross_entropy(output, label)
            loss.backward()
            if is_due(i):
                trainer.step(batch_size * 2)
                net.collect_params().zero_grad()
            train_loss += nd.mean(loss).asscalar()
            train_acc += accuracy(output, label)
        test_acc = sum(accuracy(net(data), label) for data, label in test_data) / len(test_data)
        rows.append((train_loss / len(train_data), train_acc / len(train_data), test_acc))
    return rows


def accumulation_kit(net, train, test, epochs=EPOCHS):
    sgd = ("sgd", {"learning_rate": 0.1})
    history = mxkit.fit(
        net, train, loss="softmax_ce", trainer=sgd, epochs=epochs, accumulate=2, valid=test, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]


# data and nets, the same for both forms


def loader(samples, batch_size, part="train", images=False, shuffle=False):
    """Gluon's own DataLoader of digits, (B, H, W, C) for `images`; labels are float32, as the tutorials cast them."""
    x, y = getattr(mxkit.data.digits(), part)
    x, y = x[:samples], y[:samples].astype("float32")
    x = x.repeat(2, axis=2).repeat(2, axis=3).transpose((0, 2, 3, 1)) if images else x
    return gluon.data.DataLoader(gluon.data.ArrayDataset(x, y), batch_size, shuffle=shuffle)


def make(shape, *layers, ctx=None):
    """A `Sequential` as in the tutorials, its shapes known, and the seed from which values and shuffling follow."""
    mxkit.seed_all(7)
    net = nn.Sequential()
    net.add(*layers)
    net.initialize(mx.init.Xavier(), ctx=ctx)
    net(nd.zeros(shape))
    mxkit.seed_all(8)
    return net


def lenet():
    return make(
        (1, 1, 16, 16),
        nn.Conv2D(channels=20, kernel_size=5, activation="relu"),
        nn.MaxPool2D(pool_size=2, strides=2),
        nn.Conv2D(channels=50, kernel_size=5, activation="relu"),
        nn.MaxPool2D(pool_size=2, strides=2),
        nn.Flatten(),
        nn.Dense(128, activation="relu"),
        nn.Dense(10),
    )


def softmax_regression(ctx=None, size=8):
    return make((1, 1, size, size), nn.Flatten(), nn.Dense(10), ctx=ctx)


def error_of(net, expected):
    """Largest error of a weight, as a share of the largest weight."""
    return np.abs(weights(net) - weights(expected)).max() / np.abs(weights(expected)).max()


def assert_same(found, expected, net, target):
    """Rows up to the rounding of their sums, weights to the last bit."""
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(weights(net), weights(target))


# the same bits on whole batches


def test_s0_lenet_on_whole_batches():
    train, test = loader(96, 32, images=True, shuffle=True), loader(32, 32, "test", images=True)
    target, net = lenet(), lenet()
    mxkit.seed_all(8)
    expected = s0_plain(target, train, test, 32)
    mxkit.seed_all(8)
    assert_same(s0_kit(net, train, test), expected, net, target)


@pytest.mark.parametrize("on_kvstore", [None, False], ids=["on_kvstore", "on_devices"])
def test_s2_several_devices_on_batches_that_divide(on_kvstore):
    train, test, ctx = loader(240, 32, shuffle=True), loader(64, 32, "test"), [mx.cpu(0), mx.cpu(1)]
    ends = {}
    for form in ("plain", "kit"):
        net = softmax_regression(ctx)
        trainer = gluon.Trainer(net.collect_params(), *SGD, update_on_kvstore=on_kvstore)
        if form == "plain":
            rows = devices_plain(train, test, net, SOFTMAX, trainer, ctx, EPOCHS)
        else:
            rows = devices_kit(train, test, net, SOFTMAX, trainer, EPOCHS)
        ends[form] = rows, net
    assert_same(ends["kit"][0], ends["plain"][0], ends["kit"][1], ends["plain"][1])


def test_s4_accumulation_with_its_condition_mended_on_whole_windows():
    train, test = loader(256, 64, shuffle=True), loader(128, 64, "test")
    target = softmax_regression()
    expected = accumulation_plain(target, train, test, 64, is_due=lambda i: i % 2 == 1)
    net = softmax_regression()
    assert_same(accumulation_kit(net, train, test), expected, net, target)


# what is wrong in them, beside the right result


def test_t2_s0_steps_by_the_nominal_count():
    """3 batches of 64 and one of 20, which moves the weights a third as far as it should."""
    train, test = loader(212, 64, images=True), loader(64, 64, "test", images=True)
    expected, plain, kit = (softmax_regression(size=16) for _ in range(3))
    train_by_hand(expected, [(x.transpose((0, 3, 1, 2)), y) for x, y in train], SGD, epochs=1)
    s0_plain(plain, train, test, 64, epochs=1)
    s0_kit(kit, train, test, epochs=1)
    np.testing.assert_array_equal(weights(kit), weights(expected))
    assert error_of(plain, expected) > 0.01


def test_s2_several_devices_refuse_a_batch_that_does_not_divide():
    """3 batches of 64 and one of 3 on two devices."""
    train, test, ctx = loader(195, 64), loader(64, 64, "test"), [mx.cpu(0), mx.cpu(1)]
    expected, plain, kit = softmax_regression(), softmax_regression(ctx), softmax_regression(ctx)
    trainer = gluon.Trainer(plain.collect_params(), *SGD)
    with pytest.raises(ValueError, match="cannot be evenly split"):
        devices_plain(train, test, plain, SOFTMAX, trainer, ctx, 1)
    train_by_hand(expected, train, SGD, epochs=EPOCHS)
    devices_kit(train, test, kit, SOFTMAX, SGD, EPOCHS)
    assert error_of(kit, expected) < 1e-6


def test_t3_s4_windows_of_three_with_a_leak_and_a_lost_tail():
    train, test = list(loader(42, 4)), loader(64, 64, "test")  # 11 batches, the last of 2
    expected, plain, kit = softmax_regression(), softmax_regression(), softmax_regression()
    train_by_hand(expected, joined(train, 2), SGD, epochs=EPOCHS)
    accumulation_plain(plain, train, test, 4)
    accumulation_kit(kit, train, test)
    assert error_of(kit, expected) < 1e-6
    assert error_of(plain, expected) > 0.05


def test_t5_s4_thaws_what_was_frozen_and_leaves_grad_req_at_add():
    data, starts, ends = loader(64, 16), [], []
    for form in (accumulation_plain, accumulation_kit):
        net = make((1, 64), nn.Flatten(), nn.Dense(12), nn.Dense(10))
        net[1].collect_params().setattr("grad_req", "null")
        before = requests(net)
        starts.append(net[1].weight.data().asnumpy())
        form(net, data, loader(64, 16, "test"), **({"batch_size": 16} if form is accumulation_plain else {}))
        ends.append(net[1].weight.data().asnumpy())
        assert (requests(net) == before) == (form is accumulation_kit)
    assert np.abs(ends[0] - starts[0]).max() > 0.01
    np.testing.assert_array_equal(ends[1], starts[1])


# Of the plain forms the loops alone count, not the helpers that compute an accuracy or split a batch.
FORMS = {
    "S0#6": (s0_plain, s0_kit),
    "S2#46": (devices_plain, devices_kit),
    "S4#0": (accumulation_plain, accumulation_kit),
}


@pytest.mark.parametrize("seed", FORMS)
def test_the_mxkit_form_has_at_most_a_third_of_the_lines(seed):
    def lines_of(function):
        source = inspect.getsource(function).replace(f'"""{function.__doc__}"""', "")
        return sum(1 for line in source.splitlines() if line.strip())

    plain, kit = FORMS[seed]
    assert 3 * lines_of(kit) <= lines_of(plain)
