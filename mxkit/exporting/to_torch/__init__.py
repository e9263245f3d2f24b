"""PyTorch code and weights, written from a net's structure and its operators."""
