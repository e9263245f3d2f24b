"""Write a run's training for PyTorch: `train.py`, the data, the weights and the optimizer's state, and the proof."""

import json
from pathlib import Path
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union
import warnings

from mxkit.core.arguments import require
from mxkit.core.blocks import net_devices
from mxkit.core.replicas import has_sparse_gradient
from mxkit.core.system import write_atomically
from mxkit.errors import ExportError, TrapWarning
from mxkit.exporting.params import safetensors_bytes
from mxkit.exporting.proof import Proof
from mxkit.exporting.to_torch.operators import Problem
from mxkit.exporting.trainings import detectors, texts
from mxkit.exporting.trainings.data_file import Data, data_of
from mxkit.exporting.trainings.fits import recipe_of_fit
from mxkit.exporting.trainings.missing import Missing, marked_bodies, missing_parts, of_net, refuse
from mxkit.exporting.trainings.optimizers import optimizer_class
from mxkit.exporting.trainings.proving import Beside, prove
from mxkit.exporting.trainings.recording import Recording, average_of, epochs_of, example_of, record, schedule_of
from mxkit.losses.net_losses import NET_LOSSES
from mxkit.metrics.detection import PixelAccuracy
from mxkit.metrics.figures import Accuracy
from mxkit.plots.plotting import new_figure, saved
from mxkit.recipe.data_checks import load_data
from mxkit.recipe.run import open_run
from mxkit.recipe.schema import Recipe
from mxkit.storage.directory import Checkpoint
from mxkit.training.state import FitState
from mxkit.version import __version__
import mxnet as mx

# Updates compared from either place, and the largest relative difference: that of `1 - beta2` in float32 is 1.3e-5
UPDATES, TOLERANCE = 20, 5e-5

Contents = Dict[str, Union[str, bytes]]
# Losses of MXNet and of `train.py`, by where they begin
Curves = Dict[str, Tuple[List[float], List[float]]]


def write_training(
    source: Any,
    folder: Union[str, Path],
    updates: int,
    tolerance: float,
    partial: bool,
    fit: Optional[Mapping[str, Any]],
) -> Proof:
    """Write the training of a run for PyTorch, and prove that it goes on as MXNet would.

    The folder holds `train.py`, which needs torch, NumPy and safetensors only, `net.py` and `data.py`, the weights, the
    optimizer's state, the history, and the data as arrays.

    Args:
        source: A run's folder, finished or not; its newest checkpoint is where the training goes on. With `fit` a net.
        folder: A new or empty folder.
        updates: Updates that are compared, from the start and from the checkpoint, as `prove` does.
        tolerance: Largest relative difference of an array.
        fit: The arguments of the net's `fit`. The training goes on at its newest checkpoint, or begins with the net.
        partial: Write what has code, if some has none; the rest raises NotImplementedError, and is not compared.

    Raises:
        ExportError: The training holds something that has no code, all of which the text names; or `train.py`
            computes something else. Nothing was written.
        ImportError: torch or safetensors is missing.
        ValueError: The folder is not empty.
    """
    target = Path(folder).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"export: {target} exists and is not empty: choose a new folder for the training's files")
    versions = {name: require(name, "torch").__version__ for name in ("torch", "safetensors", "numpy")}
    places: List[Tuple[str, Optional[Checkpoint]]] = [("start", None)]
    if fit is None:
        recipe, _, checkpoint = open_run(source, "last")
        data, net = load_data(recipe), None
        places.append(("checkpoint", checkpoint))
    else:
        (recipe, data, newest), net = recipe_of_fit(source, fit), source
        places = places if newest is None else [("checkpoint", newest)]
    recipe = detectors.validated_as_trained(recipe)
    missing = missing_parts(recipe, data)
    refuse(recipe.name, [] if partial else missing)
    written = Data("", {}) if any(one.part == "data" for one in missing) else data_of(recipe, data)
    if "import cv2" in written.text:
        versions["opencv-python-headless"] = require("cv2", "torch").__version__
    packages, (example, labels) = " ".join(versions), example_of(recipe, data)
    detector = str(recipe.loss.name) in detectors.LOSSES
    # amp of a run needs its processor
    recipe = recipe.model_copy(update={"amp": None, "limit_batches": None})
    rows, said = [], []
    curves: Curves = {}
    with tempfile.TemporaryDirectory(prefix="mxkit-") as scratch:
        for name, where in places:
            own = Path(scratch) / name
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrapWarning)  # the run itself has warned
                recording = record(recipe, data, own / "mxnet", updates, where, net)
            if fit is not None and not recording.losses:
                raise ValueError("export: training: the checkpoint is the end of these epochs: pass more, to go on")
            problems: List[Problem] = []
            beside = Beside(recording.state.net, example, labels, problems if partial else None, detector)
            every = [*missing, *of_net(problems)]
            contents = _contents(recipe, written, recording, beside, every)
            _write(own, contents)
            compared, losses = prove(recipe, data, recording, beside, own, [one.part for one in every])
            rows += [row._replace(name=f"{name}, {row.name}") for row in compared]
            curves[name] = recording.losses, losses
            said.append(f"{len(recording.losses)} updates from epoch {recording.place[0]}, batch {recording.place[1]}")
    versions.update(mxkit=__version__, mxnet=mx.__version__)
    proof = Proof(rows, tolerance, versions, "; ".join(said), list(map(str, every)))
    proof.check("train.py", "Report this recipe: its training would go on as another one")
    run = "fit" if fit is not None else Path(source).name
    contents["README.md"] = _readme(run, recipe, recording, beside, proof, curves, packages)
    target.mkdir(parents=True, exist_ok=True)
    _write(target, contents)
    proof.write(target / "proof.json")
    _draw(curves, target / "curves.png")
    return proof


