"""Memory stays flat over a long epoch: resident memory of a process of its own, early and late (T27).

`make test` has the tests of `test_waiting.py`, which count waits.
"""

from pathlib import Path

import pytest
from sharing import long

STATUS = Path("/proc/self/status")
EARLY, GROWTH = 200, 33  # KiB an update: a third of a batch

# The callback keeps each update with its numbers, as a user may. Batches are of 98 KiB; a LeNet computes on one for
# longer than Python takes to queue the next, so that only a bound keeps the queue short.
SCRIPT = f"""
from pathlib import Path
import sys
import mxkit
import numpy as np

model, devices, accumulate, keep_batches = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
late = int(sys.argv[5])
kept, resident = [], {{}}


class Watch(mxkit.Callback):
    def on_update(self, state, update):
        kept.append(update)
        if update.step in ({EARLY}, late):
            (line,) = [line for line in Path({str(STATUS)!r}).read_text().splitlines() if line.startswith("VmRSS:")]
            resident[update.step] = int(line.split()[1])


def batches():
    for batch in mxkit.data.ArrayLoader(x, y, 32):
        if keep_batches:
            kept.append(batch)
        yield batch


mxkit.seed_all(0)
samples = 32 * late * accumulate
x = np.ones((samples, 1, 28, 28), np.uint8)  # zeros would take their pages only when they are read
y = np.arange(samples, dtype=np.int32) % 10
net = getattr(mxkit.models, model)()
mxkit.initialize(net, devices=devices)
net.hybridize()
mxkit.fit(
    net, batches, loss="softmax_ce", trainer="sgd", epochs=1, metrics=["accuracy"], accumulate=accumulate,
    callbacks=[Watch()], progress=False,
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

    def measure(model, devices="cpu", accumulate=1, keep_batches=False, late=500):
        done = forks.run(script, model, devices, str(accumulate), str(keep_batches), str(late))
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    return measure


@pytest.mark.parametrize(
    ("model", "devices", "accumulate", "late"),
    [
        long("softmax_regression", "cpu:2", 2, 1500),
        long("lenet", "cpu", 1, 1000),
    ],
)
def test_memory_is_flat_over_a_thousand_updates(growth, model, devices, accumulate, late):
    """T27."""
    assert growth(model, devices, accumulate, late=late) < GROWTH


@pytest.mark.long
def test_a_caller_that_keeps_its_batches_shows_in_the_measurement(growth):
    assert growth("softmax_regression", keep_batches=True) > 2 * GROWTH
