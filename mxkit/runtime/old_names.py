"""Gives the names that NumPy removed to the modules of a script and of MXNet's libraries: `mxkit run --old-numpy`.

Python calls a module's function `__getattr__` for a name that the module lacks. The one here checks which module asks.
"""

import atexit
from functools import lru_cache
from importlib.machinery import ModuleSpec
import os
from pathlib import Path
import sys
from types import ModuleType
from typing import Any, Dict, Optional, Sequence, Tuple

from mxkit.runtime.numpy_view import numpy_view
from mxkit.runtime.wheels import spec_by_other_finders

# Names in old scripts that MXNet itself does not read, with the successor's name in NumPy, or the value.
_RENAMED = {
    "float_": "float64",
    "complex_": "complex128",
    "string_": "bytes_",
    "unicode_": "str_",
    "row_stack": "vstack",
}
_VALUES: Dict[str, Any] = {"long": int, "unicode": str, "asscalar": lambda a: a.item()}

_PACKAGES = ("site-packages", "dist-packages")
_lent: Dict[Tuple[str, str], int] = {}


class LendingFinder:
    """Finds NumPy through the other finders.

    Args:
        libraries: Folders of libraries: `sys.path` before the script's folder was added.
    """

    def __init__(self, libraries: Sequence[str]) -> None:
        self._libraries = tuple(libraries)

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        spec = spec_by_other_finders(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                lend(module, self._libraries)

            loader.exec_module = exec_module  # on this import's loader only: NumPy keeps a loader of Python
        return spec


def lend(numpy: Any, libraries: Tuple[str, ...]) -> None:
    """Give NumPy a `__getattr__` that knows the old names, for modules of the script and those that use MXNet.

    Side effects:
        Prints the names that were read on standard error when the process ends.
    """
    by_numpy = vars(numpy).get("__getattr__")

    def __getattr__(name: str) -> Any:  # noqa: N807
        reader: Any = sys._getframe(1)
        if reader.f_globals.get("__name__") == "importlib._bootstrap":  # `from numpy import float` asks from there
            reader = reader.f_back
        file = reader.f_globals.get("__file__")
        is_own = _is_own(file, libraries) if file else reader.f_globals.get("__name__") == "__main__"
        if name in _names(numpy) and not name.startswith("_") and (is_own or _uses_mxnet(reader.f_globals)):
            _lent.setdefault((name, file or reader.f_code.co_filename), reader.f_lineno)
            return _names(numpy)[name]
        if by_numpy is None:
            raise AttributeError(f"module 'numpy' has no attribute {name!r}")
        return by_numpy(name)

    numpy.__getattr__ = __getattr__
    atexit.register(_say)


@lru_cache(maxsize=None)
def _names(numpy: ModuleType) -> Dict[str, Any]:
    renamed = {old: getattr(numpy, new) for old, new in _RENAMED.items()}
    return {**_VALUES, **renamed, **vars(numpy_view())}


def _say() -> None:
    if _lent:
        lines = (f"np.{name} ({os.path.relpath(file)}, line {line})" for (name, file), line in _lent.items())
        sys.stderr.write(f"mxkit run --old-numpy: names that NumPy removed were read: {', '.join(lines)}\n")


def _uses_mxnet(names: Dict[str, Any]) -> bool:
    """Whether a module has imported a module or a class of MXNet; libraries that do so are of an old NumPy's time."""
    values = [value for value in [*names.values()] if isinstance(value, (ModuleType, type))]
    origins = (value.__name__ if isinstance(value, ModuleType) else value.__module__ for value in values)
    return any(origin.partition(".")[0] == "mxnet" for origin in origins)


@lru_cache(maxsize=None)
def _is_own(file: str, libraries: Tuple[str, ...]) -> bool:
    """Whether a module belongs to the script: it is in the script's folder, the working folder, or one that it added.

    The folder nearest to the file decides, so that an environment inside the script's folder counts as libraries.
    """
    path = os.path.realpath(file)
    if any(part in _PACKAGES for part in Path(path).parts):
        return False
    others = {os.path.realpath(entry) for entry in libraries}
    main = getattr(sys.modules["__main__"], "__file__", None)
    own = {os.path.realpath(entry) for entry in (str(Path(main or "").parent), *sys.path)} - others
    own.add(os.path.realpath(""))
    return next((str(folder) in own for folder in Path(path).parents if str(folder) in own | others), False)