def _readme(
    run: str, recipe: Recipe, recording: Recording, beside: Beside, proof: Proof, curves: Curves, packages: str
) -> str:
    fit, (epoch, _, updates) = recording.state, recording.place
    shares = [abs(one / mxnet - 1) for pair in curves.values() for mxnet, one in zip(*pair) if one == one and mxnet]
    written, unwritten = _metric_bodies(recipe, fit, beside), proof.not_compared
    missing = [one.name for one in fit.metrics if one.name not in written]
    return texts.filled(
        texts.template("README.md"),
        ema=average_of(fit),
        boxes=str(recipe.loss.name) in detectors.LOSSES,
        regions=str(recipe.loss.name) == "faster_rcnn",
        version=__version__,
        mxnet=mx.__version__,
        run=run,
        recipe=recipe.name,
        packages=packages,
        changed=", changed by its random steps" if recipe.data.augment is not None else "",
        updates=updates,
        epochs=max(epochs_of(fit), epoch),
        missing=", ".join(missing) or "none",
        proof=f"{proof.inputs}: {proof.summary()}",
        apart=f" They differ by at most {max(shares):.1g} of the loss." if shares else "",
        unwritten="\n".join(f"- {one}" for one in unwritten),
    )


def _draw(curves: Curves, path: Path) -> None:
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


def _contents(
    recipe: Recipe, data: Data, recording: Recording, beside: Beside, missing: Sequence[Missing] = ()
) -> Contents:
    """The files of the folder, by name, as the training stands at the beginning of a recording."""
    fit, begin = recording.state, recording.moments[0]
    epoch, done, updates = recording.place
    metrics = list(_metric_bodies(recipe, fit, beside))
    history = [{key: row.get(key) for key in _columns(metrics)} for row in fit.history if row["epoch"] < epoch]
    sums = [recording.sums[name] for name in ("count", "loss", *metrics)] if recording.sums else None
    state = {"epoch": epoch, "batches": done, "updates": updates, "sums": sums, "history": history}
    average = average_of(fit)
    metadata = {"format": "pt", "mxkit": __version__, "mxnet": mx.__version__}
    tensors = {"net": beside.values(begin.values), "optimizer": beside.slots(begin, fit.trainer.optimizer)}
    if data.arrays:
        tensors["data"] = data.arrays
    if average is not None:
        tensors["average"], state["averaged"] = beside.values({**begin.values, **begin.averages}), begin.averaged
    paths = {"gluon": json.dumps(beside.gluon)} if beside.gluon else {}
    return {
        **{f"{name}.safetensors": safetensors_bytes(own, {**metadata, **paths}) for name, own in tensors.items()},
        "net.py": beside.text,
        "state.json": json.dumps(state, indent=1),
        "data.py": data.text
        or texts.filled(texts.template("no_data.py"), body=marked_bodies(recipe, missing).get("data", "")),
        "train.py": _train_text(recipe, recording, beside, missing),
    }


def _loss_arguments(recipe: Recipe, beside: Beside) -> Tuple[Dict[str, Any], int]:
    """Arguments of the loss, with what it takes from the net, and the number of axes of the first output."""
    name, arguments = str(recipe.loss.name), dict(recipe.loss.arguments)
    if name in detectors.LOSSES:
        return {**arguments, **detectors.arguments_of(beside.net, beside.example[0].shape[2:])}, 3
    if name not in texts.LOSSES:
        return arguments, 2
    shapes = [one.shape for one in beside.outputs]
    if name in NET_LOSSES:
        loss: Any = NET_LOSSES[name](**arguments)
        if name == "pixel_ce":
            arguments = {"weights": (1.0, *loss.weights(beside.net, len(shapes) - 1))}
        else:
            scale = shapes[0][3] / beside.example[0].shape[3]
            arguments = {"sigma": loss.spread(shapes[0][2]), "scale": scale}
    return arguments, len(shapes[0])


