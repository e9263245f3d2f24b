"""Makes inputs for the comparison with MXNet: the caller's arrays, a run's test data, or random numbers."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.graph import Graph
import numpy as np

# Sizes of the compared batches. A second size reveals a batch size that a conversion fixed by mistake.
SIZES = (1, 4)


class GraphInput(NamedTuple):
    """An input of a net.

    Attributes:
        name: In the graph.
        shape: For one batch.
        dtype: NumPy's name.
        axis: The axis of the samples, whose size is free in the exported file.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: str
    axis: int = 0

    def __str__(self) -> str:
        sizes = ["N" if axis == self.axis else str(size) for axis, size in enumerate(self.shape)]
        return f"{self.name} ({', '.join(sizes)}{',' * (len(sizes) == 1)}) {self.dtype}"

    def resized(self, size: int) -> Tuple[int, ...]:
        """The shape for another batch size."""
        return (*self.shape[: self.axis], size, *self.shape[self.axis + 1 :])


def by_name(values: Mapping[str, Any], names: Sequence[str]) -> List[Any]:
    """Return `inputs=` or `input_shape=` of a dict in the order of the net's inputs.

    Raises:
        ValueError: The net has other inputs.
    """
    if set(values) != set(names):
        raise ValueError(f"export: the net's inputs are {', '.join(names)}; received {', '.join(map(str, values))}")
    return [values[name] for name in names]


def split_shapes(input_shape: Any) -> Tuple[List[Tuple[int, ...]], List[int]]:
    """Read `input_shape` of `export`: shapes with numbers only, and the axes of the samples if a None names one.

    >>> split_shapes((2, 3, 8, 8)), split_shapes([(35, None, 10), (2, 5)])
    (([(2, 3, 8, 8)], []), ([(35, 1, 10), (2, 5)], [1, 0]))
    """
    if input_shape is None:
        return [], []
    shape = input_shape if isinstance(input_shape, (list, tuple)) else (-1,)
    many = list(shape) if shape and all(isinstance(part, (list, tuple)) for part in shape) else [shape]
    sizes = [size for one in many for size in one]
    sound = all(size is None or (type(size) is int and size > 0) for size in sizes)
    if not sound or any(list(one).count(None) > 1 for one in many):
        raise ValueError(
            "input_shape: expected a shape like (1, 3, 224, 224), or a list of them; None may stand for the batch "
            f"size, as in (35, None, 100); got {input_shape!r}"
        )
    axes = [list(one).index(None) if None in one else 0 for one in many] if None in sizes else []
    return [tuple(1 if size is None else size for size in one) for one in many], axes


def forms_of(
    names: Sequence[str], shapes: Sequence[Tuple[int, ...]], axes: Sequence[int], dtypes: Sequence[str]
) -> List[GraphInput]:
    """Describe the inputs of a net; without axes, the samples are the first one."""
    axes = axes or [0] * len(names)
    return [GraphInput(*one) for one in zip(names, shapes, dtypes, axes)]


def as_arrays(inputs: Any) -> Tuple[Any, ...]:
    """Return the arrays of `inputs=`: one array, or a tuple of them, as NumPy's."""
    many = inputs if isinstance(inputs, (list, tuple)) else () if inputs is None else (inputs,)
    arrays = (np.asarray(one.asnumpy() if hasattr(one, "asnumpy") else one) for one in many)
    return tuple(array.astype("float32") if array.dtype == np.float64 else array for array in arrays)


def check_examples(examples: Sequence[Any], shapes: Sequence[Tuple[int, ...]], axes: Sequence[int]) -> None:
    """Refuse examples without samples, and those that contradict `input_shape`.

    Raises:
        ValueError: As said.
    """
    for number, (array, shape) in enumerate(zip(examples, shapes)):
        axis = axes[number] if axes else 0
        same = array.ndim == len(shape) and all(
            own == size for place, (own, size) in enumerate(zip(array.shape, shape)) if place != axis
        )
        if not array.size or not same:
            raise ValueError(f"inputs: expected an array of shape {shape} with samples; received {array.shape}")


def example_batches(
    graph: Any, forms: Sequence[GraphInput], examples: Sequence[Any], sizes: Sequence[Optional[int]] = SIZES
) -> List[Dict[str, Any]]:
    """Return batches of each size: of the examples, repeated if they are too few, or random numbers.

    The size None is that of the examples, or of `forms`.
    """
    found = []
    tables = _tables(graph)
    random = np.random.RandomState(0)
    for size in sizes:
        batch = {}
        for number, form in enumerate(forms):
            if examples:
                own = examples[number]
                batch[form.name] = own if size is None else np.take(own, np.arange(size), form.axis, mode="wrap")
            else:
                shape = form.shape if size is None else form.resized(size)
                batch[form.name] = _drawn(random, shape, form.dtype, tables.get(form.name))
        found.append(batch)
    return found


def _drawn(random: Any, shape: Tuple[int, ...], dtype: str, rows: Optional[int]) -> Any:
    """Numbers between -1 and 1; row numbers of a table; 0 and 1 for other integers."""
    if rows is not None:
        return random.randint(0, rows, shape).astype(dtype)
    if np.dtype(dtype).kind in "iub":
        return random.randint(0, 2, shape).astype(dtype)
    return random.uniform(-1, 1, shape).astype(dtype)


def _tables(graph: Any) -> Dict[str, int]:
    """Number of rows of the table that an input chooses from, by the input's name; 2 for lengths of sequences."""
    view = Graph.of(graph.symbol)
    rows = {}
    for node in view.nodes:
        names = [one.name for one in view.sources(node)]
        if node.operator == "Embedding":
            rows[names[0]] = node.integer("input_dim")
        elif node.operator.startswith("Sequence") and len(names) > 1:
            rows[names[1]] = 2
    return rows
