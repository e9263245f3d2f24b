"""Takes a snapshot of a running `fit`, and restores one so that a later `fit` continues exactly."""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import copy_to_cpu, of_kind
from mxkit.core.blocks import is_numpy_net, net_devices
from mxkit.core.device import is_gpu
from mxkit.core.system import LOG
from mxkit.data.source import Source
from mxkit.errors import CheckpointError, CheckpointWarning, MxkitError
from mxkit.runtime.engine_settings import in_force, kernels
from mxkit.runtime.gpus import gpu_facts
from mxkit.storage.directory import PARAMETERS, Checkpoint, versions
from mxkit.storage.loading import match_arrays
from mxkit.storage.optimizer_state import optimizer_numbers
from mxkit.storage.parameter_file import read_arrays
from mxkit.storage.snapshot import Snapshot, put_back, take_snapshot
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import History
from mxkit.training.ledger import Ledger
from mxkit.training.net_settings import differences_of, from_json, net_settings, to_json, with_marks, without_changes
from mxkit.training.state import FitState

_NONE = type(None)
# Types of a run's values.
_FORMS: Dict[str, Any] = {
    "running": dict, "epoch": int, "cut": int, "updates": int, "history": list, "callbacks": list, "metrics": list,
    "stopped": (str, _NONE), "seed": (int, _NONE),
}  # fmt: skip

# Every update changes these numbers of an optimizer; the others are its settings.
_COUNTERS = ("num_update", "begin_num_update")


def settings_of(trainer: Any) -> Dict[str, float]:
    """Settings of a new Trainer's optimizer that are numbers, by name."""
    numbers = optimizer_numbers(trainer.optimizer)
    return {
        name: float(value)
        for name, value in numbers.items()
        if value is not None and not isinstance(value, bool) and name[0] != "_" and name not in _COUNTERS
    }


def capture(
    state: FitState, *, after_epoch: bool = False, score: Optional[Mapping[str, Any]] = None, others: Sequence[Any] = ()
) -> Snapshot:
    """Copy everything that the rest of a training depends on.

    Args:
        state: State of the running `fit`, after an update.
        after_epoch: True if the running epoch is over, validated, and in the history.
        score: For `find_checkpoint(which="best")`.
        others: The states of the other workers' metrics.

    Side effects:
        Waits for the losses of all updates so far, and for the copies.
    """
    state.running.settle()
    arrays: Dict[str, Any] = {}
    callbacks = []
    for number, (name, callback) in enumerate(_with_state(state.callbacks)):
        for slot, array in callback.state_arrays().items():
            arrays[f"callback:{number}:{slot}"] = copy_to_cpu(array)  # the callback may change its array later
        callbacks.append({"type": name, "state": callback.state_dict()})
    metrics = []
    for number, metric in enumerate([] if after_epoch else state.metrics):
        numbers, metric_arrays = metric.state()
        arrays.update({f"metric:{number}:{slot}": array for slot, array in metric_arrays.items()})
        metrics.append(numbers)
    for rank, worker in enumerate(others, 1):
        for number, (_, metric_arrays) in enumerate(worker):
            arrays.update({f"worker:{rank}:{number}:{slot}": array for slot, array in metric_arrays.items()})
    running = Ledger() if after_epoch else state.running
    cut = after_epoch and state.finished and not state.running.whole
    run = {
        "seed": state.seed,
        "epoch": state.epoch + 1 if after_epoch else state.epoch,
        "updates": state.updates,
        "running": running.state_dict(),
        "cut": state.running.updates if cut else 0,
        # a score inside an epoch belongs to the row that validation has just added; a longer run adds that row again
        "history": list(state.history)[: -1 if score and not after_epoch else None],
        "stopped": None if state.stop_is_for_now else state.stop_reason,
        "callbacks": callbacks,
        "metrics": metrics,
        "metrics_of_others": [[numbers for numbers, _ in worker] for worker in others],
        "metric_names": [metric.name for metric in state.metrics],
        "precision": None if state.precision is None else state.precision.state_dict(),
        "data": state.source.state_dict(),
        "settings": _settings(state),
        "optimizer": state.made_with,
        **_about_net(state),
    }
    content = {"run": run, **({"score": dict(score)} if score else {})}
    snapshot = take_snapshot(state.net, state.trainer, step=state.updates, content=content, arrays=arrays)
    snapshot.wait()
    return snapshot


