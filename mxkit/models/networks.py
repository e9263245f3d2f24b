"""The tutorials' first networks, as HybridBlocks: they export, trace and run as graphs."""

from typing import Sequence, Union

from mxkit.core.arguments import whole_number
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import nn


def linear_regression(outputs: int = 1, in_units: int = 0) -> "SizedNet":
    """One dense layer, for `loss="l2"`: 3 parameters on 2 features.

    Args:
        outputs: Number of predictions per sample.
        in_units: Features of a sample; 0 takes them from the first batch.

    Returns:
        An uninitialized net from features of shape (B, in_units) to predictions of shape (B, outputs).

    Raises:
        ValueError: An argument is too small, or not a whole number.

    >>> linear_regression(in_units=2)[0]
    Dense(2 -> 1, linear)
    """
    net = SizedNet()
    net.add(nn.Dense(whole_number(outputs, "outputs"), in_units=whole_number(in_units, "in_units", least=0)))
    return net


def softmax_regression(classes: int = 10, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """One dense layer: 7,850 parameters on 28x28 inputs.

    Args:
        classes: Number of outputs.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes any, and the first batch decides.

    Returns:
        An uninitialized net from any shape (B, ...) to scores of shape (B, classes).

    Raises:
        ValueError: An argument is too small, or not a whole number.
    """
    net = SizedNet(input_size)
    net.add(nn.Flatten(), nn.Dense(whole_number(classes, "classes")))
    return finished("softmax_regression", net, in_channels)


def mlp(
    classes: int = 10,
    hidden: Sequence[int] = (256,),
    dropout: Union[float, Sequence[float]] = 0.0,
    in_channels: int = 0,
    input_size: int = 0,
) -> "SizedNet":
    """Dense layers with ReLU between them: 203,530 parameters on 28x28 inputs.

    Args:
        classes: Number of outputs.
        hidden: Units of each hidden layer.
        dropout: Share of hidden units set to 0 in training: one number for all hidden layers, or one for each layer,
            like (0.2, 0.5).
        in_channels: As for `softmax_regression`.
        input_size: As for `softmax_regression`.

    Returns:
        An uninitialized net from any shape (B, ...) to scores of shape (B, classes).

    Raises:
        ValueError: `dropout` is below 0 or at least 1, or its length is not the number of hidden layers; another
            argument is too small, or not a whole number.
    """
    shares = [dropout] * len(hidden) if isinstance(dropout, (int, float)) else list(dropout)
    for share in (dropout,) if isinstance(dropout, (int, float)) else shares:  # `hidden` may be empty
        if not 0 <= share < 1:
            raise ValueError(f"mlp: dropout must be at least 0 and below 1; received {share}")
    if len(shares) != len(hidden):
        raise ValueError(
            f"mlp: expected one dropout for each of {len(hidden)} hidden layers, or one number for all; "
            f"received {dropout!r:.100}"
        )
    net = SizedNet(input_size)
    net.add(nn.Flatten())
    for units, share in zip(hidden, shares):
        net.add(nn.Dense(units, activation="relu"))
        if share:
            net.add(nn.Dropout(share))
    net.add(nn.Dense(whole_number(classes, "classes")))
    return finished("mlp", net, in_channels)


def lenet(
    classes: int = 10,
    batch_norm: bool = False,
    kernel_sizes: Sequence[int] = (5, 5),
    in_channels: int = 0,
    input_size: int = 0,
) -> "SizedNet":
    """LeNet as Gluon's tutorials build it (20 and 50 channels, ReLU): 129,388 parameters on 1x28x28.

    Args:
        classes: Number of outputs.
        batch_norm: Normalize after each convolution.
        kernel_sizes: Kernel sizes of the two convolutions. (5, 3) is the other LeNet of the tutorials: 170,988
            parameters, and 171,128 with `batch_norm`.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit until the first batch.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 16 pixels a side to scores of shape
        (B, classes); 12 with kernels (5, 3).

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

    Source:
        LeCun et al. 1998, Gradient-based learning applied to document recognition; ReLU and maximum
        pooling in place of sigmoid and average. `lenet5` is closer to the paper.
    """
    net = SizedNet(input_size)
    for channels, kernel_size in zip((20, 50), kernel_sizes):
        net.add(nn.Conv2D(channels, kernel_size, activation=None if batch_norm else "relu"))
        if batch_norm:
            net.add(nn.BatchNorm(), nn.Activation("relu"))
        net.add(nn.MaxPool2D(pool_size=2, strides=2))
    net.add(nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(whole_number(classes, "classes")))
    return finished("lenet", net, in_channels)


def lenet5(classes: int = 10, batch_norm: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """LeNet-5 with sigmoid and average pooling, as in 1998: 61,706 parameters on 1x28x28.

    Args:
        classes: Number of outputs.
        batch_norm: Normalize before each sigmoid; without it the net needs a learning rate near 1 to leave its
            initial plateau.
        in_channels: As for `lenet`.
        input_size: As for `lenet`.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 12 pixels a side to scores of shape (B, classes).
        The first convolution pads by 2, so that 28x28 corresponds to the paper's 32x32.

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

    Source:
        LeCun et al. 1998; each map of the second convolution uses all maps of the first, and the output is a dense
        layer instead of radial basis functions.
    """
    net = SizedNet(input_size)
    for channels, padding in ((6, 2), (16, 0)):
        net.add(nn.Conv2D(channels, kernel_size=5, padding=padding))
        _sigmoid(net, batch_norm)
        net.add(nn.AvgPool2D(pool_size=2, strides=2))
    net.add(nn.Flatten())
    for units in (120, 84):
        net.add(nn.Dense(units))
        _sigmoid(net, batch_norm)
    net.add(nn.Dense(whole_number(classes, "classes")))
    return finished("lenet5", net, in_channels)


def _sigmoid(net: SizedNet, batch_norm: bool) -> None:
    if batch_norm:
        net.add(nn.BatchNorm())
    net.add(nn.Activation("sigmoid"))
