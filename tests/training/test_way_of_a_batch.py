"""The way of a batch through the house is short: files of mxkit that one batch of `fit` enters."""

from collections import Counter
from pathlib import Path
import sys

import mxkit
import mxnet as mx
import numpy as np
import pytest

ROOT = Path(mxkit.__file__).parent


def test_a_batch_enters_at_most_twelve_files():
    net = mxkit.models.lenet()
    mxkit.initialize(net)
    net.hybridize(static_alloc=True, static_shape=True)
    random = np.random.RandomState(0)
    data = mxkit.data.ArrayLoader(random.rand(160, 1, 28, 28).astype("float32"), np.arange(160) % 10, batch_size=16)
    entered = set()

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            entered.add(path.relative_to(ROOT).as_posix())

    def watch(state, update):
        sys.setprofile(note if update.step == 5 else None)

    callback = mxkit.Callback()
    callback.on_update = watch  # a LambdaCallback would add its own file
    try:
        mxkit.fit(
            net, data, loss="softmax_ce", trainer="sgd", epochs=1, metrics=["accuracy"], progress=False,
            callbacks=[callback],
        )  # fmt: skip
    finally:
        sys.setprofile(None)
    assert {"training/update.py", "training/accumulator.py", "training/ledger.py", "data/loader.py"} <= entered
    assert len(entered) <= 12, sorted(entered)


@pytest.mark.parametrize("units", [(8, 4), (0, 0)], ids=["known_shapes", "deferred_shapes"])
def test_each_check_looks_at_the_first_batch_once(units):
    channels, inputs = units
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, in_units=inputs), mx.gluon.nn.BatchNorm(in_channels=channels), mx.gluon.nn.Dense(3))
    mxkit.initialize(net, sample=mx.nd.zeros((2, 4)) if inputs else None)
    data = mxkit.data.ArrayLoader(np.ones((8, 4), "float32"), np.arange(8) % 3, batch_size=8)
    checks = Counter()

    def note(frame, event, argument):
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if event == "call" and path.parent == ROOT / "training" and path.stem.endswith("checks") and "check_" in name:
            checks[name] += 1

    sys.setprofile(note)
    try:
        mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs=1, seed=0, progress=False)
    finally:
        sys.setprofile(None)
    assert {"check_first_inputs", "check_first_batch", "check_trainer", "check_replicas", "check_modes"} <= set(checks)
    assert set(checks.values()) == {1}, checks
