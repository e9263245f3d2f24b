"""Reads users' arguments: components, numbers, lengths with a unit; finds plug-ins and optional packages."""

from functools import lru_cache
from importlib import import_module
from importlib.metadata import distributions
import inspect
import math
from numbers import Integral, Real
import re
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar
import warnings

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


def class_names(classes: Any, name: str) -> List[str]:
    """Names of classes; a number of them gives "0", "1" and so on.

    Raises:
        ValueError: It is neither a number of at least 1 nor a list of different names.

    >>> class_names(2, "classes"), class_names(["cat", "dog"], "classes")
    (['0', '1'], ['cat', 'dog'])
    """
    if not isinstance(classes, (list, tuple)):
        return list(map(str, range(whole_number(classes, name))))
    names = list(map(str, classes))
    if not all(names) or not 0 < len(set(names)) == len(names):
        raise ValueError(f"{name}: expected a number, or different names; received {classes!r:.100}")
    return names


def is_finite_number(value: Any) -> bool:
    """Whether a value is a number, neither NaN nor infinity, and no bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def check_number(name: str, value: Any, least_0: bool = True, after: str = "") -> None:
    """Check that a value is a finite number, and not negative if `least_0`: MXNet accepts a text as a rate (T26).

    Raises:
        ValueError: It is not; the text ends in `after`.
    """
    if not is_finite_number(value) or (least_0 and value < 0):
        least = ", at least 0" if least_0 else ""
        raise ValueError(f"{name}: expected a finite number{least}; received {value!r:.100}{after}")


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


_Value = TypeVar("_Value")


class Plugged(Dict[str, _Value]):
    """A table that looks up unknown names among entry points; a known name costs no look-up.

    A distribution declares `NAME = "module:function"` in the group, for example `mxkit.models`. The module is imported
    when the name is first used. Iteration includes the names of plug-ins; `len`, `items` and `values` include only
    those that were used. A plug-in cannot replace a name of the table.

    Args:
        group: Name of the group.
        known: The table's own names.
        convert: Applied to what an entry point refers to.

    Warns:
        UserWarning: A plug-in cannot be loaded; its name is then unknown.
    """

    def __init__(
        self, group: str, known: Dict[str, _Value], convert: Callable[[Any], Any] = lambda value: value
    ) -> None:
        super().__init__(known)
        self._group, self._convert = group, convert
        self._tried: Set[str] = set()

    def __missing__(self, name: str) -> _Value:
        # a plug-in's module may look up its own name, to register it
        if name in self._tried or name not in _entry_points(self._group):
            raise KeyError(name)
        self._tried.add(name)
        entry, owner = _entry_points(self._group)[name]
        try:
            value: _Value = self._convert(entry.load())
        except (Exception, SystemExit) as error:  # of any kind: the plug-in's module runs
            warnings.warn(
                f"plug-in {name!r} of {owner} ({self._group}: {entry.value}) cannot be loaded, and is left out: "
                f"{type(error).__name__}: {error}. Repair it, or pip uninstall {owner.partition(' ')[0]}",
                stacklevel=2,
            )
            raise KeyError(name) from error
        self.setdefault(name, value)
        return value

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the value of a name of the table or of a plug-in."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        plugins = (name for name in _entry_points(self._group) if name not in self._tried)
        return iter(dict.fromkeys([*super().__iter__(), *plugins]))


@lru_cache(maxsize=None)
def _entry_points(group: str) -> Dict[str, Tuple[Any, str]]:
    """Entry points of a group by name, with their distribution and its version; the first on the path wins."""
    entries: Dict[str, Tuple[Any, str]] = {}
    for distribution in distributions():
        for entry in distribution.entry_points:
            if entry.group == group:
                entries.setdefault(entry.name, (entry, f"{distribution.metadata['Name']} {distribution.version}"))
    return entries


def require(package: str, extra: str) -> Any:
    """Import a package of an extra of mxkit.

    Raises:
        ImportError: It is missing; the text has the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise ImportError(f"{package} is not installed: pip install 'mxkit[{extra}]'", name=package) from error
