"""The kit that makes Apache MXNet's Gluon pleasant, exact and alive today.

`import mxkit` prepares this process so that `import mxnet` works, and costs no more than that: each public
name is imported when it is first used. `__init__.pyi` is the list of them.
"""

from importlib import import_module as _import_module

import lazy_loader as _lazy
from mxkit.runtime import install as _install

_install()
_attached, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "Update":  # `mxkit.training.Update` was at the root, which has 32 names at most
        return _attached("training").Update
    if name == "export":  # the room, which is the function `export` when it is called
        return _import_module("mxkit.export")
    return _attached(name)
