"""Linear regression from scratch (d2l, section 3.2)."""

import random

import book as d2l
import mxkit
from mxnet import autograd, init, np
from mxnet.gluon import nn

batch_size, lr, num_epochs = 10, 0.03, 3


def data_iter(batch_size, features, labels):
    num_examples = len(features)
    indices = list(range(num_examples))
    # The examples are read at random, in no particular order
    random.shuffle(indices)
    for i in range(0, num_examples, batch_size):
        batch_indices = np.array(indices[i : min(i + batch_size, num_examples)])
        yield features[batch_indices], labels[batch_indices]


def linreg(X, w, b):
    """The linear regression model."""
    return np.dot(X, w) + b


class LinearRegression(nn.Block):
    """Parameters `w` and `b`, which a Trainer finds here."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.w = self.params.get("w", shape=(2, 1), init=init.Normal(0.01))
        self.b = self.params.get("b", shape=(1,), init=init.Zero())

    def forward(self, X):
        return linreg(X, self.w.data(), self.b.data())


def make():
    features, labels = d2l.synthetic_data(np.array([2, -3.4]), 4.2, 200)
    net = LinearRegression()
    net.initialize()
    return net, features, labels


def by_hand(net, features, labels):
    w, b = net.w.data(), net.b.data()
    rows = []
    for _ in range(num_epochs):
        for X, y in data_iter(batch_size, features, labels):
            with autograd.record():
                l = d2l.squared_loss(linreg(X, w, b), y)  # Minibatch loss in `X` and `y`
            l.backward()
            d2l.sgd([w, b], lr, batch_size)  # Update parameters using their gradient
        train_l = d2l.squared_loss(linreg(features, w, b), labels)
        rows.append(float(train_l.mean()))
    return rows


def with_mxkit(net, features, labels):
    def train():
        return data_iter(batch_size, features, labels)

    sgd = ("sgd", {"learning_rate": lr})
    valid = [(features, labels)]
    history = mxkit.fit(net, train, valid=valid, loss=d2l.squared_loss, trainer=sgd, epochs=num_epochs)
    return history.column("valid_loss")
