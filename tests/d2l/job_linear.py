"""Linear regression, concise (d2l, section 3.3)."""

import book as d2l
import mxkit
from mxnet import autograd, gluon, init, np
from mxnet.gluon import nn

batch_size, lr, num_epochs = 10, 0.03, 3


def make():
    features, labels = d2l.synthetic_data(np.array([2, -3.4]), 4.2, 200)
    net = nn.Sequential()
    net.add(nn.Dense(1))
    net.initialize(init.Normal(sigma=0.01))
    return net, features, labels, d2l.load_array((features, labels), batch_size)


def by_hand(net, features, labels, data_iter):
    loss = gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        for X, y in data_iter:
            with autograd.record():
                l = loss(net(X), y)
            l.backward()
            trainer.step(batch_size)
        l = loss(net(features), labels)
        rows.append(float(l.mean()))
    return rows


def with_mxkit(net, features, labels, data_iter):
    sgd = ("sgd", {"learning_rate": lr})
    history = mxkit.fit(net, data_iter, valid=[(features, labels)], loss="l2", trainer=sgd, epochs=num_epochs)
    return history.column("valid_loss")
