from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn
import mxnet as mx
import numpy as onp

npx.set_np()
mx.random.seed(5)
onp.random.seed(5)


def synthetic_data(w, b, num_examples):
    X = np.random.normal(0, 1, (num_examples, len(w)))
    y = np.dot(X, w) + b
    y += np.random.normal(0, 0.01, y.shape)
    return X, y


true_w, true_b = np.array([2, -3.4]), 4.2
features, labels = synthetic_data(true_w, true_b, 400)
data_iter = gluon.data.DataLoader(gluon.data.ArrayDataset(features, labels), 10, shuffle=True)
net = nn.Sequential()
net.add(nn.Dense(1))
net.initialize(init.Normal(sigma=0.01))
loss, trainer = gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
for epoch in range(5):
    for X, y in data_iter:
        with autograd.record():
            l = loss(net(X), y)
        l.backward()
        trainer.step(10)
l = loss(net(features), labels)
print('loss: %f, error of w: %s' % (l.mean(), np.abs(net[0].weight.data().reshape(true_w.shape) - true_w) < 0.05))
assert l.mean() < 0.001

x = np.arange(12).reshape(3, 4)
assert x.shape == (3, 4) and x.size == 12 and float(x.mean()) == 5.5
x[0:2, :] = 12
x[x > 11.5] = -1
scores = npx.softmax(np.concatenate([x, x], axis=1))
assert onp.allclose(scores.asnumpy().sum(axis=1), 1)
print(npx.one_hot(np.array([0, 2]), 3), np.einsum('ij,kj->ik', x, x).sum(), onp.mean(x), np.linalg.norm(x))
b = np.zeros(2, dtype=onp.int32) + onp.float64(2.5)
print(b.dtype, np.array([1, 2]).astype('uint8').dtype, np.pi, np.split(x, 2, axis=1)[0].tolist())
