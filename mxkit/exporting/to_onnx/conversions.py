"""All conversions, registered by importing their modules."""

from importlib import import_module

from mxkit.exporting.to_onnx.onnx_writer import CONVERTERS

_FIELDS = "attention boxes elementwise indexing layers linear pooling recurrent reductions renamed sequences shapes"
for _field in _FIELDS.split():
    import_module(f"mxkit.exporting.to_onnx.conversions_{_field}")
__all__ = ["CONVERTERS"]
