"""AlexNet, VGG, network in network and GoogLeNet as the tutorials build them."""

from typing import Any, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import contrib, nn

_SMALLER = "small=True makes it for images like CIFAR's"
# Channels of the four paths: 1x1; 1x1 before and 3x3; 1x1 before and 5x5; 1x1 after a pooling.
_STAGES: Tuple[Tuple[Tuple[int, ...], ...], ...] = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def alexnet(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """AlexNet with 96 to 384 channels: 46,787,978 parameters on 3x224x224, 58,322,314 on 3x227x227.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1, in place of 11x11 with stride 4.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit until the first batch, which
            fixes the size of the dense layers.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 67 pixels a side (15 if small) to scores of shape
        (B, classes).

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

    Source:
        Krizhevsky et al. 2012, ImageNet classification with deep convolutional neural networks; without the division
        into two halves and without the normalization.
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
    return finished("alexnet", net, in_channels, "" if small else _SMALLER)


def vgg11(classes: int = 10, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """VGG-11: 28,144,010 parameters on 3x32x32, 44,921,226 on 3x96x96, 128,807,306 on 3x224x224.

    Args:
        classes: Number of outputs.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit until the first batch, which
            fixes the size of the dense layers.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 32 pixels a side to scores of shape (B, classes):
        five stages of convolutions, each a child with its pooling, and three dense layers.

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

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


def nin(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """Network in network: 2,015,398 parameters on any size from 195 to 354.

    Args:
        classes: Number of outputs. The last convolution has no ReLU; the tutorials' ReLU prevents scores below 0, and
            training can end with all scores at 0.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 11x11 with stride 4,
            and the last pooling is global.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit.

    Returns:
        An uninitialized net from images (B, C, H, W) of 195 to 354 pixels a side (15 or more if small) to scores of
        shape (B, classes). From 355 on the last pooling would have 2 x 2 outputs, and MXNet would return 4 numbers for
        each class without an error; here it raises one.

    Raises:
        ValueError: `input_size` does not fit, or an argument is not a whole number.

    Source:
        Lin et al. 2013, Network in network, with the convolutions of AlexNet.
    """
    classes = whole_number(classes, "classes")
    net = SizedNet(input_size, one_position=True)
    net.add(_mlpconv(96, kernel_size=3, padding=1) if small else _mlpconv(96, kernel_size=11, strides=4))
    net.add(_mlpconv(256, kernel_size=5, padding=2), _mlpconv(384, kernel_size=3, padding=1), nn.Dropout(0.5))
    net.add(_mlpconv(classes, last=True, kernel_size=3, padding=1))
    net.add(nn.GlobalAvgPool2D() if small else nn.AvgPool2D(pool_size=5), nn.Flatten())
    return finished("nin", net, in_channels, "" if small else _SMALLER)


def _mlpconv(channels: int, last: bool = False, **first: Any) -> Any:
    stage = nn.HybridSequential()
    stage.add(nn.Conv2D(channels, activation="relu", **first))
    stage.add(nn.Conv2D(channels, kernel_size=1, activation="relu"))
    stage.add(nn.Conv2D(channels, kernel_size=1, activation=None if last else "relu"))
    if not last:
        stage.add(nn.MaxPool2D(pool_size=3, strides=2))
    return stage


def googlenet(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """GoogLeNet without batch normalization: 5,983,802 parameters on 3x96x96, 6,065,722 on 3x224x224.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 7x7 with stride 2, the
            two poolings before the inception blocks are left out, and the last one is global.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit until the first batch, which
            fixes the size of the dense layer (any size if small).

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 93 pixels a side (7 if small) to scores of shape
        (B, classes).

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

    Source:
        Szegedy et al. 2014, Going deeper with convolutions; without the two auxiliary classifiers. The convolutions
        of the second stage have a ReLU, which the tutorials leave out.
    """
    net = SizedNet(input_size)
    stem = nn.HybridSequential(), nn.HybridSequential()
    stem[0].add(nn.Conv2D(64, 3 if small else 7, 1 if small else 2, 1 if small else 3, activation="relu"))
    stem[1].add(_conv(64, 1), _conv(192, 3))
    for stage in stem:
        if not small:
            stage.add(nn.MaxPool2D(pool_size=3, strides=2))
        net.add(stage)
    for channels in _STAGES:
        stage = nn.HybridSequential()
        for widths in channels:
            stage.add(_inception(widths))
        if channels is not _STAGES[-1]:
            stage.add(nn.MaxPool2D(pool_size=3, strides=2))
        else:
            stage.add(nn.GlobalAvgPool2D() if small else nn.AvgPool2D(pool_size=2))
        net.add(stage)
    net.add(nn.Flatten(), nn.Dense(whole_number(classes, "classes")))
    return finished("googlenet", net, in_channels, "" if small else _SMALLER)


def _inception(widths: Sequence[int]) -> Any:
    block = contrib.nn.HybridConcurrent(axis=1)
    paths = [
        (_conv(widths[0], 1),),
        (_conv(widths[1], 1), _conv(widths[2], 3)),
        (_conv(widths[3], 1), _conv(widths[4], 5)),
        (nn.MaxPool2D(pool_size=3, strides=1, padding=1), _conv(widths[5], 1)),
    ]
    for layers in paths:
        path = nn.HybridSequential()
        path.add(*layers)
        block.add(path)
    return block


def _conv(channels: int, kernel_size: int) -> Any:
    return nn.Conv2D(channels, kernel_size, padding=kernel_size // 2, activation="relu")
