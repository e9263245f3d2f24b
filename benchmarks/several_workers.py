"""Two workers on this machine's cores beside one process with as many threads: samples a second of `mxkit.fit`.

Both make the same updates: the process takes batches twice as large as a worker's. Each round is a job of its own, of
which the first epoch is not counted; the two take turns. Workers that share one processor compute no more than the
process, and have gradients to send beside: the ratio says what that costs, not what several machines bring. For that
see docs/distributed-costs.md.
"""

from functools import partial
import os
from pathlib import Path
import subprocess
import sys
import tempfile
from typing import Iterator, Tuple

from benchmarks.harness import ROOT, Row, rows_of, take_turns

TITLE = "Several workers on one machine"
WORKERS, EPOCHS = 2, 4
ALONE, TOGETHER = f"one process, {WORKERS} threads", f"mxkit launch -n {WORKERS}, one thread each"
# Net, shape of an image, samples of a joint batch, joint batches of an epoch.
CASES: Tuple[Tuple[str, Tuple[int, ...], int, int], ...] = (
    ("lenet", (1, 28, 28), 256, 20),
    ("resnet18", (3, 32, 32), 128, 6),
)
ROUNDS = {True: 1, False: 5}


def run(quick: bool) -> Iterator[Row]:
    for name, shape, batch, batches in CASES:
        updates = 2 if quick else batches
        ways = {
            way: partial(seconds, workers, name, shape, batch, updates)
            for way, workers in ((ALONE, 1), (TOGETHER, WORKERS))
        }
        taken = take_turns(ways, rounds=ROUNDS[quick], warm_up=0)
        case = f"{name}, {shape[-1]} px, joint batch {batch}"
        rows = rows_of(case, taken, against=ALONE, scale=batch * updates, unit="samples/s")
        yield from (row._replace(cpu=None) for row in rows)


def seconds(workers: int, name: str, shape: Tuple[int, ...], batch: int, updates: int) -> float:
    """Seconds of an epoch: of the fastest but the first, as `fit` measures it on worker 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds"
        arguments = (name, shape, batch, updates, str(file))
        code = f"from benchmarks.several_workers import work; work(*{arguments!r})"
        launch = ["-m", "mxkit", "launch", "-n", str(workers), "--", sys.executable] if workers > 1 else []
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(WORKERS // workers)}
        subprocess.run([sys.executable, *launch, "-c", code], env=variables, check=True, cwd=str(ROOT))
        return float(file.read_text())


def work(name: str, shape: Tuple[int, ...], batch: int, updates: int, file: str) -> None:
    """Train as a worker, or alone."""
    import mxkit  # before mxnet
    import mxkit.distributed
    import mxnet as mx
    import numpy as np

    mxkit.distributed.initialize()
    samples = batch * updates
    x = np.random.RandomState(0).rand(samples, *shape).astype(np.float32)
    net = mxkit.models.get_model(name, classes=10)
    mxkit.initialize(net, devices="cpu", sample=mx.nd.zeros((1, *shape)))
    net.hybridize(static_alloc=True, static_shape=True)
    history = mxkit.fit(
        net,
        mxkit.data.ArrayLoader(x, np.arange(samples) % 10, batch // mxkit.distributed.size()),
        loss="softmax_ce",
        trainer=("sgd", {"learning_rate": 0.01, "momentum": 0.9}),
        epochs=EPOCHS,
        progress=False,
    )
    if mxkit.distributed.rank() == 0:
        Path(file).write_text(str(min(row["seconds"] for row in list(history)[1:])))
