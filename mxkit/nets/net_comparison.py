"""Compares the parameters of two nets, and the replicas of one net."""

from dataclasses import dataclass
from itertools import product
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from mxkit.core.blocks import wait_before_reading
from mxkit.core.replicas import is_deferred, values_of
from mxkit.errors import NotInitializedError
from mxkit.nets.parameter_table import Parameters, as_float64, parameters
import mxnet as mx
import numpy as np

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
        sections = {
            "only in the first net": dict.fromkeys(self.only_a, ""),
            "only in the second net": dict.fromkeys(self.only_b, ""),
            "other shapes": _pairs(self.shapes),
            "other dtypes": _pairs(self.dtypes),
            "other values": _apart(self.values),
            "shared with other paths": _pairs(self.shared),
            "replicas of the first net drifted apart": _apart(self.drifted_a),
            "replicas of the second net drifted apart": _apart(self.drifted_b),
        }
        lines = [f"{'equal' if self.equal else 'different'}: {self.paths} common paths"]
        for title, rows in sections.items():
            if rows:
                lines.append(f"{title}: {len(rows)}")
                lines += [f"  {path}{': ' * bool(text)}{text}" for path, text in list(rows.items())[:_SHOWN]]
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
    shapes = _differing({path: (a[path].shape, b[path].shape) for path in common})
    rows_a, rows_b = ({row["path"]: row for row in table.rows} for table in (a, b))
    values = {
        path: _farthest(values_of(a[path]) or [], values_of(b[path]) or [], rtol, atol)
        for path in common
        if path not in shapes
    }
    shared = {}
    for path in common:
        ours, theirs = ([one for one in rows[path]["shared_with"] if one in common] for rows in (rows_a, rows_b))
        if ours != theirs:
            shared[path] = (ours, theirs)
    return Comparison(
        only_a=[path for path in a if path not in b],
        only_b=[path for path in b if path not in a],
        shapes=shapes,
        dtypes=_differing({path: (rows_a[path]["dtype"], rows_b[path]["dtype"]) for path in common}),
        values=_not_none(values),
        shared=shared,
        drifted_a=_drifted(a, rows_a),
        drifted_b=_drifted(b, rows_b),
        paths=len(common),
    )


def _check_values(which: str, table: Parameters, paths: List[str]) -> None:
    for path in paths:
        if values_of(table[path]) is None:
            way = (
                "its shape is not known yet. Run one batch through the net first"
                if is_deferred(table[path])
                else "the net is not initialized. Call mxkit.initialize(net, 'xavier') or load its parameters first"
            )
            raise NotInitializedError(f"compare: {path!r} of the {which} net has no values: {way}")


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


def _differing(pairs: Dict[str, Tuple[Any, Any]]) -> Dict[str, Tuple[Any, Any]]:
    return {path: (ours, theirs) for path, (ours, theirs) in pairs.items() if ours != theirs}


def _pairs(pairs: Mapping[str, Tuple[Any, Any]]) -> Dict[str, str]:
    return {path: f"{ours} and {theirs}" for path, (ours, theirs) in pairs.items()}


def _apart(differences: Mapping[str, Difference]) -> Dict[str, str]:
    texts = "{0.differing:,} of {0.size:,} elements, by at most {0.largest:.6g}"
    return {path: texts.format(difference) for path, difference in differences.items()}
