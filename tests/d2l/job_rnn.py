"""Language models by RNN, GRU and LSTM (d2l, sections 8.6, 9.1 and 9.2): state is carried from batch to batch."""

import math
import random

import book as d2l
import mxkit
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn, rnn

batch_size, num_steps, num_hiddens, lr, num_epochs, theta = 8, 8, 32, 1, 3, 0.25
TEXT = (
    "the time traveller for so it will be convenient to speak of him was expounding a recondite matter to us his grey "
    "eyes shone and twinkled and his usually pale face was flushed and animated "
)
vocab = {token: i for i, token in enumerate(sorted(set(TEXT)))}
corpus = [vocab[token] for token in TEXT * 4]


class SeqDataLoader:
    """An iterator to load sequence data, by sequential partitioning."""

    def __iter__(self):
        # Start with a random offset to partition a sequence
        offset = random.randint(0, num_steps)
        num_tokens = ((len(corpus) - offset - 1) // batch_size) * batch_size
        Xs = np.array(corpus[offset : offset + num_tokens])
        Ys = np.array(corpus[offset + 1 : offset + 1 + num_tokens])
        Xs, Ys = Xs.reshape(batch_size, -1), Ys.reshape(batch_size, -1)
        num_batches = Xs.shape[1] // num_steps
        for i in range(0, num_steps * num_batches, num_steps):
            yield Xs[:, i : i + num_steps], Ys[:, i : i + num_steps]


class RNNModel(nn.Block):
    """The RNN model."""

    def __init__(self, rnn_layer, vocab_size, **kwargs):
        super().__init__(**kwargs)
        self.rnn = rnn_layer
        self.vocab_size = vocab_size
        self.dense = nn.Dense(vocab_size)

    def forward(self, inputs, state):
        X = npx.one_hot(inputs.T, self.vocab_size)
        Y, state = self.rnn(X, state)
        # The fully-connected layer will first change the shape of `Y` to (`num_steps` * `batch_size`, `num_hiddens`).
        # Its output shape is (`num_steps` * `batch_size`, `vocab_size`).
        output = self.dense(Y.reshape(-1, Y.shape[-1]))
        return output, state

    def begin_state(self, *args, **kwargs):
        return self.rnn.begin_state(*args, **kwargs)


def make(layer="RNN"):
    net = RNNModel(getattr(rnn, layer)(num_hiddens), len(vocab))
    net.initialize()
    return net, SeqDataLoader(), gluon.loss.SoftmaxCrossEntropyLoss()


def by_hand(net, train_iter, loss):
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        state = None
        metric = d2l.Accumulator(2)  # Sum of training loss, no. of tokens
        for X, Y in train_iter:
            if state is None:
                # Initialize `state` when it is the first iteration
                state = net.begin_state(batch_size=X.shape[0])
            else:
                for s in state:
                    s.detach()
            y = Y.T.reshape(-1)
            with autograd.record():
                y_hat, state = net(X, state)
                l = loss(y_hat, y).mean()
            l.backward()
            d2l.grad_clipping(net, theta)
            trainer.step(batch_size=1)  # Since the `mean` function has been invoked
            metric.add(l * y.size, y.size)
        rows.append(math.exp(metric[0] / metric[1]))
    return rows


def with_mxkit(net, train_iter, loss):
    def carried(net, inputs, labels):
        nonlocal state
        y_hat, state = net(*inputs, state or net.begin_state(batch_size=batch_size))
        return loss(y_hat, labels[0].T.reshape(-1)).reshape(num_steps, batch_size).mean(axis=0)

    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": lr})
    batch_loss = mxkit.losses.BatchLoss(forward=carried)
    rows = []
    for _ in range(num_epochs):
        state = None
        updates = mxkit.updates(net, train_iter, loss=batch_loss, trainer=trainer, clip_norm=theta)
        losses = [update.loss for update in updates]
        rows.append(math.exp(sum(losses) / len(losses)))
    return rows
