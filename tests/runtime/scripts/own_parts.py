import mxnet as mx
from mxnet import autograd, gluon, nd
import numpy as np

mx.random.seed(0)
np.random.seed(0)


@mx.optimizer.register
class SignDescent(mx.optimizer.Optimizer):
    def create_state(self, index, weight):
        return nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def update(self, index, weight, grad, state):
        self._update_count(index)
        state[:] = 0.5 * state + 0.5 * nd.sign(grad * self.rescale_grad)
        weight[:] = weight - self._get_lr(index) * (state + self._get_wd(index) * weight)


@mx.metric.register
class WithinFifth(mx.metric.EvalMetric):
    def __init__(self):
        super(WithinFifth, self).__init__('within-fifth')

    def update(self, labels, preds):
        for label, pred in zip(labels, preds):
            label, pred = label.asnumpy().ravel(), pred.asnumpy().ravel()
            self.sum_metric += np.sum(np.abs(label - pred) < 0.2)
            self.num_inst += len(label)


@mx.init.register
class Tenth(mx.initializer.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = 0.1


x = nd.array(np.random.normal(size=(80, 3)))
y = nd.dot(x, nd.array([1, -2, 0.5])) + 0.3
net = gluon.nn.Dense(1, in_units=3, weight_initializer='tenth')
net.initialize()
trainer = gluon.Trainer(net.collect_params(), 'signdescent', {'learning_rate': 0.05, 'wd': 0.0})
metric = mx.metric.CompositeEvalMetric([mx.metric.create('withinfifth'), mx.metric.np(lambda t, p: np.square(t - p).mean(), 'own')])
for i in range(120):
    trainer.set_learning_rate(0.1 * 0.97 ** i)
    with autograd.record():
        loss = nd.smooth_l1(net(x).reshape((-1,)) - y, scalar=1.0)
    loss.backward()
    trainer.step(80)
metric.update([y], [net(x).reshape((-1,))])
print([(name, round(float(value), 4)) for name, value in metric.get_name_value()])
assert metric.get()[1][0] > 0.9
