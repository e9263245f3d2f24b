"""Matrix factorization for recommender systems (d2l, section 16.3)."""

import book as d2l
import mxkit
import mxnet as mx
from mxnet import autograd, gluon, np
from mxnet.gluon import nn
import numpy

lr, num_epochs, wd = 0.02, 4, 1e-5
num_users, num_items = 20, 15


class MF(nn.Block):
    def __init__(self, num_factors, num_users, num_items, **kwargs):
        super().__init__(**kwargs)
        self.P = nn.Embedding(input_dim=num_users, output_dim=num_factors)
        self.Q = nn.Embedding(input_dim=num_items, output_dim=num_factors)
        self.user_bias = nn.Embedding(num_users, 1)
        self.item_bias = nn.Embedding(num_items, 1)

    def forward(self, user_id, item_id):
        P_u = self.P(user_id)
        Q_i = self.Q(item_id)
        b_u = self.user_bias(user_id)
        b_i = self.item_bias(item_id)
        outputs = (P_u * Q_i).sum(axis=1) + np.squeeze(b_u) + np.squeeze(b_i)
        return outputs.flatten()


def load_ratings():
    """Ratings from 1 to 5 of a matrix of rank 2: a fifth is for the test."""
    random = numpy.random.RandomState(6)
    users, items = (ids.ravel() for ids in numpy.indices((num_users, num_items)))
    matrix = random.normal(0, 1, (num_users, 2)) @ random.normal(0, 1, (2, num_items))
    ratings = (3 + matrix[users, items]).clip(1, 5).astype("float32")
    order = random.permutation(len(users))
    iters = []
    # The test is one batch: of several, MXNet's RMSE is the mean of their roots, and mxkit's the root of the mean (T16)
    for part, batch_size, is_train in ((order[:224], 32, True), (order[224:], 76, False)):
        arrays = (np.array(users[part], dtype="int32"), np.array(items[part], dtype="int32"), np.array(ratings[part]))
        iters.append(d2l.load_array(arrays, batch_size, is_train))
    return iters


def evaluator(net, test_iter, devices):
    rmse = mx.metric.RMSE()  # Get the RMSE
    for users, items, ratings in test_iter:
        u = gluon.utils.split_and_load(users, devices, even_split=False)
        i = gluon.utils.split_and_load(items, devices, even_split=False)
        r_ui = gluon.utils.split_and_load(ratings, devices, even_split=False)
        r_hat = [net(u, i) for u, i in zip(u, i)]
        rmse.update(labels=r_ui, preds=r_hat)
    return rmse.get()[1]


def make():
    devices = [mx.cpu()]
    net = MF(4, num_users, num_items)
    net.initialize(ctx=devices, force_reinit=True, init=mx.init.Normal(0.01))
    return (net, *load_ratings(), devices)


def by_hand(net, train_iter, test_iter, devices):
    loss = gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": lr, "wd": wd})
    rows = []
    for _ in range(num_epochs):
        metric = d2l.Accumulator(2)
        for values in train_iter:
            input_data = [gluon.utils.split_and_load(v, devices) for v in values]
            train_feat, train_label = input_data[:-1], input_data[-1]
            with autograd.record():
                preds = [net(*t) for t in zip(*train_feat)]
                ls = [loss(p, s) for p, s in zip(preds, train_label)]
            for l in ls:
                l.backward()
            trainer.step(values[0].shape[0])
            metric.add(sum(float(l.sum()) for l in ls), values[0].shape[0])
        rows.append((metric[0] / metric[1], evaluator(net, test_iter, devices)))
    return rows


def with_mxkit(net, train_iter, test_iter, devices):
    def grouped(data_iter):
        return lambda: ((batch[:2], batch[2]) for batch in data_iter)

    train, valid = grouped(train_iter), grouped(test_iter)
    adam = ("adam", {"learning_rate": lr, "wd": wd})
    history = mxkit.fit(net, train, valid=valid, loss="l2", trainer=adam, epochs=num_epochs, metrics=["rmse"])
    return [(row["train_loss"], row["valid_rmse"]) for row in history]
