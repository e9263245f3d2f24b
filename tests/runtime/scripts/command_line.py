#!/usr/bin/env python
from __future__ import print_function
import argparse
import logging
import sys

import mxnet as mx
from mxnet import autograd, gluon, nd

parser = argparse.ArgumentParser(description='Train a perceptron.')
parser.add_argument('--epochs', type=int, default=3)
parser.add_argument('--hybridize', action='store_true')
parser.add_argument('folder', nargs='?')
opt = parser.parse_args()
logging.basicConfig(level=logging.INFO, format='%(message)s', stream=sys.stdout)
mx.random.seed(1)

net = gluon.nn.HybridSequential(prefix='mlp_')
with net.name_scope():
    net.add(gluon.nn.Dense(8, activation='relu'), gluon.nn.Dense(2))
net.initialize(mx.init.Xavier())
if opt.hybridize:
    net.hybridize(static_alloc=True, static_shape=True)
X = nd.random.normal(shape=(100, 4))
Y = (X.sum(axis=1) > 0).astype('float32')
trainer = gluon.Trainer(net.collect_params(), 'nag', {'learning_rate': 0.1, 'momentum': 0.9})
L, metric = gluon.loss.SoftmaxCELoss(), mx.metric.Accuracy()
for epoch in range(opt.epochs):
    metric.reset()
    for start in range(0, 100, 10):
        data, label = X[start:start + 10], Y[start:start + 10]
        with autograd.record():
            output = net(data)
            loss = L(output, label)
        loss.backward()
        trainer.step(data.shape[0])
        metric.update(label, output)
    name, acc = metric.get()
    logging.info('[Epoch %d] training: %s=%f', epoch, name, acc)
print(sys.argv[1:], opt.folder)
sys.exit(0 if acc > 0.8 else 'too low')
