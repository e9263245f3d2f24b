"""Reads arguments of users: a component by name or as an object, whole numbers, finite numbers."""

import inspect
import math
from numbers import Integral, Real
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from mxkit.errors import nearest


def split_spec(spec: Any) -> Tuple[Any, Dict[str, Any]]:
    """Split `("sgd", {"learning_rate": 0.1})` into name and arguments; a name or an object has no arguments.

    >>> split_spec("l2"), split_spec(("huber", {"rho": 2}))
    (('l2', {}), ('huber', {'rho': 2}))
    """
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and isinstance(spec[0], str) and isinstance(spec[1], dict):
        return spec[0], dict(spec[1])
    return spec, {}


def make(kind: str, name: str, maker: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call the class or function of a component.

    Args:
        kind: Kind of the component in messages: "loss".
        name: The component's name.
        maker: The class or function.
        arguments: The user's arguments.

    Raises:
        TypeError: `maker` does not take an argument; the text lists its arguments and the nearest one.

    >>> def huber(rho=1, weight=None): return rho
    >>> make("loss", "huber", huber, {"delta": 1})
    Traceback (most recent call last):
    TypeError: loss 'huber' takes no argument 'delta'; did you mean 'rho'? It takes rho, weight
    """
    try:
        return maker(**arguments)
    except TypeError as error:
        known = accepted(maker)
        unknown = [argument for argument in arguments if known is not None and argument not in known]
        if known is None or not unknown:
            raise TypeError(f"{kind} {name!r}: {error}") from error
        shown = [argument for argument in known if argument not in _OF_GLUON] or ["none"]
        hint = nearest(unknown[0], shown)
        problem = f"{kind} {name!r} takes no argument {unknown[0]!r}"
        raise TypeError(f"{problem}; {hint + ' It' if hint else 'it'} takes {', '.join(shown)}") from error


# Arguments of every loss of Gluon that messages do not list
_OF_GLUON = ("prefix", "params", "batch_axis")


def accepted(maker: Callable[..., Any]) -> Optional[List[str]]:
    """Names of a function's or a class's arguments, with those of base classes behind **kwargs; None for any name."""
    names: List[str] = []
    bases = inspect.getmro(maker)[:-1] if inspect.isclass(maker) else ()  # without object
    functions = [vars(base)["__init__"] for base in bases if "__init__" in vars(base)] if bases else [maker]
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        names += [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if not any(one.kind == one.VAR_KEYWORD for one in parameters):
            return [name for name in dict.fromkeys(names) if name != "self"]
    return None


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """Check a count and return it as an int; NumPy's integers are accepted.

    Raises:
        ValueError: `value` is not a whole number, or is below `least`.

    >>> whole_number(3, "epochs")
    3
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name}: expected a whole number, at least {least}; received {value!r:.100}")
    return int(value)


def check_number(name: str, value: Any, least_0: bool = True, after: str = "") -> None:
    """Check that a value is a finite number, and not negative if `least_0`: MXNet accepts a text as a rate (T26).

    Raises:
        ValueError: It is not; the text ends in `after`.
    """
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (least_0 and value < 0):
        least = ", at least 0" if least_0 else ""
        raise ValueError(f"{name}: expected a finite number{least}; received {value!r:.100}{after}")
