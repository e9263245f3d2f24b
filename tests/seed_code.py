"""What the tests of SEEDS.md's rows share."""

import socket

import mxkit
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np

X = mx.nd.array([[0.5, 2.0]])
ONE_BATCH = [(np.ones((4, 2), "float32"), np.zeros(4))]


def leaf(*values, request="write", device=None):
    made = mx.nd.array(values, ctx=device or mx.cpu())
    made.attach_grad(request)
    return made


def backward_of(f, *inputs):
    with autograd.record():
        y = f(*inputs)
    y.backward()
    return y


def stack(*layers, kind=nn.HybridSequential, devices="cpu"):
    net = kind()
    net.add(*layers)
    mxkit.initialize(net, devices=devices)
    return net


def train(net, data=ONE_BATCH, **changes):
    return list(mxkit.updates(net, data, **{"loss": "softmax_ce", "trainer": "sgd", **changes}))


def stepped(net, trainer, x=X):
    """One step by Gluon's Trainer on the sum of the outputs."""
    backward_of(net, x)
    trainer.step(1)


def without_network(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("MXKIT_OFFLINE", "1")
