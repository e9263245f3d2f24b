import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import rnn
import numpy as np

mx.random.seed(2)
np.random.seed(2)


class Adding(gluon.HybridBlock):
    def __init__(self, cell, **kwargs):
        super(Adding, self).__init__(**kwargs)
        with self.name_scope():
            self.cell, self.out = cell, gluon.nn.Dense(1)

    def hybrid_forward(self, F, x):
        outputs, _ = self.cell.unroll(6, x, layout='NTC', merge_outputs=False)
        return self.out(outputs[-1])


x = mx.nd.array(np.random.uniform(size=(64, 6, 2)))
y = x[:, :, 0].sum(axis=1)
stacked = rnn.HybridSequentialRNNCell()
stacked.add(rnn.GRUCell(8)), stacked.add(rnn.ZoneoutCell(rnn.LSTMCell(8), 0.1, 0.1)), stacked.add(rnn.ResidualCell(rnn.RNNCell(8)))
for name, cell in [('lstm', rnn.LSTMCell(12)), ('stack', stacked), ('dropout', rnn.DropoutCell(0.0))]:
    net = Adding(cell)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer, l2 = gluon.Trainer(net.collect_params(), 'rmsprop', {'learning_rate': 0.01}), gluon.loss.L2Loss()
    losses = []
    for step in range(25):
        with autograd.record():
            loss = l2(net(x), y)
        loss.backward()
        gluon.utils.clip_global_norm([p.grad() for p in net.collect_params().values()], 5)
        trainer.step(64)
        losses.append(loss.mean().asscalar())
    print('%-8s %.4f -> %.4f' % (name, losses[0], losses[-1]))
    assert losses[-1] < losses[0]

layer = rnn.GRU(5, 2, bidirectional=True, layout='NTC', dropout=0.2)
layer.initialize()
states = layer.begin_state(batch_size=64)
out, states = layer(x, states)
length = mx.nd.array(np.random.randint(1, 7, size=64))
masked = mx.nd.SequenceMask(out, sequence_length=length, use_sequence_length=True, axis=1)
print(out.shape, states[0].shape, int((masked.sum(axis=2) != 0).sum().asscalar()) == int(length.sum().asscalar()))
