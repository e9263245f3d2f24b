import logging
import os
import tempfile

import mxnet as mx
import numpy as np

logging.getLogger().setLevel(logging.INFO)
mx.random.seed(42)
np.random.seed(42)
data = mx.sym.Variable('data')
net = mx.sym.FullyConnected(data, name='fc1', num_hidden=32)
net = mx.sym.Activation(net, name='relu1', act_type="relu")
net = mx.sym.FullyConnected(net, name='fc2', num_hidden=3)
net = mx.sym.SoftmaxOutput(net, name='softmax')
x = np.random.uniform(-1, 1, (300, 4))
y = (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)
train_iter = mx.io.NDArrayIter(x[:200], y[:200], 20, shuffle=True)
val_iter = mx.io.NDArrayIter({'data': x[200:]}, {'softmax_label': y[200:]}, 30, last_batch_handle='pad')
prefix = os.path.join(tempfile.mkdtemp(), 'mx_mlp')
mod = mx.mod.Module(symbol=net, context=[mx.cpu(0), mx.cpu(1)], data_names=['data'], label_names=['softmax_label'])
seen = []
mod.fit(train_iter, eval_data=val_iter, optimizer='adam', optimizer_params={'learning_rate': 0.02}, num_epoch=6,
        eval_metric=['acc', mx.metric.CrossEntropy()], initializer=mx.init.Xavier(),
        batch_end_callback=[mx.callback.Speedometer(20, 5), lambda param: seen.append(param.nbatch)],
        epoch_end_callback=mx.callback.do_checkpoint(prefix, 3), monitor=mx.mon.Monitor(100))
score = mod.score(val_iter, ['mse', 'acc'])
print(score[1], len(seen))
sym, arg_params, aux_params = mx.model.load_checkpoint(prefix, 6)
again = mx.mod.Module(sym, context=mx.cpu())
again.bind(for_training=False, data_shapes=val_iter.provide_data, label_shapes=val_iter.provide_label)
again.set_params(arg_params, aux_params)
assert abs(again.score(val_iter, 'acc')[0][1] - score[1][1]) < 1e-6 and score[1][1] > 0.8 and len(seen) == 60
prob = again.predict(val_iter).asnumpy()
assert prob.shape == (100, 3)
mx.viz.print_summary(sym, shape={'data': (1, 4)})
