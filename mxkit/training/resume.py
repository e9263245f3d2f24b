"""Takes a snapshot of a running `fit`, and restores one so that a later `fit` continues exactly."""

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import copy_to_cpu, of_kind
from mxkit.core.blocks import is_numpy_net, net_devices
from mxkit.core.device import is_gpu
from mxkit.core.system import LOG
from mxkit.data.source import Source
from mxkit.errors import CheckpointError, CheckpointWarning, MxkitError
from mxkit.runtime.engine_settings import in_force
from mxkit.runtime.gpus import gpu_facts
from mxkit.storage.directory import PARAMETERS, Checkpoint, versions
from mxkit.storage.loading import match_arrays
from mxkit.storage.optimizer_state import optimizer_numbers
from mxkit.storage.parameter_file import read_arrays
from mxkit.storage.snapshot import Snapshot, put_back, take_snapshot
from mxkit.training.callbacks.callback import Callback
from mxkit.training.history import History
from mxkit.training.ledger import Ledger
from mxkit.training.state import FitState

_NONE = type(None)

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
    state: FitState,
    *,
    after_epoch: bool = False,
    score: Optional[Mapping[str, Any]] = None,
    others: Sequence[Any] = (),
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
            names = {f"worker:{rank}:{number}:{slot}": array for slot, array in metric_arrays.items()}
            arrays.update(names)
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
        raise CheckpointError(
            f"checkpoint {checkpoint.path} was not written by fit: it has no epoch. Use load_checkpoint and a new run"
        )
    try:
        counts = {**run["running"], "cut": run["cut"], "epoch": run["epoch"] - 1}
        whole = ("batches", "updates", "samples", "skipped", "cut", "epoch")
        wrong = [name for name in whole if not isinstance(counts[name], int) or counts[name] < 0]
        wrong += [name for name in ("count", "loss_sum", "seconds") if not isinstance(counts[name], (int, float))]
        wrong += [name for name in ("history", "callbacks", "metrics") if not isinstance(run[name], list)]
        wrong += [name for name in ("history", "callbacks") if not all(isinstance(part, dict) for part in run[name])]
        wrong += [name for name, kind in (("stopped", str), ("seed", int)) if not isinstance(run[name], (kind, _NONE))]
        wrong += ["updates"] * (run["updates"] != checkpoint.step)
    except (KeyError, TypeError) as error:
        wrong = [repr(error)]
    if wrong:
        raise CheckpointError(f"checkpoint {checkpoint.path} holds another kind of run: see {', '.join(wrong)}")
    return run


def _restore(state: FitState, checkpoint: Checkpoint, run: Mapping[str, Any]) -> None:
    if run["metrics"] and len(run["metrics"]) != len(state.metrics):
        raise CheckpointError(
            f"checkpoint {checkpoint.path} lies inside an epoch with {len(run['metrics'])} training metrics; "
            f"this run has {len(state.metrics)}. Pass the same metrics"
        )
    names = [metric.name for metric in state.metrics]
    if run["metrics"] and run.get("metric_names", names) != names:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} lies inside an epoch with the training metrics "
            f"{run['metric_names']!s:.200}; this run has {names}. Pass the same metrics in the same order"
        )
    settings = _settings(state)
    if run["running"]["batches"]:
        _refuse_other_data(state, checkpoint, run, settings)
    finished = run["stopped"] is not None or state.max_updates == run["updates"]
    finished = finished or (state.epochs is not None and run["epoch"] > state.epochs)
    differences = _differences(run["settings"], settings)
    called = "threads of an operator (mxkit.threads before `import mxnet`, or OMP_NUM_THREADS, sets them)"
    differences = [f"{called}{one[len(_THREADS) :]}" if one.startswith(_THREADS) else one for one in differences]
    if finished and _OTHER_SAMPLES in differences:
        differences.remove(_OTHER_SAMPLES)
        _warn(
            f"resumed from {checkpoint.path}, where the run is finished: nothing is trained, net and history are the "
            f"finished run's, but {_OTHER_SAMPLES}"
        )
    if run["cut"] and run["stopped"] is None and state.max_updates != run["updates"]:
        differences.append(
            f"it ended after {run['cut']} updates of epoch {run['epoch'] - 1}, where random numbers were being drawn. "
            "That epoch counts as done"
        )
    if differences:
        _warn(
            f"resumed from {checkpoint.path}, but the rest cannot be bit-equal to an uninterrupted run: "
            f"{'; '.join(differences)}"
        )
    matched = match_arrays(state.net, read_arrays(checkpoint.path / PARAMETERS))
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


