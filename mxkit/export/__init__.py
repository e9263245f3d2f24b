"""Ways out: a net as MXNet's symbol, ONNX, PyTorch code or safetensors, each compared with MXNet.

`mxkit.export` is this room and, called, the function `export` of it.
"""

import sys
from types import ModuleType
from typing import Any

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from mxkit.export.writing import export

        return export(*arguments, **named)


sys.modules[__name__].__class__ = _Room
