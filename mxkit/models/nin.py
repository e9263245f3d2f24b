"""Network in network as the tutorials build it, for the sizes at which it gives as many numbers as classes."""

from typing import Any

from mxkit.core.arguments import whole_number
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import nn


def nin(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """Network in network: 2,015,398 parameters on any size from 195 to 354.

    Args:
        classes: Number of outputs. Their convolution has no ReLU, which in the tutorials keeps every score from being
            below 0, and can end the training with all of them at 0.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 11x11 with stride 4,
            and the last pooling is global.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the images, if only this one is to be taken; 0 takes all that fit.

    Returns:
        An uninitialized net from images (B, C, H, W) of 195 to 354 pixels a side (15 or more if small) to scores of
        shape (B, classes). From 355 on the last pooling would leave 2 x 2 positions, and MXNet would silently give
        4 numbers for each class: this is an error here.

    Raises:
        ValueError: `input_size` does not fit, or an argument is no whole number.

    Source:
        Lin et al. 2013, Network in network, with the convolutions of AlexNet.
    """
    classes = whole_number(classes, "classes")
    net = SizedNet(input_size, one_position=True)
    net.add(_mlpconv(96, kernel_size=3, padding=1) if small else _mlpconv(96, kernel_size=11, strides=4))
    net.add(_mlpconv(256, kernel_size=5, padding=2), _mlpconv(384, kernel_size=3, padding=1), nn.Dropout(0.5))
    net.add(_mlpconv(classes, last=True, kernel_size=3, padding=1))
    net.add(nn.GlobalAvgPool2D() if small else nn.AvgPool2D(pool_size=5), nn.Flatten())
    return finished("nin", net, in_channels, "" if small else "small=True makes it for images like CIFAR's")


def _mlpconv(channels: int, last: bool = False, **first: Any) -> Any:
    stage = nn.HybridSequential()
    stage.add(nn.Conv2D(channels, activation="relu", **first))
    stage.add(nn.Conv2D(channels, kernel_size=1, activation="relu"))
    stage.add(nn.Conv2D(channels, kernel_size=1, activation=None if last else "relu"))
    if not last:
        stage.add(nn.MaxPool2D(pool_size=3, strides=2))
    return stage
