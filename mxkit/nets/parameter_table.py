"""A table of a net's parameters: shapes, counts, states, sharing; and what differs between the tables of two nets."""

from dataclasses import dataclass
from itertools import product
import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import item_size
from mxkit.core.blocks import distinct, never_trained, parameters_by_path, unknown_path, wait_before_reading
from mxkit.core.replicas import is_initialized, values_of
from mxkit.core.system import aligned
from mxkit.errors import NotInitializedError, nearest
from mxkit.storage.params_format import dtype_name
import mxnet as mx
import numpy as np

Row = Dict[str, Any]

_STATES = ("trained", "frozen", "statistics", "fixed")
_LEFT = ("path", "shape", "dtype", "state", "devices", "shared_with")


class Parameters(Mapping[str, Any]):
    """Gluon Parameters by structural path, in the order of the net; prints as a table. `parameters(net)` returns it.

    Rows are read from the Parameters each time; only the paths are stored. A parameter that several blocks share
    stands under each of its paths.

    Columns: `path`; `shape`, with `?` for sizes that are not known yet; `dtype`; `count` of numbers; `state`;
    `lr_mult` and `wd_mult` if one is not 1; `devices`; `shared_with` if two paths hold one parameter. A state is

    - trained: the parameter has a gradient, and a Trainer over it changes it;
    - frozen: `mxkit.unfreeze` would give it a gradient;
    - statistics: running means and variances, which move without gradients;
    - fixed: constants, and switched-off scales and shifts of norms.

    The last line counts a shared parameter once. Its bytes are those of the values on one device, without
    gradients and optimizer states.

    >>> table = parameters(mx.gluon.nn.Dense(3, in_units=5))
    >>> table["bias"].shape, table.totals["count"]
    ((3,), 18)
    """

    def __init__(self, net: Any) -> None:
        self._parameters = parameters_by_path(net)
        self._never = never_trained(net)
        self._paths: Dict[int, List[str]] = {}
        for path, parameter in self._parameters.items():
            self._paths.setdefault(id(parameter), []).append(path)

    def __getitem__(self, path: str) -> Any:
        if path in self._parameters:
            return self._parameters[path]
        near = nearest(path, self._parameters) if isinstance(path, str) else ""
        for other, parameter in self._parameters.items():
            if parameter.name == path:
                near = f"this is its Gluon name, which another instance of the net does not share; use {other!r}."
        raise unknown_path(f"no parameter stands at {path!r}", near, self._parameters)

    def __contains__(self, path: object) -> bool:
        return path in self._parameters

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def shared(self) -> Dict[str, List[str]]:
        """First path of each shared parameter, with its other paths.

        >>> net = mx.gluon.nn.HybridSequential(); net.add(mx.gluon.nn.Dense(3, use_bias=False))
        >>> net.add(mx.gluon.nn.Dense(3, use_bias=False, params=net[0].params)); parameters(net).shared
        {'0.weight': ['1.weight']}
        """
        return {first: others for first, *others in self._paths.values() if others}

    @property
    def rows(self) -> List[Row]:
        """One dict per path with all columns, also those that the printed table leaves out.

        Unknown sizes are 0 in `shape`; other unknown values are None. `shared_with` and `devices` are lists.
        """
        return [self._row(path, parameter) for path, parameter in self._parameters.items()]

    def _row(self, path: str, parameter: Any) -> Row:
        return {
            "path": path,
            "shape": _known(parameter.shape),
            "dtype": None if parameter.dtype is None else dtype_name(parameter.dtype),
            "count": _size(parameter),
            "state": self._state(path, parameter),
            "lr_mult": parameter.lr_mult,
            "wd_mult": parameter.wd_mult,
            "devices": list(map(str, parameter.list_ctx())) if is_initialized(parameter) else None,
            "shared_with": [other for other in self._paths[id(parameter)] if other != path],
        }

    def _state(self, path: str, parameter: Any) -> str:
        if parameter.grad_req != "null":
            return "trained"
        if "running_" in path.rpartition(".")[2]:
            return "statistics"
        return "fixed" if id(parameter) in self._never else "frozen"

    @property
    def totals(self) -> Dict[str, int]:
        """Sums: numbers (`count`), numbers by state (`trained`, ...), `parameters`, `bytes`, `unknown` shapes.

        A shared parameter counts once; one of unknown shape counts only in `parameters` and `unknown`.
        """
        totals = dict.fromkeys(("parameters", "count", *_STATES, "bytes", "unknown"), 0)
        totals["parameters"] = len(self._paths)
        for first, *_ in self._paths.values():
            row = self._row(first, self._parameters[first])
            if row["count"] is None or row["dtype"] is None:
                totals["unknown"] += 1
                continue
            totals["count"] += row["count"]
            totals[row["state"]] += row["count"]
            totals["bytes"] += row["count"] * item_size(row["dtype"])
        return totals

    def __repr__(self) -> str:
        rows, totals = self.rows, self.totals
        states = ", ".join(f"{totals[state]:,} {state}" for state in _STATES if totals[state])
        unknown = f"; {totals['unknown']} of unknown shape are not counted" if totals["unknown"] else ""
        total = f"{totals['parameters']:,} parameters, {totals['count']:,} numbers, {totals['bytes']:,} bytes"
        return "\n".join([*_lines(rows), f"{total}{': ' * bool(states)}{states}{unknown}"])


