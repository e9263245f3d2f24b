"""`mxkit.fit` beside a hand-tuned Gluon loop, the loops of the tutorials, Gluon's Estimator and `Module.fit`.

All train one net of the same first values on the same batches of an `ArrayLoader` (uint8 images, shuffled), SGD with
momentum or Adam, float32, in one process, with one thread a core; two cases have one thread, which is faster for the
smallest nets. `fit` runs once a case with accuracy, progress (into a pipe), its checks for NaN and checkpoints (an
epoch is 60,000 samples, 50,000 for ResNet-18, so one is written every few rounds or none); between its updates it hands
over, after a wait for the engine, to the others, so that all take turns in windows of some 0.5 s.

- hand-tuned: hybridized statically, the loss too; `record, backward, step`; no metric, and nothing waits.
- seeds' loop: as the tutorials write it: net not hybridized, loss and accuracy read at every batch.
- Estimator: of `gluon.contrib`, hybridized net, accuracy, its default handlers; what it prints goes into the pipe too.
- Module.fit: of the exported symbol with `SoftmaxOutput`, its own defaults, accuracy.

`fit` is compared with the hand-tuned loop; bars: 0.5 on softmax regression, 0.75 on the MLP and 1 on LeNet in batches
of 64, 0.88 on ResNet-18 in batches of 32, 1 with Adam. The others are compared with `fit`: above 1 they are slower, as
they should be.
"""

import itertools
import logging
from pathlib import Path
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple
import warnings

import mxkit  # before mxnet
from mxkit.data import ArrayLoader
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.gluon.contrib.estimator import Estimator
import numpy as np

from benchmarks.harness import Row, Taken, in_child, mxnet_threads, rows_of

TITLE = "Training loops"
FIT, HAND = "mxkit.fit", "hand-tuned"


class Case(NamedTuple):
    """A net and a batch; `others`: also the ways that are compared with `fit`."""

    title: str
    net: str
    batch: int
    others: bool = False
    bar: float = float("nan")
    optimizer: str = "sgd"
    threads: Optional[int] = None  # of an operator; None is one a core


CASES = [
    Case("softmax regression, batch 16", "softmax_regression", 16),
    Case("softmax regression, batch 64", "softmax_regression", 64, True, 0.5),
    Case("softmax regression, batch 256", "softmax_regression", 256),
    Case("softmax regression, batch 64, 1 thread", "softmax_regression", 64, bar=0.5, threads=1),
    Case("MLP, batch 16", "mlp", 16),
    Case("MLP, batch 64", "mlp", 64, True, 0.75),
    Case("MLP, batch 256", "mlp", 256),
    Case("MLP, batch 64, 1 thread", "mlp", 64, bar=0.75, threads=1),
    Case("LeNet, batch 16", "lenet", 16),
    Case("LeNet, batch 64", "lenet", 64, True, 1.0),
    Case("LeNet, batch 256", "lenet", 256),
    Case("ResNet-18, 32 px, batch 16", "resnet18", 16),
    Case("ResNet-18, 32 px, batch 32", "resnet18", 32, True, 0.88),
    Case("ResNet-18, 32 px, batch 256", "resnet18", 256),
    Case("softmax regression, batch 64, Adam", "softmax_regression", 64, bar=1.0, optimizer="adam"),
    Case("MLP, batch 64, Adam", "mlp", 64, bar=1.0, optimizer="adam"),
    Case("LeNet, batch 64, Adam", "lenet", 64, bar=1.0, optimizer="adam"),
    Case("ResNet-18, 32 px, batch 32, Adam", "resnet18", 32, bar=1.0, optimizer="adam"),
]
OPTIMIZERS = {"sgd": {"learning_rate": 0.01, "momentum": 0.9}, "adam": {"learning_rate": 0.001}}
# A bar of 2% needs more windows, each of which is off by 10%.
BAR_ROUNDS = 3
QUICK = ("softmax_regression", "lenet")
SIZES = {"rounds": 11, "seconds": 0.5, "samples": 50_000}
QUICK_SIZES = {"rounds": 2, "seconds": 0.1, "samples": 2_000}


