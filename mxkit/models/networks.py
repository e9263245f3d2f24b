"""The tutorials' first networks, as HybridBlocks: they export, trace and run as graphs."""

from typing import Sequence

from mxnet.gluon import nn


def softmax_regression(classes: int = 10) -> "nn.HybridSequential":
    """One dense layer: 7,850 parameters on 28x28 inputs.

    Args:
        classes: Number of outputs.

    Returns:
        An uninitialized net from any shape (B, ...) to scores of shape (B, classes).
    """
    net = nn.HybridSequential()
    net.add(nn.Flatten(), nn.Dense(classes))
    return net


def mlp(classes: int = 10, hidden: Sequence[int] = (256,), dropout: float = 0.0) -> "nn.HybridSequential":
    """Dense layers with ReLU between them: 203,530 parameters on 28x28 inputs.

    Args:
        classes: Number of outputs.
        hidden: Units of each hidden layer.
        dropout: Share of hidden units set to 0 in training, after each hidden layer.

    Returns:
        An uninitialized net from any shape (B, ...) to scores of shape (B, classes).

    Raises:
        ValueError: `dropout` is not in 0 to 1 (1 excluded).
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"mlp: dropout must be at least 0 and below 1; received {dropout}")
    net = nn.HybridSequential()
    net.add(nn.Flatten())
    for units in hidden:
        net.add(nn.Dense(units, activation="relu"))
        if dropout:
            net.add(nn.Dropout(dropout))
    net.add(nn.Dense(classes))
    return net


def lenet(classes: int = 10, batch_norm: bool = False) -> "nn.HybridSequential":
    """LeNet as Gluon's tutorials build it (20 and 50 channels, ReLU): 129,388 parameters on 1x28x28.

    Args:
        classes: Number of outputs.
        batch_norm: Normalize after each convolution and the hidden dense layer.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 16 pixels a side to scores of shape
        (B, classes).

    Source:
        LeCun et al. 1998, Gradient-based learning applied to document recognition; ReLU and maximum
        pooling in place of sigmoid and average.
    """
    net = nn.HybridSequential()
    for channels in (20, 50):
        net.add(nn.Conv2D(channels, kernel_size=5, activation=None if batch_norm else "relu"))
        if batch_norm:
            net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(pool_size=2, strides=2))
    net.add(nn.Flatten(), nn.Dense(128, activation=None if batch_norm else "relu"))
    if batch_norm:
        net.add(nn.BatchNorm(), nn.Activation("relu"))
    net.add(nn.Dense(classes))
    return net
