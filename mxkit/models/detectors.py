"""Small nets of gluoncv's classes, for pictures of some hundred pixels: they train in minutes on a CPU.

gluoncv's large ones, like `gluoncv:ssd_512_resnet50_v1_custom`, train in the same way.
"""

from collections import OrderedDict
from typing import Any, List, Sequence, Tuple, Union

from mxkit.core.arguments import class_names, whole_number
from mxkit.nets.architecture.catalog import register_function
from mxnet import gluon
from mxnet.gluon import nn


def _chain(*blocks: Any) -> Any:
    chain = nn.HybridSequential(prefix="")
    chain.add(*blocks)
    return chain


def _layer(channels: int, stride: int = 1, dilation: int = 1, norm: Any = nn.BatchNorm) -> Any:
    convolution = nn.Conv2D(channels, 3, strides=stride, padding=dilation, dilation=dilation, use_bias=False)
    return _chain(convolution, norm(), nn.Activation("relu"))


def _stage(channels: int, stride: int = 2, dilation: int = 1, norm: Any = nn.BatchNorm) -> Any:
    """Two layers, of which the first one has the stride."""
    return _chain(_layer(channels, stride, norm=norm), _layer(channels, dilation=dilation, norm=norm))


class Pyramid(gluon.HybridBlock):  # type: ignore[misc]
    """Stages that each halve the sides; the output is a list, one for each stage from number `first` on.

    Args:
        channels: Channels of each stage.
        first: Number of the first stage that is an output, from 0.
        norm: Makes a layer that normalizes.
    """

    def __init__(self, channels: Sequence[int], first: int = 0, norm: Any = nn.BatchNorm, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._first = first
        with self.name_scope():
            self.stages = nn.HybridSequential()
            self.stages.add(*(_stage(one, norm=norm) for one in channels))

    def hybrid_forward(self, operators: Any, x: Any) -> List[Any]:
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs[self._first :]


@register_function
def small_ssd(classes: Union[int, Sequence[str]] = 20, size: int = 96, channels: Sequence[int] = (16, 32, 64)) -> Any:
    """gluoncv's `SSD` with four maps of 1/8 to 1/64 of the image, for `loss="ssd"`: 385,000 parameters.

    Args:
        classes: Number of classes, or their names.
        size: Side of the images, a multiple of 32.
        channels: Channels of the first three stages; further ones have as many as the last.

    Returns:
        An uninitialized net from images (B, 3, size, size). In predict mode it gives class numbers (B, 100, 1), scores
        (B, 100, 1) and boxes (B, 100, 4), sorted by score; -1 where there are fewer.
    """
    from gluoncv.model_zoo.ssd.ssd import SSD

    whole_number(size, "small_ssd: size", least=32)
    widths = [*channels, *[channels[-1]] * 3]
    shares = (0.14, 0.26, 0.44, 0.64, 0.88)
    return SSD(
        None,
        size,
        lambda **_: Pyramid(widths, first=2, prefix="features_"),
        None,
        sizes=[round(share * size) for share in shares],
        ratios=[[1, 2, 0.5]] * 4,
        steps=[8, 16, 32, 64],
        classes=class_names(classes, "small_ssd: classes"),
        anchor_alloc_size=max(32, size // 8),
    )


@register_function
def small_yolo3(classes: Union[int, Sequence[str]] = 20, size: int = 96, channels: Sequence[int] = (16, 32, 64)) -> Any:
    """gluoncv's `YOLOV3` with maps of 1/8, 1/16 and 1/32 of the image, for `loss="yolo3"`: 440,000 parameters.

    Args:
        classes: As for `small_ssd`.
        size: Side of the images that the anchors are made for, a multiple of 32.
        channels: As for `small_ssd`.

    Returns:
        As `small_ssd`.
    """
    from gluoncv.model_zoo.yolo.yolo3 import YOLOV3

    last = channels[-1]
    shares = [[(0.12, 0.12), (0.18, 0.22), (0.22, 0.16)], [(0.3, 0.3), (0.36, 0.26), (0.26, 0.36)]]
    shares.append([(0.45, 0.45), (0.6, 0.6), (0.85, 0.85)])
    anchors = [[round(side * size) for pair in layer for side in pair] for layer in shares]
    return YOLOV3(
        [_chain(*map(_stage, channels)), _stage(last), _stage(last)],
        [last // 2] * 3,
        anchors,
        [8, 16, 32],
        class_names(classes, "small_yolo3: classes"),
        alloc_size=(max(32, size // 8),) * 2,
    )


class Upward(gluon.HybridBlock):  # type: ignore[misc]
    """A net of stages whose last map is doubled and added to the one before, twice: the base of `small_centernet`."""

    def __init__(self, channels: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        last = channels[-1]
        with self.name_scope():
            self.down = Pyramid([*channels, last, last], first=len(channels) - 2)
            self.up, self.side = nn.HybridSequential(), nn.HybridSequential()
            for _ in range(3):
                self.up.add(nn.Conv2DTranspose(last, 4, strides=2, padding=1, use_bias=False))
                self.side.add(_layer(last))

    def hybrid_forward(self, operators: Any, x: Any) -> Any:
        *maps, x = self.down(x)
        for up, side, before in zip(self.up, self.side, maps[::-1]):
            x = up(x) + side(before)
        return operators.relu(x)


@register_function
def small_centernet(
    classes: Union[int, Sequence[str]] = 20, size: int = 96, channels: Sequence[int] = (16, 32, 64)
) -> Any:
    """gluoncv's `CenterNet` with a map of 1/4 of the image, for `loss="centernet"`: 530,000 parameters.

    Args:
        classes: As for `small_ssd`.
        size: Side of the images, a multiple of 32.
        channels: As for `small_ssd`.

    Returns:
        As `small_ssd`.
    """
    from gluoncv.model_zoo.center_net.center_net import CenterNet

    whole_number(size, "small_centernet: size", least=32)
    names = class_names(classes, "small_centernet: classes")
    # a bias of -log((1 - 0.1) / 0.1), as gluoncv's: at first every place has a score of 0.1
    heads = OrderedDict(heatmap={"num_output": len(names), "bias": -2.19}, wh={"num_output": 2}, reg={"num_output": 2})
    return CenterNet(Upward(channels), heads, names, head_conv_channel=channels[-1], scale=4.0, topk=100)


@register_function
def small_faster_rcnn(
    classes: Union[int, Sequence[str]] = 20, size: int = 96, channels: Sequence[int] = (16, 32, 64)
) -> Any:
    """gluoncv's `FasterRCNN` with a map of 1/8 of the image, for `loss="faster_rcnn"`: 409,000 parameters.

    Args:
        classes: As for `small_ssd`.
        size: Side of the images that the anchors are made for, a multiple of 8.
        channels: Channels of the stages, which each halve the sides.

    Returns:
        As `small_ssd`. Layers normalize over one image (`InstanceNorm`), because a device trains on one at a time.
    """
    from gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn import FasterRCNN

    whole_number(size, "small_faster_rcnn: size", least=32)
    stride = 2 ** len(channels)
    return FasterRCNN(
        Pyramid(channels, first=len(channels) - 1, norm=nn.InstanceNorm),
        None,
        class_names(classes, "small_faster_rcnn: classes"),
        _chain(nn.Dense(2 * channels[-1], activation="relu")),
        short=size,
        max_size=size,
        roi_size=(6, 6),
        strides=stride,
        clip=4.0,
        rpn_channel=channels[-1],
        base_size=size,
        scales=(0.18, 0.3, 0.48),
        alloc_size=(max(32, size // stride),) * 2,
        rpn_train_pre_nms=128,
        rpn_train_post_nms=64,
        rpn_test_pre_nms=64,
        rpn_test_post_nms=32,
        rpn_min_size=4,
        num_sample=32,
    )


class SmallSegmentation(gluon.HybridBlock):  # type: ignore[misc]
    """A dilated net with a head of gluoncv, and an auxiliary head on a map before: scores of each pixel, twice."""

    def __init__(self, classes: Sequence[str], size: int, channels: Sequence[int], head: Any, **kwargs: Any) -> None:
        from gluoncv.model_zoo.fcn import _FCNHead

        super().__init__(**kwargs)
        self.classes, self._size = classes, size
        with self.name_scope():
            self.base, self.rest = nn.HybridSequential(), nn.HybridSequential()
            self.base.add(_stage(channels[0]), _stage(channels[1]))
            self.rest.add(_stage(channels[2], stride=1, dilation=2), _stage(channels[2], stride=1, dilation=4))
            self.head = head
            self.auxlayer = _FCNHead(channels[1], len(classes))

    def hybrid_forward(self, operators: Any, x: Any) -> Tuple[Any, Any]:
        before = self.base(x)
        outputs = (self.head(self.rest(before)), self.auxlayer(before))
        return tuple(operators.contrib.BilinearResize2D(one, height=self._size, width=self._size) for one in outputs)


@register_function
def small_fcn(classes: Union[int, Sequence[str]] = 21, size: int = 64, channels: Sequence[int] = (24, 48, 64)) -> Any:
    """A small dilated net with the head of gluoncv's `FCN`, for `loss="pixel_ce"`: 180,000 parameters.

    Args:
        classes: Number of classes, with the background, or their names.
        size: Side of the images, a multiple of 4.
        channels: Channels of the first two stages, and of the dilated ones.

    Returns:
        An uninitialized net from images (B, 3, size, size) to scores (B, classes, size, size) and those of its
        auxiliary head.
    """
    from gluoncv.model_zoo.fcn import _FCNHead

    names = class_names(classes, "small_fcn: classes")
    return SmallSegmentation(names, size, channels, _FCNHead(channels[2], len(names)))


@register_function
def small_deeplab(
    classes: Union[int, Sequence[str]] = 21, size: int = 64, channels: Sequence[int] = (24, 48, 64)
) -> Any:
    """A small dilated net with the head of gluoncv's `DeepLabV3`, for `loss="pixel_ce"`: 1,500,000 parameters.

    Args:
        classes: As for `small_fcn`.
        size: As for `small_fcn`.
        channels: As for `small_fcn`.

    Returns:
        As `small_fcn`.
    """
    from gluoncv.model_zoo.deeplabv3 import _ASPP

    names = class_names(classes, "small_deeplab: classes")
    pooled = _ASPP(channels[2], [2, 4, 6], nn.BatchNorm, {}, height=size // 4, width=size // 4)
    head = _chain(pooled, _layer(channels[2]), nn.Conv2D(len(names), 1))
    return SmallSegmentation(names, size, channels, head)


@register_function
def small_pose(points: int = 17, channels: Sequence[int] = (16, 32, 64, 96, 128)) -> Any:
    """gluoncv's `SimplePoseResNet` with small stages in place of its ResNet, for `loss="pose"`: 700,000 parameters.

    Args:
        points: Number of points.
        channels: Channels of the five stages; the three layers that double the map have as many as the third.

    Returns:
        An uninitialized net from images (B, 3, H, W), whose sides are multiples of 32, to heat maps
        (B, points, H / 4, W / 4).
    """
    from gluoncv.model_zoo.simple_pose.simple_pose_resnet import SimplePoseResNet

    net = SimplePoseResNet("resnet18_v1b", num_joints=points, num_deconv_filters=(channels[2],) * 3)
    with net.name_scope():
        stages = nn.HybridSequential()
        stages.add(*(_stage(one) for one in channels))
    net.resnet = stages
    return net