def parameters(net: Any) -> Parameters:
    """Return a net's parameters by structural path, as a read-only mapping that prints as a table.

    Args:
        net: Any block, hybridized or not, initialized or not.

    Returns:
        The mapping: `parameters(net)["features.0.weight"]` is the Gluon Parameter itself. An unknown path raises
        `UnknownPathError`, which is a KeyError too; Gluon's `collect_params().get` would make a new parameter (T37).

    >>> net = mxkit.models.mlp(hidden=[8]); _ = mxkit.freeze(net, "1.*"); parameters(net)
    path      shape    dtype    count  state    devices
    1.weight  (8, ?)   float32      ?  frozen   ?
    1.bias    (8,)     float32      8  frozen   ?
    2.weight  (10, ?)  float32      ?  trained  ?
    2.bias    (10,)    float32     10  trained  ?
    4 parameters, 18 numbers, 72 bytes: 10 trained, 8 frozen; 2 of unknown shape are not counted
    """
    return Parameters(net)


def count(net: Any, trainable: Optional[bool] = None) -> int:
    """Count the numbers that parameters hold; a shared parameter counts once.

    Args:
        net: Any block.
        trainable: True counts trained parameters, False the others, None all.

    Returns:
        The number of elements.

    Raises:
        NotInitializedError: A shape is not known yet.

    >>> count(mx.gluon.nn.Dense(3, in_units=5)), count(mx.gluon.nn.BatchNorm(in_channels=4), trainable=True)
    (18, 8)
    """
    total = 0
    for path, parameter in distinct(parameters_by_path(net)).items():
        if trainable is not None and trainable != (parameter.grad_req != "null"):
            continue
        size, shape = _size(parameter), _known(parameter.shape)
        if size is None:
            raise NotInitializedError(
                f"count: the shape of {path!r} is {shape}, not known yet. Run one batch through the net first"
            )
        total += size
    return total


def _known(shape: Any) -> Any:
    """Return a shape with 0 for unknown sizes, for which Gluon gives -1 under the switch of `mx.np`."""
    return None if shape is None else tuple(max(size, 0) for size in shape)


def _size(parameter: Any) -> Optional[int]:
    shape = parameter.shape
    return None if shape is None or any(size <= 0 for size in shape) else math.prod(shape)


def as_float64(array: Any) -> Any:
    """Return a dense float64 NDArray on the same device, for an array of mx.np too."""
    return (array if array.stype == "default" else array.tostype("default")).as_nd_ndarray().astype("float64")


