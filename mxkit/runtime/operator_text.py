"""Writes operator arguments as text in the way of NumPy 1.

MXNet passes the arguments of an operator to C++ as text. NumPy 2 writes a scalar inside a tuple as "np.int64(2)",
which the C++ parser rejects (T86).
"""

from typing import Any

import numpy

# Types whose `repr` is the same in every NumPy.
_PLAIN = (int, float, str, bool, type(None))

_REPR_QUOTES: Any = (numpy.str_, numpy.bytes_)


class _Verbatim:
    """An object whose `repr` is a text without quotes."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _as_numpy_1(value: Any) -> Any:
    if isinstance(value, numpy.generic):
        # `str` gives the shortest text in the scalar's precision: float32(0.1) is "0.1". `item` would lose that.
        return value.item() if isinstance(value, _REPR_QUOTES) else _Verbatim(str(value))
    if type(value) is tuple:
        return tuple(map(_as_numpy_1, value))
    if type(value) is list:
        return list(map(_as_numpy_1, value))
    return value


def operator_text(value: Any = "") -> str:
    """Return `str(value)`, with NumPy scalars inside tuples and lists written as NumPy 1 did.

    >>> operator_text((numpy.int64(2), [numpy.float32(0.1)])), operator_text((2, None, "x")), operator_text(2.5)
    ('(2, [0.1])', "(2, None, 'x')", '2.5')
    """
    kind = type(value)
    if kind is tuple or kind is list:
        for item in value:
            if type(item) not in _PLAIN:
                return str(_as_numpy_1(value))
    return str(value)


class _OperatorTextType(type):
    """Makes `OperatorText(x)` return text and `isinstance(x, OperatorText)` test for `str`."""

    __call__: Any = staticmethod(operator_text)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, str)


class OperatorText(metaclass=_OperatorTextType):
    """Replaces `str` in modules that call it and also evaluate `isinstance(x, str)`."""