def _metric_bodies(recipe: Recipe, fit: FitState, beside: Beside) -> Dict[str, str]:
    """The code of those metrics that have some, by name; one with arguments of its own has none."""
    loss, bodies = str(recipe.loss.name), {}
    per_sample = loss not in texts.COUNTS and loss not in detectors.LOSSES
    for one in fit.metrics:
        if one.name != type(one).name or not one.reads_first:
            continue
        if type(one) is PixelAccuracy and loss == "pixel_ce":
            bodies[one.name] = texts.PIXEL_ACCURACY
        if type(one) is Accuracy and one.ignore_label is None and per_sample:
            output = beside.outputs[0]
            task = one.task_of(mx.nd.array(beside.labels[0]), output)
            bodies.update({} if task.dense else {one.name: texts.accuracy_text(task, output.ndim)})
    return bodies


def _columns(metrics: List[str]) -> List[str]:
    scores = [f"{part}_{name}" for part in ("train", "valid") for name in ("loss", *metrics)]
    return ["epoch", "updates", "samples", "learning_rate", *scores]


def _train_text(recipe: Recipe, recording: Recording, beside: Beside, missing: Sequence[Missing]) -> str:
    marked, loss = marked_bodies(recipe, missing), str(recipe.loss.name)
    arguments, axes = _loss_arguments(recipe, beside)
    fit, (epoch, _, updates) = recording.state, recording.place
    metrics = _metric_bodies(recipe, fit, beside)
    optimizer, average, accumulate = fit.trainer.optimizer, average_of(fit), fit.options.accumulate
    normalized, counting = "nn.BatchNorm" in beside.text, texts.COUNTS.get(loss, "")
    _check_net(fit.net, beside, loss, normalized)
    pairs = {key: (float(one.lr_mult), float(one.wd_mult)) for key, one in beside.trained.items()}
    factors = "".join(f'    "{key}": {pair!r},\n' for key, pair in pairs.items() if pair != (1.0, 1.0))
    share = repr(average.decay) if average else ""
    share = f"min({share}, (1 + updates) / (10 + updates))" if average and average.warmup else share
    text = texts.filled(
        texts.template("train.py"),
        dropout="dropout" in beside.text.lower(),
        counted=counting,
        batch_norm=normalized,
        ema=average,
        version=__version__,
        updates=updates,
        epoch=epoch,
        epochs=epochs_of(fit),
        unwritten="\n".join(f"- {one}" for one in missing),
        accumulate=int(accumulate.number),
        decay=float(optimizer.wd),
        factors=f"{{\n{factors}}}" if factors else "{}",
        frozen=json.dumps(beside.frozen),
        seed=recipe.seed % 2**32,
        scores=json.dumps(["loss", *metrics]),
        columns=json.dumps(_columns([*metrics]))[1:-1],
        rate=texts.rate_text(schedule_of(recipe, fit), fit.updates_per_epoch or 1),
        loss=texts.loss_text(loss, arguments, len(beside.labels) == 2, axes) or marked["loss"],
        counting=counting,
        **_batch_texts(beside, loss),
        metric=texts.metric_text(metrics),
        optimizer=optimizer_class(optimizer),
        name=type(optimizer).__name__,
        share=share,
        size="len(window)" if accumulate.unit == "batches" else "sum(len(x) for x, *_ in window)",
        clip=texts.clip_text(recipe.clip_norm, recipe.clip_value),
        after_epoch=marked.get("callbacks"),
        saved="**saved" if average else '"net": net.state_dict(), "optimizer": optimizer.state_dict()',
        judged="average.module" if average else "net",
    )
    return texts.tidied(text)


def _check_net(net: Any, beside: Beside, loss: str, normalized: bool) -> None:
    apart = "faster_rcnn took" if loss == "faster_rcnn" else "BatchNorm took its statistics from" if normalized else ""
    if apart and len(net_devices(net)) > 1:
        raise ExportError(
            f"export: {apart} each device's share of a batch, which train.py, on one device, cannot do: a run on one "
            "device leaves"
        )
    sparse = [key for key, one in beside.trained.items() if has_sparse_gradient(one)]
    if sparse:
        raise ExportError(
            f"export: {', '.join(sparse)}: the optimizer changes the rows of a batch only, because of "
            "sparse_grad=True, which train.py cannot do: a run with sparse_grad=False leaves"
        )


def _batch_texts(beside: Beside, loss: str) -> Dict[str, str]:
    """How `train.py` takes a batch apart: inputs, and a label, which a weight of each sample may follow."""
    x, first = ("*x", "x[0]") if len(beside.example) > 1 else ("x", "x")
    further = "weight" if loss in texts.LOSSES else "*others"
    names = ["label", further] if len(beside.labels) > 1 else ["label"]
    labels = ", ".join(f"{name}: torch.Tensor" for name in names)
    count = "count(label)" if loss in texts.COUNTS else f"len({first})"
    given = f"{x}, label[:, :, :4], label[:, :, 4:5]" if loss == "faster_rcnn" else x
    return {"given": given, "x": x, "first": first, "label": ", ".join(names), "labels": labels, "count": count}
