"""What differs between the parameters of two nets, and between the replicas of one."""

from dataclasses import dataclass
from itertools import product
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from mxkit.core.blocks import wait_before_reading
from mxkit.core.replicas import is_deferred, values_of
from mxkit.errors import NotInitializedError
from mxkit.nets.parameter_table import Parameters, as_float64, parameters
import numpy as np

_SHOWN = 10


class Difference(NamedTuple):
    """How far two arrays of one shape are apart.

    Attributes:
        largest: Largest absolute difference of two elements, NaN where one of them is NaN.
        differing: Number of elements that differ by more than was allowed, over all pairs of replicas the
            largest number of a pair.
        size: Number of elements.
    """

    largest: float
    differing: int
    size: int


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. True where nothing differs; prints as text.

    Attributes:
        only_a: Paths that only the first net has.
        only_b: Paths that only the second one has.
        shapes: Pairs of shapes, where they differ.
        dtypes: Pairs of dtypes, where they differ; values are compared all the same.
        values: Where values differ.
        shared: Pairs of lists: the paths that share the parameter in the first net, and in the second,
            where they differ.
        drifted_a: Where replicas of the first net differ from its first device's. This is told, and does
            not make the nets unequal. Statistics of BatchNorm are left out: each device has its own (T71).
        drifted_b: The same of the second net.
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
        """Whether both nets have the same paths, shapes, dtypes, values and sharing."""
        return not any((self.only_a, self.only_b, self.shapes, self.dtypes, self.values, self.shared))

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        told = {
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
        for title, found in told.items():
            if found:
                lines.append(f"{title}: {len(found)}")
                lines += [f"  {path}{': ' * bool(text)}{text}" for path, text in list(found.items())[:_SHOWN]]
                lines += [f"  and {len(found) - _SHOWN} more"] * (len(found) > _SHOWN)
        return "\n".join(lines)

    __repr__ = __str__


def compare(net_a: Any, net_b: Any, *, rtol: float = 0.0, atol: float = 0.0) -> Comparison:
    """Compare the parameters of two nets by path: structure, shapes, dtypes, values, sharing.

    Args:
        net_a: Any initialized block, on any devices. Where both live on as many devices, replicas are
            compared one to one, in the nets' orders; otherwise each with each. `compare(net, net)` tells whether
            replicas have drifted apart.
        net_b: Another one. Gluon's names do not matter, nor what is frozen.
        rtol: How far two elements may be apart, as part of the second net's.
        atol: How far they may be apart in any case. With 0 and 0 they must be equal; NaN equals NaN.

    Returns:
        What differs, by path: true where nothing does.

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
        values={path: found for path, found in values.items() if found is not None},
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
    """The largest difference of pairs of replicas, None where none differs by more than is allowed."""
    pairs = zip(ours, theirs) if len(ours) == len(theirs) else product(ours, theirs)
    found = [
        one
        for one in (_difference(as_float64(a).asnumpy(), as_float64(b).asnumpy(), rtol, atol) for a, b in pairs)
        if one is not None
    ]
    if not found:
        return None
    largest = float(np.max([one.largest for one in found]))  # NaN, where one is
    return Difference(largest, max(one.differing for one in found), found[0].size)


def _difference(a: Any, b: Any, rtol: float, atol: float) -> Optional[Difference]:
    differ = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    if not differ.any():
        return None
    return Difference(float(np.abs(a[differ] - b[differ]).max()), int(differ.sum()), int(a.size))


def _drifted(table: Parameters, rows: Mapping[str, Mapping[str, Any]]) -> Dict[str, Difference]:
    found = {}
    for path, parameter in table.items():
        if rows[path]["state"] != "statistics":
            first, *others = values_of(parameter) or [None]
            farthest = _farthest(others, [first], 0.0, 0.0) if others else None
            if farthest is not None:
                found[path] = farthest
    return found


def _differing(pairs: Dict[str, Tuple[Any, Any]]) -> Dict[str, Tuple[Any, Any]]:
    return {path: (ours, theirs) for path, (ours, theirs) in pairs.items() if ours != theirs}


def _pairs(found: Mapping[str, Tuple[Any, Any]]) -> Dict[str, str]:
    return {path: f"{ours} and {theirs}" for path, (ours, theirs) in found.items()}


def _apart(found: Mapping[str, Difference]) -> Dict[str, str]:
    return {
        path: f"{one.differing:,} of {one.size:,} elements, by at most {one.largest:.6g}" for path, one in found.items()
    }
