"""Write a run's training for PyTorch: `train.py`, the data, the weights and the optimizer's state, and the proof."""

import json
from pathlib import Path
import tempfile
from typing import Any, Dict, List, Mapping, Tuple, Union
import warnings

from mxkit.core.arguments import require
from mxkit.core.arrays import to_host
from mxkit.core.blocks import net_devices
from mxkit.core.system import write_atomically
from mxkit.errors import CheckpointWarning, ExportError, TrapWarning
from mxkit.exporting.params import safetensors_bytes
from mxkit.exporting.proof import Proof
from mxkit.exporting.trainings import texts
from mxkit.exporting.trainings.data import Data, data_of, problems_of
from mxkit.exporting.trainings.optimizers import optimizer_class, rule_of
from mxkit.exporting.trainings.proving import Beside, prove
from mxkit.exporting.trainings.recording import Recording, epochs_of, record, schedule_of
from mxkit.losses.net_losses import NET_LOSSES
from mxkit.plots.plotting import new_figure, saved
from mxkit.recipe.building import batches
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.run import open_run
from mxkit.recipe.schema import Recipe
from mxkit.version import __version__
import mxnet as mx
import numpy as np

# They watch the training, and change nothing of it.
_WATCHING = ("csv", "mlflow", "tensorboard", "time_limit", "wandb")
# Updates compared from either place, and the largest relative difference: that of `1 - beta2` in float32 is 1.3e-5
UPDATES, TOLERANCE = 20, 5e-5
_COLUMNS = ("epoch", "updates", "samples", "learning_rate")

Contents = Dict[str, Union[str, bytes]]


def write_training(run: Union[str, Path], folder: Union[str, Path], updates: int, tolerance: float) -> Proof:
    """Write the training of a run for PyTorch, and prove that it goes on as MXNet would.

    The folder holds `train.py`, which needs torch, NumPy and safetensors only, `net.py` and `data.py`, the weights, the
    optimizer's state, the history, and the data as arrays.

    Args:
        run: A run's folder, finished or not; its newest checkpoint is where the training goes on.
        folder: A new or empty folder.
        updates: Updates that are compared, from the start and from the checkpoint, as `prove` does.
        tolerance: Largest relative difference of an array.

    Raises:
        ExportError: The recipe holds something that has no code yet, all of which the text names; or `train.py`
            computes something else. Nothing was written.
        ImportError: torch or safetensors is missing.
        ValueError: The folder is not empty.
    """
    target = Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"export: {target} exists and is not empty: choose a new folder for the training's files")
    versions = {name: require(name, "torch").__version__ for name in ("torch", "safetensors", "numpy")}
    recipe, _, checkpoint = open_run(run, "last")
    data = load_data(recipe)
    _refuse(recipe, data)
    written = data_of(recipe, data)
    if "import cv2" in written.text:
        versions["opencv-python-headless"] = require("cv2", "torch").__version__
    example = to_host(next(iter(batches(recipe, data, "train", training=True)))[0])[:2].astype(np.float32)
    rows, said = [], []
    curves: Dict[str, Tuple[List[float], List[float]]] = {}
    contents: Contents = {}
    place = (1, 0, 0)
    with tempfile.TemporaryDirectory(prefix="mxkit-") as scratch:
        for name, where in (("start", None), ("checkpoint", checkpoint)):
            own = Path(scratch) / name
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CheckpointWarning)  # the run is finished, or began on another NumPy
                warnings.simplefilter("ignore", TrapWarning)  # the run itself has warned
                recording = record(recipe, data, own / "mxnet", updates, where)
            beside = Beside(recording.state.net, example)
            contents, place = _contents(recipe, written, recording, beside), recording.place
            _write(own, contents)
            compared, losses = prove(recipe, data, recording, beside, own)
            rows += [row._replace(name=f"{name}, {row.name}") for row in compared]
            curves[name] = recording.losses, losses
            said.append(f"{len(recording.moments) - 1} updates from epoch {place[0]}, batch {place[1]}")
    proof = Proof(rows, tolerance, {"mxkit": __version__, "mxnet": mx.__version__, **versions}, "; ".join(said))
    proof.check("train.py", "Report this recipe: its training would go on as another one")
    contents["README.md"] = texts.README.substitute(
        version=__version__,
        mxnet=mx.__version__,
        run=Path(run).name,
        recipe=recipe.name,
        packages=" ".join(versions),
        changed=", which are changed by the same random steps" if recipe.data.augment is not None else "",
        updates=place[2],
        epochs=max(epochs_of(recording.state), place[0]),
        missing=", ".join(one.name for one in recording.state.metrics if one.name not in texts.METRICS) or "none",
        proof=f"{proof.inputs}: {proof.summary()}",
        apart=f"{max((abs(one / mxnet - 1) for pair in curves.values() for mxnet, one in zip(*pair)), default=0):.1g}",
    )
    target.mkdir(parents=True, exist_ok=True)
    _write(target, contents)
    proof.write(target / "proof.json")
    _draw(curves, target / "curves.png")
    return proof


def _draw(curves: Mapping[str, Tuple[List[float], List[float]]], path: Path) -> None:
    figure = new_figure(len(curves))
    for place, (name, pair) in enumerate(curves.items(), 1):
        axes = figure.add_subplot(1, len(curves), place)
        for label, losses, line in zip((f"MXNet {mx.__version__}", "train.py"), pair, ("-", "--")):
            axes.plot(range(1, len(losses) + 1), losses, line, label=label)
        axes.set(title=f"from the {name}", xlabel="update", ylabel="loss of the update")
        axes.legend(frameon=False)
    saved(figure, path)