def square(array: Any) -> Any:
    """Return the sum of squares, of shape (1,)."""
    flat = array.reshape((-1,))
    return mx.nd.dot(flat, flat)  # a sixth of the time of square().sum() on the CPU


def _lines(rows: Sequence[Row]) -> List[str]:
    """Return a line of column names and a line per row; a column with default values only is left out."""
    if not rows:
        return []
    defaults: Row = {"lr_mult": 1, "wd_mult": 1, "shared_with": []}
    shown = [name for name in rows[0] if name not in defaults or any(row[name] != defaults[name] for row in rows)]
    lines = [shown, *([_cell(name, row[name]) for name in shown] for row in rows)]
    return aligned(lines, [number for number, name in enumerate(shown) if name in _LEFT])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "?"
    if name == "shape":
        sizes = [str(size) if size > 0 else "?" for size in value]
        return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


_SHOWN = 10


class Difference(NamedTuple):
    """Difference of two arrays of one shape.

    Attributes:
        largest: Largest absolute difference of two elements; NaN if one of them is NaN.
        differing: Number of elements that differ by more than the tolerance; the largest number of all pairs of
            replicas.
        size: Number of elements.
    """

    largest: float
    differing: int
    size: int

    def __str__(self) -> str:
        return f"{self.differing:,} of {self.size:,} elements, by at most {self.largest:.6g}"


@dataclass(frozen=True)
class Comparison:
    """Result of `compare`: true if nothing differs; prints as text.

    Attributes:
        only_a: Paths that only the first net has.
        only_b: Paths that only the second net has.
        shapes: Pairs of shapes that differ, by path.
        dtypes: Pairs of dtypes that differ, by path; their values are compared nevertheless.
        values: Differences of values, by path.
        shared: Pairs of lists that differ, by path: the other paths of this parameter in the first net and in the
            second.
        drifted_a: Differences between the first net's replicas and that of its first device, by path. They do not make
            the nets unequal. Statistics of BatchNorm are not compared, because each device has its own (T71).
        drifted_b: The same for the second net.
        paths: Number of paths that both have.
    """

    only_a: List[str]
    only_b: List[str]
    shapes: Dict[str, Tuple[Any, Any]]
    dtypes: Dict[str, Tuple[str, str]]
    values: Dict[str, Difference]
    shared: Dict[str, Tuple[List[str], List[str]]]
    drifted_a: Dict[str, Difference]
    drifted_b: Dict[str, Difference]
    paths: int

    @property
    def equal(self) -> bool:
        """True if both nets have the same paths, shapes, dtypes, values and sharing."""
        return not any((self.only_a, self.only_b, self.shapes, self.dtypes, self.values, self.shared))

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        sections: Dict[str, Dict[str, Any]] = {
            "only in the first net": dict.fromkeys(self.only_a, ""),
            "only in the second net": dict.fromkeys(self.only_b, ""),
            "other shapes": self.shapes,
            "other dtypes": self.dtypes,
            "other values": self.values,
            "shared with other paths": self.shared,
            "replicas of the first net drifted apart": self.drifted_a,
            "replicas of the second net drifted apart": self.drifted_b,
        }
        lines = [f"{'equal' if self.equal else 'different'}: {self.paths} common paths"]
        for title, rows in sections.items():
            texts = {path: "{} and {}".format(*one) if type(one) is tuple else str(one) for path, one in rows.items()}
            lines += [f"{title}: {len(rows)}"] * bool(rows)
            lines += [f"  {path}{': ' * bool(text)}{text}" for path, text in list(texts.items())[:_SHOWN]]
            lines += [f"  and {len(rows) - _SHOWN} more"] * (len(rows) > _SHOWN)
        return "\n".join(lines)

    __repr__ = __str__


