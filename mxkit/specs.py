"""How arguments may be given: a component by name or as an object, a count as a whole number."""

from numbers import Integral
from typing import Any, Dict, Tuple


def split_spec(spec: Any) -> Tuple[Any, Dict[str, Any]]:
    """Separate `("sgd", {"learning_rate": 0.1})` into both parts; a name or an object has no arguments.

    >>> split_spec("l2"), split_spec(("huber", {"rho": 2}))
    (('l2', {}), ('huber', {'rho': 2}))
    """
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and isinstance(spec[0], str) and isinstance(spec[1], dict):
        return spec[0], dict(spec[1])
    return spec, {}


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """Return a count of at least `least`, also of NumPy's types.

    Raises:
        ValueError: `value` is no whole number, or below `least`.

    >>> whole_number(3, "epochs")
    3
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name}: expected a whole number, at least {least}; received {value!r:.100}")
    return int(value)
