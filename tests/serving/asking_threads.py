"""Threads that ask a Predictor, and nets for it."""

import threading

import mxkit
import mxnet as mx
from mxnet import gluon
import numpy as np

LONGEST = 60  # a test that hangs ends then


def lenet():
    net = mxkit.models.lenet()
    mxkit.initialize(net, "xavier", devices="cpu", sample=mx.nd.zeros((1, 1, 28, 28)))
    return net


def images(count):
    return np.random.RandomState(0).rand(count, 1, 28, 28).astype(np.float32)


def at_once(count, function):
    """Call `function(number)` in as many threads; the results, or errors, in order."""
    found = [None] * count

    def work(number):
        try:
            found[number] = function(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive()
    return found


class Gate(gluon.Block):
    """Doubles its input, once it may; notes the first number of each row, and the threads that call it."""

    def __init__(self):
        super().__init__()
        self.open, self.entered = threading.Event(), threading.Event()
        self.open.set()
        self.rows, self.threads, self.sizes = [], set(), []

    def forward(self, x):
        host = x.asnumpy()
        self.entered.set()
        assert self.open.wait(LONGEST)
        self.threads.add(threading.current_thread().name)
        self.sizes.append(len(host))
        self.rows += host[:, 0].tolist()
        if (host == 66).any():
            raise ValueError("66 is not computed")
        if (host == 99).any():
            raise SystemExit("99 ends the thread")
        return x * 2

    def shut(self, predictor):
        """Let the thread enter a batch and wait in it; return the future of this batch."""
        self.open.clear()
        self.entered.clear()
        held = predictor.submit([-1.0])
        assert self.entered.wait(LONGEST)
        self.rows.clear()
        return held
