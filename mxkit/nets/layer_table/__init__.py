"""What every block of a net gives out, holds and computes."""

from .table import Layer as Layer
from .table import LayerTable as LayerTable
from .table import layers as layers

__all__ = ["Layer", "LayerTable", "layers"]
