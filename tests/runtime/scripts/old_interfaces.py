import os
import random
import tempfile

import mxnet as mx
from mxnet import gluon
import numpy as np

mx.random.seed(42)
np.random.seed(42)
random.seed(42)
prefix = os.path.join(tempfile.mkdtemp(), 'train')

lines = [['w%d' % ((i + j) % 5) for j in range(3 + i % 4)] for i in range(80)]
sentences, vocab = mx.rnn.encode_sentences(lines, invalid_label=0, start_label=1)
data_train = mx.rnn.BucketSentenceIter(sentences, 8, buckets=[4, 6], invalid_label=0)
stack = mx.rnn.SequentialRNNCell()
stack.add(mx.rnn.LSTMCell(num_hidden=12, prefix='lstm_'))


def sym_gen(seq_len):
    data, label = mx.sym.Variable('data'), mx.sym.Variable('softmax_label')
    stack.reset()
    embed = mx.sym.Embedding(data=data, input_dim=len(vocab) + 1, output_dim=8, name='embed')
    outputs, states = stack.unroll(seq_len, inputs=embed, merge_outputs=True)
    pred = mx.sym.FullyConnected(mx.sym.Reshape(outputs, shape=(-1, 12)), num_hidden=len(vocab) + 1, name='pred')
    label = mx.sym.Reshape(label, shape=(-1,))
    return mx.sym.SoftmaxOutput(data=pred, label=label, name='softmax', use_ignore=True, ignore_label=0), ('data',), ('softmax_label',)


model = mx.mod.BucketingModule(sym_gen=sym_gen, default_bucket_key=data_train.default_bucket_key, context=mx.cpu())
perplexity, seen = mx.metric.Perplexity(0), []
model.fit(train_data=data_train, eval_metric=perplexity, kvstore='device', optimizer='adam', num_epoch=3, monitor=mx.mon.Monitor(100),
          batch_end_callback=mx.callback.Speedometer(8, 5), epoch_end_callback=lambda *args: seen.append(perplexity.get()[1]))
assert seen[-1] < seen[0]

x = np.random.uniform(-1, 1, (300, 4))
train_iter = mx.io.NDArrayIter({'data': x}, {'softmax_label': (x[:, 0] > 0).astype(int)}, 20, shuffle=True)
net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable('data'), num_hidden=2), name='softmax')
mod = mx.mod.Module(symbol=net, context=[mx.cpu(0), mx.cpu(1)])
mod.fit(train_iter, optimizer='adam', num_epoch=6, eval_metric=['acc', mx.metric.CrossEntropy()],
        epoch_end_callback=mx.callback.do_checkpoint(prefix, 3))
again = mx.mod.Module.load(prefix, 6, context=mx.cpu())
again.bind(for_training=False, data_shapes=train_iter.provide_data, label_shapes=train_iter.provide_label)
assert abs(again.score(train_iter, 'acc')[0][1] - mod.score(train_iter, 'acc')[0][1]) < 1e-6

record = mx.recordio.MXIndexedRecordIO(prefix + '.idx', prefix + '.rec', 'w')
for i in range(12):
    label = np.array([4, 5, i % 3], dtype=np.float32)
    img = np.full((20, 24, 3), 20 * i, dtype=np.uint8)
    record.write_idx(i, mx.recordio.pack_img(mx.recordio.IRHeader(0, label, i, 0), img, quality=95, img_fmt='.jpg'))
record.close()
data_iter = mx.io.ImageRecordIter(path_imgrec=prefix + '.rec', data_shape=(3, 16, 16), batch_size=4, label_width=3, rand_crop=True)
assert [batch.data[0].shape for batch in data_iter] == [(4, 3, 16, 16)] * 3
dataset = gluon.data.vision.ImageRecordDataset(prefix + '.rec').transform_first(gluon.data.vision.transforms.ToTensor())
for threads in (False, True):
    loader = gluon.data.DataLoader(dataset, batch_size=5, last_batch='rollover', num_workers=2, thread_pool=threads)
    print([data.shape for epoch in range(2) for data, label in loader], ['%.3f' % value for value in seen])
