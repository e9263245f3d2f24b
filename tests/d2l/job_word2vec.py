"""word2vec by skip-gram and negative sampling (d2l, sections 14.3 and 14.4): padding is masked."""

import random

import book as d2l
import mxkit
from mxnet import autograd, gluon, np, npx
from mxnet.gluon import nn

batch_size, embed_size, lr, num_epochs = 32, 8, 0.05, 3
vocab_size, max_window_size, K = 20, 2, 3


def get_data():
    """Centers, contexts and negatives: a sentence holds words of one half of the vocabulary."""
    centers, contexts, negatives = [], [], []
    for _ in range(24):
        half = random.randint(0, 1) * 10
        line = [half + random.randint(0, 9) for _ in range(8)]
        for i in range(len(line)):
            window_size = random.randint(1, max_window_size)
            indices = list(range(max(0, i - window_size), min(len(line), i + 1 + window_size)))
            # Exclude the center word from the context words
            indices.remove(i)
            centers.append(line[i])
            contexts.append([line[idx] for idx in indices])
            # Noise words cannot be context words
            noise = [word for word in range(vocab_size) if word not in contexts[-1]]
            negatives.append(random.choices(noise, k=K * len(contexts[-1])))
    return centers, contexts, negatives


def batchify(data):
    """Return a minibatch of examples for skip-gram with negative sampling."""
    max_len = max(len(c) + len(n) for _, c, n in data)
    centers, contexts_negatives, masks, labels = [], [], [], []
    for center, context, negative in data:
        cur_len = len(context) + len(negative)
        centers += [center]
        contexts_negatives += [context + negative + [0] * (max_len - cur_len)]
        masks += [[1] * cur_len + [0] * (max_len - cur_len)]
        labels += [[1] * len(context) + [0] * (max_len - len(context))]
    return np.array(centers).reshape((-1, 1)), np.array(contexts_negatives), np.array(masks), np.array(labels)


def skip_gram(center, contexts_and_negatives, embed_v, embed_u):
    v = embed_v(center)
    u = embed_u(contexts_and_negatives)
    return npx.batch_dot(v, u.swapaxes(1, 2))


def make():
    net = nn.Sequential()
    net.add(
        nn.Embedding(input_dim=vocab_size, output_dim=embed_size),
        nn.Embedding(input_dim=vocab_size, output_dim=embed_size),
    )
    net.initialize()
    dataset = gluon.data.ArrayDataset(*get_data())
    data_iter = gluon.data.DataLoader(dataset, batch_size, shuffle=True, batchify_fn=batchify)
    return net, data_iter, gluon.loss.SigmoidBCELoss()


def by_hand(net, data_iter, loss):
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        # Sum of normalized losses, no. of normalized losses
        metric = d2l.Accumulator(2)
        for center, context_negative, mask, label in data_iter:
            with autograd.record():
                pred = skip_gram(center, context_negative, net[0], net[1])
                l = loss(pred.reshape(label.shape), label, mask) * mask.shape[1] / mask.sum(axis=1)
            l.backward()
            trainer.step(batch_size)
            metric.add(l.sum(), l.size)
        rows.append(metric[0] / metric[1])
    return rows


def with_mxkit(net, data_iter, loss):
    def masked(net, inputs, labels):
        mask, label = labels
        pred = skip_gram(*inputs, net[0], net[1])
        return loss(pred.reshape(label.shape), label, mask) * mask.shape[1] / mask.sum(axis=1)

    def grouped():
        return ((batch[:2], batch[2:]) for batch in data_iter)

    adam = ("adam", {"learning_rate": lr})
    history = mxkit.fit(net, grouped, loss=mxkit.losses.BatchLoss(forward=masked), trainer=adam, epochs=num_epochs)
    return history.column("train_loss")