def restore(state: FitState, checkpoint: Checkpoint) -> None:
    """Let a `fit` that has not begun continue from a snapshot.

    Raises:
        CheckpointError: The checkpoint was not written by `fit`, or does not fit the net, the Trainer or the
            metrics.

    Side effects:
        The net, the Trainer, the callbacks, the data's seed and `state` are those of the stopped run. Warns if a
        difference makes it impossible that the rest is bit-equal.
    """
    run = check_run(checkpoint)
    try:
        _restore(state, checkpoint, run)
    except MxkitError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"checkpoint {checkpoint.path} holds another kind of run: {error!r}") from error
    LOG.info("training resumed after update %d, from %s", checkpoint.step, checkpoint.path)


def check_run(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return a run's values from `capture`, after a check of their form; nothing is changed before.

    Raises:
        CheckpointError: The checkpoint was not written by `fit`, or has another form.
    """
    run = checkpoint.manifest.get("run")
    if not isinstance(run, dict):
        raise CheckpointError(f"checkpoint {checkpoint.path} was not written by fit. Use load_checkpoint and a new run")
    wrong = [name for name, kinds in _FORMS.items() if not isinstance(run.get(name), kinds)]
    if wrong or run["updates"] != checkpoint.step:
        see = ", ".join(wrong or ["updates"])
        raise CheckpointError(f"checkpoint {checkpoint.path} holds another kind of run: see {see}")
    return run


def _restore(state: FitState, checkpoint: Checkpoint, run: Mapping[str, Any]) -> None:
    names = [metric.name for metric in state.metrics]
    if run["metrics"] and run.get("metric_names", names) != names:  # the first checkpoints have no names
        text = f"checkpoint {checkpoint.path} lies inside an epoch with the metrics {run['metric_names']!s:.200}"
        raise CheckpointError(f"{text}; this run has {names}. Pass the same, in this order")
    differences = [*_differences(run["settings"], _settings(state)), *_differences_of_net(state, run)]
    if run["running"]["batches"]:
        _refuse_other_data(state, checkpoint, run)
    finished = run["stopped"] is not None or state.max_updates == run["updates"]
    finished = finished or (state.epochs is not None and run["epoch"] > state.epochs)
    if run["cut"] and run["stopped"] is None and state.max_updates != run["updates"]:
        end = f"after {run['cut']} updates of epoch {run['epoch'] - 1}, which counts as done"
        differences.append(f"it ended {end}, where random numbers were drawn")
    matched = match_arrays(state.net, read_arrays(checkpoint.path / PARAMETERS))
    if differences:
        what = "but the rest cannot be bit-equal to an uninterrupted run"
        if finished:
            what = "where the run is finished: nothing is trained, net and history are the finished run's"
        _warn(f"resumed from {checkpoint.path}, {what}: {'; '.join(differences)}")
    arrays = put_back(checkpoint, state.net, state.trainer, matched, devices=net_devices(state.net))
    state.epoch, state.updates, state.stop_reason = run["epoch"], run["updates"], run["stopped"]
    state.history = History(run["history"])
    state.running.load_state_dict(run["running"])
    if state.precision is not None and run["precision"] is not None:
        state.precision.load_state_dict(run["precision"])
    state.source.load_state_dict(run["data"])
    stored, prefix = run["metrics"], "metric:"
    rank = state.workers.rank
    if rank:
        others = run.get("metrics_of_others", ())
        stored, prefix = others[rank - 1] if rank <= len(others) else (), f"worker:{rank}:"
    for number, (metric, numbers) in enumerate(zip(state.metrics, stored)):
        metric.load_state(numbers, _part(arrays, f"{prefix}{number}:"), net_devices(state.net))
    _restore_callbacks(state, run["callbacks"], arrays, checkpoint)
    _warn_of_ignored_settings(state, checkpoint, run.get("optimizer"))


def _refuse_other_data(state: FitState, checkpoint: Checkpoint, run: Mapping[str, Any]) -> None:
    """Refuse to skip batches of another size or order: samples would be trained twice, or never.

    Raises:
        CheckpointError: The checkpoint lies inside an epoch, and this run's data is cut or ordered in another way.
    """
    running = run["running"]
    differences = _differences(run["settings"], {_WORKERS: state.workers.size, **_about_data(state.source)})
    if differences:
        place = f"inside epoch {run['epoch']}, after {running['samples']} of its samples"
        text = f"checkpoint {checkpoint.path} lies {place}, and the data is not the same: {'; '.join(differences)}"
        raise CheckpointError(f"{text}. Pass the same, or resume after an epoch")


def _warn_of_ignored_settings(state: FitState, checkpoint: Checkpoint, before: Optional[Mapping[str, Any]]) -> None:
    """Warn of settings of a new Trainer that are not used, because those of the stopped run continue."""
    now, state.made_with = state.made_with, before
    if before is None or now is None:  # an older checkpoint, or a Trainer that was used before
        return
    ignored = [name for name in now if name in before and now[name] != before[name]]
    if ignored:
        texts = (f"{name}={now[name]:g} is not used, the run began with {before[name]:g}" for name in ignored)
        attributes = ", ".join(f"state.trainer.optimizer.{name}" for name in ignored)
        text = f"resumed from {checkpoint.path}: the optimizer keeps its settings. {'; '.join(texts)}"
        _warn(f"{text}. To change them, set {attributes} in on_fit_begin(state) of a callback", 7)


def _warn(text: str, stacklevel: int = 6) -> None:
    warnings.warn(text, CheckpointWarning, stacklevel=stacklevel)


def _restore_callbacks(
    state: FitState, stored: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any], checkpoint: Checkpoint
) -> None:
    present = _with_state(state.callbacks)
    for number, part in enumerate(stored):
        match = next((pair for pair in present if pair[0] == part["type"]), None)
        if match is None:
            text = f"holds the state of {part['type']}, which this run does not have: left out"
            _warn(f"checkpoint {checkpoint.path} {text}", 7)
            continue
        present.remove(match)
        own = _part(arrays, f"callback:{number}:")
        if own:
            numpy = is_numpy_net(state.net)
            match[1].load_state_arrays({name: of_kind(array, numpy) for name, array in own.items()})
        match[1].load_state_dict(part["state"])
        match[1].resumed = True
    for name, _ in [] if state.done else present:
        text = f"holds no state of {name}, which this run has: it begins now and does not know the earlier epochs"
        _warn(f"checkpoint {checkpoint.path} {text}", 7)


def _with_state(callbacks: Sequence[Callback]) -> List[Tuple[str, Callback]]:
    """Callbacks that define a state, which may be empty when a run begins, with their classes' names."""
    stateless = (Callback.state_dict, Callback.state_arrays)
    own = [one for one in callbacks if (type(one).state_dict, type(one).state_arrays) != stateless]
    return [(type(one).__name__, one) for one in own]


def _part(arrays: Mapping[str, Any], prefix: str) -> Dict[str, Any]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}


