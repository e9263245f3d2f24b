"""How arguments may be given: a component by name or as an object, a count as a whole number."""

import inspect
import math
from numbers import Integral, Real
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from mxkit.errors import nearest


def split_spec(spec: Any) -> Tuple[Any, Dict[str, Any]]:
    """Separate `("sgd", {"learning_rate": 0.1})` into both parts; a name or an object has no arguments.

    >>> split_spec("l2"), split_spec(("huber", {"rho": 2}))
    (('l2', {}), ('huber', {'rho': 2}))
    """
    if isinstance(spec, (tuple, list)) and len(spec) == 2 and isinstance(spec[0], str) and isinstance(spec[1], dict):
        return spec[0], dict(spec[1])
    return spec, {}


def make(kind: str, name: str, maker: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a class or a function that a name stands for.

    Args:
        kind: What the message calls it: "loss".
        name: The component's name.
        maker: Called with the arguments.
        arguments: As the user gave them.

    Raises:
        TypeError: `maker` does not take an argument; the text lists those it takes, and the nearest.

    >>> def huber(rho=1, weight=None): return rho
    >>> make("loss", "huber", huber, {"delta": 1})
    Traceback (most recent call last):
    TypeError: loss 'huber' takes no argument 'delta'; did you mean 'rho'? It takes rho, weight
    """
    try:
        return maker(**arguments)
    except TypeError as error:
        known = accepted(maker)
        unknown = [one for one in arguments if known is not None and one not in known]
        if known is None or not unknown:
            raise TypeError(f"{kind} {name!r}: {error}") from error
        shown = [one for one in known if one not in _OF_GLUON] or ["none"]
        hint = nearest(unknown[0], shown)
        told = f"{kind} {name!r} takes no argument {unknown[0]!r}; {hint + ' It' if hint else 'it'} takes"
        raise TypeError(f"{told} {', '.join(shown)}") from error


# Every loss of Gluon takes them: names of a block's parameters, and the sample axis, which is 0 here.
_OF_GLUON = ("prefix", "params", "batch_axis")


def accepted(maker: Callable[..., Any]) -> Optional[List[str]]:
    """Names of the arguments that a function or a class takes, those it hands to its bases included; None for any."""
    names: List[str] = []
    inits = (
        [vars(one)["__init__"] for one in inspect.getmro(maker) if "__init__" in vars(one)]
        if inspect.isclass(maker)
        else [maker]
    )
    for function in inits:
        parameters = inspect.signature(function).parameters.values() if function is not object.__init__ else []
        names += [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        if function is not object.__init__ and not any(one.kind == one.VAR_KEYWORD for one in parameters):
            return [one for one in dict.fromkeys(names) if one != "self"]
    return None


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


def check_number(name: str, value: Any, least_0: bool = True, after: str = "") -> None:
    """Refuse what is no finite number, or negative where `least_0`: MXNet takes a text for a rate in silence (T26).

    Raises:
        ValueError: `value` is refused; the text ends in `after`.
    """
    number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not number or (least_0 and value < 0):
        least = ", at least 0" if least_0 else ""
        raise ValueError(f"{name}: expected a finite number{least}; received {value!r:.100}{after}")
