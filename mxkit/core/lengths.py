"""Reads lengths with a unit: "256 samples", "2 epochs", "500 updates", "5 minutes"."""

import math
from numbers import Real
import re
from typing import Any, NamedTuple, Optional, Sequence, Tuple

SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600}

_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+)\s*")
_EXAMPLES = {"samples": 256, "batches": 4, "updates": 500, "epochs": 2, "seconds": 30, "minutes": 5, "hours": 8}


class Length(NamedTuple):
    """A number with its unit.

    Attributes:
        number: An int if it is a whole number.
        unit: Unit in the plural: "samples", "batches", "updates", "epochs", "seconds", "minutes" or "hours".

    >>> str(Length(1, "epochs")), str(Length(0.5, "epochs"))
    ('1 epoch', '0.5 epochs')
    """

    number: float
    unit: str

    def __str__(self) -> str:
        return f"{self.number:g} {_singular(self.unit) if self.number == 1 else self.unit}"


def length(
    value: Any,
    name: str,
    units: Sequence[str],
    default_unit: Optional[str] = None,
    *,
    fractions: Sequence[str] = tuple(SECONDS),
    zero: bool = False,
) -> Length:
    """Read a length.

    Args:
        value: A text like "2 epochs", a `Length`, or a number if there is a `default_unit`.
        name: Name of the argument for messages: "fit: epochs".
        units: Allowed units in the plural.
        default_unit: Unit of a plain number. None refuses plain numbers.
        fractions: Units that accept fractions.
        zero: Accept 0, with any unit or without a unit.

    Raises:
        ValueError: `value` is not a length, or its unit is not allowed; the text lists the units.

    >>> length("500 updates", "epochs", ("epochs", "updates"), "epochs"), length(3, "epochs", ("epochs",), "epochs")
    (Length(number=500, unit='updates'), Length(number=3, unit='epochs'))
    >>> length("2 hours", "every", ("epochs", "updates", "minutes"))
    Traceback (most recent call last):
    ValueError: every: expected a length like '2 epochs', '500 updates' or '5 minutes'; received '2 hours'
    """
    number, unit = _parts(value, default_unit, units)
    plural = next((one for one in units if unit in (one, _singular(one))), None)
    in_range = number is not None and math.isfinite(number) and (number > 0 or (zero and number == 0))
    if plural is None or number is None or not in_range:
        examples = [f"'{_EXAMPLES[one]} {one}'" for one in units]
        listed = " or ".join(filter(None, [", ".join(examples[:-1]), examples[-1]]))
        plain = f", or a number of {default_unit}" if default_unit else ", or 0" if zero else ""
        raise ValueError(f"{name}: expected a length like {listed}{plain}; received {value!r:.100}")
    if number == int(number):
        return Length(int(number), plural)
    if plural not in fractions:
        raise ValueError(f"{name}: {plural} are counted in whole numbers; received {value!r:.100}")
    return Length(number, plural)


def _parts(value: Any, default_unit: Optional[str], units: Sequence[str]) -> Tuple[Optional[float], Optional[str]]:
    if isinstance(value, Length):
        return value.number, value.unit
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value), default_unit or (units[0] if value == 0 else None)
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    return (float(match[1]), match[2]) if match else (None, None)


def _singular(unit: str) -> str:
    return "batch" if unit == "batches" else unit[:-1]
