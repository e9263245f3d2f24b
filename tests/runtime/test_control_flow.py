"""Branches in graphs have the gradients that they have without a graph."""

import mxkit
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np


class Branching(gluon.HybridBlock):
    """A branch a sign: both read `h`, each has a layer of its own, and the condition is of `h` too."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.below, self.left, self.right = (nn.Dense(3, in_units=3, prefix=f"{name}_") for name in "abc")

    def hybrid_forward(self, F, x):
        h = self.below(x)
        first, second = F.contrib.cond(
            F.sum(h) > 0, lambda: [self.left(h) * 2, h], lambda: [self.right(h) * 3, F.exp(x)]
        )
        return first + second * 0.5


def test_both_branches_of_a_graph_have_their_gradients():
    """T258."""
    ends = {}
    for static in (None, False, True):
        mxkit.seed_all(0)
        net = Branching()
        net.initialize(mx.init.Uniform(0.5))
        if static is not None:
            net.hybridize(static_alloc=static)
        ends[static] = []
        for sign in (1, -1, 1, -1):
            x = mx.nd.array(sign * np.arange(1, 7).reshape(2, 3))
            x.attach_grad()
            net.collect_params().zero_grad()
            dirt = [mx.nd.full((size,), 1e9) for size in (1, 2, 3, 6, 9, 16)]
            mx.nd.waitall()
            del dirt
            with mx.autograd.record():
                y = net(x)
            y.backward()
            grads = [parameter.grad() for parameter in net.collect_params().values()]
            ends[static] += [value.asnumpy() for value in (y, x.grad, *grads)]
    for static in (False, True):
        for computed, expected in zip(ends[static], ends[None]):
            np.testing.assert_array_equal(computed, expected)
