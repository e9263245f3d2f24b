"""Sequence to sequence with Bahdanau attention (d2l, sections 9.7, 10.3 and 10.4): valid lengths and masks.

d2l clips the sum of the gradients over a batch, mxkit their mean: `theta` becomes `theta / num_tokens`. The batches
hold the same number of tokens.
"""

import book as d2l
import mxkit
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn, rnn

embed_size, num_hiddens, num_layers, dropout = 16, 16, 2, 0
batch_size, num_steps, lr, num_epochs, theta = 16, 6, 0.02, 3, 1


class AdditiveAttention(nn.Block):
    """Additive attention."""

    def __init__(self, num_hiddens, dropout, **kwargs):
        super().__init__(**kwargs)
        # Use `flatten=False` to only transform the last axis so that the shapes for the other axes are kept the same
        self.W_k = nn.Dense(num_hiddens, use_bias=False, flatten=False)
        self.W_q = nn.Dense(num_hiddens, use_bias=False, flatten=False)
        self.w_v = nn.Dense(1, use_bias=False, flatten=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        queries, keys = self.W_q(queries), self.W_k(keys)
        features = np.expand_dims(queries, axis=2) + np.expand_dims(keys, axis=1)
        features = np.tanh(features)
        scores = np.squeeze(self.w_v(features), axis=-1)
        self.attention_weights = d2l.masked_softmax(scores, valid_lens)
        return npx.batch_dot(self.dropout(self.attention_weights), values)


class Seq2SeqEncoder(nn.Block):
    """The RNN encoder for sequence to sequence learning."""

    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs):
        super().__init__(**kwargs)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = rnn.GRU(num_hiddens, num_layers, dropout=dropout)

    def forward(self, X, *args):
        X = self.embedding(X)
        # In RNN models, the first axis corresponds to time steps
        X = X.swapaxes(0, 1)
        state = self.rnn.begin_state(batch_size=X.shape[1], ctx=X.ctx)
        output, state = self.rnn(X, state)
        return output, state


class Seq2SeqAttentionDecoder(nn.Block):
    def __init__(self, vocab_size, embed_size, num_hiddens, num_layers, dropout=0, **kwargs):
        super().__init__(**kwargs)
        self.attention = AdditiveAttention(num_hiddens, dropout)
        self.embedding = nn.Embedding(vocab_size, embed_size)
        self.rnn = rnn.GRU(num_hiddens, num_layers, dropout=dropout)
        self.dense = nn.Dense(vocab_size, flatten=False)

    def init_state(self, enc_outputs, enc_valid_lens, *args):
        outputs, hidden_state = enc_outputs
        return (outputs.swapaxes(0, 1), hidden_state, enc_valid_lens)

    def forward(self, X, state):
        enc_outputs, hidden_state, enc_valid_lens = state
        X = self.embedding(X).swapaxes(0, 1)
        outputs, self._attention_weights = [], []
        for x in X:
            query = np.expand_dims(hidden_state[0][-1], axis=1)
            context = self.attention(query, enc_outputs, enc_outputs, enc_valid_lens)
            # Concatenate on the feature dimension
            x = np.concatenate((context, np.expand_dims(x, axis=1)), axis=-1)
            # Reshape `x` as (1, `batch_size`, `embed_size` + `num_hiddens`)
            out, hidden_state = self.rnn(x.swapaxes(0, 1), hidden_state)
            outputs.append(out)
            self._attention_weights.append(self.attention.attention_weights)
        outputs = self.dense(np.concatenate(outputs, axis=0))
        return outputs.swapaxes(0, 1), [enc_outputs, hidden_state, enc_valid_lens]


def make():
    sizes = (len(d2l.tgt_vocab), embed_size, num_hiddens, num_layers, dropout)
    net = d2l.EncoderDecoder(Seq2SeqEncoder(*sizes), Seq2SeqAttentionDecoder(*sizes))
    net.initialize(init.Xavier())
    return net, d2l.load_data_nmt(batch_size, num_steps), d2l.MaskedSoftmaxCELoss()


def by_hand(net, data_iter, loss):
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        metric = d2l.Accumulator(2)  # Sum of training loss, no. of tokens
        for X, X_valid_len, Y, Y_valid_len in data_iter:
            bos = np.array([d2l.tgt_vocab["<bos>"]] * Y.shape[0]).reshape(-1, 1)
            dec_input = np.concatenate([bos, Y[:, :-1]], 1)  # Teacher forcing
            with autograd.record():
                Y_hat, _ = net(X, dec_input, X_valid_len)
                l = loss(Y_hat, Y, Y_valid_len)
            l.backward()
            d2l.grad_clipping(net, theta)
            num_tokens = Y_valid_len.sum()
            trainer.step(num_tokens)
            metric.add(l.sum(), num_tokens)
        rows.append(metric[0] / metric[1])
    return rows


def with_mxkit(net, data_iter, loss):
    def teacher_forcing(net, inputs, labels):
        X, X_valid_len = inputs
        Y, Y_valid_len = labels
        bos = np.array([d2l.tgt_vocab["<bos>"]] * Y.shape[0]).reshape(-1, 1)
        Y_hat, _ = net(X, np.concatenate([bos, Y[:, :-1]], 1), X_valid_len)
        return loss(Y_hat, Y, Y_valid_len)

    pairs = [(batch[:2], batch[2:]) for batch in data_iter]
    masked = mxkit.losses.BatchLoss(forward=teacher_forcing, count=lambda inputs, labels: labels[1].sum())
    adam = ("adam", {"learning_rate": lr})
    clip_norm = theta / float(pairs[0][1][1].sum())
    history = mxkit.fit(net, pairs, loss=masked, trainer=adam, epochs=num_epochs, clip_norm=clip_norm)
    return history.column("train_loss")