def _write(folder: Path, contents: Contents) -> None:
    for name, content in contents.items():
        write_atomically(folder / name, content if isinstance(content, bytes) else content.encode("utf-8"))


def _refuse(recipe: Recipe, data: Any) -> None:
    """Raise ExportError with all that has no code yet."""
    problems = []
    loss, arguments = str(recipe.loss.name), recipe.loss.arguments
    if texts.loss_text(loss, arguments) is None:
        problems.append(" with ".join(filter(None, (f"loss {loss}", ", ".join(arguments)))))
    try:
        rule_of(mx.optimizer.create(recipe.optimizer.name, **recipe.optimizer.arguments))
    except KeyError as error:
        problems.append(f"optimizer {error.args[0]}")
    problems += problems_of(recipe, data)
    values = {
        "amp": recipe.amp,
        "limit_batches": recipe.limit_batches,
        "accumulate in samples": recipe.accumulate_samples or not isinstance(recipe.accumulate, int),
        "arrays: np": recipe.arrays == "np",
    }
    problems += [name for name, value in values.items() if value]
    problems += [f"callback {one.name}" for one in recipe.callbacks if one.name not in _WATCHING]
    if problems:
        raise ExportError(
            f"export: the training of {recipe.name} holds what mxkit has no PyTorch code for: {'; '.join(problems)}. "
            "Without training= the net alone is written"
        )


def _contents(recipe: Recipe, data: Data, recording: Recording, beside: Beside) -> Contents:
    """The files of the folder, by name, as the training stands at the beginning of a recording."""
    fit, begin = recording.state, recording.moments[0]
    epoch, done, updates = recording.place
    metrics = texts.known_metrics([one.name for one in fit.metrics])
    columns = [*_COLUMNS, *(f"{part}_{name}" for part in ("train", "valid") for name in ("loss", *metrics))]
    state = {
        "epoch": epoch,
        "batches": done,
        "updates": updates,
        "sums": [recording.sums[name] for name in ("count", "loss", *metrics)] if recording.sums else None,
        "history": [{key: row.get(key) for key in columns} for row in fit.history if row["epoch"] < epoch],
    }
    metadata = {"format": "pt", "mxkit": __version__, "mxnet": mx.__version__}
    tensors = {"net": beside.values(begin.values), "optimizer": beside.slots(begin, fit.trainer.optimizer)}
    tensors["data"] = data.arrays
    paths = {"gluon": json.dumps(beside.gluon)} if beside.gluon else {}
    return {
        **{f"{name}.safetensors": safetensors_bytes(own, {**metadata, **paths}) for name, own in tensors.items()},
        "net.py": beside.text,
        "state.json": json.dumps(state, indent=1),
        "data.py": data.text,
        "train.py": _train_text(recipe, recording, beside, metrics),
    }


def _loss_arguments(recipe: Recipe, beside: Beside) -> Dict[str, Any]:
    """Arguments of the loss, with what it takes from the net."""
    name, arguments = str(recipe.loss.name), dict(recipe.loss.arguments)
    if name not in ("pixel_ce", "pose"):
        return arguments
    loss: Any = NET_LOSSES[name](**arguments)
    output: Any = beside.net(mx.nd.array(beside.example, net_devices(beside.net)[0]))
    if name == "pixel_ce":
        further = len(output) - 1 if isinstance(output, (list, tuple)) else 0
        return {"weights": (1.0, *loss.weights(beside.net, further))}
    return {"sigma": loss.spread(output.shape[2]), "scale": output.shape[3] / beside.example.shape[3]}


def _train_text(recipe: Recipe, recording: Recording, beside: Beside, metrics: List[str]) -> str:
    fit, (epoch, _, updates) = recording.state, recording.place
    optimizer = fit.trainer.optimizer
    normalized = any(key.endswith(".running_var") for key in beside.values(recording.moments[0].values))
    if normalized and len(net_devices(fit.net)) > 1:
        raise ExportError(
            "export: BatchNorm took its statistics from each device's share of a batch, which train.py, on one device, "
            "cannot do: a run on one device leaves"
        )
    factors = {key: (float(one.lr_mult), float(one.wd_mult)) for key, one in beside.trained.items()}
    constants = {
        "ACCUMULATE": recipe.accumulate,
        "WEIGHT_DECAY": float(optimizer.wd),
        "FACTORS": {key: pair for key, pair in factors.items() if pair != (1.0, 1.0)},
        "FROZEN": beside.frozen,
        "SEED": recipe.seed % 2**32,
    }
    text = texts.TRAIN.substitute(
        version=__version__,
        updates=updates,
        epoch=epoch,
        epochs=epochs_of(fit),
        scores=json.dumps(["loss", *metrics]),
        constants="\n".join(texts.constant(name, value) for name, value in constants.items()),
        rate=texts.rate_text(schedule_of(recipe, fit), fit.updates_per_epoch or 1),
        loss=texts.loss_text(str(recipe.loss.name), _loss_arguments(recipe, beside)),
        **texts.count_texts(str(recipe.loss.name)),
        metric=texts.metric_text(metrics, str(recipe.loss.name)),
        optimizer=optimizer_class(optimizer),
        name=type(optimizer).__name__,
        biased=texts.BIASED if normalized else "",
        keep="    keep_biased_variance(net)\n" if normalized else "",
        clip=texts.clip_text(recipe.clip_norm, recipe.clip_value),
    )
    return texts.tidied(text)
