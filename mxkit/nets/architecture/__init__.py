"""A net's architecture as plain JSON, and nets built from it without pickle, eval or imports by name."""

from .builder import build as build
from .describer import describe as describe
from .rebuilt import differences as differences
from .registered import register_block as register_block

__all__ = ["build", "describe", "differences", "register_block"]
