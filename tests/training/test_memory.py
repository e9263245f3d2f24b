"""Memory stays flat over a long epoch: resident memory of an interpreter of its own, early and late (T27)."""

from pathlib import Path
import subprocess
import sys

import pytest

STATUS = Path("/proc/self/status")
EARLY, LATE, GROWTH = 200, 1000, 1.05

# The callback keeps each update with its numbers, as a user may. Batches are of 98 KiB; a LeNet computes on one for
# longer than Python takes to queue the next, so that only a bound keeps the queue short.
SCRIPT = f"""
from pathlib import Path
import sys
import mxkit
import numpy as np

model, devices, accumulate, keep_batches = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
kept, resident = [], {{}}


class Watch(mxkit.Callback):
    def on_update(self, state, update):
        kept.append(update)
        if update.step in ({EARLY}, {LATE}):
            (line,) = [line for line in Path({str(STATUS)!r}).read_text().splitlines() if line.startswith("VmRSS:")]
            resident[update.step] = int(line.split()[1])


def batches():
    for batch in mxkit.data.ArrayLoader(x, y, 32):
        if keep_batches:
            kept.append(batch)
        yield batch


mxkit.seed_all(0)
samples = 32 * {LATE} * accumulate
x = np.ones((samples, 1, 28, 28), np.uint8)  # zeros would take their pages only when they are read
y = np.arange(samples, dtype=np.int32) % 10
net = getattr(mxkit.models, model)()
mxkit.initialize(net, devices=devices)
net.hybridize()
mxkit.fit(
    net, batches, loss="softmax_ce", trainer="sgd", epochs=1, metrics=["accuracy"], accumulate=accumulate,
    callbacks=[Watch()], progress=False,
)
print(resident[{EARLY}], resident[{LATE}])
"""


def resident_kib(model, devices="cpu", accumulate=1, keep_batches=False):
    """Resident memory after update 200 and after update 1,000, in KiB."""
    if not STATUS.exists():
        pytest.skip("no /proc/self/status here: resident memory is read from it")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model, devices, str(accumulate), str(keep_batches)],
        cwd=str(Path(__file__).parents[2]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    early, late = map(int, done.stdout.split())
    return early, late


@pytest.mark.parametrize(
    ("model", "devices", "accumulate"),
    [("lenet", "cpu", 1), ("softmax_regression", "cpu:2", 2)],
    ids=["lenet", "two devices"],
)
def test_t27_memory_is_flat_over_a_thousand_updates(model, devices, accumulate):
    early, late = resident_kib(model, devices, accumulate)
    assert late <= GROWTH * early


def test_a_caller_that_keeps_its_batches_shows_in_the_measurement():
    early, late = resident_kib("softmax_regression", keep_batches=True)
    assert late > GROWTH * early
