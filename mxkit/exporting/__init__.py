"""Ways out: a net as MXNet's symbol, ONNX, PyTorch code or safetensors, each compared with MXNet."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
