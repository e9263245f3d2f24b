"""The first updates of a run, made again by MXNet and kept: losses, rates, weights and the optimizer's states."""

from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
import shutil
from time import perf_counter
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import of_kind, to_host
from mxkit.core.blocks import blocks_by_path, first_paths, is_numpy_net, parameters_by_path
from mxkit.core.device import unpack
from mxkit.core.replicas import values_of
from mxkit.core.trainers import watch_gradients
from mxkit.data.source import source_of
from mxkit.data.splits import Splits
from mxkit.errors import CheckpointWarning
from mxkit.exporting.trainings.detectors import in_double_precision, with_given_draws
from mxkit.nets.finetuning import copy_net
from mxkit.recipe.building import Call, InFolder, batches, execute, fit_call, is_loader, loader_calls, net_calls
from mxkit.recipe.schema import Recipe, under_switches
from mxkit.storage.directory import Checkpoint
from mxkit.storage.optimizer_state import optimizer_state
from mxkit.training.callbacks.callback import Callback
from mxkit.training.callbacks.weights import EMA
from mxkit.training.checkpoints import Checkpoints
from mxkit.training.ledger import Update
from mxkit.training.schedules import Schedule, get_schedule, schedule
from mxkit.training.state import FitState
from mxkit.training.update import updates
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

# Double precision takes some ten times as long, and MXNet's state after each update stays in memory.
_SECONDS, _BYTES = 20, 10**9
# Batches that are read of a loader whose order is its own
_BATCHES = 32


class Moment(NamedTuple):
    """What MXNet holds after an update.

    Attributes:
        values: Parameters by path, NumPy.
        slots: The optimizer's arrays by `path:slot`, as `optimizer_state` names them.
        counts: Updates of each parameter by path.
        product: Nadam's product of momentums.
        averages: Moving averages of the weights by path; empty without any.
        averaged: Number of updates in them.
        gradients: Averages over the samples of the update by path, after clipping.
    """

    values: Dict[str, Any]
    slots: Dict[str, Any]
    counts: Dict[str, int]
    product: float = 1.0
    averages: Dict[str, Any] = {}
    averaged: int = 0
    gradients: Dict[str, Any] = {}


class Recording(Callback):
    """Keeps the state before training and after each of some updates, and then stops.

    Args:
        most: Number of updates; of a large net fewer, but at least two.

    Attributes:
        moments: The state at the beginning, and after each update.
        losses: Mean loss of each update.
        samples: Samples of each update.
        state: The `FitState`.
        place: `(epoch, batches of it, updates)` at the beginning.
        sums: Of an epoch that was begun: `count`, the sum of its divisors, and by name those of `loss` and the metrics.
    """

    writes = True

    def __init__(self, most: int) -> None:
        self.moments: List[Moment] = []
        self.losses: List[float] = []
        self.samples: List[int] = []
        self.state: Any = None
        self.place = (1, 0, 0)
        self.sums: Dict[str, float] = {}
        self._most = most
        self._gradients: Dict[str, Any] = {}
        self._begun = 0.0

    def on_fit_begin(self, state: FitState) -> None:
        """Keep the state before the first update."""
        running = state.running
        self.state, self.place = state, (state.epoch, running.batches, state.updates)
        if running.batches:
            self.sums = {metric.name: float(metric.get()) * running.count for metric in state.metrics}
            whole = float(running.count).is_integer()  # `train.py` counts samples in whole numbers
            self.sums.update(count=int(running.count) if whole else running.count, loss=running.loss_sum)
        self.moments.append(_moment(state))
        self._begun = perf_counter()
        paths = first_paths(parameters_by_path(state.net))
        watch_gradients(state.trainer, lambda one, array: self._gradients.update({paths[id(one)]: array}))

    def on_update(self, state: FitState, update: Update) -> None:
        """Keep the state after an update."""
        self.losses.append(float(update.loss))
        self.samples.append(update.samples)
        self.moments.append(_moment(state)._replace(gradients=dict(self._gradients)))
        held = sum(array.nbytes for kept in self.moments[-1][:2] for array in kept.values()) * len(self.moments)
        enough = len(self.moments) > 2 and (held > _BYTES or perf_counter() - self._begun > _SECONDS)
        if enough or len(self.moments) > self._most:
            state.stop("recorded", for_now=True)


