"""Trainings that leave MXNet and go on in PyTorch."""
