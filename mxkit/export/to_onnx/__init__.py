"""ONNX files, written by MXNet's exporter and mxkit's own conversions."""
