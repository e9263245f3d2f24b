import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
import numpy as np

mx.random.seed(1)
np.random.seed(1)
ctx = mx.cpu()
batch_size, noise = 32, 8
X = nd.array(np.random.normal(size=(256, 2)).dot(np.array([[1, 2], [-0.1, 0.5]])) + np.array([1, 2]))
train_data = gluon.data.DataLoader(gluon.data.ArrayDataset(X), batch_size=batch_size, shuffle=True)

netG = nn.Sequential()
with netG.name_scope():
    netG.add(nn.Dense(16, activation='tanh'), nn.BatchNorm(), nn.Dense(2))
netD = nn.Sequential()
with netD.name_scope():
    netD.add(nn.Dense(5, activation='tanh'), nn.LeakyReLU(0.2), nn.Dense(2))
loss = gluon.loss.SoftmaxCrossEntropyLoss()
for net in (netG, netD):
    net.initialize(mx.init.Normal(0.02), ctx=ctx)
trainerG = gluon.Trainer(netG.collect_params(), 'adam', {'learning_rate': 0.01, 'beta1': 0.5})
trainerD = gluon.Trainer(netD.collect_params(), 'adam', {'learning_rate': 0.05, 'beta1': 0.5})
real_label, fake_label = nd.ones(batch_size, ctx=ctx), nd.zeros(batch_size, ctx=ctx)
metric = mx.metric.Accuracy()
for epoch in range(3):
    for i, data in enumerate(train_data):
        data = data.as_in_context(ctx)
        fake = netG(nd.random_normal(shape=(batch_size, noise), ctx=ctx))
        with autograd.record():
            real_output, fake_output = netD(data), netD(fake.detach())
            errD = loss(real_output, real_label) + loss(fake_output, fake_label)
            errD.backward()
        trainerD.step(batch_size)
        metric.update([real_label], [real_output])
        metric.update([fake_label], [fake_output])
        with autograd.record():
            errG = loss(netD(netG(nd.random_normal(shape=(batch_size, noise)))), real_label)
            errG.backward()
        trainerG.step(batch_size)
    print('epoch %d: D %.4f, G %.4f, %s=%f' % ((epoch, nd.mean(errD).asscalar(), nd.mean(errG).asscalar()) + metric.get()))
assert metric.get()[1] > 0.5
