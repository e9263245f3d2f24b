"""The operator that a conversion reads, and the writer of the ONNX nodes that replace it."""

import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple, Union

from mxkit.core.graph import Attributes
import numpy as np

OPSET = 17  # the first with LayerNormalization; onnxruntime 1.12 of 2022 reads it
END = 2**63 - 1  # an end of Slice beyond every axis


class Batch(NamedTuple):
    """Size of an axis that depends on the batch size N: `factor * N + offset`."""

    factor: int
    offset: int = 0


Size = Union[int, Batch]
Dims = Tuple[Size, ...]
UNKNOWN: Dims = (-1,)  # a shape that depends on values


class Tensor(NamedTuple):
    """An input or output of an operator.

    Attributes:
        name: In the ONNX graph.
        dims: Its shape.
        dtype: Its dtype in NumPy.
    """

    name: str
    dims: Dims
    dtype: Any

    def size(self, axis: int) -> int:
        """Return the size of an axis that must not depend on the batch size."""
        size = self.dims[axis]
        if not isinstance(size, int):
            raise Unsupported(f"axis {axis} of {self.name!r} has the size of the batch")
        return size


Value = Union[Tensor, str, np.ndarray, np.generic]
Converter = Callable[["Operator", "Writer"], Union[str, List[str]]]
CONVERTERS: Dict[str, Converter] = {}


class Unsupported(Exception):  # noqa: N818
    """An operator, or an attribute of it, without a right conversion; the text is the reason."""


class _Fields(NamedTuple):
    """See `Operator`."""

    name: str
    operator: str
    attrs: Mapping[str, str]
    inputs: List[Tensor]
    outputs: List[Tensor]


class Operator(_Fields, Attributes):
    """An operator of MXNet's graph.

    Attributes:
        name: In MXNet's graph; names can repeat.
        kind: MXNet's name of what it computes.
        attrs: Attributes as MXNet writes them; defaults are absent.
        inputs: In MXNet's order.
        outputs: The visible ones.
    """

    @property
    def rank(self) -> int:
        """Number of axes of the first input."""
        return len(self.inputs[0].dims)

    def refuse(self, *conditions: Tuple[Any, str]) -> None:
        """Raise Unsupported with the reason of the first condition that is true."""
        for condition, reason in conditions:
            if condition:
                raise Unsupported(reason)


class Writer:
    """Collects ONNX nodes and constants.

    Args:
        batch: Name of an input of the graph and the axis of it that has the batch size.
    """

    def __init__(self, batch: Tuple[str, int]) -> None:
        self.nodes: List[Any] = []
        self.initializers: List[Any] = []
        self.prefix = ""
        self._batch = batch
        self._count = 0
        self._constants: Dict[Any, str] = {}

    def op(self, kind: str, *inputs: Value, **attributes: Any) -> str:
        """Write a node with one output and return the output's name. Arrays among the inputs become constants."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: Value, **attributes: Any) -> List[str]:
        """Write a node with `count` outputs and return their names."""
        from onnx import helper

        outputs = [self._new(kind) for _ in range(count)]
        names = [self.named(value) for value in inputs]
        self.nodes.append(helper.make_node(kind, names, outputs, name=outputs[0], **attributes))
        return outputs

    def named(self, value: Value) -> str:
        """Return the name of a tensor; an array becomes a constant."""
        if isinstance(value, str):
            return value
        return value.name if isinstance(value, Tensor) else self.constant(value)

    def constant(self, value: Any) -> str:
        """Write a constant, equal ones once, and return its name."""
        from onnx import numpy_helper

        array = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self._constants[key] = f"constant_{len(self._constants)}"
            self.initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def shape(self, dims: Dims) -> str:
        """Write a shape as a vector of integers, computed from the batch size where it depends on it."""
        if all(isinstance(size, int) for size in dims):
            return self.constant(np.array(dims, np.int64))
        parts: List[str] = []
        for size in dims:
            if isinstance(size, int):
                parts.append(self.constant(np.array([size], np.int64)))
                continue
            name, axis = self._batch
            part = self.op("Shape", name, start=axis, end=axis + 1)
            part = part if size.factor == 1 else self.op("Mul", part, integers(size.factor))
            parts.append(self.op("Add", part, integers(size.offset)) if size.offset else part)
        return self.op("Concat", *parts, axis=0)

    def reshape(self, value: Value, dims: Dims) -> str:
        """Reshape to a shape of which several axes may depend on the batch size."""
        fixed = [size if isinstance(size, int) else -1 for size in dims]
        if fixed.count(-1) > 1 or (-1 in fixed and 0 in fixed):
            return self.op("Reshape", value, self.shape(dims), allowzero=1)
        return self.op("Reshape", value, np.array(fixed, np.int64), allowzero=int(0 in fixed))

    def cast(self, value: Value, dtype: Any) -> str:
        """Cast to a dtype of NumPy."""
        from onnx import helper

        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def transpose(self, value: Value, *axes: int) -> str:
        """Permute the axes."""
        return self.op("Transpose", value, perm=list(axes))

    def slice(self, value: Value, starts: Any, ends: Any, axes: Any, steps: Any = None) -> str:
        """Cut out a part; starts, ends, axes and steps are whole numbers or lists of them."""
        more = [] if steps is None else [_vector(steps)]
        return self.op("Slice", value, _vector(starts), _vector(ends), _vector(axes), *more)

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{self.prefix}/{kind}_{self._count}"


def converts(*kinds: str) -> Callable[[Converter], Converter]:
    """Register a conversion for operators of MXNet."""

    def register(converter: Converter) -> Converter:
        for kind in kinds:
            CONVERTERS[kind] = converter
        return converter

    return register


def integers(*values: int) -> np.ndarray:
    """Return a vector of int64, the dtype of shapes and axes in ONNX."""
    return np.array(values, np.int64)


def count(dims: Dims, batch: int) -> int:
    """Return the number of elements at a batch size."""
    return math.prod(size if isinstance(size, int) else size.factor * batch + size.offset for size in dims)


def like(tensor: Tensor, value: float) -> np.ndarray:
    """Return a number in the dtype of a tensor."""
    return np.array(value).astype(tensor.dtype)


def spread(tensor: Tensor, axis: int, ndim: int) -> List[int]:
    """Return the shape in which a vector lies along one axis of `ndim`."""
    return [tensor.size(0) if index == axis % ndim else 1 for index in range(ndim)]


def axes_of(operator: Operator, name: str = "axis") -> List[int]:
    """Return an attribute with axes as a list, counted from 0; absent, None and () are all axes."""
    every = range(operator.rank)
    axes = sorted(axis % operator.rank for axis in operator.ints(name) or every)
    return [axis for axis in every if axis not in axes] if operator.flag("exclude") else axes


def _vector(values: Any) -> np.ndarray:
    return np.array([values] if isinstance(values, int) else values, np.int64)
