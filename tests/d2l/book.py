"""Helpers that d2l's second edition keeps in its own package, written out with its names; data sets are small."""

import math

import mxkit  # noqa: F401  before mxnet
from mxnet import gluon, np
import numpy


class Accumulator:
    """For accumulating sums over `n` variables."""

    def __init__(self, n):
        self.data = [0.0] * n

    def add(self, *args):
        self.data = [a + float(b) for a, b in zip(self.data, args)]

    def __getitem__(self, idx):
        return self.data[idx]


def accuracy(y_hat, y):
    """Compute the number of correct predictions."""
    if len(y_hat.shape) > 1 and y_hat.shape[1] > 1:
        y_hat = y_hat.argmax(axis=1)
    cmp = y_hat.astype(y.dtype) == y
    return float(cmp.astype(y.dtype).sum())


def evaluate_accuracy(net, data_iter):
    """Compute the accuracy for a model on a dataset."""
    metric = Accumulator(2)  # No. of correct predictions, no. of predictions
    for X, y in data_iter:
        metric.add(accuracy(net(X), y), y.size)
    return metric[0] / metric[1]


def grad_clipping(net, theta):
    """Clip the gradient."""
    params = [p.data() for p in net.collect_params().values()]
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in params))
    if norm > theta:
        for param in params:
            param.grad[:] *= theta / norm


def load_data_images(batch_size, num_examples=(128, 64), size=16, noise=60):
    """Images in ten classes, in place of Fashion-MNIST: a pattern for each class, with noise."""
    generator = numpy.random.RandomState(3)
    patterns = generator.randint(0, 256, (10, size // 4, size // 4)).repeat(4, axis=1).repeat(4, axis=2)
    iters = []
    for n, is_train in zip(num_examples, (True, False)):
        y = (numpy.arange(n) % 10).astype("int32")
        X = (patterns[y] + generator.normal(0, noise, (n, size, size))).clip(0, 255).astype("uint8")
        trans = gluon.data.vision.transforms.ToTensor()
        dataset = gluon.data.ArrayDataset(np.array(X[..., None], dtype="uint8"), y).transform_first(trans)
        iters.append(gluon.data.DataLoader(dataset, batch_size, shuffle=is_train))
    return iters
