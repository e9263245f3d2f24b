import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

from . import model
from .model import Captioner

if __name__ == '__main__':
    mx.random.seed(0)
    net = Captioner(10)
    net.initialize()
    net.hybridize()
    words = mx.nd.array(np.random.RandomState(0).randint(0, 10, size=(20, 4)))
    trainer = gluon.Trainer(net.collect_params(), mx.optimizer.Adam(0.05))
    for _ in range(30):
        with autograd.record():
            loss = -net(words).pick(words[:, 0]).mean()
        loss.backward()
        trainer.step(1)
    print(__package__, model.__name__, '%.4f' % loss.asscalar())
    assert loss.asscalar() < 2
