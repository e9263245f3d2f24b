"""Nets that predict fast: optimized for the processor, and behind a queue for servers."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
