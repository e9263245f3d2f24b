"""A multilayer perceptron with dropout and weight decay (d2l, sections 4.5 and 4.6)."""

import book as d2l
import mxkit
from mxnet import autograd, gluon, init
from mxnet.gluon import nn

batch_size, lr, num_epochs, wd = 32, 0.2, 5, 0.001
dropout1, dropout2 = 0.2, 0.5


def make():
    net = nn.Sequential()
    net.add(
        nn.Dense(64, activation="relu"),
        # Add a dropout layer after the first fully connected layer
        nn.Dropout(dropout1),
        nn.Dense(64, activation="relu"),
        # Add a dropout layer after the second fully connected layer
        nn.Dropout(dropout2),
        nn.Dense(10),
    )
    net.initialize(init.Normal(sigma=0.1))
    # The bias parameter has not decayed. Bias names generally end with "bias"
    net.collect_params(".*bias").setattr("wd_mult", 0)
    return (net, *d2l.load_data_images(batch_size))


def by_hand(net, train_iter, test_iter):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr, "wd": wd})
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
    sgd = ("sgd", {"learning_rate": lr, "wd": wd})
    history = mxkit.fit(
        net, train_iter, valid=test_iter, loss="softmax_ce", trainer=sgd, epochs=num_epochs, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]
