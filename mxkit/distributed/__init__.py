"""Several workers that train together, on one machine or on many, through MXNet's parameter servers."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
