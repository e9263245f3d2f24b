"""A net's architecture as plain JSON, and the net built from it: no pickle, no eval, no import by a name."""

from .builder import build as build
from .describer import describe as describe
from .rebuilt import differences as differences
from .registered import register_block as register_block

__all__ = ["build", "describe", "differences", "register_block"]
