"""What cuDNN does otherwise than the CPU, done by hand, so that mxkit's answer to it is tested without a GPU."""

import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn


class BatchNorm(nn.BatchNorm):
    """Its running statistics move in the forward pass of training (T126), as long as no graph runs above it."""

    def __call__(self, x):
        if autograd.is_training() and isinstance(x, mx.nd.NDArray):
            for parameter in (self.running_mean, self.running_var):
                for array in parameter.list_data():
                    array[:] = array * 0.9 + 1
        return super().__call__(x)
