"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

import lazy_loader as _lazy

# it registers the blocks that a saved net may contain
from mxkit.models import networks as _networks  # noqa: F401

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
