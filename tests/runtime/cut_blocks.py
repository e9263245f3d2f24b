"""Trains nets that join or cut the channels of convolutions, and writes their gradients: cut_blocks.py COUNT FILE.

`test_blocked_layouts.py` runs it with oneDNN and without, where MXNet has no blocked layouts.
"""

import random
import sys
import tempfile

import mxkit
from mxkit.core.arrays import switches
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

WAYS = ("eager", "hybridized", "static", "np", "loaded", "bound")


class Joined(gluon.HybridBlock):
    """Convolutions side by side, joined and cut, with one or two convolutions behind."""

    def __init__(self, parts, filters, kernel, cut, consumers):
        super().__init__()
        self.cut, self.numpy = cut, mx.util.is_np_array()
        self.parts, self.behind = nn.HybridSequential(), nn.HybridSequential()
        for part in parts:
            self.parts.add(nn.Conv2D(part, 1, in_channels=3))
        for _ in range(consumers):
            self.behind.add(nn.Conv2D(filters, kernel, padding=kernel // 2, in_channels=sum(parts)))

    def hybrid_forward(self, F, x):  # noqa: N803
        joined = [block(x) for block in self.parts._children.values()]
        joined = F.np.concatenate(joined, axis=1) if self.numpy else F.concat(*joined, dim=1)
        found = [block(joined) for block in self.behind._children.values()]
        total = sum(found[1:], found[0])
        if not self.cut:
            return total
        if not self.numpy:
            return F.slice(total, begin=(None, self.cut), end=(None, None))
        return total[:, self.cut :] if isinstance(total, mx.np.ndarray) else F.np.split(total, [self.cut], axis=1)[1]


def gradients(number, way):
    """Gradients of a net of its own: of `fit`'s update with a learning rate of 1, or of MXNet's executor."""
    draw = random.Random(number)
    parts = [draw.choice([draw.randint(1, 33), 8 * draw.randint(1, 5), 4 * draw.randint(1, 8)]) for _ in range(3)]
    parts = parts[: draw.choice([2, 3])]
    if draw.random() < 0.6:
        parts[-1] += -sum(parts) % 16  # a width that oneDNN cuts into blocks
    net = Joined(parts, draw.choice([16, 32]), draw.choice([1, 3]), draw.choice([0, 0, 1, 8]), draw.choice([1, 2]))
    mxkit.seed_all(number)
    mxkit.initialize(net, "xavier")
    if way in ("hybridized", "static"):
        net.hybridize(static_alloc=way == "static", static_shape=way == "static")
    x = np.random.RandomState(number).rand(4, 3, 6, 6).astype("float32")
    batch = (mx.np if way == "np" else mx.nd).array(x)
    y = 0 * net(batch) + 0.1
    if way == "loaded":
        with tempfile.TemporaryDirectory() as folder:
            mxkit.export(net, folder + "/net", format="symbol", inputs=[x])
            net = mxkit.load_exported(folder + "/net")
    if way == "bound":
        return bound(net, x)
    before = {name: value.data().asnumpy() for name, value in net._collect_params_with_prefix().items()}
    mxkit.fit(net, [(batch, y)], loss="l2", trainer=("sgd", {"learning_rate": 1.0}), epochs=1, progress=False)
    return [before[name] - value.data().asnumpy() for name, value in net._collect_params_with_prefix().items()]


def bound(net, x):
    symbol = mx.sym.MakeLoss(mx.sym.square(net(mx.sym.var("data"))))
    executor = symbol.simple_bind(mx.cpu(), data=x.shape)
    for name, value in net.collect_params().items():
        executor.arg_dict[name][:] = value.data()
    executor.forward(is_train=True, data=mx.nd.array(x))
    executor.backward()
    return [executor.grad_dict[name].asnumpy() for name in net.collect_params()]


if __name__ == "__main__":
    found = {}
    for number in range(int(sys.argv[1])):
        way = WAYS[number % len(WAYS)]
        with switches(way == "np"):
            for place, array in enumerate(gradients(number, way)):
                found[f"{number} {way} {place}"] = array
    np.savez(sys.argv[2], **found)
