"""A finder that gives MXNet and GluonCV their own `import` statement, and nobody else.

A module's `import` statement calls the `__import__` of the builtins that its globals name. The modules of the
viewed packages get a private copy of that dictionary before their code runs, whose `__import__` answers
`numpy` with `mxkit.runtime.numpy_view` and `distutils.version` with a stand-in. Nothing shared is changed, not
even for a moment: not `numpy`, not `builtins`, and in `sys` only one more finder.
"""

import builtins
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
import os
from pathlib import Path
import sys
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, cast

from mxkit.errors import MXNetImportError
from mxkit.runtime import cuda_libraries, repairs
from mxkit.runtime.exact import set_switches, warn_if_late
from mxkit.runtime.numpy_view import numpy_view
from mxkit.runtime.threads import chosen_threads
from mxkit.runtime.versions import DISTUTILS, DISTUTILS_VERSION
from mxkit.runtime.wheels import load_problem, wheel_problem

VIEWED_PACKAGES = ("mxnet", "gluoncv")
_LOADS_LIBRARY = "mxnet.base"

# How quantization.py and test_utils.py import it, for one function each. With scikit-learn it was half of the time of
# `import mxnet`.
_SCIPY_STATS = (("scipy", ("stats",)), ("scipy.stats", None))

# distutils' version classes warn since Python 3.10 and are gone since 3.12 (T89, T92).
_STAND_IN_FOR_DISTUTILS = sys.version_info >= (3, 10)


def is_viewed(fullname: str) -> bool:
    """Say whether a module is one of the viewed packages or inside of one."""
    return fullname.partition(".")[0] in VIEWED_PACKAGES


def _import(
    name: str,
    globals: Optional[Mapping[str, Any]] = None,
    locals: Optional[Mapping[str, Any]] = None,
    fromlist: Optional[Sequence[str]] = (),
    level: int = 0,
) -> Any:
    """Import for a viewed module: the builtin one, but for NumPy and for distutils' versions."""
    if level == 0:
        if name == "numpy" or (name.startswith("numpy.") and not fromlist):
            return _import_view(name, fromlist or ())
        if _STAND_IN_FOR_DISTUTILS and name == "distutils.version":
            return DISTUTILS_VERSION if fromlist else DISTUTILS
        if _STAND_IN_FOR_DISTUTILS and name == "distutils" and fromlist == ("version",):
            return DISTUTILS
        if (
            name == "sklearn.base" and name not in sys.modules
        ):  # model.py's deprecated FeedForward is a class without it
            raise ImportError("scikit-learn is imported by MXNet only where it was imported before", name=name)
        if (name, fromlist) in _SCIPY_STATS and "scipy.stats" not in sys.modules and find_spec("scipy"):
            return SimpleNamespace(stats=_DeferredModule("scipy.stats"))
    # Read at each call, so that a tool that replaces `builtins.__import__` is still obeyed.
    return builtins.__import__(name, globals, locals, fromlist or (), level)


class _DeferredModule(ModuleType):
    """A module that is imported when it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def _import_view(name: str, fromlist: Sequence[str]) -> ModuleType:
    # Without the list: to look for a name of it in NumPy itself could warn.
    builtins.__import__(name)
    view = numpy_view()
    for wanted in fromlist:
        if wanted != "*" and not hasattr(view, wanted):  # a submodule that was not imported yet
            builtins.__import__(name, None, None, (wanted,))
    return view


# One for all viewed modules, as Python keeps one for all others.
_BUILTINS: Dict[str, Any] = {**vars(builtins), "__import__": _import}


class _ViewedLoader:
    """The loader of a viewed module: the one that Python found, and what mxkit does before and after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        # While this object is unpickled or copied it has no `_loader` yet.
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = _BUILTINS
        if module.__name__ == _LOADS_LIBRARY:
            _with_library(self._loader, module)
        else:
            self._loader.exec_module(module)
        repairs.apply(module)


def _with_library(loader: Any, module: ModuleType) -> None:
    """Run the module that loads MXNet's library, once all that the library needs is there."""
    library = Path(import_module("mxnet.libinfo").find_lib_path()[0])
    set_switches(os.environ)
    cuda_libraries.prepare(library)
    try:
        with chosen_threads():
            loader.exec_module(module)
    except OSError as error:
        raise MXNetImportError(load_problem(error, library), name="mxnet") from error


class ViewFinder:
    """Finds the viewed packages through the other finders; see the module's text."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if not is_viewed(fullname):
            return None
        if fullname in VIEWED_PACKAGES and not _is_enquiry():
            problem = wheel_problem() if fullname == "mxnet" else None
            if problem:
                raise MXNetImportError(problem, name=fullname)
            _forget_failed_import(fullname)
        spec = _find_elsewhere(self, fullname, path, target)
        if spec is not None and spec.has_location and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _ViewedLoader(spec.loader))
        return spec

    def invalidate_caches(self) -> None:
        """Nothing is kept here."""


def _is_enquiry() -> bool:
    """Say whether no import is under way: a `find_spec` is answered as ever, and only a real import is refused."""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            return False
        if frame.f_globals.get("__name__") == "importlib.util":
            return True
        frame = frame.f_back
    return True


def _forget_failed_import(package: str) -> None:
    """Drop the submodules of a package that is not there: a failed import leaves them behind.

    They would not be bound to the package when it is imported again: `mxnet.util` would be missing.
    """
    if package not in sys.modules:
        for name in [name for name in sys.modules if name.startswith(package + ".")]:
            del sys.modules[name]


def _find_elsewhere(
    this: ViewFinder, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType]
) -> Optional[ModuleSpec]:
    for finder in sys.meta_path:
        if finder is this or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(fullname, path, target)
        if spec is not None:
            return spec
    return None


def install_hook() -> None:
    """Put the finder in front of the others, once, and mend what was imported before it."""
    if any(isinstance(finder, ViewFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, ViewFinder())
    _mend_loaded()


def _loaded_viewed_modules() -> Iterator[ModuleType]:
    for fullname, module in list(sys.modules.items()):
        if is_viewed(fullname) and isinstance(module, ModuleType):
            yield module


def _mend_loaded() -> None:
    """Give the view and the repairs to viewed modules that are there already.

    They are there when MXNet was imported before mxkit, where NumPy is old enough or was patched by the user.
    """
    numpy = sys.modules.get("numpy")
    for module in _loaded_viewed_modules():
        module.__dict__["__builtins__"] = _BUILTINS
        for name, value in list(vars(module).items()):
            if numpy is not None and value is numpy:
                setattr(module, name, numpy_view())
        repairs.apply(module)
    if _LOADS_LIBRARY in sys.modules:
        warn_if_late(os.environ)
