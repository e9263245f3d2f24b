"""Softmax regression, concise (d2l, section 3.7)."""

import book as d2l
import mxkit
from mxnet import autograd, gluon, init
from mxnet.gluon import nn

batch_size, lr, num_epochs = 32, 0.1, 3


def make():
    net = nn.Sequential()
    net.add(nn.Dense(10))
    net.initialize(init.Normal(sigma=0.01))
    return (net, *d2l.load_data_images(batch_size))


def by_hand(net, train_iter, test_iter):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        # Sum of training loss, sum of training accuracy, no. of examples
        metric = d2l.Accumulator(3)
        for X, y in train_iter:
            with autograd.record():
                y_hat = net(X)
                l = loss(y_hat, y)
            l.backward()
            trainer.step(X.shape[0])
            metric.add(float(l.sum()), d2l.accuracy(y_hat, y), y.size)
        test_acc = d2l.evaluate_accuracy(net, test_iter)
        rows.append((metric[0] / metric[2], metric[1] / metric[2], test_acc))
    return rows


def with_mxkit(net, train_iter, test_iter):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    history = mxkit.fit(
        net, train_iter, valid=test_iter, loss=loss, trainer=trainer, epochs=num_epochs, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]
