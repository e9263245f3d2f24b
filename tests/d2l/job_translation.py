"""Translation, letter by letter, by the encoder of a Transformer (d2l, section 10.7): valid lengths and masks."""

import math

import book as d2l
import mxkit
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

num_hiddens, num_layers, ffn_num_hiddens, num_heads = 16, 2, 32, 2
batch_size, num_steps, num_epochs, lr = 16, 6, 3, 0.005


class DotProductAttention(nn.Block):
    """Scaled dot product attention."""

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = npx.batch_dot(queries, keys, transpose_b=True) / math.sqrt(d)
        return npx.batch_dot(self.dropout(d2l.masked_softmax(scores, valid_lens)), values)


def transpose_qkv(X, num_heads):
    """Transposition for parallel computation of multiple attention heads."""
    X = X.reshape(X.shape[0], X.shape[1], num_heads, -1)
    X = X.transpose(0, 2, 1, 3)
    return X.reshape(-1, X.shape[2], X.shape[3])


def transpose_output(X, num_heads):
    """Reverse the operation of `transpose_qkv`."""
    X = X.reshape(-1, num_heads, X.shape[1], X.shape[2])
    X = X.transpose(0, 2, 1, 3)
    return X.reshape(X.shape[0], X.shape[1], -1)


class MultiHeadAttention(nn.Block):
    """Multi-head attention."""

    def __init__(self, num_hiddens, num_heads, dropout, use_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.Dense(num_hiddens, use_bias=use_bias, flatten=False)
        self.W_k = nn.Dense(num_hiddens, use_bias=use_bias, flatten=False)
        self.W_v = nn.Dense(num_hiddens, use_bias=use_bias, flatten=False)
        self.W_o = nn.Dense(num_hiddens, use_bias=use_bias, flatten=False)

    def forward(self, queries, keys, values, valid_lens):
        queries = transpose_qkv(self.W_q(queries), self.num_heads)
        keys = transpose_qkv(self.W_k(keys), self.num_heads)
        values = transpose_qkv(self.W_v(values), self.num_heads)
        if valid_lens is not None:
            # On axis 0, copy the first item (scalar or vector) for `num_heads` times, then the next item, and so on
            valid_lens = valid_lens.repeat(self.num_heads, axis=0)
        output = self.attention(queries, keys, values, valid_lens)
        return self.W_o(transpose_output(output, self.num_heads))


class PositionalEncoding(nn.Block):
    """Positional encoding."""

    def __init__(self, num_hiddens, dropout, max_len=32):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        # Create a long enough `P`
        self.P = np.zeros((1, max_len, num_hiddens))
        X = np.arange(max_len).reshape(-1, 1) / np.power(10000, np.arange(0, num_hiddens, 2) / num_hiddens)
        self.P[:, :, 0::2] = np.sin(X)
        self.P[:, :, 1::2] = np.cos(X)

    def forward(self, X):
        X = X + self.P[:, : X.shape[1], :].as_in_ctx(X.ctx)
        return self.dropout(X)


class PositionWiseFFN(nn.Block):
    """Positionwise feed-forward network."""

    def __init__(self, ffn_num_hiddens, ffn_num_outputs, **kwargs):
        super().__init__(**kwargs)
        self.dense1 = nn.Dense(ffn_num_hiddens, flatten=False, activation="relu")
        self.dense2 = nn.Dense(ffn_num_outputs, flatten=False)

    def forward(self, X):
        return self.dense2(self.dense1(X))


class AddNorm(nn.Block):
    """Residual connection followed by layer normalization."""

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = nn.Dropout(dropout)
        self.ln = nn.LayerNorm()

    def forward(self, X, Y):
        return self.ln(self.dropout(Y) + X)


class EncoderBlock(nn.Block):
    """Transformer encoder block."""

    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout, use_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.attention = MultiHeadAttention(num_hiddens, num_heads, dropout, use_bias)
        self.addnorm1 = AddNorm(dropout)
        self.ffn = PositionWiseFFN(ffn_num_hiddens, num_hiddens)
        self.addnorm2 = AddNorm(dropout)

    def forward(self, X, valid_lens):
        Y = self.addnorm1(X, self.attention(X, X, X, valid_lens))
        return self.addnorm2(Y, self.ffn(Y))


class TransformerEncoder(nn.Block):
    """Transformer encoder."""

    def __init__(self, vocab_size, num_hiddens, ffn_num_hiddens, num_heads, num_layers, dropout, **kwargs):
        super().__init__(**kwargs)
        self.num_hiddens = num_hiddens
        self.embedding = nn.Embedding(vocab_size, num_hiddens)
        self.pos_encoding = PositionalEncoding(num_hiddens, dropout)
        self.blks = nn.Sequential()
        for _ in range(num_layers):
            self.blks.add(EncoderBlock(num_hiddens, ffn_num_hiddens, num_heads, dropout))
        self.dense = nn.Dense(vocab_size, flatten=False)

    def forward(self, X, valid_lens, *args):
        # Since positional encoding values are between -1 and 1, the embedding values are multiplied by the square root
        # of the embedding dimension to rescale before they are summed up
        X = self.pos_encoding(self.embedding(X) * math.sqrt(self.num_hiddens))
        for blk in self.blks:
            X = blk(X, valid_lens)
        return self.dense(X)


def make():
    net = TransformerEncoder(len(d2l.tgt_vocab), num_hiddens, ffn_num_hiddens, num_heads, num_layers, 0.1)
    net.initialize(init.Xavier())
    return net, d2l.load_data_nmt(batch_size, num_steps), d2l.MaskedSoftmaxCELoss()


def by_hand(net, data_iter, loss):
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": lr})
    rows = []
    for _ in range(num_epochs):
        metric = d2l.Accumulator(2)  # Sum of training loss, no. of tokens
        for X, X_valid_len, Y, Y_valid_len in data_iter:
            with autograd.record():
                l = loss(net(X, X_valid_len), Y, Y_valid_len)
            l.backward()
            num_tokens = Y_valid_len.sum()
            trainer.step(num_tokens)
            metric.add(l.sum(), num_tokens)
        rows.append(metric[0] / metric[1])
    return rows


def with_mxkit(net, data_iter, loss):
    pairs = [(batch[:2], batch[2:]) for batch in data_iter]
    masked = mxkit.losses.BatchLoss(
        forward=lambda net, inputs, labels: loss(net(*inputs), *labels), count=lambda inputs, labels: labels[1].sum()
    )
    adam = ("adam", {"learning_rate": lr})
    return mxkit.fit(net, pairs, loss=masked, trainer=adam, epochs=num_epochs).column("train_loss")