def compare(net_a: Any, net_b: Any, *, rtol: float = 0.0, atol: float = 0.0) -> Comparison:
    """Compare the parameters of two nets by path: structure, shapes, dtypes, values, sharing.

    Args:
        net_a: Any initialized block, on any devices. If both nets are on the same number of devices, replicas are
            compared one to one, in the nets' orders; otherwise each with each. `compare(net, net)` compares the
            replicas of one net, except for statistics of BatchNorm, of which each device has its own (T71).
        net_b: Another block. Gluon's names and frozen parameters are not compared.
        rtol: Relative tolerance, as a part of the second net's element.
        atol: Absolute tolerance. With both 0 elements must be equal; NaN equals NaN.

    Returns:
        The differences by path; true if there are none.

    Raises:
        NotInitializedError: A parameter that both nets have has no values yet in one of them.
        ValueError: A tolerance is below 0 or NaN.

    Side effects:
        Copies the values to the host, one parameter at a time.

    >>> a, b = mx.gluon.nn.Dense(2, in_units=2), mx.gluon.nn.Dense(2, in_units=2)
    >>> a.initialize(mx.init.One()); b.initialize(mx.init.One()); bool(compare(a, b))
    True
    >>> b.weight.data()[0, 1] = 1.5; compare(a, b)
    different: 2 common paths
    other values: 1
      weight: 1 of 4 elements, by at most 0.5
    """
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not tolerance >= 0:
            raise ValueError(f"compare: {name}: expected a number, at least 0; received {tolerance!r}")
    a, b = parameters(net_a), parameters(net_b)
    common = [path for path in a if path in b]
    for which, table in (("first", a), ("second", b)):
        _check_values(which, table, common)
    wait_before_reading()
    rows_a, rows_b = ({row["path"]: row for row in table.rows} for table in (a, b))

    def differing(column: Callable[[Row], Any]) -> Dict[str, Tuple[Any, Any]]:
        pairs = {path: (column(rows_a[path]), column(rows_b[path])) for path in common}
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}

    shapes = differing(lambda row: row["shape"])
    values = {
        path: _farthest(values_of(a[path]) or [], values_of(b[path]) or [], rtol, atol)
        for path in common
        if path not in shapes
    }
    return Comparison(
        only_a=[path for path in a if path not in b],
        only_b=[path for path in b if path not in a],
        shapes=shapes,
        dtypes=differing(lambda row: row["dtype"]),
        values=_not_none(values),
        shared=differing(lambda row: [one for one in row["shared_with"] if one in common]),
        drifted_a=_drifted(a, rows_a),
        drifted_b=_drifted(b, rows_b),
        paths=len(common),
    )


def _check_values(which: str, table: Parameters, paths: List[str]) -> None:
    for path in paths:
        if values_of(table[path]) is None:
            raise NotInitializedError(
                f"compare: {path!r} of the {which} net has no values: call mxkit.initialize(net, 'xavier') or load its "
                "parameters, and run one batch through the net if its shapes are not known yet"
            )


def _farthest(ours: List[Any], theirs: List[Any], rtol: float, atol: float) -> Optional[Difference]:
    """Return the largest difference of pairs of replicas, or None if all are within the tolerance."""
    largest: List[float] = []
    counts: List[int] = []
    for pair in zip(ours, theirs) if len(ours) == len(theirs) else product(ours, theirs):
        with mx.util.np_shape(True):  # for arrays of mx.np without axes
            a, b = (as_float64(array).asnumpy() for array in pair)
        differ = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        if differ.any():
            largest.append(np.abs(a[differ] - b[differ]).max())
            counts.append(int(differ.sum()))
    # np.max gives NaN if one difference is NaN
    return Difference(float(np.max(largest)), max(counts), int(a.size)) if largest else None


def _drifted(table: Parameters, rows: Mapping[str, Mapping[str, Any]]) -> Dict[str, Difference]:
    differences = {}
    for path, parameter in table.items():
        if rows[path]["state"] != "statistics":
            first, *others = values_of(parameter) or [None]
            differences[path] = _farthest(others, [first], 0.0, 0.0)
    return _not_none(differences)


def _not_none(differences: Mapping[str, Optional[Difference]]) -> Dict[str, Difference]:
    return {path: difference for path, difference in differences.items() if difference is not None}
