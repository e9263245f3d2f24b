"""A net's architecture as plain JSON, and the net built from it: no pickle, no eval, no import by a name."""

from .building import build as build
from .comparing import differences as differences
from .describing import describe as describe
from .registered import register_block as register_block

__all__ = ["build", "describe", "differences", "register_block"]
