"""The proof of an exported training: MXNet and `train.py` make the same updates, each from MXNet's own state."""

from contextlib import nullcontext
from functools import cached_property
import hashlib
from pathlib import Path
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from mxkit.core.arrays import call, legacy, of_kind, to_host
from mxkit.core.blocks import first_paths, is_numpy_net, net_devices, parameters_by_path
from mxkit.errors import ExportError
from mxkit.exporting.net_graph import input_names
from mxkit.exporting.proof import Row, above, compare
from mxkit.exporting.to_torch.code import state, torch_files
from mxkit.exporting.to_torch.operators import Problem
from mxkit.exporting.trainings import replay
from mxkit.exporting.trainings.detectors import inputs_of, traced_in_training
from mxkit.exporting.trainings.optimizers import any_rule_of, turns_of
from mxkit.exporting.trainings.recording import Double, Moment, Recording, batches_of, doubled, epochs_of, schedule_of
from mxkit.recipe.schema import Recipe
import mxnet as mx
import numpy as np

# Share of the largest array below which another one is rounding: a gradient of a bias before BatchNorm, the mean of
# what has none.
_SMALL = {"gradient": 1e-3, "statistic": 1e-9}
# A product of momentums below this changes no number
_NOTHING = 1e-12


class Beside:
    """A net in PyTorch's words: arrays by Gluon's paths become arrays by the keys of `state_dict`.

    Args:
        net: The net.
        example: The inputs, NumPy.
        labels: The labels, NumPy.
        unwritten: Takes the operators without an equivalent, which are else refused.
        detector: Whether the net gives other outputs in training.

    Attributes:
        net: As the argument.
        example, labels: As the arguments.
        text: The code of the net.
        trained: MXNet's Parameters by the keys of those that train.
        frozen: Keys of PyTorch's parameters that do not train.
        gluon: Gluon's paths by the keys of `state_dict`; empty if an array of PyTorch's holds several of MXNet's.
    """

    def __init__(
        self,
        net: Any,
        example: Sequence["np.ndarray"],
        labels: Sequence["np.ndarray"] = (),
        unwritten: Optional[List[Problem]] = None,
        detector: bool = False,
    ) -> None:
        self.net, self.example, self.labels = net, example, labels
        given = inputs_of(net, example, labels) if detector else list(example)
        with traced_in_training(net) if detector else nullcontext():
            inputs = dict(zip(input_names(net, len(given)), given))
            self.text, _, self._source = torch_files(net, inputs, unwritten=unwritten)
        self._paths = parameters_by_path(net)
        # from 2: a fixed gamma is written as ones
        numbered = {path: np.full(one.shape, number) for number, (path, one) in enumerate(self._paths.items(), 2)}
        names, path_of, found = list(self._paths), first_paths(self._paths), {}
        self.trained: Dict[str, Any] = {}
        self.frozen: List[str] = []
        for key, (value, kind) in self._state(numbered).items():
            number = int(value.flat[0]) if np.size(value) else 0
            path = names[number - 2] if number > 1 else ""
            if kind and path:
                if id(self._paths[path]) not in map(id, self.trained.values()):  # PyTorch names a shared one once, too
                    self.trained[key] = self._paths[path]
            elif kind is not None:
                self.frozen.append(key)
            if path and value.min() == value.max() > 1:
                found[key] = path
        self.gluon = found if set(path_of.values()) <= set(found.values()) else {}  # an LSTM's arrays are joined
        self._path_of = {key: path_of[id(one)] for key, one in self.trained.items()}

    @cached_property
    def outputs(self) -> List[Any]:
        """The net's outputs for the example."""
        device, is_numpy = net_devices(self.net)[0], is_numpy_net(self.net)
        outputs = call(self.net, [of_kind(mx.nd.array(one, device), is_numpy) for one in self.example])
        return list(legacy(outputs)) if isinstance(outputs, (list, tuple)) else [legacy(outputs)]

    def _state(self, by_path: Mapping[str, Any]) -> Dict[str, Any]:
        # a shared parameter has its array at its first path
        return state(self._source, {one: by_path[path] for one, path in first_paths(self._paths).items()})

    def values(self, by_path: Mapping[str, Any]) -> Dict[str, "np.ndarray"]:
        """All of `state_dict`."""
        return {key: np.ascontiguousarray(value) for key, (value, _) in self._state(by_path).items()}

    def of_trained(self, by_path: Mapping[str, Any]) -> Dict[str, "np.ndarray"]:
        """Arrays such as gradients, of the parameters that train and have one."""
        filled = {path: by_path.get(path, np.zeros(one.shape, np.float32)) for path, one in self._paths.items()}
        return {key: value for key, value in self.values(filled).items() if self._path_of.get(key) in by_path}

    def slots(self, moment: Moment, optimizer: Any) -> Dict[str, "np.ndarray"]:
        """The optimizer's arrays by `key:slot`, the slot in the words of `train.py`."""
        rule, found = any_rule_of(optimizer), {}
        for number, slot in enumerate(rule.slots):
            names = {path: [f"{path}:{number}", f"{path}:"] for path in self._paths}
            held = {path: moment.slots[name] for path, both in names.items() for name in both if name in moment.slots}
            found.update({f"{key}:{slot}": value for key, value in self.of_trained(held).items()})
        if "count" in rule.lines:
            counts = {key: moment.counts.get(path, 0) for key, path in self._path_of.items()}
            found.update({f"{key}:count": np.array(count, np.int64) for key, count in counts.items() if count})
        if "weights" in rule.settings:  # Nadam's product of momentums
            turns = turns_of(optimizer)
            found.update({f"{key}:turn": np.array(turns[id(one)]) for key, one in self.trained.items()})
            found.update({f"{key}:product": np.array(moment.product) for key in self.trained})
        return found


