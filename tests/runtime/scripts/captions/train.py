import mxnet as mx

from . import model
from .model import captioner

if __name__ == '__main__':
    net = captioner(10)
    net.initialize()
    print(__package__, model.__name__, net(mx.nd.array([1, 2])).shape)
