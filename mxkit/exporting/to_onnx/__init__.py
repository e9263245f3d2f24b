"""ONNX files: conversions of MXNet's operators, the comparison with MXNet, and the check of a file."""
