"""A private module for MXNet 1.9.1 and GluonCV: the installed NumPy with the names that NumPy removed.

Only modules of these packages see it (`mxkit.runtime.import_hook` gives it to them); `numpy` and `sys.modules` do not
change. Apart from the old names and NumPy's classes, each access reads from NumPy, so that MXNet sees a patched NumPy
too.
"""

from functools import partial
from importlib import import_module
import math
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from mxkit.runtime.versions import release

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

    def __repr__(self) -> str:
        return f"<mxkit's view of {self._numpy!r}>"

    def __reduce__(self) -> Tuple[Callable[[], ModuleType], Tuple[()]]:
        return numpy_view, ()


_view: Optional[NumpyView] = None


def numpy_view() -> NumpyView:
    """Return this process's only view; the first call imports NumPy."""
    global _view
    if _view is None:
        import numpy

        _view = NumpyView(numpy)
    return _view


def _old_names(numpy: ModuleType) -> Dict[str, Any]:
    """Collect the names that MXNet reads and that `numpy` lacks or reads with a warning."""
    version = release(numpy.__version__)
    names: Dict[str, Any] = dict(_BUILTIN_TYPES)
    # A name that is not in `vars` is gone, or comes from NumPy's module `__getattr__`, which warns.
    names.update({name: value for name, value in _CONSTANTS.items() if name not in vars(numpy)})
    for old, (new, since) in _RENAMED.items():
        if version >= since:
            names[old] = _removed_function(old, numpy, getattr(numpy, new))
    for name in _FINANCIAL:
        if name not in vars(numpy):
            names[name] = _removed_function(name, numpy, partial(_refuse, name))
    if version >= (1, 24):
        names["msort"] = _removed_function("msort", numpy, lambda a: numpy.sort(a, axis=0))
    if version >= (2,):
        names["in1d"] = _removed_function(
            "in1d", numpy, lambda a, *rest, **named: numpy.isin(numpy.ravel(a), *rest, **named)
        )
        names["compat"] = SimpleNamespace(basestring=str, long=int, unicode=str)
        names["core"] = _OldCore()
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


def _refuse(name: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(
        f"mxnet.numpy.{name} calls numpy.{name}, which NumPy removed in 1.20; "
        f"use numpy_financial.{name} (pip install numpy-financial)"
    )


class _OldCore(ModuleType):
    """`numpy.core`, which NumPy 2 made private, with the only function that mxnet/ndarray/ndarray.py reads (T85)."""

    def __init__(self) -> None:
        super().__init__("numpy.core")
        array_utils = import_module("numpy.lib.array_utils")
        self.numeric = SimpleNamespace(normalize_axis_tuple=array_utils.normalize_axis_tuple)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("numpy.core"), name)
