"""What Python and NumPy removed, for the libraries that a user names: `mxkit run --old-numpy=dgl,mxboard`.

Modules of these packages get an `import` statement of their own, as MXNet's do (`mxkit.runtime.import_hook`). It
answers `numpy`, `collections`, `inspect` and `distutils.version` with the installed modules plus the old names. Calls
of `float` and `int` take arrays of one element. No other library sees this.
"""

import ast
import builtins
import collections.abc
from functools import lru_cache, partial
from importlib.machinery import ModuleSpec, SourceFileLoader
import inspect
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence
import warnings

from mxkit.runtime.old_names import note_lent, numpy_of_scripts, own_distutils, say_at_exit
from mxkit.runtime.wheels import release, spec_by_other_finders


class Lent(ModuleType):
    """An installed module with names that it removed, or that work as they did."""

    def __init__(self, module: ModuleType, old: Mapping[str, Any]) -> None:
        super().__init__(module.__name__, module.__doc__)
        label = "np" if module.__name__ == "numpy" else module.__name__

        def read(name: str) -> Any:
            if name not in old:
                return getattr(module, name)
            if name not in vars(module):
                note_lent(f"{label}.{name}", _reader())
            return old[name]

        self.__dict__.update(_old=old, __getattr__=read)


def _reader() -> Any:
    """The innermost frame that is not of this module."""
    frame: Any = sys._getframe(1)
    while frame.f_globals is globals():
        frame = frame.f_back
    return frame


class _ArgSpec(NamedTuple):
    args: Any
    varargs: Any
    keywords: Any
    defaults: Any


def _getargspec(function: Any) -> _ArgSpec:
    return _ArgSpec(*inspect.getfullargspec(function)[:4])


# NumPy 1 made an array of objects of lists of several lengths, and its arrays of one element were numbers.
_MAKERS = ("array", "asarray", "asanyarray")


@lru_cache(maxsize=None)
def lent_module(name: str) -> Lent:
    """The stand-in of `numpy`, `collections` or `inspect`."""
    if name == "collections":
        return Lent(collections, {one: getattr(collections.abc, one) for one in collections.abc.__all__})
    if name == "inspect":
        return Lent(inspect, {"getargspec": _getargspec})
    import numpy

    old: Dict[str, Any] = dict(numpy_of_scripts(numpy))
    if release(numpy.__version__) >= (1, 24):
        makers = {one: _maker(one, old.get(one, getattr(numpy, one)), numpy) for one in _MAKERS}
        old.update(
            makers, save=lambda file, arr, *rest, **named: numpy.save(file, makers["array"](arr), *rest, **named)
        )
    return Lent(numpy, old)


def _maker(name: str, convert: Callable[..., Any], numpy: Any) -> Callable[..., Any]:
    from mxkit.runtime.arrays import number_like

    def function(*args: Any, **named: Any) -> Any:
        try:
            return number_like(convert(*args, **named))
        except ValueError as error:
            if "inhomogeneous" not in str(error) or len(args) > 1 or "dtype" in named:
                raise
            note_lent(f"np.{name} of a ragged list", _reader())
            return convert(*args, **named, dtype=object)

    function.__name__ = function.__qualname__ = name
    return function


def _import(
    name: str,
    globals: Optional[Mapping[str, Any]] = None,
    locals: Optional[Mapping[str, Any]] = None,
    fromlist: Optional[Sequence[str]] = (),
    level: int = 0,
) -> Any:
    """`__import__` of the named libraries' modules."""
    top = name.partition(".")[0]
    if level == 0 and top in ("numpy", "collections", "inspect") and (name == top or not fromlist):
        builtins.__import__(name)
        lent = lent_module(top)
        # Submodules may have to be imported. Old names are left out, because asking NumPy for one can warn.
        builtins.__import__(top, None, None, tuple(one for one in fromlist or () if one not in lent._old))
        return lent
    own = own_distutils(name, fromlist or ()) if level == 0 else None
    return own if own is not None else builtins.__import__(name, globals, locals, fromlist or (), level)


def _convert(kind: Any, value: Any) -> Any:
    """`float(value)` or `int(value)`, also of an array of NumPy with one element and an axis."""
    numpy = sys.modules.get("numpy")
    return kind(value.item() if numpy and type(value) is numpy.ndarray and value.size == 1 else value)


_CONVERSIONS = {"float": "_float_of_old_numpy", "int": "_int_of_old_numpy"}
_BUILTINS: Dict[str, Any] = {
    **vars(builtins),
    "__import__": _import,
    **{name: partial(_convert, getattr(builtins, kind)) for kind, name in _CONVERSIONS.items()},
}


class _Conversions(ast.NodeTransformer):
    """Calls of `float` and `int` become calls of `_convert`; the classes themselves stay what they are."""

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
            node.func.id = _CONVERSIONS.get(node.func.id, node.func.id)
        return node


def _run(loader: Any, run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a named library's module."""
    module.__dict__["__builtins__"] = _BUILTINS
    source = loader.get_source(module.__name__) if isinstance(loader, SourceFileLoader) else None
    if source is None:
        run(module)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python keeps compiled files and so warns once; nothing is kept here
        tree = _Conversions().visit(ast.parse(source, loader.path))
        code = compile(tree, loader.path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


class LibraryFinder:
    """Finds modules of the named libraries through the other finders."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        spec = spec_by_other_finders(fullname, path, target)
        if spec is not None and spec.has_location and hasattr(spec.loader, "exec_module"):
            loader: Any = spec.loader
            loader.exec_module = partial(_run, loader, loader.exec_module)
            say_at_exit()
        return spec