def _refuse_other_data(
    state: FitState, checkpoint: Checkpoint, run: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Refuse to skip batches of another size or order: samples would be trained twice, or never.

    Raises:
        CheckpointError: The checkpoint lies inside an epoch, and this run's data is cut or ordered in another way.
    """
    running = run["running"]
    names = (*_OF_DATA, _WORKERS)
    differences = _differences(run["settings"], {name: settings[name] for name in names if name in settings})
    samples = state.source.samples_in(running["batches"])
    if samples not in (None, running["samples"]) and not differences:
        differences = [f"{running['batches']} batches held {running['samples']} samples, now hold {samples}"]
    if differences:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} lies inside epoch {run['epoch']}, after {running['samples']} of its "
            f"samples, and the data is not the same: {'; '.join(differences)}. The rest of the epoch would leave "
            "samples out or train some twice. Pass the same data, or resume from a checkpoint at the end of an epoch"
        )


def _warn_of_ignored_settings(state: FitState, checkpoint: Checkpoint, before: Optional[Mapping[str, Any]]) -> None:
    """Warn of settings of a new Trainer that are not used, because those of the stopped run continue."""
    now, state.made_with = state.made_with, before
    if before is None or now is None:  # an older checkpoint, or a Trainer that was used before
        return
    ignored = [name for name in now if name in before and now[name] != before[name]]
    if ignored:
        texts = (f"{name}={now[name]:g} is not used, the run began with {before[name]:g}" for name in ignored)
        attributes = ", ".join(f"state.trainer.optimizer.{name}" for name in ignored)
        _warn(
            f"resumed from {checkpoint.path}: the optimizer keeps its settings. {'; '.join(texts)}. To change them, "
            f"set {attributes} in on_fit_begin(state) of a callback",
            7,
        )


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
        _THREADS: str(in_force()),
        **{f"version of {name}": version for name, version in versions().items() if name in ("mxnet", "numpy")},
        **state.options.settings(),
        _WORKERS: state.workers.size,
        _UPDATES: state.updates_per_epoch,
        **_about_data(state.source),
    }


_THREADS = "OMP_NUM_THREADS"  # the number of threads of an operator, whoever decided it
_UPDATES = "updates an epoch"
_WORKERS = "number of workers"
_DIGEST = "digest of train"
_OF_DATA = ("batch_size", "samples of train", "shuffle", _DIGEST, "balance")
_OTHER_SAMPLES = (
    "train holds other samples than the stopped run's. A run over other data, like another fold of a "
    "cross-validation, needs another directory of checkpoints"
)


def _about_data(source: Source) -> Dict[str, Any]:
    """Settings of a loader that decide which samples a batch holds, as far as they are known."""
    known = {"balance": None, **source.settings}
    names = ("batch_size", "number of samples", "shuffle", "digest of the arrays", "balance")
    values = [known[name] for name in names]
    values[-1] = values[-1] or "none"
    return {name: value for name, value in zip(_OF_DATA, values) if isinstance(value, (bool, int, str))}


def _comparable(settings: Mapping[str, Any]) -> Dict[str, Any]:
    """Settings, also of older checkpoints, with one name and one form for each."""
    comparable = {_WORKERS: 1, **settings}
    # before mxkit chose the number of threads, the processors were stored, and MXNet took half of them (T96)
    processors = re.fullmatch(r"not set, (\d+) processors", str(settings.get("OMP_NUM_THREADS")))
    if processors:
        comparable["OMP_NUM_THREADS"] = str(max(1, int(processors[1]) // 2))
    samples = comparable.pop("accumulate_samples", None)
    if samples is not None:
        comparable["accumulate"] = f"{samples} samples"
    return comparable


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> List[str]:
    stored, now = _comparable(stored), _comparable(now)
    differ = [name for name in now if name in stored and stored[name] != now[name]]
    # the number of updates follows from other settings, and is None if it is not known
    if stored.get(_UPDATES) is None or {"accumulate", "limit_batches", *_OF_DATA[:2]} & set(differ):
        differ = [name for name in differ if name != _UPDATES]
    return [_OTHER_SAMPLES if name == _DIGEST else f"{name} was {stored[name]!r}, is {now[name]!r}" for name in differ]
