"""All conversions, registered by importing their modules."""

from mxkit.export.to_onnx import (
    conversions_attention,
    conversions_boxes,
    conversions_elementwise,
    conversions_indexing,
    conversions_layers,
    conversions_linear,
    conversions_pooling,
    conversions_recurrent,
    conversions_reductions,
    conversions_sequences,
    conversions_shapes,
)
from mxkit.export.to_onnx.onnx_writer import CONVERTERS

MODULES = (
    conversions_attention,
    conversions_boxes,
    conversions_elementwise,
    conversions_indexing,
    conversions_layers,
    conversions_linear,
    conversions_pooling,
    conversions_recurrent,
    conversions_reductions,
    conversions_sequences,
    conversions_shapes,
)
__all__ = ["CONVERTERS", "MODULES"]
