"""The base class of mxkit's losses, which checks shapes, and weights for samples and for classes."""

from collections.abc import Mapping as AnyMapping
import math
from numbers import Real
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import arrays_in
from mxkit.errors import DataError
from mxkit.losses.either_kind import EitherKind
import mxnet as mx
from mxnet import gluon
import numpy as np

# A weight for each class, in order or by class number; a class that a mapping omits has the weight 1.
ClassWeight = Union[Sequence[float], Mapping[Any, float]]


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

    def weight_place(self, output: Any) -> int:
        """Index of the sample weights among the labels."""
        return 1


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
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not real or not least <= value <= most:
        span = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of at least {least:g}"
        raise ValueError(f"{name}: expected a finite number {span}; received {value!r}")
    return float(value)


def _widened(output: Any) -> Any:
    """Cast float16 to float32: squares and exponentials overflow float16."""
    if isinstance(output, (list, tuple)):
        return [_widened(array) for array in output]
    half = isinstance(output, mx.nd.NDArray) and output.dtype == np.float16
    return output.astype("float32") if half else output


class ClassWeights:
    """Weights for classes, copied once to each device that uses them.

    Args:
        name: The argument's name in messages.
        values: As `ClassWeight`.

    Raises:
        ValueError: A weight is below 0 or not a number, a key is not a class number or repeated, or `values` is empty.
    """

    def __init__(self, name: str, values: ClassWeight) -> None:
        form = f"{name}: expected a weight for each class, [1, 5] or {{0: 1, 1: 5}}; received {values!r:.100}"
        try:
            pairs = list(values.items() if isinstance(values, AnyMapping) else enumerate(values))
            by_class = {int(key): float(value) for key, value in pairs}
        except (TypeError, ValueError, OverflowError):
            raise ValueError(form) from None
        # int() and float() take 3.5 for class 3, and True for 1
        wrong = [one for pair in pairs for one in pair if isinstance(one, (bool, np.bool_))]
        wrong += [key for key, _ in pairs if not isinstance(key, str) and int(key) != key]
        if wrong:
            raise ValueError(f"{form}; {wrong[0]!r} is neither a class number nor a weight")
        if len(by_class) < len(pairs):
            raise ValueError(f"{form}; two keys mean one class")
        if not by_class or min(by_class) < 0 or isinstance(values, str):
            raise ValueError(form)
        self._by_class = {key: number(f"{name}: class {key}", value, 0) for key, value in by_class.items()}
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
