"""Ways out: a net as MXNet's symbol, ONNX, PyTorch code or safetensors, each compared with MXNet."""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """`mxkit.export` is also a public function; once a module of this room is imported, Python binds the room there."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from mxkit.storage.exporters import export

        return export(*arguments, **options)


sys.modules[__name__].__class__ = _Room
