"""The base of losses for arrays of both kinds, and the conversion of labels and weights to what a loss needs."""

from collections.abc import Mapping as AnyMapping
from functools import lru_cache
import inspect
import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arguments import is_finite_number
from mxkit.core.arrays import arrays_in, is_numpy, legacy, of_kind, squeezed, switches
from mxkit.core.loss_meanings import meaning_of
from mxkit.errors import DataError
import mxnet as mx
from mxnet import gluon
import numpy as np

# A conversion of one array: ("cast", dtype), ("reshape", shape), ("expand", axis), or ("like", None), a reshape to the
# shape of the net's output.
Step = Tuple[str, Any]
Steps = Tuple[Tuple[Step, ...], ...]
# A weight for each class, in order or by class number; a class that a mapping omits has the weight 1.
ClassWeight = Union[Sequence[float], Mapping[Any, float]]


class EitherKind:
    """Mixin of losses: computes on views as NDArray, and returns the kind of the output; symbols likewise.

    With arrays of `mx.np`, or sample weights (T118), labels are checked and converted as in `fit`.
    """

    def __call__(self, *arrays: Any) -> Any:
        call, numpy = super().__call__, is_numpy(arrays)  # type: ignore[misc]
        if not (numpy or mx.util.is_np_array()):
            if len(arrays) > 2 and all(isinstance(one, mx.nd.NDArray) for one in arrays):
                output, given = arrays[0], arrays[1:]
                return call(output, *apply_steps(label_steps(self, output, given), output, given))
            return call(*arrays)
        with switches(False):
            output, *labels = legacy(arrays)
            if numpy:
                labels = apply_steps(label_steps(self, output, labels), output, labels)
            return of_kind(call(output, *labels), numpy)


class PerSampleLoss(EitherKind, gluon.loss.Loss):  # type: ignore[misc]
    """Base of mxkit's losses: checks shapes on every call, hybridized or not, and computes float16 in float32.

    Subclasses implement `hybrid_forward`, as any loss of Gluon does, and `check_shapes`.
    """

    def forward(self, output: Any, *labels: Any) -> Any:
        """Check the arrays and compute the loss; symbols have no shapes and are not checked."""
        if arrays_in([output]):
            self.check_shapes(output, *labels)
            output = _widened(output)
            labels = self.cast_labels(output, labels)
        return super().forward(output, *labels)

    def cast_labels(self, output: Any, labels: Tuple[Any, ...]) -> Tuple[Any, ...]:
        """Cast labels and weights to the output's dtype: operators refuse mixed dtypes (T14)."""
        dtype = arrays_in([output])[0].dtype
        return tuple(label.astype(dtype, copy=False) if isinstance(label, mx.nd.NDArray) else label for label in labels)

    def check_shapes(self, output: Any, *labels: Any) -> None:
        """Raise a DataError if the shapes would not give one value per sample."""
        raise NotImplementedError


def check_shape(loss: Any, name: str, array: Any, *allowed: Tuple[int, ...]) -> None:
    """Refuse an array that Gluon would broadcast to another shape (T11).

    Raises:
        DataError: Its shape is not allowed.
    """
    if tuple(array.shape) not in allowed:
        expected = " or ".join(map(str, dict.fromkeys(allowed)))
        raise DataError(
            f"{type(loss).__name__}: {name}: expected shape {expected}; received {tuple(array.shape)}, which would be "
            "broadcast to other losses without an error (T11). Reshape it"
        )


def check_weight(loss: Any, sample_weight: Any, samples: int) -> None:
    """Refuse sample weights whose shape is neither (B,) nor (B, 1)."""
    if sample_weight is not None:
        check_shape(loss, "sample_weight", sample_weight, (samples,), (samples, 1))


def weighted(F: Any, loss: Any, weight: Optional[float], sample_weight: Any) -> Any:  # noqa: N803
    """Multiply losses of shape (B,) by the loss's weight, and by sample weights of shape (B,) or (B, 1)."""
    if sample_weight is not None:
        loss = loss * F.reshape(sample_weight, (-1,))
    return loss if weight is None else loss * weight


