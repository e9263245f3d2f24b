"""What the hand-written probes share."""

from pathlib import Path
import sys
import tempfile

import numpy as np
from probes import digest, say


def _folder():
    return Path(tempfile.mkdtemp())


def _image(height=24, width=32, dtype="uint8"):
    values = (np.arange(height * width * 3) * 7 % 251).reshape((height, width, 3))
    return values.astype(dtype)


def _each(items):
    """Collect results by name; an error of one is its result."""
    out = {}
    for name, function in items:
        try:
            out[name] = function()
        except Exception as error:
            out[name] = f"! {type(error).__name__} {str(error)[:80]}"
    caller = sys._getframe(1).f_code.co_name[6:]
    for name, value in out.items():
        say(f"\n{caller}.{name} | {digest(value)}", "")
    say("")
    return len(out)


def _net(mx, hybrid=True):
    net = mx.gluon.nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(
            mx.gluon.nn.Conv2D(4, 3, activation="relu"),
            mx.gluon.nn.MaxPool2D(),
            mx.gluon.nn.BatchNorm(),
            mx.gluon.nn.Flatten(),
            mx.gluon.nn.Dense(3),
        )
    net.initialize(mx.init.Xavier())
    if hybrid:
        net.hybridize()
    return net


def _data(mx, count=8):
    x = np.random.RandomState(0).rand(count, 1, 8, 8).astype("float32")
    return mx.nd.array(x), mx.nd.array(np.arange(count) % 3)
