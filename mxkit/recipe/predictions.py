"""What a run's net says of each sample, and of image files: threads read the next files while the net computes."""

from itertools import chain
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import call, legacy, outputs_of
from mxkit.core.blocks import is_numpy_net, net_devices
from mxkit.core.device import empty_batch, split_batch
from mxkit.core.forward_errors import explained
from mxkit.core.loss_meanings import meaning_of
from mxkit.data.image_files import find_images
from mxkit.data.workers import read_ahead
from mxkit.errors import DataError
from mxkit.recipe.marks import marks_of
from mxkit.recipe.net_facts import NetFacts, image_reader, read_facts
from mxkit.recipe.run import load_run
from mxkit.recipe.schema import Recipe
from mxkit.runtime.machine import read_processors
import mxnet as mx
from mxnet import autograd
import numpy as np


def predictions(recipe: Recipe, classes: Sequence[str], scores: Any) -> List[Dict[str, Any]]:
    """What a net's outputs say of each sample, as plain values for JSON.

    Args:
        recipe: The net's recipe; its loss decides what the outputs mean.
        classes: Names of the classes; empty if the data has none.
        scores: The net's outputs of shape (N, K) or (N,), as an NDArray or NumPy's.

    Returns:
        For each sample `{"class": name, "probability": p}`, or `{"class": name, "score": s}` for a hinge loss; for
        several labels `{"probabilities": {name: p}}` or `{"scores": {name: s}}`; for a regression or an embedding
        `{"values": [...]}`.

    Raises:
        DataError: The net compares samples, returns several arrays, or outputs that do not fit the loss.
    """
    refuse_pairs(recipe)
    if recipe.loss.made.moves is not None:
        raise DataError(f"the net finds {recipe.loss.made.moves}, and gives no sample a class: use predict_files")
    if isinstance(scores, (tuple, list)):
        shapes = ", ".join(str(tuple(one.shape[1:])) for one in scores)
        raise DataError(f"the net gives {len(scores)} outputs, {shapes} per sample; expected one. Use mxkit.predict")
    host = legacy(scores).astype("float64").asnumpy() if isinstance(scores, mx.nd.NDArray) else scores
    return meaning_of(recipe.loss.made.loss).answers(np.asarray(host, np.float64), classes, str(recipe.loss.name))


def describe_prediction(found: Dict[str, Any]) -> List[str]:
    """The text of one of `predictions`, in cells: a class and its probability or score; labels with theirs; values."""
    if "boxes" in found:
        sides = [" ".join(f"{side:.1f}" for side in one["box"]) for one in found["boxes"]]
        return [f"{one['class']} {one['score']:.4f} {own}" for one, own in zip(found["boxes"], sides)]
    if "areas" in found:
        return [f"{name} {share:.4f}" for name, share in found["areas"].items()]
    if "points" in found:
        return [f"{name} {x:.1f} {y:.1f} {score:.4f}" for name, (x, y, score) in found["points"].items()]
    if "values" in found:
        return [f"{value:.6g}" for value in found["values"]]
    if "class" in found:
        score = f"score {found['score']:.4f}" if "score" in found else f"{found['probability']:.4f}"
        return [found["class"], score]
    word = "score " if "scores" in found else ""
    return [f"{name} {word}{value:.4f}" for name, value in next(iter(found.values())).items()]


def refuse_pairs(recipe: Recipe) -> None:
    """Refuse a net that compares samples.

    Raises:
        DataError: The recipe's net compares samples.
    """
    if recipe.data.pairs is not None:
        raise DataError(
            "the net compares samples, and says nothing of one alone: call it with two batches, net(a, b) after "
            "`recipe, net = mxkit.recipe.load_run(RUN)`"
        )


# Files that a thread reads before it passes them on, which takes as long as decoding a small file.
_GROUP = 8


class FilePrediction(NamedTuple):
    """The prediction of a net for an image file.

    Attributes:
        path: The file.
        answer: `{"class": "cat", "probability": 0.9}`; under a hinge loss "score" instead of "probability"; for several
            labels `{"probabilities": {"cat": 0.9, "dog": 0.2}}`, or "scores"; for a regression `{"values": [...]}`.
            Of a detector, a segmentation or pose net as `marks_of` gives it. Empty if the file was not read.
        error: The reason why the file was not read; else empty.
        label: Boxes, mask or points in pixels of the file, for `mxkit.plots.draw_marks`; of other nets None.
        placed: Where the file lies in the net's input; of other nets None.
    """

    path: str
    answer: Dict[str, Any]
    error: str = ""
    label: Any = None
    placed: Any = None


# A file without its answer, and its pixels; None if it cannot be read.
_Read = Tuple[FilePrediction, Any]


class _Batch(NamedTuple):
    """Files in their order, an NDArray with the pixels of the readable ones, and the net's outputs for each device."""

    files: List[FilePrediction]
    x: Any
    outputs: Sequence[Any] = ()


