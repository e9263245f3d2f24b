"""A finder that gives the modules of MXNet and GluonCV, and no others, their own `import` statement.

A module's `import` statement calls the `__import__` of the builtins that its globals name. The modules of the
viewed packages get a private copy of that dictionary before their code runs, whose `__import__` answers
`numpy` and `distutils.version` with stand-ins of `mxkit.runtime.old_names`. Nothing shared is changed, not
even for a moment: not `numpy`, not `builtins`, and in `sys` only one finder is added.
"""

import builtins
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
import os
from pathlib import Path
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, Mapping, Optional, Sequence, cast
import warnings

from mxkit.errors import DistributedError, MXNetImportError, TrapWarning
from mxkit.runtime.engine_settings import chosen_threads, load_openblas, prepare_tiles, set_switches, warn_if_late
from mxkit.runtime.old_names import Overlay, numpy_view, own_distutils
from mxkit.runtime.wheels import load_problem, spec_by_other_finders, version_problem, wheel_problem

VIEWED_PACKAGES = ("mxnet", "gluoncv")
_LOADS_LIBRARY = "mxnet.base"

# The two import statements of quantization.py and test_utils.py, which need one function each. SciPy's statistics and
# scikit-learn took half of the time of `import mxnet`.
_SCIPY_STATS = (("scipy", ("stats",)), ("scipy.stats", None))


def _import(
    name: str,
    globals: Optional[Mapping[str, Any]] = None,
    locals: Optional[Mapping[str, Any]] = None,
    fromlist: Optional[Sequence[str]] = (),
    level: int = 0,
) -> Any:
    """`__import__` of viewed modules: as the builtin one, except for NumPy, distutils' versions and slow packages."""
    if level == 0:
        if name == "numpy" or (name.startswith("numpy.") and not fromlist):
            return _import_view(name, fromlist or ())
        # its classes warn since Python 3.10, and before with setuptools 59 or later; since 3.12 it is gone (T89, T92)
        own = own_distutils(name, fromlist or ())
        if own is not None:
            return own
        if name == "sklearn.base" and name not in sys.modules:  # only model.py's deprecated FeedForward uses it
            raise ImportError("scikit-learn is imported by MXNet only where it was imported before", name=name)
        if (name, fromlist) in _SCIPY_STATS and "scipy.stats" not in sys.modules and find_spec("scipy"):
            return SimpleNamespace(stats=Overlay("scipy.stats"))
    # Looked up at each call, so that it follows a tool that replaces `builtins.__import__`.
    return builtins.__import__(name, globals, locals, fromlist or (), level)


def _import_view(name: str, fromlist: Sequence[str]) -> ModuleType:
    # Without the list: reading its names from NumPy itself could warn.
    builtins.__import__(name)
    view = numpy_view()
    for wanted in fromlist:
        if wanted != "*" and not hasattr(view, wanted):  # a submodule that was not imported yet
            builtins.__import__(name, None, None, (wanted,))
    return view


# All viewed modules share one dictionary, as Python's other modules do.
_BUILTINS: Dict[str, Any] = {**vars(builtins), "__import__": _import}


class _ViewedLoader:
    """The loader that Python found for a viewed module, with mxkit's work before and after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        # While it is unpickled or copied, this object has no `_loader` yet.
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = _BUILTINS
        if module.__name__ == _LOADS_LIBRARY:
            _with_library(self._loader, module)
        else:
            self._loader.exec_module(module)
        _repair(module)


def _repair(module: ModuleType) -> None:
    """Apply the repairs of a module that has run; refuse an MXNet that is not 1.9, before its library is loaded.

    Raises:
        MXNetImportError: It calls itself by another version.
    """
    if module.__name__ == "mxnet.libinfo":
        problem = version_problem(module.__version__, Path(module.__file__ or "mxnet").parent)
        if problem:
            raise MXNetImportError(problem, name="mxnet")
    elif "numpy" in sys.modules:  # MXNet imports it before it runs a module that needs a repair
        from mxkit.runtime.repairs import apply

        apply(module)


def _with_library(loader: Any, module: ModuleType) -> None:
    """Run the module that loads MXNet's library, after loading all that the library needs."""
    from mxkit.runtime import cuda_libraries  # its import would slow down `import mxkit`

    _tell_role()
    library = Path(import_module("mxnet.libinfo").find_lib_path()[0])
    set_switches(os.environ)
    prepare_tiles(os.environ)
    cuda_libraries.prepare(library)
    try:
        with chosen_threads():
            load_openblas(library)
            loader.exec_module(module)
    except OSError as error:
        raise MXNetImportError(load_problem(error, library), name="mxnet") from error


def _tell_role() -> None:
    """Warn that `import mxnet` will not return, or refuse it where mxkit's own workers were meant (T72).

    Raises:
        DistributedError: The process is a scheduler or a server of MXNet, and uses mxkit's command or its workers.
    """
    role = os.environ.get("DMLC_ROLE")
    if role not in ("server", "scheduler"):
        return
    text = f"DMLC_ROLE={role} is set: `import mxnet` makes this process MXNet's {role}, and does not return"
    if "mxkit.distributed" in sys.modules or "mxkit.cli" in sys.modules:
        raise DistributedError(
            f"{text}. mxkit starts MXNet's scheduler and servers itself, beside rank 0. Start only the workers, "
            "without the variables DMLC_*, with mxkit launch, mpirun, srun or an indexed Job of Kubernetes"
        )
    warnings.warn(text, TrapWarning, stacklevel=2)


class ViewFinder:
    """Finds the viewed packages through the other finders; the module's docstring says why."""

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname.partition(".")[0] not in VIEWED_PACKAGES:
            return None
        if fullname in VIEWED_PACKAGES and _is_importing():
            problem = wheel_problem() if fullname == "mxnet" else None
            if problem:
                raise MXNetImportError(problem, name=fullname)
            _forget_failed_import(fullname)
        spec = spec_by_other_finders(fullname, path, target)
        if spec is not None and spec.has_location and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _ViewedLoader(spec.loader))
        return spec


def _is_importing() -> bool:
    """Whether an import is under way: only an import is refused; `importlib.util.find_spec` is answered as usual."""
    # the caller of `find_spec` is Python's import, or the finder of `mxkit enable`
    return "_find_and_load_unlocked" in (sys._getframe(3).f_code.co_name, sys._getframe(4).f_code.co_name)


def _forget_failed_import(package: str) -> None:
    """Drop submodules that a failed import of a package left behind.

    They would not be bound to the package when it is imported again: `mxnet.util` would be missing.
    """
    if package not in sys.modules:
        for name in [name for name in sys.modules if name.startswith(package + ".")]:
            del sys.modules[name]


def install_hook() -> None:
    """Put the finder in front of the others, once, and repair modules that were imported before it."""
    if any(isinstance(finder, ViewFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, ViewFinder())
    _repair_loaded()


def _repair_loaded() -> None:
    """Give the view and the repairs to viewed modules that are loaded already.

    MXNet can be imported before mxkit if NumPy is old enough or was patched by the user.
    """
    numpy = sys.modules.get("numpy")
    for fullname, module in list(sys.modules.items()):
        if not (fullname.partition(".")[0] in VIEWED_PACKAGES and isinstance(module, ModuleType)):
            continue
        module.__dict__["__builtins__"] = _BUILTINS
        for name, value in list(vars(module).items()):
            if numpy is not None and value is numpy:
                setattr(module, name, numpy_view())
        _repair(module)
    if _LOADS_LIBRARY in sys.modules:
        warn_if_late(os.environ)
