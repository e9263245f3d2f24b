import mxnet as mx
from mxnet import autograd, nd
import numpy as np

mx.random.seed(3)
ctx = [mx.cpu(0), mx.cpu(1)]
kv = mx.kv.create('local')
shape = (2, 3)
kv.init(3, nd.ones(shape) * 2)
kv.push(3, [nd.ones(shape, dev) for dev in ctx])
a = nd.zeros(shape)
kv.pull(3, out=a)
assert (a.asnumpy() == 2).all()  # the sum of two ones takes the place of the value


def update(key, input, stored):
    stored += input * 2


kv = mx.kv.create('device')
kv._set_updater(update)
kv.init(['4', '5'], [nd.ones(shape)] * 2)
kv.push(['4', '5'], [[nd.ones(shape, dev) for dev in ctx]] * 2)
b = [nd.zeros(shape, dev) for dev in ctx]
kv.pull('5', out=b)
assert np.array_equal(b[1].asnumpy(), np.ones(shape) * 5)

# a linear regression, whose weights live in the store and are changed by its optimizer
kv = mx.kvstore.create()
kv.set_optimizer(mx.optimizer.Optimizer.create_optimizer('sgd', learning_rate=0.2, momentum=0.5, rescale_grad=1. / 64))
w_true = nd.array([[2], [-3.4]])
kv.init('w', nd.zeros((2, 1)))
params = [nd.zeros((2, 1), ctx=dev) for dev in ctx]
for i in range(40):
    kv.pull('w', out=params)
    X = nd.random.normal(shape=(64, 2))
    y = nd.dot(X, w_true)
    parts = mx.gluon.utils.split_and_load(X, ctx), mx.gluon.utils.split_and_load(y, ctx)
    for p in params:
        p.attach_grad()
    with autograd.record():
        losses = [((nd.dot(x, p) - t) ** 2 / 2).sum() for x, t, p in zip(parts[0], parts[1], params)]
    for l in losses:
        l.backward()
    kv.push('w', [p.grad for p in params], priority=-1)
print(kv.type, kv.rank, kv.num_workers, params[0].asnumpy().ravel().round(2).tolist())
assert nd.abs(params[0] - w_true).max().asscalar() < 0.1
