"""A table of the outputs, parameters and arithmetic of every block of a net."""

from .table import Layer as Layer
from .table import LayerTable as LayerTable
from .table import layers as layers

__all__ = ["Layer", "LayerTable", "layers"]
