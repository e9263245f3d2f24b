"""Tables of names that installed distributions may extend by entry points."""

from functools import lru_cache
from importlib.metadata import distributions
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple, TypeVar
import warnings

_Value = TypeVar("_Value")


class Plugged(Dict[str, _Value]):
    """A table whose unknown names are looked up among entry points; nothing is looked up for a known name.

    A distribution declares `NAME = "module:function"` in the group, for example `mxkit.models`. The module is imported
    when the name is asked for. Iteration gives the names of plug-ins too; `len`, `items` and `values` know only those
    that were asked for. A plug-in cannot replace a name of the table.

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
        found = [one for one in _entry_points(self._group) if one[0].name == name]
        # a plug-in's module may look up its own name, to register it
        if not found or name in self._tried:
            raise KeyError(name)
        self._tried.add(name)
        entry, owner = found[0]
        try:
            value: _Value = self._convert(entry.load())
        except Exception as error:  # of any kind: the plug-in's module runs
            where = f"plug-in {name!r} of {owner} ({self._group}: {entry.value})"
            warnings.warn(
                f"{where} cannot be loaded, and is left out: {type(error).__name__}: {error}. Repair it, or pip "
                f"uninstall {owner.partition(' ')[0]}",
                stacklevel=2,
            )
            raise KeyError(name) from error
        self.setdefault(name, value)
        return value

    def get(self, name: Any, default: Any = None) -> Any:
        """Return the value of a name, which may be a plug-in's."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        plugins = [entry.name for entry, _ in _entry_points(self._group)]
        return iter(dict.fromkeys([*super().__iter__(), *(name for name in plugins if name not in self._tried)]))


@lru_cache(maxsize=None)
def _entry_points(group: str) -> List[Tuple[Any, str]]:
    """Entry points of a group with the name and version of their distribution; the first on the path wins."""
    found: Dict[str, Tuple[Any, str]] = {}
    for distribution in distributions():
        for entry in distribution.entry_points:
            if entry.group == group:
                owner = f"{distribution.metadata['Name']} {distribution.version}"
                found.setdefault(entry.name, (entry, owner))
    return list(found.values())
