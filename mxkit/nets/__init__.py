"""Operations on nets: initialize, move, freeze, look inside, describe, build, replace, fine-tune, save."""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
