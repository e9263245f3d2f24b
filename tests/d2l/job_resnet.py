"""A ResNet on two devices (d2l, sections 7.6 and 12.6)."""

import book as d2l
import mxkit
from mxnet import autograd, cpu, gluon, init, npx
from mxnet.gluon import nn

batch_size, lr, num_epochs = 32, 0.1, 3
devices = [cpu(0), cpu(1)]


class Residual(nn.Block):
    """The Residual block of ResNet."""

    def __init__(self, num_channels, use_1x1conv=False, strides=1, **kwargs):
        super().__init__(**kwargs)
        self.conv1 = nn.Conv2D(num_channels, kernel_size=3, padding=1, strides=strides)
        self.conv2 = nn.Conv2D(num_channels, kernel_size=3, padding=1)
        if use_1x1conv:
            self.conv3 = nn.Conv2D(num_channels, kernel_size=1, strides=strides)
        else:
            self.conv3 = None
        self.bn1 = nn.BatchNorm()
        self.bn2 = nn.BatchNorm()

    def forward(self, X):
        Y = npx.relu(self.bn1(self.conv1(X)))
        Y = self.bn2(self.conv2(Y))
        if self.conv3:
            X = self.conv3(X)
        return npx.relu(Y + X)


def resnet_block(num_channels, num_residuals, first_block=False):
    blk = nn.Sequential()
    for i in range(num_residuals):
        if i == 0 and not first_block:
            blk.add(Residual(num_channels, use_1x1conv=True, strides=2))
        else:
            blk.add(Residual(num_channels))
    return blk


def make():
    net = nn.Sequential()
    net.add(nn.Conv2D(8, kernel_size=3, strides=1, padding=1), nn.BatchNorm(), nn.Activation("relu"))
    net.add(resnet_block(8, 1, first_block=True), resnet_block(16, 1), resnet_block(32, 1))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(10))
    net.initialize(init=init.Xavier(), ctx=devices)
    return (net, *d2l.load_data_images(batch_size))


def by_hand(net, train_iter, test_iter):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    rows = []
    for _ in range(num_epochs):
        metric = d2l.Accumulator(2)
        for features, labels in train_iter:
            X_shards, y_shards = d2l.split_batch(features, labels, devices)
            with autograd.record():
                ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
            for l in ls:
                l.backward()
            trainer.step(batch_size)
            metric.add(sum(float(l.sum()) for l in ls), labels.size)
        # on the first device, as mxkit: the second has other running statistics (T71)
        on_first = [(X.as_in_ctx(devices[0]), y.as_in_ctx(devices[0])) for X, y in test_iter]
        rows.append((metric[0] / metric[1], d2l.evaluate_accuracy(net, on_first)))
    return rows


def with_mxkit(net, train_iter, test_iter):
    sgd = ("sgd", {"learning_rate": lr})
    history = mxkit.fit(
        net, train_iter, valid=test_iter, loss="softmax_ce", trainer=sgd, epochs=num_epochs, metrics=["accuracy"]
    )
    return [(row["train_loss"], row["valid_accuracy"]) for row in history]
