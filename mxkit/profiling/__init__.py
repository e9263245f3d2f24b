"""Where an update's time goes: phases, operators, who waits, and what would help."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
