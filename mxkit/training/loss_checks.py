"""Checks whether outputs, labels and weights of the first batch suit the loss: Gluon computes with any values."""

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Iterator, List, Optional, Sequence, Tuple
import warnings

from mxkit.core.arrays import call, legacy, of_kind, squeezed
from mxkit.core.blocks import loader_parts
from mxkit.core.device import Shard
from mxkit.core.graph import Graph, Node
from mxkit.core.loss_meanings import BROADCAST, is_plain, meaning_of, some_values, way_to_one_per_sample
from mxkit.core.operators import known
from mxkit.core.tracing import trace
from mxkit.data.augment import Augment, Foreign
from mxkit.data.augment_steps import Resize, Step
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.loader import ArrayLoader
from mxkit.data.order import Epochs
from mxkit.data.pixels import parts_of
from mxkit.data.samples import layers_of
from mxkit.data.source import Source, source_of
from mxkit.errors import DataError, LossShapeError, TrapWarning
from mxkit.losses.named_losses import BatchLoss, Loss
from mxkit.losses.per_sample import weight_place
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon.data.vision import transforms
import numpy as np

# Largest array of labels that is checked for the whole epoch; of larger ones only the first batch is checked.
CHECKED_BYTES = 2**28

_RESIZE = (Resize, transforms.Resize)
# Gluon's transforms that move pixels.
_MOVING: Tuple[Any, ...] = (
    transforms.CenterCrop,
    transforms.CropResize,
    transforms.RandomFlipLeftRight,
    transforms.RandomFlipTopBottom,
)
_MOVING += (transforms.RandomResizedCrop, transforms.RandomRotation, transforms.Resize, transforms.Rotate)

_quiet: ContextVar[bool] = ContextVar("mxkit_quiet", default=False)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress warnings about outputs inside `with`: `fit` warns once, and not for each validation."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def is_quiet() -> bool:
    """Whether this is a validation of `fit`, which warned with its first update."""
    return _quiet.get()


def check_moved_labels(loss: BatchLoss, source: Source, name: str) -> None:
    """Refuse images that move without their boxes, masks or points: the net would learn where these are not.

    What is known are the steps of an `Augment` and Gluon's transforms; nobody knows what a function moves.

    Args:
        loss: Its `moves` tells what labels are.
        source: The data.
        name: Name of the data for the error.

    Raises:
        DataError: A step moves the images alone.
    """
    moves = loss.moves
    if moves is None:
        return
    moving = [step for step in _steps_of_images(source) if _moves(step, moves)]
    if moving:
        more = ", pairs=[(left, right), ...]" if moves == "points" else ""
        place = "dataset.transform(lambda image, label, rng: augment.with_label(image, label, rng, "
        arrays = "mx.gluon.data.ArrayDataset(images (N, H, W, C), labels)"
        raise DataError(
            f"{name}: {type(moving[0]).__name__} moves the images, and their {moves} stay where they were: the "
            f"transform of this {type(source.data).__name__} gets the images alone. Leave it out, and let the dataset "
            f"move both: mxkit.data.DatasetLoader({place}moves={moves!r}{more})), batch_size). With arrays the dataset "
            f"is {arrays}. A mxkit.data.AnnotatedImages tells DatasetLoader(..., transform=augment) what to move"
        )


def _steps_of_images(source: Source) -> List[Any]:
    """Steps and transforms by which a loader changes images alone, and gives their labels back as they were.

    Where a function gets images and labels too, it may move labels as a fixed step moves images; only the random steps
    are given then, which it cannot follow.
    """
    data = source.data
    if isinstance(data, ArrayLoader):
        owner = getattr(data.transform, "__self__", None)  # augment.batch
        return owner.steps if isinstance(owner, Augment) else []
    if not isinstance(data, Epochs) and loader_parts(data) is None:
        return []
    dataset, _, functions = layers_of(source.dataset, getattr(data, "transform", None))
    if isinstance(data, DatasetLoader) and getattr(dataset, "moves", None) is not None:
        return []
    alone = [getattr(function, "fn", function) for function, first in functions if first]
    parts = [part for function in alone for part in parts_of(function)]
    steps = [step for part in parts for step in (part.steps if isinstance(part, Augment) else [part])]
    steps = [step.function if isinstance(step, Foreign) else step for step in steps]
    return steps if len(alone) == len(functions) else list(filter(_is_random, steps))


