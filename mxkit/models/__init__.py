"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

import lazy_loader as _lazy

# each registers a block that a saved net may contain
from mxkit.models import siamese as _siamese  # noqa: F401
from mxkit.models import sizes as _sizes  # noqa: F401

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
