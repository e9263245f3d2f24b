"""Images: softmax regression, a perceptron with dropout and weight decay, LeNet (d2l, sections 3.7, 4.5, 4.6, 6.6).

LeNet has relu, which learns from fewer images, and is hybridized as in section 12.1.
"""

import book as d2l
import mxkit
from mxnet import autograd, gluon, init
from mxnet.gluon import nn

dropout1, dropout2 = 0.2, 0.5


def softmax():
    net = nn.Sequential()
    net.add(nn.Dense(10))
    net.initialize(init.Normal(sigma=0.01))
    return net


def mlp():
    net = nn.Sequential()
    net.add(nn.Dense(64, activation="relu"), nn.Dropout(dropout1))
    net.add(nn.Dense(64, activation="relu"), nn.Dropout(dropout2), nn.Dense(10))
    net.initialize(init.Normal(sigma=0.1))
    # The bias parameter has not decayed. Bias names generally end with "bias"
    net.collect_params(".*bias").setattr("wd_mult", 0)
    return net


def lenet():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(channels=6, kernel_size=5, padding=2, activation="relu"), nn.AvgPool2D(pool_size=2, strides=2))
    net.add(nn.Conv2D(channels=16, kernel_size=5, activation="relu"), nn.AvgPool2D(pool_size=2, strides=2))
    # `Dense` will transform an input of the shape (batch size, number of channels, height, width) into an input
    # of the shape (batch size, number of channels * height * width) automatically by default
    net.add(nn.Dense(120, activation="relu"), nn.Dense(84, activation="relu"), nn.Dense(10))
    net.initialize(force_reinit=True, init=init.Xavier())
    net.hybridize()
    return net


SETTINGS = {
    softmax: ({"learning_rate": 0.1}, 3, 32),
    mlp: ({"learning_rate": 0.2, "wd": 0.001}, 5, 32),
    lenet: ({"learning_rate": 0.2}, 4, 16),
}


def make(name):
    sgd, num_epochs, batch_size = SETTINGS[globals()[name]]
    return (globals()[name](), *d2l.load_data_images(batch_size), sgd, num_epochs)


def by_hand(net, train_iter, test_iter, sgd, num_epochs):
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", sgd)
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


def with_mxkit(net, train_iter, test_iter, sgd, num_epochs):
    trainer = gluon.Trainer(net.collect_params(), "sgd", sgd)
    history = mxkit.fit(
        net, train_iter, valid=test_iter, loss="softmax_ce", trainer=trainer, epochs=num_epochs, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["train_accuracy"], row["valid_accuracy"]) for row in history]
