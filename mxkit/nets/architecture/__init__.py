"""A net's architecture as plain JSON, and nets built from it without pickle, eval or imports by name."""

from .catalog import register_block as register_block
from .description import build as build
from .description import describe as describe
from .description import differences as differences

__all__ = ["build", "describe", "differences", "register_block"]
