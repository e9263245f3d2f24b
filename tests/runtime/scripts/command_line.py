#!/usr/bin/env python
from __future__ import print_function
import argparse
import logging
import sys

import mxnet as mx
from mxnet import autograd, gluon, nd

parser = argparse.ArgumentParser(description='Train a perceptron.')
parser.add_argument('--batch-size', type=int, default=10)
parser.add_argument('--epochs', type=int, default=3)
parser.add_argument('--lr', type=float, default=0.1)
parser.add_argument('--hybridize', action='store_true')
parser.add_argument('--gpus', type=str, default='')
parser.add_argument('folder', nargs='?')
opt = parser.parse_args()
logging.basicConfig(level=logging.INFO, format='%(message)s', stream=sys.stdout)
ctx = [mx.gpu(int(i)) for i in opt.gpus.split(',')] if opt.gpus.strip() else [mx.cpu()]
mx.random.seed(1)

net = gluon.nn.HybridSequential(prefix='mlp_')
with net.name_scope():
    net.add(gluon.nn.Dense(8, activation='relu'), gluon.nn.Dense(2))
net.initialize(mx.init.Xavier(), ctx=ctx)
if opt.hybridize:
    net.hybridize(static_alloc=True, static_shape=True)
X = nd.random.normal(shape=(100, 4))
Y = (X.sum(axis=1) > 0).astype('float32')
steps = mx.lr_scheduler.MultiFactorScheduler(step=[15, 25], factor=0.5, base_lr=opt.lr)
trainer = gluon.Trainer(net.collect_params(), 'nag', {'learning_rate': opt.lr, 'momentum': 0.9, 'lr_scheduler': steps})
L, metric = gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy()
for epoch in range(opt.epochs):
    metric.reset()
    for start in range(0, 100, opt.batch_size):
        data, label = X[start:start + opt.batch_size].as_in_context(ctx[0]), Y[start:start + opt.batch_size]
        with autograd.record():
            output = net(data)
            loss = L(output, label)
        loss.backward()
        trainer.step(data.shape[0])
        metric.update(label, output)
    name, acc = metric.get()
    logging.info('[Epoch %d] training: %s=%f', epoch, name, acc)
print(sys.argv[1:], opt.folder, '%.4f' % trainer.learning_rate)
sys.exit(0 if acc > 0.8 else 'too low')
