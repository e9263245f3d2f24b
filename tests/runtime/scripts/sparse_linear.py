import os
import tempfile

import mxnet as mx
from mxnet.ndarray import sparse
import numpy as np
import scipy.sparse as sp

mx.random.seed(0)
rng = np.random.RandomState(0)
matrix = sp.random(64, 100, density=0.1, format='csr', random_state=rng)
weights = rng.normal(size=(100, 1))
target = (matrix.dot(weights) > 0).astype(float).ravel()
path = os.path.join(tempfile.mkdtemp(), 'train.libsvm')
with open(path, 'w') as f:
    for i in range(64):
        row = matrix.getrow(i)
        f.write('%d %s\n' % (target[i], ' '.join('%d:%.5f' % pair for pair in zip(row.indices, row.data))))
train_data = mx.io.LibSVMIter(data_libsvm=path, data_shape=(100,), batch_size=16)

x = mx.symbol.Variable('data', stype='csr')
weight = mx.symbol.Variable('weight', stype='row_sparse', init=mx.initializer.Normal(0.01), shape=(100, 2))
bias = mx.symbol.Variable('bias', shape=(2,))
pred = mx.symbol.broadcast_add(mx.symbol.sparse.dot(x, weight), bias)
model = mx.symbol.SoftmaxOutput(data=pred, label=mx.symbol.Variable('softmax_label'), name='out')
mod = mx.mod.Module(model, data_names=['data'], label_names=['softmax_label'])
mod.bind(data_shapes=train_data.provide_data, label_shapes=train_data.provide_label)
mod.init_params()
kv = mx.kvstore.create('local')
mod.init_optimizer(kvstore=kv, optimizer=mx.optimizer.create('adagrad', learning_rate=0.3, rescale_grad=1.0 / 16))
metric = mx.metric.create(['acc', 'ce'])
for epoch in range(8):
    train_data.reset()
    metric.reset()
    for batch in train_data:
        row_ids = batch.data[0].indices
        mod.prepare(batch, sparse_row_id_fn=lambda b: {'weight': row_ids})
        mod.forward_backward(batch)
        mod.update()
        mod.update_metric(metric, batch.label)
print(dict(metric.get_name_value()))
assert dict(metric.get_name_value())['accuracy'] > 0.8

csr = sparse.csr_matrix((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape, dtype='float32')
assert np.allclose(csr.asscipy().toarray(), matrix.toarray(), atol=1e-6)
rsp = sparse.retain(mx.nd.array(rng.normal(size=(6, 2))).tostype('row_sparse'), mx.nd.array([0, 4], dtype='int64'))
assert rsp.indices.asnumpy().tolist() == [0, 4]
print(csr[2:5].asnumpy().sum().round(3), sparse.dot(csr, mx.nd.array(weights)).shape, rsp.stype)
