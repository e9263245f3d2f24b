"""mxkit's own networks: the tutorials' first ones, AlexNet to GoogLeNet, residual, dense and Siamese nets."""

from typing import Any, Sequence, Tuple, Union

from mxkit.core.arguments import whole_number
from mxkit.core.blocks import child_blocks
from mxkit.models.sizes import SizedNet, finished
from mxkit.nets.architecture.catalog import register_block
from mxnet import gluon
from mxnet.gluon import contrib, nn
from mxnet.gluon.model_zoo import vision


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
    # `hidden` may be empty
    known = all(0 <= share < 1 for share in ([dropout] if isinstance(dropout, (int, float)) else shares))
    if not known or len(shares) != len(hidden):
        raise ValueError(
            "mlp: dropout: expected one number, at least 0 and below 1, or one for each of the "
            f"{len(hidden)} hidden layers; received {dropout!r:.100}"
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
        net.add(_stage(*(_conv(channels, 3) for _ in range(depth)), nn.MaxPool2D(pool_size=2, strides=2)))
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
    stage = _stage(nn.Conv2D(channels, activation="relu", **first), _conv(channels, 1))
    stage.add(nn.Conv2D(channels, kernel_size=1, activation=None if last else "relu"))
    if not last:
        stage.add(nn.MaxPool2D(pool_size=3, strides=2))
    return stage


def _stage(*layers: Any) -> Any:
    stage = nn.HybridSequential()
    stage.add(*layers)
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
    first = nn.Conv2D(64, 3 if small else 7, 1 if small else 2, 1 if small else 3, activation="relu")
    for stage in _stage(first), _stage(_conv(64, 1), _conv(192, 3)):
        if not small:
            stage.add(nn.MaxPool2D(pool_size=3, strides=2))
        net.add(stage)
    for widths in _STAGES[:-1]:
        net.add(_stage(*map(_inception, widths), nn.MaxPool2D(pool_size=3, strides=2)))
    pooling = nn.GlobalAvgPool2D() if small else nn.AvgPool2D(pool_size=2)
    net.add(_stage(*map(_inception, _STAGES[-1]), pooling))
    net.add(nn.Flatten(), nn.Dense(whole_number(classes, "classes")))
    return finished("googlenet", net, in_channels, "" if small else _SMALLER)


def _inception(widths: Sequence[int]) -> Any:
    block = contrib.nn.HybridConcurrent(axis=1)
    block.add(_stage(_conv(widths[0], 1)), _stage(_conv(widths[1], 1), _conv(widths[2], 3)))
    block.add(_stage(_conv(widths[3], 1), _conv(widths[4], 5)))
    block.add(_stage(nn.MaxPool2D(pool_size=3, strides=1, padding=1), _conv(widths[5], 1)))
    return block


def _conv(channels: int, kernel_size: int) -> Any:
    return nn.Conv2D(channels, kernel_size, padding=kernel_size // 2, activation="relu")


def resnet18(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """ResNet-18: 11,181,642 parameters on any size.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 7x7 with stride 2, and
            the first pooling is left out.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit.

    Returns:
        An uninitialized net from images (B, C, H, W) of any size to scores of shape (B, classes).

    Raises:
        ValueError: An argument is not a whole number.

    Source:
        He et al. 2015, Deep residual learning for image recognition. The blocks are `zoo:resnet18_v1`'s.
    """
    return _resnet("resnet18", vision.BasicBlockV1, (2, 2, 2, 2), classes, small, in_channels, input_size)


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


def densenet121(classes: int = 10, small: bool = False, in_channels: int = 0, input_size: int = 0) -> "SizedNet":
    """DenseNet-121: 6,964,106 parameters on any size from 29 on.

    Args:
        classes: Number of outputs.
        small: For images like CIFAR's: the first convolution is 3x3 with stride 1 in place of 7x7 with stride 2, and
            the first pooling is left out.
        in_channels: Channels of the images; 0 takes them from the first batch.
        input_size: Side of the only images that the net takes; 0 takes all that fit.

    Returns:
        An uninitialized net from images (B, C, H, W) of at least 29 pixels a side (8 if small) to scores of shape
        (B, classes).

    Raises:
        ValueError: `input_size` is too small, or an argument is not a whole number.

    Source:
        Huang et al. 2016, Densely connected convolutional networks. The blocks are `zoo:densenet121`'s, whose last
        pooling is 7x7 and takes 221 to 444 pixels; here it is global.
    """
    whole_number(classes, "classes")
    net = SizedNet(input_size)
    if small:
        net.add(nn.Conv2D(64, kernel_size=3, padding=1, use_bias=False))
    else:
        net.add(nn.Conv2D(64, kernel_size=7, strides=2, padding=3, use_bias=False))
        net.add(nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D(pool_size=3, strides=2, padding=1))
    made = vision.DenseNet(64, 32, [6, 12, 24, 16])
    net.add(*(made.features[i] for i in range(4, len(made.features) - 2)), nn.GlobalAvgPool2D())
    net.add(nn.Flatten(), nn.Dense(classes))
    return finished("densenet121", net, in_channels, "" if small else _SMALLER)


@register_block
class Siamese(gluon.HybridBlock):  # type: ignore[misc]
    """One branch, with one set of weights, applied to each input.

    `net(a, b)` gives `[branch(a), branch(b)]`, which `ContrastiveLoss` takes; `net(anchor, positive, negative)` gives
    three outputs for `TripletLoss`. `mxkit.data.PairLoader` makes batches for `mxkit.fit`. BatchNorm in the branch
    computes its statistics for each input separately.

    Args:
        branch: A HybridBlock with one input and one output. It can also be used alone.

    Raises:
        TypeError: `branch` is not a HybridBlock.

    >>> net = Siamese(mx.gluon.nn.Dense(2)); mxkit.initialize(net)
    >>> [output.shape for output in net(mx.nd.ones((3, 4)), mx.nd.ones((3, 4)))]
    [(3, 2), (3, 2)]
    """

    def __init__(self, branch: Any, **kwargs: Any) -> None:
        if not isinstance(branch, gluon.HybridBlock):
            raise TypeError(f"Siamese: branch: expected a HybridBlock; received {branch!r:.100}")
        super().__init__(**kwargs)
        self.branch = branch

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:  # noqa: N803
        return [self.branch(x) for x in inputs]
