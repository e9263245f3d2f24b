"""Computes classifiers of the library's zoo, and trains one for a few steps.

计算库里的几个分类网络，并训练其中一个几步。
"""

from gluoncv2.model_provider import get_model
import mxnet as mx
from mxnet import autograd, gluon

image = mx.nd.random.uniform(shape=(2, 3, 224, 224))
for name in ("resnet10", "mobilenetv2_wd4", "shufflenetv2_wd2", "seresnet10", "squeezenet_v1_1"):
    net = get_model(name, classes=10)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    print(name, net(image).shape)
net = get_model("resnet20_cifar10")
net.initialize(mx.init.Xavier())
net.hybridize()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
x, y = mx.nd.random.uniform(shape=(8, 3, 32, 32)), mx.nd.array([0, 1] * 4)
for _ in range(5):
    with autograd.record():
        loss = gluon.loss.SoftmaxCELoss()(net(x), y)
    loss.backward()
    trainer.step(8)
print(loss.mean().asscalar())
