"""Ways out: a net as MXNet's symbol, ONNX, PyTorch code or safetensors, each compared with MXNet."""
