"""What a checkpoint of a 100 MB net costs: the pause of the training, the write beside it, and the load.

One net of 7 dense layers, trained with SGD; files in the folder for temporary files.

- `nd.save`: what Gluon does, the training waits for it, and the file is neither flushed nor hashed.
- snapshot: what mxkit's checkpoints copy; first until the training may go on, then until everything is copied.
- writing: to disk, flushed, walked and hashed, on a thread beside the training.
- `load_parameters` + SHA-256: Gluon's load and the hash of the file, against `mxkit.load_checkpoint`, which checks
  sizes, hashes, names, shapes and dtypes before it touches the net.
"""

from functools import partial
import hashlib
from pathlib import Path
import tempfile
import time
from typing import Any, Dict, Iterator, Tuple

import mxkit  # before mxnet
from mxkit.storage.snapshot import take_snapshot
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np

from benchmarks.harness import Row, Taken, rows_of

TITLE = "Checkpoints: the pause, the write and the load"
SIZES = {True: (2, 256), False: (7, 2048)}  # rounds, units of a layer


def run(quick: bool) -> Iterator[Row]:
    rounds, units = SIZES[quick]
    net, trainer = trained(units)
    arrays = {path: one.data() for path, one in net._collect_params_with_prefix().items()}
    case = f"{sum(array.size * 4 for array in arrays.values()) / 1e6:.0f} MB in {len(arrays)} arrays"
    taken: Dict[str, Taken] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, rounds):
            for way, seconds in one_round(Path(folder), number + 1, net, trainer, arrays).items():
                if number >= 0:
                    taken.setdefault(way, Taken([], [])).wall.append(seconds)
    for against in ("nd.save", "load_parameters + SHA-256"):
        group = {way: one for way, one in taken.items() if ("load" in way) == ("load" in against)}
        yield from rows_of(case, group, against=against, scale=1e3, unit="ms")


def trained(units: int) -> Tuple[Any, Any]:
    """A net after one update, and its Trainer."""
    mxkit.seed_all(0)
    net = nn.HybridSequential()
    for _ in range(6):
        net.add(nn.Dense(units, in_units=units, activation="relu"))
    net.add(nn.Dense(10, in_units=units))
    mxkit.initialize(net)
    net.hybridize(static_alloc=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    x, y = mx.nd.random.normal(shape=(8, units)), mx.nd.array(np.arange(8))
    with autograd.record():
        losses = gluon.loss.SoftmaxCrossEntropyLoss()(net(x), y)
    losses.backward()
    trainer.step(8)
    return net, trainer


def one_round(folder: Path, number: int, net: Any, trainer: Any, arrays: Dict[str, Any]) -> Dict[str, float]:
    """Seconds of each way; they use what the one before them has made."""
    parts = {"nd.save": timed(partial(mx.nd.save, str(folder / "plain.params"), arrays))}
    begun = time.perf_counter()
    snapshot = take_snapshot(net, trainer, step=number)
    parts["snapshot, until the training may go on"] = time.perf_counter() - begun
    mx.nd.waitall()
    parts["snapshot, until it is copied"] = time.perf_counter() - begun
    parts["writing beside the training"] = timed(partial(snapshot.write, folder / "run"))
    saved = folder / "run" / f"step-{number:08d}"
    parts["load_parameters + SHA-256"] = timed(partial(load_and_hash, net, saved / "net.params"))
    parts["load_checkpoint"] = timed(partial(mxkit.load_checkpoint, saved, net))
    return parts


def timed(work: Any) -> float:
    mx.nd.waitall()
    begun = time.perf_counter()
    work()
    mx.nd.waitall()
    return time.perf_counter() - begun


def load_and_hash(net: Any, path: Path) -> str:
    net.load_parameters(str(path))
    return hashlib.sha256(path.read_bytes()).hexdigest()