def number(name: str, value: Any, least: float, most: float = float("inf")) -> float:
    """Check an argument that is a finite number from `least` to `most`.

    Raises:
        ValueError: It is not.
    """
    if not is_finite_number(value) or not least <= value <= most:
        span = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of at least {least:g}"
        raise ValueError(f"{name}: expected a finite number {span}; received {value!r}")
    return float(value)


def _widened(output: Any) -> Any:
    """Cast float16 to float32: squares and exponentials overflow float16."""
    if isinstance(output, (list, tuple)):
        return [_widened(array) for array in output]
    return output.astype("float32") if isinstance(output, mx.nd.NDArray) and output.dtype == np.float16 else output


class ClassWeights:
    """Weights for classes, copied once to each device that uses them.

    Args:
        name: The argument's name in messages.
        values: As `ClassWeight`.

    Raises:
        ValueError: A weight is below 0 or not a number, a key is not a class number or repeated, or `values` is empty.
    """

    def __init__(self, name: str, values: ClassWeight) -> None:
        items = enumerate(values) if isinstance(values, (list, tuple, np.ndarray)) else ()
        pairs = [(str(key), value) for key, value in (values.items() if hasattr(values, "items") else items)]
        if not all(key.isdigit() for key, _ in pairs) or not 0 < len(pairs) == len({int(key) for key, _ in pairs}):
            raise ValueError(
                f"{name}: expected a weight for each class, [1, 5] or {{0: 1, 1: 5}}; received {values!r:.100}"
            )
        self._by_class = {int(key): number(f"{name}: class {key}", value, 0) for key, value in pairs}
        self._name = name
        self._length = None if isinstance(values, AnyMapping) else len(self._by_class)
        self._arrays: Dict[Any, Any] = {}

    def __repr__(self) -> str:
        return repr(self._by_class)

    def among(self, classes: int) -> List[float]:
        """The weights as a list of length `classes`.

        Raises:
            DataError: The net has another number of outputs.
        """
        highest = max(self._by_class)
        if (self._length or classes) != classes or highest >= classes:
            received = f"{self._length} weights" if self._length else f"a weight for class {highest}"
            raise DataError(f"{self._name}: the net has {classes} outputs; received {received}")
        return [self._by_class.get(key, 1.0) for key in range(classes)]

    def array(self, classes: int, like: Any) -> Any:
        """The weights as an array of shape (classes,), with the device and dtype of `like`."""
        key = (classes, like.ctx, like.dtype)
        if key not in self._arrays:
            self._arrays[key] = mx.nd.array(self.among(classes), ctx=like.ctx, dtype=like.dtype)
        return self._arrays[key]


def weight_place(loss: Any, output: Any) -> Optional[int]:
    """Index of the sample weights among the labels, or None for a loss that takes none."""
    if not isinstance(loss, gluon.loss.Loss):
        return None
    if hasattr(loss, "weight_place"):  # it depends on the output
        return int(loss.weight_place(output))
    _, names = _arguments(loss.__class__)
    return names.index("sample_weight") if "sample_weight" in names else None


@lru_cache(maxsize=None)
def _arguments(kind: Any) -> Tuple[int, List[str]]:
    """Number of arrays that a class of losses needs after the net's output, and names of all that it takes."""
    parameters = list(inspect.signature(kind.forward).parameters.values())[2:]  # a subclass may take other arrays
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        parameters = list(inspect.signature(kind.hybrid_forward).parameters.values())[3:]
    return sum(p.default is p.empty for p in parameters), [p.name for p in parameters]