def _is_random(step: Any) -> bool:
    return step.draws if isinstance(step, Step) else type(step).__name__.startswith("Random")


def _moves(step: Any, moves: str) -> bool:
    """Whether a step moves pixels; a mask of another size than the image still fits it, for `pixel_ce` resizes."""
    if moves == "mask" and isinstance(step, _RESIZE):
        return False
    return type(step).place is not Step.place if isinstance(step, Step) else isinstance(step, _MOVING)


def check_loss_shape(losses: Any, samples: int) -> None:
    """Refuse a loss that does not give one value per sample: the sum over the samples is unknown (T4).

    Raises:
        LossShapeError: The losses of a batch of B samples do not have the shape (B,).
    """
    shape = tuple(losses.shape)
    way = way_to_one_per_sample("loss", "losses", shape, samples)
    if not way:
        return
    wanted = f"the loss must give one value per sample: expected shape ({samples},) for a batch of {samples} samples"
    raise LossShapeError(f"{wanted}; received {shape}. {way}")


def refuse_means(losses: Sequence[Any]) -> None:
    """Refuse a loss that is a mean or a sum over the samples: it would count as one sample.

    Raises:
        LossShapeError: The recorded graph of a loss ends in a reduction.
    """
    for loss in losses:
        if loss.shape != (1,):
            continue
        graph = Graph.of(autograd.get_symbol(loss))
        if _is_reduced(graph, graph.nodes[graph.heads[0].node]):
            text = "expected losses of shape (B,), one per sample; received a mean or a sum over the samples"
            raise LossShapeError(f"Accumulator.backward: {text}. Pass one loss per sample, without .mean() or .sum()")


def _is_reduced(graph: Graph, node: Node) -> bool:
    """Whether a node of a graph reduces the samples, which are on axis 0, to one value."""
    facts, sources = known(node.operator).facts, graph.sources(node)
    if "onto" in facts:
        axes = node.ints("axis")
        return not axes or (0 in axes) != node.flag("exclude")
    passes = facts.intersection(("each", "same")) and sources
    return bool(passes) and all(_is_reduced(graph, source) for source in sources)


def warn_of_two_losses(output: Any, losses: Any) -> None:
    """Warn of a `BatchLoss` with a `forward` that returns two losses: the second one is taken for the output."""
    if isinstance(output, mx.nd.NDArray) and output.shape == losses.shape:
        text = f"the forward of BatchLoss returned two arrays of shape {tuple(losses.shape)}: the second is taken for"
        _warn(f"{text} the net's output, not for a loss. To train on both, return their sum")


def check_first_batch(net: Any, shard: Shard, output: Any, loss: Optional[Loss], data: Any) -> None:
    """Check outputs, labels and weights of a first batch, and wait for them.

    Args:
        net: The net. It is traced if its outputs look like those of a sigmoid.
        shard: The batch.
        output: The net's output for it.
        loss: The loss. Losses of Gluon and of mxkit are checked, custom ones are not.
        data: Source of the batch. All labels of an `ArrayLoader` are checked.

    Raises:
        LabelError: A label has a value that the loss cannot use.
        DataError: Weights are negative or not finite, or the outputs do not suit the loss.
        LossShapeError: A custom loss broadcasts outputs and labels against each other.
    """
    output, labels = legacy(output), legacy(shard.labels)
    check_labels(loss, output, labels, data)
    if not isinstance(loss, gluon.loss.Loss) or not is_plain(loss):
        if loss is not None and labels:
            _refuse_broadcast(loss, output, labels, shard.numpy)
        return
    _check_weights(loss, output, labels, data)
    check_scores(loss, output, labels, net, shard)


