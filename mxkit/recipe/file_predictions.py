"""Predicts image files with a run's net: threads read and prepare the next files while the net computes."""

from itertools import chain
from pathlib import Path
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Union
import warnings

from mxkit.core.arguments import whole_number
from mxkit.core.array_kind import call, legacy
from mxkit.core.blocks import is_numpy_net, net_devices
from mxkit.core.device import empty_batch, split_batch
from mxkit.core.forward_errors import explained
from mxkit.data.files.image_files import find_images
from mxkit.data.threads import read_ahead
from mxkit.errors import DataError
from mxkit.recipe.answers import Answer, answer_values, refuse_pairs
from mxkit.recipe.images import ImageReader
from mxkit.recipe.run import load_run, run_facts
from mxkit.runtime.machine import read_processors
import mxnet as mx
from mxnet import autograd
import numpy as np

# Files that a thread reads before it hands them over, which takes as long as decoding a small one.
_GROUP = 8


class FilePrediction(NamedTuple):
    """What a net says of an image file.

    Attributes:
        path: The file.
        answer: `{"class": "cat", "probability": 0.9}`; for several labels `{"labels": {"cat": 0.9, "dog": 0.2}}`; for a
            regression `{"values": [...]}`; under a hinge loss `{"class": ..., "score": ...}` or `{"scores": {...}}`.
            Empty if the file was not read.
        error: Why the file was not read; else empty.
    """

    path: str
    answer: Answer
    error: str = ""


class _File(NamedTuple):
    path: str
    pixels: Any = None
    note: str = ""
    error: str = ""


class _Batch(NamedTuple):
    """Files in their order, the pixels of those that were read as an NDArray, and the net's outputs for each device."""

    files: List[_File]
    x: Any
    outputs: List[Any]


def predict_files(
    run: Union[str, Path],
    files: Union[str, Path, Sequence[Union[str, Path]]],
    *,
    which: str = "last",
    invert: bool = False,
    batch_size: int = 32,
    threads: Optional[int] = None,
) -> Iterator[FilePrediction]:
    """Predict image files with the net of a run, however many there are.

    Threads read files while the net computes. Apart from the names, memory does not grow with the number of files: at
    most two batches, and two batches or 16 images per thread that are ready, exist at a time. All batches but the last
    have `batch_size` images, and equal those of `mxkit.predict` on such batches to the bit; in a batch of another size
    the last bits may differ.

    Args:
        run: Folder of the run.
        files: Image files, and folders that are read recursively.
        which: "last" or "best" checkpoint.
        invert: Swap dark and bright.
        batch_size: Images per batch, at least 1.
        threads: Threads that read files, at least 1; None takes one per core. Only one reads if a step of
            `data.eval_augment` draws from the process's generators.

    Returns:
        An iterator of a `FilePrediction` for each file, in the order of `files`; those of a folder are sorted. A file
        that is no image has an `error`, and the next one takes its place in the batch.

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
    refuse_pairs(recipe)
    facts = run_facts(run, recipe)
    reader = ImageReader(recipe, facts.images, invert=invert)
    batches = _batches(_read(reader, paths, 1 if reader.draws else workers, size), size)
    return _predictions(net, batches, lambda scores: answer_values(recipe, facts.classes, scores))


def _read(reader: ImageReader, paths: Sequence[str], threads: int, size: int) -> Iterator[_File]:
    """Read the files in threads, at most two batches or two groups per thread ahead."""

    def read(number: int, unwanted: Callable[[], bool]) -> List[_File]:
        group = []
        for path in paths[number * _GROUP : (number + 1) * _GROUP]:
            if unwanted():
                break
            try:
                group.append(_File(path, *reader(path)))
            except DataError as error:
                group.append(_File(path, error=str(error)))
        return group

    ahead = max(2 * threads, 2 * size // _GROUP)
    for group in read_ahead(read, range(-(-len(paths) // _GROUP)), threads=threads, ahead=ahead):
        yield from group


def _batches(read: Iterator[_File], size: int) -> Iterator[_Batch]:
    """Collect images of one shape; without a crop in `data.eval_augment`, another shape begins a batch."""
    files: List[_File] = []
    pixels: List[np.ndarray] = []
    for one in read:
        if pixels and (len(pixels) == size or (one.pixels is not None and one.pixels.shape != pixels[0].shape)):
            yield _Batch(files, _stacked(pixels), [])
            files, pixels = [], []
        files.append(one._replace(pixels=None))
        if one.pixels is not None:
            pixels.append(one.pixels)
    if files:
        yield _Batch(files, _stacked(pixels), [])


def _stacked(pixels: Sequence["np.ndarray"]) -> Any:
    if not pixels:
        return None
    array, memory = empty_batch((len(pixels), *pixels[0].shape), pixels[0].dtype)
    np.stack(pixels, out=memory)
    return array


def _predictions(
    net: Any, batches: Iterator[_Batch], meaning: Callable[[Any], List[Answer]]
) -> Iterator[FilePrediction]:
    devices, numpy = net_devices(net), is_numpy_net(net)

    def forward(x: Any) -> List[Any]:
        with autograd.pause(train_mode=False):
            return [call(net, shard.inputs) for shard in split_batch((x,), devices, numpy)]

    def begin(batch: _Batch) -> _Batch:
        with explained(net, batch=lambda: batch.x):
            return batch._replace(outputs=[] if batch.x is None else forward(batch.x))

    def end(batch: _Batch) -> Iterator[Answer]:
        with explained(net, lambda: forward(batch.x), lambda: batch.x):
            return iter(meaning(_joined(batch.outputs)) if batch.outputs else ())

    before = None
    for batch in chain(batches, (None,)):  # a batch is read while the net computes the one before
        # the engine would compute probabilities after the next batch, so they are computed first
        done, answers = before, iter(()) if before is None else end(before)
        before = None if batch is None else begin(batch)
        files: Sequence[_File] = () if done is None else done.files
        for file in files:
            if file.note:
                warnings.warn(file.note, stacklevel=2)
            yield FilePrediction(file.path, {} if file.error else next(answers), file.error)


def _joined(outputs: List[Any]) -> Any:
    if isinstance(outputs[0], (list, tuple)):  # several outputs are refused by name
        return outputs[0]
    parts = [legacy(one).as_in_context(mx.cpu()) for one in outputs]
    return parts[0] if len(parts) == 1 else mx.nd.concat(*parts, dim=0)
