"""VGG as the tutorials build it, with 11 to 19 layers."""

from typing import Sequence

from mxkit.core.arguments import whole_number
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import nn


def vgg11(classes: int = 10, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """VGG-11: 28,144,010 parameters on 3x32x32, 44,921,226 on 3x96x96, 128,807,306 on 3x224x224.

    Args:
        classes: Number of outputs.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the images, if only this one is to be taken; 0 takes all that fit until the first batch,
            which decides what its dense layers take.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 32 pixels a side to scores of shape (B, classes):
        five stages of convolutions, each a child with its pooling, and three dense layers.

    Raises:
        ValueError: `input_size` is too small, or an argument is no whole number.

    Source:
        Simonyan and Zisserman 2014, Very deep convolutional networks for large-scale image recognition.
    """
    return _vgg("vgg11", (1, 1, 2, 2, 2), classes, in_channels, input_size)


def vgg13(classes: int = 10, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """VGG-13: 128,991,818 parameters on 3x224x224. See `vgg11`."""
    return _vgg("vgg13", (2, 2, 2, 2, 2), classes, in_channels, input_size)


def vgg16(classes: int = 10, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """VGG-16: 134,301,514 parameters on 3x224x224. See `vgg11`."""
    return _vgg("vgg16", (2, 2, 3, 3, 3), classes, in_channels, input_size)


def vgg19(classes: int = 10, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """VGG-19: 139,611,210 parameters on 3x224x224. See `vgg11`."""
    return _vgg("vgg19", (2, 2, 4, 4, 4), classes, in_channels, input_size)


def _vgg(name: str, depths: Sequence[int], classes: int, in_channels: int, input_size: int) -> "SizedNet":
    net = SizedNet(input_size)
    for depth, channels in zip(depths, (64, 128, 256, 512, 512)):
        stage = nn.HybridSequential()
        for _ in range(depth):
            stage.add(nn.Conv2D(channels, kernel_size=3, padding=1, activation="relu"))
        stage.add(nn.MaxPool2D(pool_size=2, strides=2))
        net.add(stage)
    net.add(nn.Flatten())
    for _ in range(2):
        net.add(nn.Dense(4096, activation="relu"), nn.Dropout(0.5))
    net.add(nn.Dense(whole_number(classes, "classes")))
    return finished(name, net, in_channels)