def _settings(state: FitState) -> Dict[str, Any]:
    """Settings that must be the same for a resumed run to end with the same bits."""
    devices = net_devices(state.net)
    gpus = [device.device_id for device in devices if is_gpu(device)]
    return {
        "devices": [str(device) for device in devices],
        **(gpu_facts(gpus) if gpus else {}),
        "OMP_NUM_THREADS": str(in_force()),  # or mxkit.threads, or the processors: threads of an operator
        "kernels of OpenBLAS": kernels(),
        **{f"version of {name}": version for name, version in versions().items() if name in ("mxnet", "numpy")},
        **state.options.settings(),
        _WORKERS: state.workers.size,
        _UPDATES: state.updates_per_epoch,
        **_about_data(state.source),
    }


def _about_net(state: FitState) -> Dict[str, Any]:
    if state.net_settings is None:
        return {}
    return {"net": to_json(without_changes(state.net_settings, net_settings(state.net)))}


def _differences_of_net(state: FitState, run: Mapping[str, Any]) -> List[str]:
    """Compare the net before callbacks change it, as it was noted when the stopped run began.

    Side effects:
        What the stopped run changed itself is not compared from now on either.
    """
    if state.net_settings is None or "net" not in run:  # an older checkpoint
        return []
    stored, now = from_json(run["net"]), state.net_settings
    state.net_settings = with_marks(now, stored)
    return differences_of(stored, now)


_UPDATES = "updates an epoch"
_WORKERS = "number of workers"
_DIGEST = "digest of train"
_OF_DATA = ("batch_size", "samples of train", "shuffle", _DIGEST, "balance")
_OTHER_SAMPLES = "train holds other samples. A run over other data, like another fold, needs another directory"


def _about_data(source: Source) -> Dict[str, Any]:
    """Settings of a loader that decide which samples a batch holds, as far as they are known."""
    known = {**source.settings, "balance": source.settings.get("balance") or "none"}
    values = map(known.get, ("batch_size", "number of samples", "shuffle", "digest of the arrays", "balance"))
    return {name: value for name, value in zip(_OF_DATA, values) if isinstance(value, (bool, int, str))}


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    stored = {_WORKERS: 1, **stored}
    differ = [name for name in now if name in stored and stored[name] != now[name]]
    # the number of updates follows from other settings, and is None if it is not known
    if stored.get(_UPDATES) is None or {"accumulate", "limit_batches", *_OF_DATA[:2]} & set(differ):
        differ = [name for name in differ if name != _UPDATES]
    return [_OTHER_SAMPLES if name == _DIGEST else f"{name} was {stored[name]!r}, is {now[name]!r}" for name in differ]
