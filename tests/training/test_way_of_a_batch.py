"""The way of a batch through the house is short: files of mxkit that one batch of `fit` enters."""

from pathlib import Path
import sys

import mxkit
import numpy as np

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
