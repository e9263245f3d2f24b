"""The text of operator arguments, as NumPy 1 wrote it.

MXNet passes the arguments of an operator to C++ as text. Since NumPy 2 a scalar inside a tuple is written
"np.int64(2)", which the C++ parser rejects (T86).
"""

from typing import Any

import numpy

# Their `repr` is the same in every NumPy: no look inside is needed.
_PLAIN = (int, float, str, bool, type(None))

_REPR_QUOTES: Any = (numpy.str_, numpy.bytes_)


class _Verbatim:
    """Shows as the given text inside a tuple."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _as_numpy_1(value: Any) -> Any:
    if isinstance(value, numpy.generic):
        # The shortest text of the scalar's own precision, which .item() would lose: 0.1 of a float32 is "0.1".
        return value.item() if isinstance(value, _REPR_QUOTES) else _Verbatim(str(value))
    if type(value) is tuple:
        return tuple(map(_as_numpy_1, value))
    if type(value) is list:
        return list(map(_as_numpy_1, value))
    return value


def operator_text(value: Any = "") -> str:
    """Do what `str` does, and write NumPy scalars inside tuples and lists as NumPy 1 did.

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
    """Makes `OperatorText(x)` text and `isinstance(x, OperatorText)` a question about `str`."""

    __call__: Any = staticmethod(operator_text)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, str)


class OperatorText(metaclass=_OperatorTextType):
    """Stands in for `str` in modules that call it and also ask `isinstance(x, str)`."""
