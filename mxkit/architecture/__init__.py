"""A net's architecture as plain JSON, and the net built from it: no pickle, no eval, no import by a name."""

from .building import build as build
from .describing import describe as describe
from .describing import differences as differences

__all__ = ["build", "describe", "differences"]
