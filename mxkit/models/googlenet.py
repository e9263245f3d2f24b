"""GoogLeNet as the tutorials build it."""

from typing import Any, Sequence, Tuple

from mxkit.core.arguments import whole_number
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import contrib, nn

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


def googlenet(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """GoogLeNet without batch normalization: 5,983,802 parameters on 3x96x96, 6,065,722 on 3x224x224.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 7x7 with stride 2, the
            two poolings before the inception blocks are left out, and the last one is global.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the images, if only this one is to be taken; 0 takes all that fit until the first batch,
            which decides what its dense layer takes (any number if small).

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 93 pixels a side (7 if small) to scores of shape
        (B, classes).

    Raises:
        ValueError: `input_size` is too small, or an argument is no whole number.

    Source:
        Szegedy et al. 2014, Going deeper with convolutions; without its two more classifiers. The convolutions of
        the second stage have a ReLU, which the tutorials leave out.
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
    return finished("googlenet", net, in_channels, "" if small else "small=True makes it for images like CIFAR's")


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
