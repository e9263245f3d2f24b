"""Names that NumPy, SciPy and Python removed, for MXNet, GluonCV and old scripts.

The import hook gives modules of MXNet and GluonCV a view of the installed NumPy with the old names; `numpy` and
`sys.modules` do not change. Apart from the old names and NumPy's classes, each access reads from NumPy, so that MXNet
sees a patched NumPy too. `mxkit run --old-numpy` lends the names to the modules of a script and of MXNet's libraries:
Python calls a module's function `__getattr__` for a name that the module lacks, and the one here checks which module
asks.
"""

import atexit
from functools import lru_cache, partial
from importlib import import_module
from importlib.machinery import ModuleSpec
import math
import os
from pathlib import Path
import sys
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from mxkit.runtime.wheels import release, spec_by_other_finders

# T84, T90: these warn since NumPy 1.20 and are gone since 1.24; in NumPy 2 `bool` means something else. MXNet's tables
# of types hold the builtin types.
_BUILTIN_TYPES = {"bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str}

# T84, T85: constants that NumPy 2 removed.
_CONSTANTS = {
    "PZERO": 0.0,
    "NZERO": -0.0,
    **dict.fromkeys(("Inf", "Infinity", "infty", "PINF"), math.inf),
    "NINF": -math.inf,
    **dict.fromkeys(("NAN", "NaN"), math.nan),
}

# T84: removed function -> its successor, and the NumPy version from which the successor is used. Functions that MXNet
# itself calls (`mxnet/numpy/fallback.py`) warn some versions before they are gone.
_RENAMED = {
    "alltrue": ("all", (1, 25)),
    "sometrue": ("any", (2,)),
    "product": ("prod", (2,)),
    "cumproduct": ("cumprod", (2,)),
    "round_": ("round", (2,)),
    "trapz": ("trapezoid", (2,)),
    "fix": ("trunc", (2, 5)),
}

# T232: NumPy 1 wrapped a number that an integer type cannot hold, NumPy 2 raises OverflowError. MXNet reads lists with
# these (`numpy/multiarray.py` line 2275, `ndarray/ndarray.py` lines 1318 and 3364); its operators in C++ still wrap.
_WRAPPING = ("array", "asarray")

# T84: financial functions, gone since NumPy 1.20; mxnet/numpy/fallback.py reads them and calls none.
_FINANCIAL = ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate")


class Overlay(ModuleType):
    """A module with some names replaced, which is imported at the first use of another name."""

    _module: Optional[ModuleType]

    def __init__(self, name: str, **replaced: Any) -> None:
        super().__init__(name)
        # Kept, because nothing can be imported while Python ends.
        self.__dict__.update(replaced, _module=sys.modules.get(name))

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = import_module(self.__name__)
        return getattr(self._module, name)


class NumpyView(ModuleType):
    """The installed NumPy plus the names that it removed; see `numpy_view`."""

    def __init__(self, numpy: ModuleType) -> None:
        # NumPy's own name, since `from numpy import x` falls back on `sys.modules[__name__ + ".x"]`.
        super().__init__(numpy.__name__, numpy.__doc__)
        for name in ("__file__", "__loader__", "__package__", "__path__", "__spec__"):
            self.__dict__[name] = getattr(numpy, name, None)
        self.__dict__["_numpy"] = numpy
        # MXNet reads NumPy's classes often and no tool replaces them, so the view stores them.
        self.__dict__.update({name: value for name, value in vars(numpy).items() if isinstance(value, type)})
        self.__dict__.update(_old_names(numpy))
        # An attribute of the instance, as for any module: a method of the class takes four times as long.
        self.__dict__["__getattr__"] = partial(getattr, numpy)

    def __dir__(self) -> List[str]:
        own = (name for name in self.__dict__ if not name.startswith("_"))
        return sorted({*dir(self._numpy), *own})


@lru_cache(maxsize=None)
def numpy_view() -> NumpyView:
    """Return this process's only view; the first call imports NumPy."""
    import numpy

    return NumpyView(numpy)


def _old_names(numpy: ModuleType) -> Dict[str, Any]:
    """Collect the names that MXNet reads and that `numpy` lacks or reads with a warning."""
    version = release(numpy.__version__)
    names: Dict[str, Any] = dict(_BUILTIN_TYPES)
    # A name that is not in `vars` is gone, or comes from NumPy's module `__getattr__`, which warns.
    names.update({name: value for name, value in _CONSTANTS.items() if name not in vars(numpy)})
    for old, (new, since) in _RENAMED.items():
        if version >= since:
            names[old] = _removed_function(old, numpy, getattr(numpy, new))
    names.update(dict.fromkeys(set(_FINANCIAL) - {*vars(numpy)}, _refuse))
    if version >= (1, 24):
        names["msort"] = _removed_function("msort", numpy, lambda a: numpy.sort(a, axis=0))
    if version >= (2,):
        names["in1d"] = _removed_function(
            "in1d", numpy, lambda a, *rest, **named: numpy.isin(numpy.ravel(a), *rest, **named)
        )
        names["compat"] = SimpleNamespace(basestring=str, long=int, unicode=str)
        # T85: NumPy 2 made it private; mxnet/ndarray/ndarray.py reads this function there
        normalize = import_module("numpy.lib.array_utils").normalize_axis_tuple
        names["core"] = Overlay("numpy.core", numeric=SimpleNamespace(normalize_axis_tuple=normalize))
        names.update({name: _wrapping(name, numpy) for name in _WRAPPING})
    return names


def _wrapping(name: str, numpy: ModuleType) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        convert = getattr(numpy, name)
        try:
            return convert(*args, **kwargs)
        except OverflowError:
            # As NumPy 1 did: each number through a C long, which cuts fractions off and refuses what it cannot hold.
            value, *rest = args
            return convert(numpy.array(value, dtype=numpy.int64), *rest, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`numpy.{name}`, with integers out of bounds wrapped."
    return function


def _removed_function(name: str, numpy: ModuleType, compute: Callable[..., Any]) -> Callable[..., Any]:
    # A new function, not the successor: numpy_dispatch_protocol.py uses the functions as keys of a table. It tries
    # `__array_function__` of other arrays first, as NumPy's functions do, so that `mx.np.in1d` takes MXNet's arrays.
    def function(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            kind: Any = type(value)
            if hasattr(kind, "__array_function__") and not isinstance(value, numpy.ndarray):
                # Called on the class, as NumPy does: MXNet's is a static method.
                return kind.__array_function__(value, function, (kind,), args, kwargs)
        return compute(*args, **kwargs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The removed function `numpy.{name}`."
    return function


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError("NumPy 1.20 removed its functions of finance: use numpy_financial (pip install it)")


# Names in old scripts that MXNet itself does not read, with the successor's name in NumPy, or the value.
_OF_SCRIPTS = {
    "float_": "float64",
    "complex_": "complex128",
    "string_": "bytes_",
    "unicode_": "str_",
    "row_stack": "vstack",
}
_VALUES: Dict[str, Any] = {"long": int, "unicode": str, "asscalar": lambda a: a.item()}

_PACKAGES = {"site-packages", "dist-packages"}
_STDLIB = Path(os.__file__).resolve().parent
_lent: Dict[Tuple[str, str], int] = {}


class LendingFinder:
    """Finds NumPy through the other finders."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        spec = spec_by_other_finders(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                lend(module)

            loader.exec_module = exec_module  # on this import's loader only: NumPy keeps a loader of Python
        return spec


def lend(numpy: Any) -> None:
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
        is_own = _is_own(file) if file else reader.f_globals.get("__name__") == "__main__"
        if name in _names(numpy) and not name.startswith("_") and (is_own or _uses_mxnet(reader.f_globals)):
            note_lent(f"np.{name}", reader)
            return _names(numpy)[name]
        if by_numpy is None:
            raise AttributeError(f"module 'numpy' has no attribute {name!r}")
        return by_numpy(name)

    numpy.__getattr__ = __getattr__
    say_at_exit()


@lru_cache(maxsize=None)
def _names(numpy: ModuleType) -> Dict[str, Any]:
    return {**numpy_of_scripts(numpy), **vars(numpy_view())}


def numpy_of_scripts(numpy: ModuleType) -> Dict[str, Any]:
    """Return the names that scripts and libraries read and that NumPy removed, or whose meaning it changed."""
    renamed = {old: getattr(numpy, new) for old, new in _OF_SCRIPTS.items()}
    return {**_VALUES, **renamed, **_old_names(numpy)}


def note_lent(name: str, reader: FrameType) -> None:
    """Remember that a name was lent to the module whose frame reads it."""
    file = reader.f_globals.get("__file__") or reader.f_code.co_filename
    _lent.setdefault((name, file), reader.f_lineno)


def say_at_exit() -> None:
    """Print once, when the process ends, which names were lent to whom."""
    atexit.unregister(_say)
    atexit.register(_say)


def _say() -> None:
    if _lent:
        lines = (f"{name} ({_relative(file)}, line {line})" for (name, file), line in _lent.items())
        sys.stderr.write(f"mxkit --old-numpy: what NumPy or Python removed was lent: {', '.join(lines)}\n")


def _relative(file: str) -> str:
    try:
        return os.path.relpath(file)
    except FileNotFoundError:  # the folder that the program works in is gone
        return file


def _uses_mxnet(names: Dict[str, Any]) -> bool:
    """Whether a module has imported a module or a class of MXNet; libraries that do so are of an old NumPy's time."""
    values = [value for value in [*names.values()] if isinstance(value, (ModuleType, type))]
    origins = (value.__name__ if isinstance(value, ModuleType) else value.__module__ for value in values)
    return any(origin.partition(".")[0] == "mxnet" for origin in origins)


@lru_cache(maxsize=None)
def _is_own(file: str) -> bool:
    """Whether a module belongs to the script: it is part of neither Python nor an installed package."""
    path = Path(file).resolve()
    return not _PACKAGES.intersection(path.parts) and _STDLIB not in path.parents


# T89: distutils left the standard library in Python 3.12, and warns since 3.10.
#: ``from distutils.version import ...`` inside MXNet and GluonCV.
DISTUTILS_VERSION = SimpleNamespace(__name__="distutils.version", StrictVersion=release, LooseVersion=release)

#: ``import distutils.version`` and ``from distutils import version`` inside MXNet and GluonCV.
DISTUTILS = SimpleNamespace(__name__="distutils", version=DISTUTILS_VERSION)


def own_distutils(name: str, fromlist: Sequence[str]) -> Any:
    """What an import of distutils' versions gets in its place; None for other imports."""
    if name == "distutils.version":
        return DISTUTILS_VERSION if fromlist else DISTUTILS
    return DISTUTILS if name == "distutils" and tuple(fromlist) == ("version",) else None
