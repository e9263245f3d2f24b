"""The proof of an exported training: MXNet and `train.py` make the same updates, each from MXNet's own state."""

import hashlib
from pathlib import Path
import subprocess
import sys
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from mxkit.core.arrays import to_host
from mxkit.core.blocks import first_paths, parameters_by_path
from mxkit.errors import ExportError
from mxkit.exporting.proof import Row, above, compare
from mxkit.exporting.to_torch.code import state, torch_files
from mxkit.exporting.trainings import replay
from mxkit.exporting.trainings.optimizers import rule_of
from mxkit.exporting.trainings.recording import Double, Moment, Recording, doubled, epochs_of, schedule_of, windows_of
from mxkit.recipe.schema import Recipe
import numpy as np

# Share of the largest array below which another one is rounding: a gradient of a bias before BatchNorm, the mean of
# what has none.
_SMALL = {"gradient": 1e-3, "statistic": 1e-9}


class Beside:
    """A net in PyTorch's words: arrays by Gluon's paths become arrays by the keys of `state_dict`.

    Args:
        net: The net.
        example: An input, NumPy.

    Attributes:
        net: As the argument.
        example: As the argument.
        text: The code of the net.
        trained: MXNet's Parameters by the keys of those that train.
        frozen: Keys of PyTorch's parameters that do not train.
        gluon: Gluon's paths by the keys of `state_dict`; empty if an array of PyTorch's holds several of MXNet's.
    """

    def __init__(self, net: Any, example: "np.ndarray") -> None:
        self.net, self.example = net, example
        self.text, _, self._source = torch_files(net, {"data": example})
        self._paths = parameters_by_path(net)
        # from 2: a fixed gamma is written as ones
        numbered = {path: np.full(one.shape, number) for number, (path, one) in enumerate(self._paths.items(), 2)}
        parameters, self.trained, self.frozen = list(self._paths.values()), {}, []  # type: List[Any], Dict[str, Any], List[str]
        for key, (value, kind) in self._state(numbered).items():
            if kind and np.size(value):
                one = parameters[int(value.flat[0]) - 2]
                if id(one) not in map(id, self.trained.values()):  # PyTorch names a shared parameter once, too
                    self.trained[key] = one
            elif kind is not None:
                self.frozen.append(key)
        names = list(self._paths)
        numbers = {key: np.unique(value) for key, (value, _) in self._state(numbered).items()}
        found = {key: names[int(own[0]) - 2] for key, own in numbers.items() if len(own) == 1 and own[0] > 1}
        path_of = first_paths(self._paths)
        self.gluon = found if set(path_of.values()) <= set(found.values()) else {}  # an LSTM's arrays are joined
        self._path_of = {key: path_of[id(one)] for key, one in self.trained.items()}

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
        rule, found = rule_of(optimizer), {}
        for number, slot in enumerate(rule.slots):
            names = {path: [f"{path}:{number}", f"{path}:"] for path in self._paths}
            held = {path: moment.slots[name] for path, both in names.items() for name in both if name in moment.slots}
            found.update({f"{key}:{slot}": value for key, value in self.of_trained(held).items()})
        if rule.counts:
            counts = {key: moment.counts.get(path, 0) for key, path in self._path_of.items()}
            found.update({f"{key}:count": np.array(count, np.int64) for key, count in counts.items() if count})
        return found


def prove(
    recipe: Recipe, data: Any, recording: Recording, beside: Beside, folder: Path
) -> Tuple[List[Row], List[float]]:
    """Compare the updates of `train.py` in a folder with recorded ones.

    From MXNet's weights before an update, `train.py` computes the loss, the gradients after clipping and the running
    statistics, in double precision as MXNet does here again. Then its optimizer makes the step in float32 from the
    gradients and states that MXNet's had, and gives weights and states. So no difference grows, and none hides in one.
    The learning rates of all updates and the batches of two epochs are compared, too. Dropout is off.

    Returns:
        The comparisons, and the losses of `train.py` without MXNet's help, in float32.

    Raises:
        ExportError: `train.py` failed.
    """
    fit = recording.state
    windows, expected = _first(windows_of(recipe, data, recording.place), len(recording.moments) - 1)
    every = fit.updates_per_epoch * epochs_of(fit)
    optimizer = fit.trainer.optimizer
    given: Dict[str, Any] = {"updates": len(recording.moments) - 1, "place": recording.place[:2], "rates": every}
    for number, (before, after) in enumerate(zip(recording.moments, recording.moments[1:])):
        for kind, arrays in (
            ("before", beside.values(before.values)),
            ("held", beside.slots(before, optimizer)),
            ("gradient", beside.of_trained(after.gradients)),
        ):
            given.update({f"{number} {kind} {key}": value for key, value in arrays.items()})
    np.savez(str(folder / "given.npz"), **given)
    command = [sys.executable, replay.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise ExportError(f"export: train.py failed, and was not written:\n{done.stderr.decode()[-2000:]}")
    rates = np.array(schedule_of(recipe, fit).rates(every, fit.updates_per_epoch))
    trained = np.array([name in beside.trained for name in sorted([*beside.trained, *beside.frozen])])
    with np.load(str(folder / "found.npz")) as found:
        rows = [
            compare("the rates of all updates", "schedule", 0, rates, found["rates"]),
            compare("the batches of two epochs", "data", 0, expected, found["digests"]),
            compare("which parameters train", "freeze", 0, trained, found["trained"]),
        ]
        for number, (moment, double) in enumerate(zip(recording.moments[1:], doubled(recipe, recording, windows))):
            rows += _rows_of_update(beside, optimizer, number, moment, double, found)
        return rows, found["free"].tolist()


def _first(windows: Iterable[List[Any]], count: int) -> Tuple[List[Any], "np.ndarray"]:
    """The first windows, and digests of the batches of all."""
    kept, digests = [], []  # type: List[Any], List[List[int]]
    for window in windows:
        kept += [window] * (len(kept) < count)
        for x, y in window:
            content = to_host(x).astype(np.float32).tobytes() + to_host(y).astype(np.float64).tobytes()
            digests.append(list(hashlib.sha256(content).digest()))
    return kept, np.array(digests)


def _rows_of_update(
    beside: Beside, optimizer: Any, number: int, moment: Moment, double: Double, found: Mapping[str, Any]
) -> List[Row]:
    gradients = beside.of_trained(double.gradients)
    after, running = beside.values(moment.values), beside.values({**moment.values, **double.statistics})
    kinds: Dict[str, Dict[str, Any]] = {
        "loss": {"": np.array(double.loss)},
        "gradient": gradients,
        "statistic": {key: one for key, one in running.items() if key.rpartition(".")[2].startswith("running_")},
        "value": {key: one for key, one in after.items() if key in gradients},
        "slot": beside.slots(moment, optimizer),
    }
    rows = []
    for kind, arrays in kinds.items():
        smallest = _SMALL.get(kind, 0.0) * max(
            (float(np.abs(one).max(initial=0.0)) for one in arrays.values()), default=0.0
        )
        for key, expected in arrays.items():
            row = compare(f"update {number + 1}: {key or kind}", kind, 0, expected, found[f"{number} {kind} {key}"])
            rows.append(above(smallest, row))
    return rows