def run(quick: bool) -> Iterator[Row]:
    sizes = QUICK_SIZES if quick else SIZES
    for case in CASES:
        if quick and (case.net not in QUICK or not case.others):
            continue
        rounds = sizes["rounds"] * (BAR_ROUNDS if case.bar == case.bar and not quick else 1)
        arguments = {
            "net": case.net, "batch": case.batch, "others": case.others, "optimizer": case.optimizer,
            **sizes, "rounds": rounds,
        }  # fmt: skip
        answer = in_child("benchmarks.loops:measure", arguments, environment=mxnet_threads(case.threads))
        scale = 1e6 / answer["updates"]
        taken = {way: Taken(*both) for way, both in answer["taken"].items()}
        bars = {} if case.bar != case.bar else {FIT: case.bar}
        pair = {way: taken[way] for way in (HAND, FIT)}
        yield from rows_of(case.title, pair, against=HAND, scale=scale, unit="us/update", bars=bars)
        beside = rows_of(case.title, taken, against=FIT, scale=scale, unit="us/update")
        yield from (row for row in beside if row.way not in (HAND, FIT))


def measure(
    net: str,
    batch: int,
    others: bool,
    optimizer: str,
    rounds: int,
    seconds: float,
    samples: int,
) -> Dict[str, Any]:
    """All ways of a case in turns, in a child: the updates of a window, and by way the windows' seconds."""
    logging.disable(logging.WARNING)  # Module's, on being used a second time
    loader = loader_of(net, batch, samples)
    ways = {HAND: HandTuned(net, loader, optimizer)}
    if others:
        ways.update({"seeds' loop": SeedsLoop(net, loader), "Estimator": Estimated(net, loader)})
        ways["Module.fit"] = Moduled(net, loader)
    built, trainer, loss = make(net, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        updates = window(ways[HAND], seconds)
        turns = Turns(ways, updates, rounds)
        mxkit.fit(
            built, ArrayLoader(loader.x, loader.y, batch, shuffle=True, seed=0), loss=loss, trainer=trainer,
            epochs=f"{updates * (rounds + 1)} updates", metrics=["accuracy"], callbacks=[turns], seed=0,
            checkpoint=Path(folder) / "checkpoints",
        )  # fmt: skip
    return {"updates": updates, "taken": turns.taken}


class Turns(mxkit.Callback):
    """Hands over to the other ways each time that `fit` has done the updates of a window; the first is not counted."""

    def __init__(self, ways: Dict[str, Callable[[int], None]], updates: int, rounds: int) -> None:
        self.taken: Dict[str, Taken] = {name: Taken([], []) for name in (FIT, *ways)}
        self._ways, self._updates, self._rounds = ways, updates, rounds
        self._begun = clocks()

    def on_fit_begin(self, state: Any) -> None:
        self._begun = clocks()

    def on_update(self, state: Any, update: Any) -> None:
        number, rest = divmod(state.updates, self._updates)
        if rest:
            return
        self._end(FIT, counted=number > 1)
        first = number % len(self._ways)
        for name in [*self._ways][first:] + [*self._ways][:first]:  # so that each has each before it
            self._begun = clocks()
            self._ways[name](self._updates)
            self._end(name, counted=number > 1)
        self._begun = clocks()

    def _end(self, name: str, counted: bool) -> None:
        mx.nd.waitall()
        if counted:
            for values, before, now in zip(self.taken[name], self._begun, clocks()):
                values.append(now - before)


def clocks() -> Tuple[float, float]:
    return time.perf_counter(), time.process_time()


def window(way: Callable[[int], None], seconds: float) -> int:
    """Updates that take about so long."""
    for updates in (3, 10):  # the first call makes graph and kernels
        begun = time.perf_counter()
        way(updates)
        mx.nd.waitall()
    return max(2, int(seconds * updates / (time.perf_counter() - begun)))


def loader_of(net: str, batch: int, samples: int) -> ArrayLoader:
    rng = np.random.RandomState(0)
    shape = (samples, 3, 32, 32) if net == "resnet18" else (samples * 6 // 5, 1, 28, 28)
    x = rng.randint(0, 255, shape, dtype=np.uint8)
    return ArrayLoader(x, rng.randint(0, 10, len(x)), batch, shuffle=True, seed=0, drop_last=True)


def make(name: str, optimizer: str = "sgd", hybridized: bool = True) -> Tuple[Any, Any, Any]:
    """A net with its Trainer and its loss."""
    mxkit.seed_all(0)
    net = mxkit.models.get_model(name)
    mxkit.initialize(net, "xavier", devices="cpu")
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    if hybridized:
        net.hybridize(static_alloc=True, static_shape=True)
        loss.hybridize(static_alloc=True)
    return net, gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer])), loss


