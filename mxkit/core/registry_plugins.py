"""Tables of names that installed distributions may extend by entry points."""

from functools import lru_cache
from importlib.metadata import distributions
from typing import Any, Callable, Dict, Iterator, Set, Tuple, TypeVar
import warnings

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
                owner = f"{distribution.metadata['Name']} {distribution.version}"
                entries.setdefault(entry.name, (entry, owner))
    return entries
