from collections import namedtuple
import os
import tempfile

import mxnet as mx
from mxnet import gluon
from mxnet.gluon.model_zoo import vision
import numpy as np

mx.random.seed(0)
Batch = namedtuple('Batch', ['data'])
prefix = os.path.join(tempfile.mkdtemp(), 'mobilenet')
net = vision.mobilenet_v2_0_25(classes=5)
net.initialize(mx.init.Xavier())
net.hybridize()
x = mx.nd.random.uniform(shape=(1, 3, 64, 64))
expected = net(x).asnumpy()
net.export(prefix, epoch=3)
net.save_parameters(prefix + '.params')
sym, arg_params, aux_params = mx.model.load_checkpoint(prefix, 3)
mod = mx.mod.Module(symbol=sym, context=mx.cpu(), label_names=None)
mod.bind(for_training=False, data_shapes=[('data', (1, 3, 64, 64))])
mod.set_params(arg_params, aux_params, allow_missing=True)
mod.forward(Batch([x]))
prob = np.squeeze(mod.get_outputs()[0].asnumpy())
assert np.allclose(prob, expected[0], atol=1e-5)
block = gluon.SymbolBlock.imports(prefix + '-symbol.json', ['data'], prefix + '-0003.params')
assert np.allclose(block(x).asnumpy(), expected, atol=1e-5)
internals = sym.get_internals()
print([name for name in internals.list_outputs() if 'relu6' in name.lower()][:2], internals.list_outputs()[-1], len(arg_params))
feature = gluon.SymbolBlock(net(mx.sym.var('data')), mx.sym.var('data'), params=net.collect_params())
print(feature(x).shape, np.argsort(prob)[::-1][:2].shape, mx.nd.topk(mx.nd.array(prob), k=2).dtype)
executor = sym.simple_bind(ctx=mx.cpu(), data=(1, 3, 64, 64), grad_req='null')
executor.copy_params_from(arg_params, aux_params)
assert np.allclose(executor.forward(is_train=False, data=x)[0].asnumpy(), expected, atol=1e-5)