def endless(loader: ArrayLoader) -> Iterator[Any]:
    while True:
        yield from loader


class HandTuned:
    """Each way is called with a number of updates, and goes on where its last call ended."""

    def __init__(self, name: str, loader: ArrayLoader, optimizer: str = "sgd") -> None:
        self.net, self.trainer, self.loss = make(name, optimizer)
        self.batches = endless(loader)

    def __call__(self, updates: int) -> None:
        for x, y in itertools.islice(self.batches, updates):
            with autograd.record():
                losses = self.loss(self.net(x), y)
            losses.backward()
            self.trainer.step(len(x))


class SeedsLoop(HandTuned):
    def __init__(self, name: str, loader: ArrayLoader) -> None:
        super().__init__(name, loader)
        self.net, self.trainer, self.loss = make(name, hybridized=False)

    def __call__(self, updates: int) -> None:
        total_loss = total_accuracy = 0.0
        for data, label in itertools.islice(self.batches, updates):
            with autograd.record():
                output = self.net(data)
                losses = self.loss(output, label)
            losses.backward()
            self.trainer.step(len(data))
            total_loss += nd.mean(losses).asscalar()
            total_accuracy += nd.mean(output.argmax(axis=1) == label.astype("float32")).asscalar()


class Batches(gluon.data.DataLoader):
    """The Estimator takes a DataLoader and nothing else; this one gives some of the batches of another loader."""

    def __init__(self, batches: Iterator[Any], updates: int) -> None:
        super().__init__(gluon.data.SimpleDataset([0]), batch_size=1)
        self._batches, self._updates = batches, updates

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._updates)


class Estimated(HandTuned):
    def __init__(self, name: str, loader: ArrayLoader) -> None:
        super().__init__(name, loader)
        self.estimator = Estimator(
            self.net, self.loss, train_metrics=mx.metric.Accuracy(), trainer=self.trainer, context=mx.cpu()
        )

    def __call__(self, updates: int) -> None:
        self.estimator.fit(Batches(self.batches, updates), epochs=1)


class Iterated(mx.io.DataIter):  # type: ignore[misc]
    """An epoch of some of the batches of a loader, as Module takes them."""

    def __init__(self, batches: Iterator[Any], updates: int, shapes: List[Any]) -> None:
        super().__init__(shapes[0][1][0])
        self.provide_data = [mx.io.DataDesc(*shapes[0])]
        self.provide_label = [mx.io.DataDesc(*shapes[1])]
        self._batches, self._updates, self._left = batches, updates, updates

    def reset(self) -> None:
        self._left = self._updates

    def next(self) -> Any:
        if not self._left:
            raise StopIteration
        self._left -= 1
        x, y = next(self._batches)
        return mx.io.DataBatch([x], [y], pad=0)


class Moduled:
    def __init__(self, name: str, loader: ArrayLoader) -> None:
        self.batches = endless(loader)
        x, y = next(self.batches)
        self.shapes = [("data", x.shape), ("softmax_label", y.shape)]
        net = make(name)[0]
        net(x)
        symbol = mx.sym.SoftmaxOutput(net(mx.sym.var("data")), name="softmax")
        self.module = mx.mod.Module(symbol, context=mx.cpu())

    def __call__(self, updates: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has its parameters and its optimizer from the first call
            self.module.fit(Iterated(self.batches, updates, self.shapes), num_epoch=1)
