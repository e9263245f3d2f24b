"""Helpers that d2l's second edition keeps in its own package, written out with its names; data sets are small."""

import math
import random

import mxkit  # noqa: F401  before mxnet
from mxnet import gluon, np, npx
import numpy


class Accumulator:
    """For accumulating sums over `n` variables."""

    def __init__(self, n):
        self.data = [0.0] * n

    def add(self, *args):
        self.data = [a + float(b) for a, b in zip(self.data, args)]

    def __getitem__(self, idx):
        return self.data[idx]


def load_array(data_arrays, batch_size, is_train=True):
    """Construct a Gluon data iterator."""
    dataset = gluon.data.ArrayDataset(*data_arrays)
    return gluon.data.DataLoader(dataset, batch_size, shuffle=is_train)


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


# Sequences with valid lengths


class MaskedSoftmaxCELoss(gluon.loss.SoftmaxCELoss):
    """The softmax cross-entropy loss with masks."""

    # `pred` shape: (`batch_size`, `num_steps`, `vocab_size`)
    # `label` shape: (`batch_size`, `num_steps`)
    # `valid_len` shape: (`batch_size`,)
    def forward(self, pred, label, valid_len):
        # `weights` shape: (`batch_size`, `num_steps`, 1)
        weights = np.expand_dims(np.ones_like(label), axis=-1)
        weights = npx.sequence_mask(weights, valid_len, True, axis=1)
        return super().forward(pred, label, weights)


def masked_softmax(X, valid_lens):
    """Perform softmax operation by masking elements on the last axis."""
    # `X`: 3D tensor, `valid_lens`: 1D or 2D tensor
    if valid_lens is None:
        return npx.softmax(X)
    shape = X.shape
    valid_lens = valid_lens.repeat(shape[1]) if valid_lens.ndim == 1 else valid_lens.reshape(-1)
    # On the last axis, replace masked elements with a very large negative value, whose exponentiation outputs 0
    X = npx.sequence_mask(X.reshape(-1, shape[-1]), valid_lens, True, value=-1e6, axis=1)
    return npx.softmax(X).reshape(shape)


tgt_vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2, **{letter: 3 + i for i, letter in enumerate("abcdefgh")}}


def build_array_nmt(lines, vocab, num_steps):
    """Transform text sequences of machine translation into minibatches."""
    lines = [[vocab[token] for token in line] + [vocab["<eos>"]] for line in lines]
    array = np.array([line + [vocab["<pad>"]] * (num_steps - len(line)) for line in lines])
    valid_len = (array != vocab["<pad>"]).astype(np.int32).sum(1)
    return array, valid_len


def load_data_nmt(batch_size, num_steps, num_examples=64):
    """Translations: the target is the source, each letter replaced by the next one.

    The lengths repeat, so that each batch holds the same number of tokens.
    """
    lines = [random.choices("abcdefgh", k=num_steps - 1 - i % 4) for i in range(num_examples)]
    translations = [["bcdefgha"["abcdefgh".index(token)] for token in line] for line in lines]
    arrays = [array for text in (lines, translations) for array in build_array_nmt(text, tgt_vocab, num_steps)]
    return load_array(arrays, batch_size, is_train=False)