def _refuse_broadcast(loss: Any, output: Any, labels: Sequence[Any], numpy: bool) -> None:
    """Refuse a custom loss that mixes samples: (n, 1) and (n,) broadcast to (n, n), also before a mean (T11).

    Only outputs and labels of such shapes are checked: the loss of the first sample alone must be its loss in the
    batch, or must stay different with labels of the outputs' shape.
    """
    label = labels[0]
    if not isinstance(output, mx.nd.NDArray) or len(output) < 2 or {output.size, label.size} != {len(output)}:
        return
    if label.shape == output.shape:
        return

    def first(*arrays: Any) -> Any:
        return call(loss, of_kind(arrays, numpy)).asnumpy().reshape(-1)[0]

    with autograd.pause():
        alone, together = first(output[:1], *(one[:1] for one in labels)), first(output, *labels)
        if np.isclose(alone, together, rtol=1e-3, equal_nan=True):
            return
        reshaped = first(output, label.reshape(output.shape), *labels[1:])
    if np.isclose(alone, reshaped, rtol=1e-3):
        text = f"the loss of a sample depends on the other samples: outputs have the shape {output.shape}"
        raise LossShapeError(f"{text}, labels {label.shape}. {BROADCAST}")


def check_labels(loss: Optional[Loss], output: Any, labels: Sequence[Any], data: Any = None) -> None:
    """Refuse labels with values that the loss cannot use, although it computes with them (T10, T121).

    Raises:
        LabelError: There is such a label; the text names the expected values and a way out.
    """
    if not isinstance(loss, gluon.loss.Loss) or not labels:
        return
    meaning = meaning_of(loss)
    for rule in meaning.rules(output, labels) if meaning.is_plain or meaning.has_class_numbers else ():
        values = _values(data, labels, rule.place)
        if rule.weighed:
            values = _weighed(loss, output, labels, data, values)
        rule.refuse(values)


def _weighed(loss: Any, output: Any, labels: Sequence[Any], data: Any, classes: "np.ndarray") -> "np.ndarray":
    """Class numbers with a weight other than 0: a weight of 0 removes the loss of any label."""
    place = weight_place(loss, output)
    if place is None or len(labels) <= place:
        return classes
    weights = _values(data, labels, place)
    if squeezed(weights.shape) == squeezed(classes.shape):
        classes = classes[weights.reshape(classes.shape) != 0]
    elif weights.size == len(classes):
        classes = classes[weights.reshape(-1) != 0]
    return classes


def _values(data: Any, labels: Sequence[Any], place: int) -> "np.ndarray":
    """Labels of the whole epoch if a loader yields its arrays unchanged, else the labels of the batch."""
    arrays = source_of(data).all_labels()
    if place < len(arrays) and arrays[place].nbytes <= CHECKED_BYTES:
        return arrays[place]
    values: np.ndarray = labels[place].asnumpy()
    return values


def _check_weights(loss: Any, output: Any, labels: Sequence[Any], data: Any) -> None:
    place = weight_place(loss, output)
    if place is None or len(labels) <= place:
        return
    weights = _values(data, labels, place)
    with np.errstate(invalid="ignore"):
        wrong = weights[~(np.isfinite(weights) & (weights >= 0))]
    if wrong.size:
        received = f"{some_values(wrong)} in {wrong.size} of {weights.size} weights"
        raise DataError(f"sample weights, as in (x, (y, w)), must be finite and at least 0; received {received}")


def check_scores(loss: Any, output: Any, labels: Sequence[Any], net: Any, shard: Shard) -> None:
    """Refuse outputs that do not suit the loss; warn of an activation that is applied twice (T12).

    Raises:
        DataError: The loss takes probabilities, or their logarithms, and the outputs are something else.
    """
    if isinstance(output, mx.nd.NDArray):
        for text in meaning_of(loss).faults(output, labels, lambda: _last_operator(net, shard.unpacked().inputs)):
            _warn(text)


def _last_operator(net: Any, inputs: Sequence[Any]) -> Optional[str]:
    """Lower-case name of the operator or activation that computes a net's one output; None if it is unknown."""
    if not isinstance(net, gluon.HybridBlock):
        return None
    try:
        graph = Graph.of(trace(net, inputs).outputs[0])
    except Exception:  # of any type: the net's code refuses a symbol
        return None
    node = graph.nodes[graph.heads[0].node]
    while "same" in known(node.operator).facts:
        node = graph.sources(node)[0]
    kind = known(node.operator).kind
    return node.text("act_type") if kind in ("activation", "leakyrelu") else kind


def _warn(text: str) -> None:
    if not _quiet.get():
        # points to the call of `fit`, approximately: the loop is a generator
        warnings.warn(text, TrapWarning, stacklevel=6)
