"""What `asnumpy` and `asscalar` return, as numbers of NumPy 1: Gluon code prints, adds up and assigns such losses.

`mxkit.runtime.repairs` returns them where the installed NumPy needs it.
"""

from typing import Any, Callable, Dict

import numpy as np


def _converted(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: convert(np.asarray(self).reshape(() if self.size == 1 else self.shape))


class ndarray(np.ndarray):  # noqa: N801
    """An array of one element that Python converts to a number, whatever its number of axes (T276).

    Results of NumPy's operators that have one element are such arrays too; others are plain ones. It has the name of
    its base class, and is pickled as that.
    """

    __module__ = "numpy"
    __float__, __int__, __complex__ = _converted(float), _converted(int), _converted(complex)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if not array.ndim:
            return array[()]
        return array.view(ndarray if array.size == 1 else np.ndarray)

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift")
_OPERATORS = (
    *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r")),
    *(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs")),
)


def _scalar_type(kind: Any, wide: Any) -> Any:
    """A subclass of a type of scalars that computes with Python's numbers in a wider type (T277), as NumPy 1 did."""

    def operator(name: str) -> Callable[..., Any]:
        compute, compute_widely = getattr(kind, name), getattr(wide, name)

        def run(self: Any, *other: Any) -> Any:
            if other and type(other[0]) in (int, float, complex):
                return compute_widely(wide(self), *other)
            return number(compute(self, *other))

        return run

    operators = {name: operator(name) for name in _OPERATORS if hasattr(wide, name)}
    # printed in a list, the scalar is "0.1" and not "np.float32(0.1)"
    same = {"__slots__": (), "__module__": "numpy", "__hash__": kind.__hash__, "__repr__": kind.__str__}
    return type(kind.__name__, (kind,), {**operators, **same})


_SCALARS: Dict[type, Any] = {
    **{kind: _scalar_type(kind, np.float64) for kind in (np.float16, np.float32)},
    **{kind: _scalar_type(kind, np.int64) for kind in (np.int8, np.uint8, np.int32)},
}


def number(value: Any) -> Any:
    """A scalar of NumPy that adds to Python's numbers in double precision; other values as they are."""
    kind = _SCALARS.get(type(value))
    return value if kind is None else kind(value)
