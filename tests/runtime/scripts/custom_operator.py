import mxnet as mx
from mxnet import autograd
import numpy as np


class Softmax(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
        y /= y.sum(axis=1).reshape((x.shape[0], 1))
        self.assign(out_data[0], req[0], mx.nd.array(y))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        label = in_data[1].asnumpy().ravel().astype(np.int32)
        y = out_data[0].asnumpy()
        y[np.arange(label.shape[0]), label] -= 1.0
        self.assign(in_grad[0], req[0], mx.nd.array(y))


@mx.operator.register("softmax_by_hand")
class SoftmaxProp(mx.operator.CustomOpProp):
    def __init__(self, scale='1'):
        super(SoftmaxProp, self).__init__(need_top_grad=False)
        self.scale = float(scale)

    def list_arguments(self):
        return ['data', 'label']

    def list_outputs(self):
        return ['output']

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return Softmax()


class sigmoid(autograd.Function):
    def forward(self, x):
        y = 1 / (1 + mx.nd.exp(-x))
        self.save_for_backward(y)
        return y

    def backward(self, dy):
        y, = self.saved_tensors
        return dy * y * (1 - y)


x = mx.nd.array(np.random.RandomState(0).normal(size=(4, 3)))
x.attach_grad()
with autograd.record():
    y = mx.nd.Custom(x, mx.nd.array([0, 1, 2, 0]), op_type='softmax_by_hand', scale=2)
y.backward()
assert np.allclose(y.asnumpy(), mx.nd.softmax(x).asnumpy(), atol=1e-6)
assert np.allclose(x.grad.asnumpy().sum(axis=1), 0, atol=1e-6)
sym = mx.sym.Custom(mx.sym.var('data'), mx.sym.var('label'), op_type='softmax_by_hand', name='softmax')
mod = mx.mod.Module(sym, label_names=['label'])
mod.bind([('data', (4, 3))], [('label', (4,))])
mod.init_params()
mod.forward(mx.io.DataBatch([x], [mx.nd.zeros(4)]), is_train=True)
mod.backward()
with autograd.record():
    z = sigmoid()(x)
z.backward()
print(mod.get_outputs()[0].asnumpy().round(3).tolist(), x.grad.asnumpy().round(3).tolist())
