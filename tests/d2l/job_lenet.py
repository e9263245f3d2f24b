"""LeNet (d2l, section 6.6), with relu, which learns from fewer images, and hybridized as in section 12.1."""

import book as d2l
import mxkit
from mxnet import autograd, cpu, gluon, init
from mxnet.gluon import nn

batch_size, lr, num_epochs = 16, 0.2, 4
device = cpu()


def make():
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(channels=6, kernel_size=5, padding=2, activation="relu"),
        nn.AvgPool2D(pool_size=2, strides=2),
        nn.Conv2D(channels=16, kernel_size=5, activation="relu"),
        nn.AvgPool2D(pool_size=2, strides=2),
        # `Dense` will transform an input of the shape (batch size, number of channels, height, width) into an input
        # of the shape (batch size, number of channels * height * width) automatically by default
        nn.Dense(120, activation="relu"),
        nn.Dense(84, activation="relu"),
        nn.Dense(10),
    )
    net.hybridize()
    return (net, *d2l.load_data_images(batch_size))


def by_hand(net, train_iter, test_iter):
    net.initialize(force_reinit=True, ctx=device, init=init.Xavier())
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        metric = d2l.Accumulator(3)
        for X, y in train_iter:
            # Here is the major difference from `d2l.train_epoch_ch3`
            X, y = X.as_in_ctx(device), y.as_in_ctx(device)
            with autograd.record():
                y_hat = net(X)
                l = loss(y_hat, y)
            l.backward()
            trainer.step(X.shape[0])
            metric.add(l.sum(), d2l.accuracy(y_hat, y), X.shape[0])
        test_acc = d2l.evaluate_accuracy(net, test_iter)
        rows.append((metric[0] / metric[2], metric[1] / metric[2], test_acc))
    return rows


def with_mxkit(net, train_iter, test_iter):
    net.initialize(force_reinit=True, ctx=device, init=init.Xavier())  # mxkit.initialize gives the values of mx.nd
    sgd = ("sgd", {"learning_rate": lr})
    history = mxkit.fit(
        net, train_iter, valid=test_iter, loss="softmax_ce", trainer=sgd, epochs=num_epochs, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]