def label_steps(loss: Any, output: Any, labels: Sequence[Any]) -> Steps:
    """Steps that prepare the labels of a batch for a loss of Gluon; () for none.

    Gluon reshapes labels to the outputs' shape, which may pair the wrong elements, and multiplies losses of shape
    (B, 1) by weights of shape (B,), which gives (B, B) (T118, T119).

    Args:
        loss: Any loss. For a custom loss only sample weights are reshaped.
        output: The net's output.
        labels: The arguments of the loss after the output.

    Raises:
        DataError: The loss cannot use a shape, or the output is no array. The text names the expected and the
            received shape.
    """
    meaning = meaning_of(loss)
    several = isinstance(output, (list, tuple)) and isinstance(loss, PerSampleLoss)
    if meaning.is_plain and not several and not isinstance(output, (mx.nd.NDArray, mx.sym.Symbol)):
        received = f"{len(output)} outputs" if isinstance(output, (list, tuple)) else f"a {type(output).__name__}"
        raise DataError(
            f"{type(loss).__name__}: the net returns {received}, and this loss takes one array. Choose it in "
            "loss=mxkit.losses.BatchLoss(forward=lambda net, inputs, labels: ...)"
        )
    if not meaning.is_known or isinstance(loss, PerSampleLoss):
        return ()
    if meaning.is_plain:
        least, names = _arguments(loss.__class__)
        if not least <= len(labels) <= len(names):
            received = f"{len(labels)} arrays" if labels else "none: batches are (x, y)"
            taken = ", ".join(names)
            raise DataError(f"{type(loss).__name__} takes {taken} after the net's output; received {received}")
    if not isinstance(output, mx.nd.NDArray):
        return ()
    steps: List[List[Step]] = [[] for _ in labels]
    place = weight_place(loss, output)
    targets = labels if place is None else labels[:place]
    if meaning.is_plain:
        meaning.check_shapes(tuple(output.shape), targets)
        for number, label in enumerate(targets):
            if label.dtype != output.dtype and (not meaning.has_class_numbers or label.dtype == np.bool_):
                steps[number].append(("cast", np.dtype(output.dtype).name))
    if place is not None and len(labels) > place:
        steps[place] = list(weight_steps(loss, output, labels[place]))
    return tuple(map(tuple, steps)) if any(steps) else ()


def apply_steps(steps: Steps, output: Any, labels: Sequence[Any]) -> Sequence[Any]:
    """Apply the steps of `label_steps` to labels, which are arrays or symbols."""
    if not steps:
        return labels
    return [_applied(steps_of_label, output, label) for steps_of_label, label in zip(steps, labels)]


def _applied(steps: Sequence[Step], output: Any, label: Any) -> Any:
    for kind, value in steps:
        if kind == "cast":
            label = label.astype(value)
        elif kind == "reshape":
            label = label.reshape(value)
        elif kind == "expand":
            label = label.expand_dims(value)
        else:
            label = (mx.nd if isinstance(label, mx.nd.NDArray) else mx.sym).reshape_like(label, output)
    return label


def weight_steps(loss: Any, output: Any, weight: Any) -> Tuple[Step, ...]:
    """Steps that convert sample weights to the dtype of the output and the axes of the losses before their mean.

    Args:
        loss: A loss of Gluon or mxkit.
        output: The net's output.
        weight: One weight per sample; or one per loss, where an axis may have length 1; or an array of the labels'
            shape, which equals the shape of the losses up to axes of length 1.

    Raises:
        DataError: The weights have another shape.
    """
    target, axis = meaning_of(loss).losses_shape(output, weight)
    shape, positions = tuple(weight.shape), target if axis is None else target[:axis] + target[axis + 1 :]
    if shape[0] == target[0] and weight.size == target[0]:
        per_sample = (-1,) + (1,) * (len(target) - 1)
        steps: List[Step] = [] if len(shape) == len(target) else [("reshape", per_sample)]
    elif len(shape) == len(target) and all(length in (1, full) for length, full in zip(shape, target)):
        steps = []
    elif axis is not None and shape == positions:
        steps = [("expand", axis)]
    elif axis is None and squeezed(shape) == squeezed(target):
        steps = [("like", None)]
    else:
        per_position = "" if squeezed(positions) == target[:1] else f" or {positions} for a weight per position"
        raise DataError(
            f"{type(loss).__name__}: sample_weight: expected shape ({target[0]},) or ({target[0]}, 1){per_position}; "
            f"received {shape}. Reshape the weights (T118)"
        )
    return tuple(steps) if weight.dtype == output.dtype else (("cast", np.dtype(output.dtype).name), *steps)