def _host(parameter: Any) -> "np.ndarray":
    arrays: Any = values_of(parameter)
    return np.array(arrays[0].asnumpy())


def _moment(state: FitState) -> Moment:
    values = {path: _host(one) for path, one in parameters_by_path(state.net).items()}
    arrays, described = optimizer_state(state.net, state.trainer)
    counts = described["replicas"][0]["updates"] if described["replicas"] else {}
    slots = {name: array.asnumpy() for name, array in arrays.items()}
    average = average_of(state)
    averages = {} if average is None else {path: one.asnumpy() for path, one in average.state_arrays().items()}
    product = described["numbers"].get("m_schedule", 1.0)
    return Moment(values, slots, dict(counts), product, averages, 0 if average is None else average.updates)


def average_of(state: FitState) -> Optional[EMA]:
    """The callback that averages the weights, or None."""
    return next((one for one in state.callbacks if isinstance(one, EMA)), None)


@under_switches
def record(
    recipe: Recipe, data: Splits, folder: Path, most: int, checkpoint: Optional[Checkpoint], net: Any = None
) -> Recording:
    """Make updates as the recipe's run would, and keep them. Dropout is off.

    Args:
        recipe: The run's recipe.
        data: Its data.
        folder: An empty folder for the files of the training.
        most: Number of updates.
        checkpoint: Where the training begins; None for its start.
        net: The net; it does not change. None for that of the recipe.
    """
    folder.mkdir(parents=True)
    if checkpoint is not None:
        shutil.copytree(str(checkpoint.path), str(folder / "checkpoints" / checkpoint.path.name))
    calls = [*loader_calls(recipe, data), *(net_calls(recipe) if net is None else [])]
    given = {"data": data, "folder": folder, "net": None if net is None else copy_net(net)}
    results = execute(calls, given, recipe.name)
    if checkpoint is None:  # the first values of layers that wait for a first batch
        first, _ = unpack(next(source_of(results["train"]).read(keep_count=True)))
        with autograd.pause(), _without_dropout(results["net"]):  # the graph that it makes stays
            results["net"](*first)
    averages = [one for one in recipe.callbacks if one.name == "ema"]
    recording, call = Recording(most), fit_call(recipe.model_copy(update={"callbacks": averages}), data)
    named = {name: value for name, value in call.named.items() if name != "valid"}
    named.update(callbacks=[*named.get("callbacks", []), recording], progress=False)
    named["checkpoint"] = Call(Checkpoints, (InFolder("checkpoints"),))
    with _without_dropout(results["net"]), warnings.catch_warnings():
        # the run had dropout, may be finished, and may have begun on another NumPy
        warnings.simplefilter("ignore", CheckpointWarning)
        execute([replace(call, named=named)], results, recipe.name)
    return recording


class Double(NamedTuple):
    """An update in double precision, from the weights before a recorded one.

    Attributes:
        loss: Mean loss.
        gradients: By path, averaged and clipped.
        statistics: Running statistics and other parameters without a gradient after it, by path.
    """

    loss: float
    gradients: Dict[str, Any]
    statistics: Dict[str, Any]