def predict_files(
    run: Union[str, Path],
    files: Union[str, Path, Sequence[Union[str, Path]]],
    *,
    which: Optional[str] = None,
    invert: bool = False,
    batch_size: int = 32,
    threads: Optional[int] = None,
    score: float = 0.5,
) -> Iterator[FilePrediction]:
    """Predict image files with the net of a run, however many there are.

    Threads read files while the net computes. Apart from the names, memory does not grow with the number of files: at
    a time it holds at most two batches, and two more batches or 16 images per thread, which are ready. All batches
    but the last have `batch_size` images, and their results have the same bits as those of `mxkit.predict` on such
    batches; in a batch of another size the last bits may differ.

    Args:
        run: Folder of the run.
        files: Image files, and folders that are read recursively.
        which: "last" or "best" checkpoint; None takes that of the run's final scores.
        invert: Swap dark and bright.
        batch_size: Images per batch, at least 1.
        threads: Threads that read files, at least 1; None takes one per core.
        score: Least score of a detector's boxes.

    Returns:
        An iterator of a `FilePrediction` for each file, in the order of `files`; those of a folder are sorted. A file
        that is not an image has an `error`, and the next file takes its place in the batch.

    Raises:
        DataError: The net was not trained on images, or compares samples; a folder has no image. While iterating: the
            net's outputs do not fit the loss.
        RecipeError, CheckpointError: As for `load_run`.
        ForwardError: While iterating: a block of the net raised; the cause is chained.

    Warns:
        UserWarning: The border of a picture is bright and that of the training images dark, or the reverse.
    """
    size = whole_number(batch_size, "predict_files: batch_size")
    workers = read_processors().threads if threads is None else whole_number(threads, "predict_files: threads")
    paths = find_images([files] if isinstance(files, (str, Path)) else files)
    recipe, net = load_run(run, which)
    return files_predicted(recipe, net, read_facts(run), paths, invert=invert, size=size, threads=workers, score=score)


def files_predicted(
    recipe: Recipe,
    net: Any,
    facts: NetFacts,
    paths: Sequence[str],
    *,
    invert: bool,
    size: int = 32,
    threads: int,
    score: float = 0.5,
) -> Iterator[FilePrediction]:
    """`predict_files` with a run that is loaded already."""
    refuse_pairs(recipe)
    moves = recipe.loss.made.moves
    reader = image_reader(recipe, facts.images, invert=invert, placed=moves is not None)

    def meaning(scores: Sequence[Any], files: Sequence[FilePrediction]) -> List[FilePrediction]:
        if moves is None:
            answers = predictions(recipe, facts.classes, scores[0] if len(scores) == 1 else tuple(scores))
            return [file._replace(answer=answer) for file, answer in zip(files, answers)]
        found = marks_of(moves, scores, [file.placed for file in files], facts.classes, score)
        return [file._replace(answer=answer, label=label) for file, (answer, label) in zip(files, found)]

    return _predictions(net, _batches(_read(reader, paths, threads, size), size), meaning)


def _read(reader: Callable[[str], Any], paths: Sequence[str], threads: int, size: int) -> Iterator[_Read]:
    """Read the files in threads, at most two batches or two groups per thread ahead."""

    def read_group(number: int, unwanted: Callable[[], bool]) -> List[_Read]:
        group: List[_Read] = []
        for path in paths[number * _GROUP : (number + 1) * _GROUP]:
            if unwanted():
                break
            try:
                read = reader(path)
                pixels, placed = read if isinstance(read, tuple) else (read, None)
                group.append((FilePrediction(path, {}, placed=placed), pixels))
            except DataError as error:
                group.append((FilePrediction(path, {}, str(error)), None))
        return group

    ahead = max(2 * threads, 2 * size // _GROUP)
    for group in read_ahead(read_group, range(-(-len(paths) // _GROUP)), threads=threads, ahead=ahead):
        yield from group


def _batches(read: Iterator[_Read], size: int) -> Iterator[_Batch]:
    """Collect images of one shape; without a crop in `data.eval_augment`, another shape begins a batch."""
    files: List[FilePrediction] = []
    pixels: List[np.ndarray] = []
    for file, image in read:
        if pixels and (len(pixels) == size or (image is not None and image.shape != pixels[0].shape)):
            yield _Batch(files, _stacked(pixels))
            files, pixels = [], []
        files.append(file)
        if image is not None:
            pixels.append(image)
    if files:
        yield _Batch(files, _stacked(pixels))


def _stacked(pixels: Sequence["np.ndarray"]) -> Any:
    if not pixels:
        return None
    array, memory = empty_batch((len(pixels), *pixels[0].shape), pixels[0].dtype)
    np.stack(pixels, out=memory)
    return array


def _predictions(
    net: Any, batches: Iterator[_Batch], meaning: Callable[[Any, Any], List[FilePrediction]]
) -> Iterator[FilePrediction]:
    devices, numpy = net_devices(net), is_numpy_net(net)

    def forward(x: Any) -> List[Any]:
        with autograd.pause(train_mode=False):
            return [call(net, shard.inputs) for shard in split_batch((x,), devices, numpy)]

    def begin(batch: _Batch) -> _Batch:
        with explained(net, batch=lambda: batch.x):
            return batch._replace(outputs=[] if batch.x is None else forward(batch.x))

    def end(batch: _Batch) -> Any:
        with explained(net, lambda: forward(batch.x), lambda: batch.x):
            parts = [outputs_of(one, "predict_files") for one in batch.outputs]
            return [np.concatenate([legacy(one).asnumpy() for one in column]) for column in zip(*parts)]

    before: Optional[_Batch] = None
    for batch in chain(batches, (None,)):  # a batch is read while the net computes the one before
        done, scores = before, [] if before is None else end(before)
        before = None if batch is None else begin(batch)
        files = () if done is None else done.files
        answered = iter(meaning(scores, [file for file in files if not file.error]) if scores else ())
        for file in files:
            yield file if file.error else next(answered)
