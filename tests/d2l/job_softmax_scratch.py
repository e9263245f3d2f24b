"""Softmax regression from scratch (d2l, section 3.6): probabilities and a loss by indexing."""

import book as d2l
import mxkit
from mxnet import autograd, init, np
from mxnet.gluon import nn

batch_size, lr, num_epochs = 32, 0.1, 3
num_inputs, num_outputs = 256, 10


def softmax(X):
    X_exp = np.exp(X)
    partition = X_exp.sum(1, keepdims=True)
    return X_exp / partition  # The broadcasting mechanism is applied here


def cross_entropy(y_hat, y):
    return -np.log(y_hat[range(len(y_hat)), y])


class SoftmaxRegression(nn.Block):
    """Parameters `W` and `b`, which a Trainer finds here."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.W = self.params.get("W", shape=(num_inputs, num_outputs), init=init.Normal(0.01))
        self.b = self.params.get("b", shape=(num_outputs,), init=init.Zero())

    def forward(self, X):
        W, b = self.W.data(), self.b.data()
        return softmax(np.dot(X.reshape((-1, W.shape[0])), W) + b)


def make():
    net = SoftmaxRegression()
    net.initialize()
    return (net, *d2l.load_data_images(batch_size))


def by_hand(net, train_iter, test_iter):
    W, b = net.W.data(), net.b.data()
    rows = []
    for _ in range(num_epochs):
        # Sum of training loss, sum of training accuracy, no. of examples
        metric = d2l.Accumulator(3)
        for X, y in train_iter:
            with autograd.record():
                y_hat = net(X)
                l = cross_entropy(y_hat, y)
            l.backward()
            d2l.sgd([W, b], lr, X.shape[0])
            metric.add(float(l.sum()), d2l.accuracy(y_hat, y), y.size)
        test_acc = d2l.evaluate_accuracy(net, test_iter)
        rows.append((metric[0] / metric[2], metric[1] / metric[2], test_acc))
    return rows


def with_mxkit(net, train_iter, test_iter):
    sgd = ("sgd", {"learning_rate": lr})
    history = mxkit.fit(
        net, train_iter, valid=test_iter, loss=cross_entropy, trainer=sgd, epochs=num_epochs, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]
