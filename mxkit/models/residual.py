"""ResNet and DenseNet: from MXNet's own blocks, as in the papers, and as in the tutorials."""

from typing import Any, Sequence

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import child_blocks
from mxkit.models.sizes import SizedNet, finished
from mxnet.gluon import contrib, nn
from mxnet.gluon.model_zoo import vision

_DEPTHS = (6, 12, 24, 16)
_GROWTH = 32


def resnet18(
    classes: int = 10, small: bool = False, tutorial: bool = False, in_channels: int = 0, input_size: int = 0
) -> "SizedNet":
    """ResNet-18: 11,181,642 parameters on any size.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 7x7 with stride 2, and
            the first pooling is left out.
        tutorial: Build the net of Gluon's tutorials: all convolutions have biases; the first does not pad, and neither
            normalization nor ReLU follows it; shortcuts have no normalization; the last pooling is not global:
            11,184,522 parameters on 3x96x96, 11,199,882 on 3x224x224.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit.

    Returns:
        An uninitialized net from images (B, C, H, W) of any size (75 pixels a side or more with `tutorial`, and the
        first batch then fixes the dense layer) to scores of shape (B, classes).

    Raises:
        ValueError: `input_size` is too small, an argument is not a whole number, or `small` and `tutorial` are both
            True.

    Source:
        He et al. 2015, Deep residual learning for image recognition. The blocks are `zoo:resnet18_v1`'s.
    """
    if not tutorial:
        return _resnet("resnet18", vision.BasicBlockV1, (2, 2, 2, 2), classes, small, in_channels, input_size)
    if small:
        raise ValueError("resnet18: the tutorials' net has no small form: leave out small=True or tutorial=True")
    net = SizedNet(input_size)
    net.add(nn.Conv2D(64, kernel_size=7, strides=2), nn.MaxPool2D(pool_size=3, strides=2))
    for channels in (64, 128, 256, 512):
        stage = nn.HybridSequential()
        stage.add(_tutorial_block(channels, halves=channels > 64), _tutorial_block(channels))
        net.add(stage)
    net.add(nn.AvgPool2D(pool_size=3), nn.Dense(whole_number(classes, "classes")))
    return finished("resnet18", net, in_channels, "Without tutorial=True it takes any size")


def resnet34(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """ResNet-34: 21,289,802 parameters on any size. See `resnet18`."""
    return _resnet("resnet34", vision.BasicBlockV1, (3, 4, 6, 3), classes, small, in_channels, input_size)


def resnet50(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """ResNet-50, with bottlenecks: 23,547,402 parameters on any size. See `resnet18`."""
    return _resnet("resnet50", vision.BottleneckV1, (3, 4, 6, 3), classes, small, in_channels, input_size)


def _resnet(
    name: str, block: Any, depths: Sequence[int], classes: int, small: bool, in_channels: int, input_size: int
) -> "SizedNet":
    widths = [64, 64, 128, 256, 512] if block is vision.BasicBlockV1 else [64, 256, 512, 1024, 2048]
    made = vision.ResNetV1(block, list(depths), widths, classes=whole_number(classes, "classes"), thumbnail=small)
    net = SizedNet(input_size)
    net.add(*child_blocks(made.features).values(), made.output)
    return finished(name, net, in_channels)


def _tutorial_block(channels: int, halves: bool = False) -> Any:
    """MXNet's own block with the layers of the tutorials."""
    block = vision.BasicBlockV1(channels, 1, downsample=halves)
    block.body = nn.HybridSequential()
    block.body.add(nn.Conv2D(channels, kernel_size=3, padding=1, strides=2 if halves else 1))
    block.body.add(nn.BatchNorm(), nn.Activation("relu"))
    block.body.add(nn.Conv2D(channels, kernel_size=3, padding=1), nn.BatchNorm())
    if halves:
        block.downsample = nn.HybridSequential()
        block.downsample.add(nn.Conv2D(channels, kernel_size=1, strides=2))
    return block


def densenet121(
    classes: int = 10, small: bool = False, tutorial: bool = False, in_channels: int = 0, input_size: int = 0
) -> "SizedNet":
    """DenseNet-121: 6,964,106 parameters on any size from 29 on.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 7x7 with stride 2, and
            the first pooling is left out.
        tutorial: Build the net of Gluon's tutorials: there is no 1x1 convolution before those of 3x3, so that 63 layers
            have weights; convolutions have biases; there is no pooling at the end: 11,470,602 parameters on 3x32x32,
            11,567,882 on 3x96x96 and 12,054,282 on 3x224x224.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 29 pixels a side (8 if small) to scores of shape
        (B, classes). With `tutorial` it takes only the size of the first batch.

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

    Source:
        Huang et al. 2016, Densely connected convolutional networks. The blocks are `zoo:densenet121`'s, whose last
        pooling is 7x7 and takes 221 to 444 pixels; here it is global.
    """
    whole_number(classes, "classes")
    net = SizedNet(input_size)
    if small:
        net.add(nn.Conv2D(64, kernel_size=3, padding=1, use_bias=tutorial))
    else:
        net.add(nn.Conv2D(64, kernel_size=7, strides=2, padding=3, use_bias=tutorial))
        net.add(nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(pool_size=3, strides=2, padding=1))
    if tutorial:
        _add_tutorial_blocks(net)
        net.add(nn.BatchNorm(), nn.Activation("relu"), nn.AvgPool2D(pool_size=1))
    else:
        made = vision.DenseNet(64, _GROWTH, list(_DEPTHS))
        net.add(*(made.features[i] for i in range(4, len(made.features) - 2)), nn.GlobalAvgPool2D())
    net.add(nn.Flatten(), nn.Dense(classes))
    return finished("densenet121", net, in_channels, "" if small else "small=True makes it for images like CIFAR's")


def _add_tutorial_blocks(net: SizedNet) -> None:
    channels = 64
    for depth in _DEPTHS:
        block = nn.HybridSequential()
        for _ in range(depth):
            block.add(_tutorial_layer())
        net.add(block)
        channels += depth * _GROWTH
        if depth != _DEPTHS[-1]:
            net.add(_normalized(nn.Conv2D(channels // 2, kernel_size=1), nn.AvgPool2D(pool_size=2, strides=2)))


def _tutorial_layer() -> Any:
    block = contrib.nn.HybridConcurrent(axis=1)
    block.add(contrib.nn.Identity(), _normalized(nn.Conv2D(_GROWTH, kernel_size=3, padding=1)))
    return block


def _normalized(*layers: Any) -> Any:
    stage = nn.HybridSequential()
    stage.add(nn.BatchNorm(), nn.Activation("relu"), *layers)
    return stage
