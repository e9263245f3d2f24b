"""AlexNet as the tutorials build it."""

from mxkit.core.arguments import whole_number
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import nn


def alexnet(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """AlexNet with 96 to 384 channels: 46,787,978 parameters on 3x224x224, 58,322,314 on 3x227x227.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1, in place of 11x11 with stride 4.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the images, if only this one is to be taken; 0 takes all that fit until the first batch,
            which decides what its dense layers take.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 67 pixels a side (15 if small) to scores of shape
        (B, classes).

    Raises:
        ValueError: `input_size` is too small, or an argument is no whole number.

    Source:
        Krizhevsky et al. 2012, ImageNet classification with deep convolutional neural networks; without its two
        halves and its normalization.
    """
    first = {"kernel_size": 3, "padding": 1} if small else {"kernel_size": 11, "strides": 4}
    net = SizedNet(input_size)
    net.add(nn.Conv2D(96, activation="relu", **first), nn.MaxPool2D(3, 2))
    net.add(nn.Conv2D(256, 5, padding=2, activation="relu"), nn.MaxPool2D(3, 2))
    for channels in (384, 384, 256):
        net.add(nn.Conv2D(channels, 3, padding=1, activation="relu"))
    net.add(nn.MaxPool2D(3, 2), nn.Flatten())
    for _ in range(2):
        net.add(nn.Dense(4096, activation="relu"), nn.Dropout(0.5))
    net.add(nn.Dense(whole_number(classes, "classes")))
    return finished("alexnet", net, in_channels, "" if small else "small=True makes it for images like CIFAR's")
