"""Operators of MXNet with attributes that matter, and inputs for them: rows of the comparison with PyTorch."""

from functools import partial
import json
from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from mxkit.core.arrays import legacy, of_kind
import mxnet as mx
import numpy as np


class Row(NamedTuple):
    """An operator.

    Attributes:
        name: In the test's id.
        make: Builds the symbol from its input variables.
        shapes: Shapes of the inputs; "B" is the batch size, "2B" twice of it.
        parameters: Numbers of the inputs that are parameters.
        draw: Makes inputs other than normal ones, by the input's number.
        gradients: Whether to compare gradients.
        layer: Whether a module of torch.nn is expected.
        numpy: Whether it is an operator of mx.np.
        still: Numbers of the inputs that have no gradient in MXNet.
    """

    name: str
    make: Callable[..., Any]
    shapes: Tuple[Any, ...]
    parameters: Tuple[int, ...] = ()
    draw: Optional[Dict[int, Callable[..., Any]]] = None
    gradients: bool = True
    layer: bool = False
    still: Tuple[int, ...] = ()
    numpy: bool = False


def below(count, dtype="float32"):
    """Indices of 0 to count - 1."""
    return lambda random, shape: random.integers(0, count, shape).astype(dtype)


def above(low, high=2.0):
    """Numbers between low and high."""
    return lambda random, shape: random.uniform(low, high, shape).astype("float32")


def lengths(dtype):
    """Lengths of sequences of 5 steps."""
    return lambda random, shape: random.integers(1, 5, shape).astype(dtype)


def halves(random, shape):
    """Multiples of a half, which are rounded in several ways."""
    return (random.integers(-9, 9, shape) / 2).astype("float32")


def distinct(random, shape):
    """Numbers of which no two are alike."""
    return (random.permutation(int(np.prod(shape))).reshape(shape) / 7 - 1.5).astype("float32")


def boxes(random, shape):
    """Boxes that overlap, with labels and scores."""
    corner, size = random.uniform(0, 0.6, (*shape[:-1], 2)), random.uniform(0.1, 0.5, (*shape[:-1], 2))
    label = random.integers(0, 2, (*shape[:-1], 1))
    return np.concatenate([label, random.uniform(0, 1, (*shape[:-1], 1)), corner, corner + size], -1).astype("float32")


def raw(operator, count, **attrs):
    """Make a symbol without Python's wrappers, which mxkit repairs; such ones stand in files of others."""

    def make(*inputs):
        nodes = [{"op": "null", "name": part.name, "inputs": []} for part in inputs]
        attrs_text = {name: str(value) for name, value in attrs.items()}
        nodes.append({"op": operator, "name": "raw0", "attrs": attrs_text, "inputs": [[n, 0, 0] for n in range(count)]})
        described = {"nodes": nodes, "arg_nodes": list(range(count)), "heads": [[count, 0, 0]]}
        return mx.sym.load_json(json.dumps({**described, "attrs": {"mxnet_version": ["int", 10901]}}))

    return make


S = mx.sym
BCHW = ("B", 4, 5, 6)


def row(name, make, *shapes, draw=None, **more):
    """A row, whose inputs are all drawn alike if `draw` is a function."""
    if callable(draw):
        draw = dict.fromkeys(range(len(shapes)), draw)
    return Row(name, make, shapes, draw=draw, **more)


def many(space, names, *shapes, attrs=({},), numpy=False, **more):
    """A row for each function of a module, with each of some attributes."""
    made = ((f"{'np ' * numpy}{name}", getattr(space, name), one) for name in names.split() for one in attrs)
    return [row(f"{name} {one or ''}", partial(of, **one), *shapes, numpy=numpy, **more) for name, of, one in made]


def joined(rows):
    """Rows with the same inputs as one row of several outputs."""
    groups = {}
    for one in rows:
        draws = (*((number, id(draw)) for number, draw in (one.draw or {}).items()),)
        groups.setdefault((one.shapes, draws, one.numpy), []).append(one)
    return [group[0]._replace(name=group[0].name.strip(), make=partial(_all, group)) for group in groups.values()]


def _all(rows, *inputs):
    made = [row.make(*inputs) for row in rows]
    return [part for one in made for part in (one if isinstance(one, list) else [one])]


def shapes_of(row, batch):
    return [tuple({"B": batch, "2B": 2 * batch}.get(size, size) for size in shape) for shape in row.shapes]


def drawn(row, batch, seed=0):
    """Inputs of a row; the parameters do not depend on the batch size."""
    arrays = []
    for number, shape in enumerate(shapes_of(row, batch)):
        random = np.random.default_rng(1000 * seed + number)
        draw = (row.draw or {}).get(number)
        arrays.append(draw(random, shape) if draw else random.normal(size=shape).astype("float32"))
    return arrays


def symbol_of(row):
    made = [mx.sym.var(f"x{number}") for number in range(len(row.shapes))]
    symbol = row.make(*(of_kind(made, row.numpy)))
    return legacy(symbol) if not isinstance(symbol, list) else mx.sym.Group([legacy(part) for part in symbol])