def prove(
    recipe: Recipe, data: Any, recording: Recording, beside: Beside, folder: Path, unwritten: Sequence[str] = ()
) -> Tuple[List[Row], List[float]]:
    """Compare the updates of `train.py` in a folder with recorded ones.

    From MXNet's weights before an update, `train.py` computes the loss, the gradients after clipping and the running
    statistics, in double precision as MXNet does here again. Then its optimizer makes the step in float32 from the
    gradients and states that MXNet's had, and gives weights and states. So no difference grows, and none hides in one.
    The learning rates of all updates and the batches of two epochs are compared, too. Dropout is off.

    Args:
        recipe: The run's recipe.
        data: Its data.
        recording: The updates.
        beside: The recorded net in PyTorch's words.
        folder: Of `train.py`.
        unwritten: Parts of it that are not written: without a "loss" the squares of the output are the loss, without
            "data" the batches are given, and what the other parts would give is not compared.

    Returns:
        The comparisons, and the losses of `train.py` without MXNet's help, in float32.

    Raises:
        ExportError: `train.py` failed.
    """
    fit, per_epoch = recording.state, recording.state.updates_per_epoch or 1
    windows, expected = _first(batches_of(recipe, data, recording), recording.samples)
    every = per_epoch * epochs_of(fit)
    optimizer = fit.trainer.optimizer
    given: Dict[str, Any] = {"updates": len(recording.moments) - 1, "place": recording.place[:2], "rates": every}
    given["inputs"] = len(beside.example)
    given["unwritten"] = np.array(list(unwritten), "U9")
    if "data" in unwritten:
        given["cuts"] = np.cumsum([len(window) for window in windows])
        own = [[to_host(one) for part in batch for one in part] for window in windows for batch in window]
        given.update({f"batch {at} {part}": one for at, batch in enumerate(own) for part, one in enumerate(batch)})
    for number, (before, after) in enumerate(zip(recording.moments, recording.moments[1:])):
        given[f"{number} averages"] = before.averaged
        for kind, arrays in (
            ("before", beside.values(before.values)),
            ("held", beside.slots(before, optimizer)),
            ("gradient", beside.of_trained(after.gradients)),
            ("averaged", beside.values({**before.values, **before.averages}) if after.averages else {}),
        ):
            given.update({f"{number} {kind} {key}": value for key, value in arrays.items()})
    np.savez(str(folder / "given.npz"), **given)
    command = [sys.executable, replay.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise ExportError(f"export: train.py failed, and was not written:\n{done.stderr.decode()[-2000:]}")
    rates = np.array(schedule_of(recipe, fit).rates(every, per_epoch))
    trained = np.array([name in beside.trained for name in sorted([*beside.trained, *beside.frozen])])
    with np.load(str(folder / "found.npz")) as found:
        rows = [
            compare("the rates of all updates", "schedule", 0, rates, found["rates"]),
            compare("which parameters train", "freeze", 0, trained, found["trained"]),
        ]
        if "data" not in unwritten:
            rows.append(compare("the batches of two epochs", "data", 0, expected, found["digests"]))
            rows.append(compare("samples of the updates", "data", 0, np.array(recording.samples), found["samples"]))
        doubles = doubled(recipe, recording, windows, "loss" in unwritten, beside.text)
        for number, double in enumerate(doubles):
            rows += _rows_of_update(beside, recording, number, double, found, unwritten)
        return rows, found["free"].tolist()


def _first(batches: Iterable[Any], sizes: Sequence[int]) -> Tuple[List[Any], "np.ndarray"]:
    """The batches of each recorded update, cut by its number of samples, and digests of all batches."""
    windows, digests, samples = [[]], [], 0  # type: List[Any], List[List[int]], int
    for inputs, labels in batches:
        if len(windows) <= len(sizes):
            windows[-1].append((inputs, labels))
            samples += len(inputs[0])
            if samples >= sizes[len(windows) - 1]:
                windows.append([])
                samples = 0
        content = [to_host(x).astype(np.float32).tobytes() for x in inputs]
        content += [to_host(y).astype(np.float64).tobytes() for y in labels]
        digests.append(list(hashlib.sha256(b"".join(content)).digest()))
    return windows[: len(sizes)], np.array(digests)


def _rows_of_update(
    beside: Beside,
    recording: Recording,
    number: int,
    double: Double,
    found: Mapping[str, Any],
    unwritten: Sequence[str],
) -> List[Row]:
    gradients, moment = beside.of_trained(double.gradients), recording.moments[number + 1]
    after, running = beside.values(moment.values), beside.values({**moment.values, **double.statistics})
    kinds: Dict[str, Dict[str, Any]] = {
        "loss": {"": np.array(double.loss)},
        "gradient": gradients,
        "statistic": {key: one for key, one in running.items() if key.rpartition(".")[2].startswith("running_")},
        "value": {key: one for key, one in after.items() if key in gradients},
        "slot": beside.slots(moment, recording.state.trainer.optimizer),
        "average": beside.of_trained(moment.averages),
    }
    rows = []
    for kind, arrays in kinds.items():
        largest = max((float(np.abs(one).max(initial=0.0)) for one in arrays.values()), default=0.0)
        for key, expected in arrays.items():
            if unwritten and f"{number} {kind} {key}" not in found:
                continue
            name = key or ("squares of the output" if "loss" in unwritten else kind)
            least = _NOTHING if key.endswith(":product") else _SMALL.get(kind, 0.0) * largest
            row = compare(f"update {number + 1}: {name}", kind, 0, expected, found[f"{number} {kind} {key}"])
            rows.append(above(least, row))
    return rows
