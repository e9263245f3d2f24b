import random

import mxnet as mx
import numpy as np

mx.random.seed(0)
np.random.seed(0)
random.seed(0)
buckets, start_label, invalid_label = [4, 6], 1, 0
lines = [['w%d' % ((i + j) % 5) for j in range(3 + i % 4)] for i in range(80)]
sentences, vocab = mx.rnn.encode_sentences(lines, invalid_label=invalid_label, start_label=start_label)
data_train = mx.rnn.BucketSentenceIter(sentences, 8, buckets=buckets, invalid_label=invalid_label)
stack = mx.rnn.SequentialRNNCell()
for i in range(2):
    stack.add(mx.rnn.LSTMCell(num_hidden=12, prefix='lstm_l%d_' % i))


def sym_gen(seq_len):
    data, label = mx.sym.Variable('data'), mx.sym.Variable('softmax_label')
    embed = mx.sym.Embedding(data=data, input_dim=len(vocab) + 1, output_dim=8, name='embed')
    stack.reset()
    outputs, states = stack.unroll(seq_len, inputs=embed, merge_outputs=True)
    pred = mx.sym.Reshape(outputs, shape=(-1, 12))
    pred = mx.sym.FullyConnected(data=pred, num_hidden=len(vocab) + 1, name='pred')
    pred = mx.sym.SoftmaxOutput(data=pred, label=mx.sym.Reshape(label, shape=(-1,)), name='softmax', use_ignore=True,
                                ignore_label=invalid_label)
    return pred, ('data',), ('softmax_label',)


model = mx.mod.BucketingModule(sym_gen=sym_gen, default_bucket_key=data_train.default_bucket_key, context=mx.cpu())
perplexity, seen = mx.metric.Perplexity(invalid_label), []
model.fit(train_data=data_train, eval_metric=perplexity, kvstore='device', optimizer='adam',
          optimizer_params={'learning_rate': 0.05}, initializer=mx.init.Xavier(factor_type="in", magnitude=2.34),
          num_epoch=4, epoch_end_callback=lambda *args: seen.append(perplexity.get()[1]))
print(['%.3f' % value for value in seen], sorted(vocab.items())[:3])
assert seen[-1] < seen[0]
