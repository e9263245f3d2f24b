import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp
import numpy as np

amp.init(target_dtype='bfloat16')
mx.random.seed(0)
np.random.seed(0)
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(4, 3), gluon.nn.BatchNorm(), gluon.nn.Activation('relu'), gluon.nn.Flatten(), gluon.nn.Dense(2))
net.initialize()
net.hybridize()
x = mx.nd.array(np.random.normal(size=(8, 3, 8, 8)))
y = mx.nd.array(np.arange(8) % 2)
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1, 'momentum': 0.9, 'multi_precision': True},
                        update_on_kvstore=False)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
amp.init_trainer(trainer)
for i in range(3):
    with autograd.record():
        loss = loss_fn(net(x), y)
        with amp.scale_loss(loss, trainer) as scaled_loss:
            autograd.backward(scaled_loss)
    amp.unscale(trainer)
    trainer.step(8)
print('scale', trainer._amp_loss_scaler.loss_scale, 'overflow', trainer._amp_loss_scaler.has_overflow(net.collect_params().values()))
assert np.isfinite(loss.asnumpy()).all()
converted = amp.convert_hybrid_block(net, target_dtype='float16', ctx=mx.cpu())
dtypes = sorted(set(np.dtype(p.dtype).name for p in converted.collect_params().values()))
print(dtypes, mx.nd.ones(3).astype(np.float16).dtype)
