"""How often the loop waits for the device (T17, T27), how much memory it takes, and how many files a batch enters."""

from pathlib import Path
import sys

from built_nets import ready
from hypothesis import given
from hypothesis import strategies as st
import mxkit
from mxkit.core import device
from mxkit.training import ledger
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
from oracle import convolutions, fit, make_batches, make_net
import pytest
from sharing import long

UPDATES = 200
READS = -(-UPDATES // ledger.SETTLE_EVERY)  # 4: numbers are read 64 updates at a time
ONCE = 3  # labels and scores of the first batch are checked, and the last numbers are read at the end


@pytest.fixture
def waits(monkeypatch):
    """Names of the calls that waited. A wait inside a wait (asscalar calls asnumpy) counts once."""
    calls, depth = [], [0]

    def counted(name, original):
        def call(*args, **kwargs):
            if not depth[0]:
                calls.append(name)
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1

        return call

    for name in ("asnumpy", "asscalar", "wait_to_read"):
        monkeypatch.setattr(mx.nd.NDArray, name, counted(name, getattr(mx.nd.NDArray, name)))
    monkeypatch.setattr(mx.nd, "waitall", counted("waitall", mx.nd.waitall))
    return calls


def test_the_counter_counts(waits):
    array = mx.nd.ones(1)
    array.asnumpy(), array.asscalar(), array.wait_to_read(), bool(array), mx.nd.waitall()
    assert waits == ["asnumpy", "asscalar", "wait_to_read", "asscalar", "waitall"]


WATCHING = {"metrics": [mxkit.metrics.get_metric("accuracy")], "clip_norm": 1.0}


@pytest.mark.parametrize(
    ("devices", "how", "updates", "most"),
    [
        ("cpu:1", WATCHING, UPDATES, READS + ONCE),
        ("cpu:2", WATCHING, UPDATES, READS + ONCE + 2),  # each device has its part of the first labels and scores
        ("cpu:1", {"accumulate": 10}, UPDATES // 10, ONCE),
    ],
)
def test_updates_wait_once_in_64_updates(waits, devices, how, updates, most):
    """T17."""
    net, batches = make_net(devices, hybridize=True), make_batches([4]) * UPDATES
    del waits[:]
    assert sum(1 for _ in mxkit.updates(net, batches, loss="softmax_ce", trainer="sgd", **how)) == updates
    assert len(waits) <= most


def test_fit_waits_for_its_numbers_once_in_64_updates(waits):
    net = make_net(hybridize=True)
    batches = make_batches([4]) * UPDATES
    del waits[:]
    fit(net, batches, metrics=["accuracy"])
    assert len(waits) <= READS + ONCE + 2  # the metric and the learning curve are read after the epoch


def test_large_batches_are_waited_for_sooner(waits, monkeypatch):
    """T27."""
    batches = make_batches([4]) * 60
    monkeypatch.setattr(ledger, "QUEUED_BYTES", 10 * batches[0][0].size * 4)
    del waits[:]
    list(mxkit.updates(make_net(), batches, loss="softmax_ce", trainer="sgd"))
    assert 4 <= len(waits) <= 60 // 10 + ONCE


def test_evaluate_and_predict_bound_the_queue_without_waiting_at_each_batch(waits):
    """T27."""
    net = make_net()
    batches = make_batches([4]) * 160
    mxkit.evaluate(net, batches[:1], loss="softmax_ce", metrics=["accuracy"])
    del waits[:]
    mxkit.evaluate(net, batches, loss="softmax_ce", metrics=["accuracy"])
    assert 9 <= len(waits) <= 10 + 6  # one in 16 batches; the first is checked; loss and metric at the end
    del waits[:]
    mxkit.predict(net, batches)
    assert 9 <= len(waits) <= 10 + 1  # whether the inputs are finite, at the end


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("name", ["evaluate", "predict", "extract", "recalibrate", "predict_mc_dropout"])
def test_a_pass_outside_of_training_queues_as_many_bytes_as_training(name, devices, waits, monkeypatch):
    """T135."""
    layers = nn.BatchNorm(in_channels=50), nn.Dropout(0.5), nn.Dense(2, in_units=50)
    net = ready(*layers, devices=f"cpu:{devices}")
    x = np.ones((6, 50), "float32")
    calls = {
        "evaluate": lambda data: mxkit.evaluate(net, data, loss="softmax_ce"),
        "predict": lambda data: mxkit.predict(net, data),
        "extract": lambda data: mxkit.extract(net, ["2"], data, progress=False),
        "recalibrate": lambda data: mxkit.training.recalibrate_batch_norm(net, data),
        "predict_mc_dropout": lambda data: mxkit.training.predict_mc_dropout(net, data, draws=2),
    }
    found = []
    for most in (device.QUEUED_BYTES, 10 * x.nbytes):
        monkeypatch.setattr(device, "QUEUED_BYTES", most)
        del waits[:]
        calls[name]([(x, np.zeros(6))] * 31)
        found.append(len(waits))
    if name == "extract":  # which reads each feature in any case
        assert found == [31 * devices] * 2
    elif name == "predict_mc_dropout":  # which waits for each batch, of which it makes many passes
        assert found == [31 * devices + 1] * 2
    else:  # ten batches and what came of them: in the 10th, 16th, 22nd and 28th, until half is left
        assert found[1] - found[0] == 4 * devices


@given(sizes=st.lists(st.integers(0, 150), max_size=90), most=st.sampled_from([1, 2, device.QUEUED_BATCHES]))
def test_results_come_back_in_order_and_never_more_than_a_limit_is_queued(sizes, most):
    """T135."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "QUEUED_BYTES", 100)
        batches, returned = device.QueuedBatches(most), []
        for number, size in enumerate(sizes):
            returned += batches.add(number, size)
            waiting = sizes[len(returned) : number + 1]
            assert len(waiting) <= 1 or (sum(waiting) < 100 and len(waiting) < most)
            assert len(waiting) == 0 if most == 1 else len(waiting) > 0
        assert returned + batches.rest() == list(range(len(sizes)))


def test_an_unread_update_does_not_wait_to_be_shown_and_a_read_one_waits_no_more(waits):
    stream = mxkit.updates(make_net(), make_batches([4] * 100), loss="softmax_ce", trainer="sgd")
    update = next(stream)
    del waits[:]
    assert repr(update) == "Update(step=1, samples=4)"
    assert not waits
    loss = update.loss
    assert repr(update) == f"Update(step=1, samples=4, loss={loss:.6g})"
    found = list(stream)
    assert all(update.settled for update in found)
    del waits[:]
    assert np.isfinite([update.loss for update in found]).all()
    assert not waits


ROOT = Path(mxkit.__file__).parent


def test_a_batch_enters_at_most_twelve_files():
    net = convolutions()
    data = mxkit.data.ArrayLoader(np.ones((160, 1, 12, 12), "float32"), np.arange(160) % 3, batch_size=16)
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
        fit(net, data, metrics=["accuracy"], callbacks=[callback])
    finally:
        sys.setprofile(None)
    assert {"training/update.py", "training/accumulator.py", "training/ledger.py", "data/loader.py"} <= entered
    assert len(entered) <= 12, sorted(entered)


STATUS = Path("/proc/self/status")
EARLY, GROWTH = 200, 33  # KiB an update: a third of a batch

# The callback keeps each update with its numbers, as a user may. Batches are of 98 KiB; a LeNet computes on one for
# longer than Python takes to queue the next, so that only a bound keeps the queue short.
SCRIPT = f"""
from pathlib import Path
import sys
import mxkit
import numpy as np

model, devices, accumulate, late = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
kept, resident = [], {{}}


class Watch(mxkit.Callback):
    def on_update(self, state, update):
        kept.append(update)
        if update.step in ({EARLY}, late):
            (line,) = [line for line in Path({str(STATUS)!r}).read_text().splitlines() if line.startswith("VmRSS:")]
            resident[update.step] = int(line.split()[1])


mxkit.seed_all(0)
samples = 32 * late * accumulate
x = np.ones((samples, 1, 28, 28), np.uint8)  # zeros would take their pages only when they are read
y = np.arange(samples, dtype=np.int32) % 10
net = getattr(mxkit.models, model)()
mxkit.initialize(net, devices=devices)
net.hybridize()
mxkit.fit(
    net, lambda: iter(mxkit.data.ArrayLoader(x, y, 32)), loss="softmax_ce", trainer="sgd", epochs=1,
    metrics=["accuracy"], accumulate=accumulate, callbacks=[Watch()], progress=False,
)
print((resident[late] - resident[{EARLY}]) / (late - {EARLY}))
"""


@pytest.fixture
def growth(forks, tmp_path):
    """KiB of resident memory that each update adds, from update 200 on."""
    if not STATUS.exists():
        pytest.skip("no /proc/self/status here: resident memory is read from it")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)

    def measure(model, devices, accumulate, late):
        done = forks.run(script, model, devices, str(accumulate), str(late))
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    return measure


@pytest.mark.parametrize(
    ("model", "devices", "accumulate", "late"),
    [long("softmax_regression", "cpu:2", 2, 1500), long("lenet", "cpu", 1, 1000)],
)
def test_memory_is_flat_over_a_thousand_updates(growth, model, devices, accumulate, late):
    """T27."""
    assert growth(model, devices, accumulate, late) < GROWTH