def batches_of(recipe: Recipe, data: Splits, recording: Recording) -> Iterator[Any]:
    """Inputs and labels from where a recording began to the end of its last epoch, or the next; of a user's loader
    those that come first."""
    loader = batches(recipe, data, "train", training=True)
    if is_loader(data.train):  # an iterator of MXNet fills its arrays again
        read = map(unpack, islice(source_of(loader).read(), _BATCHES))
        copies = [tuple(tuple(one.copy() for one in part) for part in pair) for pair in read]
        yield from copies * (1 + sum(recording.samples) // sum(len(inputs[0]) for inputs, _ in copies))
        return
    epoch, first, _ = recording.place
    samples = 0
    while epoch < recording.place[0] + 2 or samples < sum(recording.samples):
        loader.epoch = epoch - 1
        loader.skip(first)
        for inputs, labels in map(unpack, loader):
            samples += len(inputs[0])
            yield inputs, labels
        epoch, first = epoch + 1, 0


@under_switches
def example_of(recipe: Recipe, data: Splits) -> Tuple[List["np.ndarray"], List["np.ndarray"]]:
    """Two samples of the training part, as the net gets them, and their labels."""
    inputs, labels = unpack(next(source_of(batches(recipe, data, "train", training=True)).read(keep_count=True)))
    return [to_host(one[:2]).astype(np.float32) for one in inputs], [to_host(one[:2]) for one in labels]


@under_switches
def doubled(recipe: Recipe, recording: Recording, windows: Sequence[Any], stand_in: bool, code: str) -> List[Double]:
    """Make the recorded updates in double precision, each from the recorded weights before it.

    Args:
        recipe: The run's recipe.
        recording: The updates.
        windows: The batches of each.
        stand_in: Take the squares of the net's output as the loss.
        code: The net's in PyTorch.

    Side effects:
        The recording's net holds other weights.
    """
    net, found = recording.state.net, []
    paths = first_paths(parameters_by_path(net))
    gradients: Dict[str, Any] = {}
    # MXNet's own kernel of several layers is wrong (T259), and oneDNN has it for float32 only, as MXNet that of LRN
    recurrent = (layer for _, layer in blocks_by_path(net) if isinstance(layer, gluon.rnn.rnn_layer._RNNLayer))
    dtype = "float32" if "local_response_norm" in code or any(one._num_layers > 1 for one in recurrent) else "float64"
    net.cast(dtype)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1e-30}, update_on_kvstore=False)
    watch_gradients(trainer, lambda one, array: gradients.update({paths[id(one)]: array}))
    loss = squares if stand_in else recipe.loss.made
    options: Dict[str, Any] = {"clip_norm": recipe.clip_norm, "clip_value": recipe.clip_value, "loss": loss}
    with _without_dropout(net), in_double_precision(net):
        for moment, window in zip(recording.moments[:-1], windows):
            for path, one in parameters_by_path(net).items():
                one.set_data(of_kind(mx.nd.array(moment.values[path], dtype=dtype), is_numpy_net(net)))
            wide = [([x.astype(dtype) for x in inputs], labels) for inputs, labels in window]
            (update,) = updates(net, wide, trainer=trainer, accumulate=len(wide), **options)
            statistics = {path: _host(one) for path, one in parameters_by_path(net).items() if one.grad_req == "null"}
            found.append(Double(float(update.loss), dict(gradients), statistics))
    net.cast("float32")
    return found


def squares(output: Any, *labels: Any) -> Any:
    """The loss that stands in for one that `train.py` does not have."""
    outputs = output if isinstance(output, (list, tuple)) else [output]
    return sum((one * one).reshape((one.shape[0], -1)).mean(axis=1) for one in outputs)


def epochs_of(fit: FitState) -> int:
    """Epochs of a run; one of updates ends with the epoch that holds its last update."""
    return fit.epochs or -(-(fit.max_updates or 1) // (fit.updates_per_epoch or 1))


def schedule_of(recipe: Recipe, fit: FitState) -> Schedule:
    """The schedule of a run's learning rate, with its base and its end."""
    base = mx.optimizer.create(recipe.optimizer.name, **recipe.optimizer.arguments).lr or 1.0
    if recipe.schedule is None:
        return schedule("constant", base=base)
    return get_schedule(recipe.schedule.made).completed(base, fit.length)


@contextmanager
def _without_dropout(net: Any) -> Iterator[None]:
    """Let no Dropout of a net draw, nor those between recurrent layers; a detector takes the numbers of `drawn`."""
    places = [(block, name) for _, block in blocks_by_path(net) for name in ("_rate", "_dropout")]
    rates = [(block, name, getattr(block, name)) for block, name in places if getattr(block, name, 0)]
    for block, name, _ in rates:
        setattr(block, name, 0.0)
    try:
        with with_given_draws(net):
            yield
    finally:
        for one in rates:
            setattr(*one)
