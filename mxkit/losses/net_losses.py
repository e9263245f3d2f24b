"""Losses that call the net themselves: detectors, segmentation nets and pose nets of gluoncv, with exact sums.

gluoncv's scripts divide a batch's losses by what that batch holds, positive anchors or labelled pixels, so accumulated
batches are no big batch. Here each image has the sum of its losses, and the divisor is the count of all images of an
update: of objects, of labelled pixels, or of images. Targets are made on the device, so the loader needs no net.

Labels of detectors are boxes (B, M, 6), as `mxkit.data.AnnotatedImages` gives them.
"""

from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from mxkit.core.arrays import to_host
from mxkit.errors import DataError, LabelError, LossShapeError
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

Arrays = Tuple[Any, ...]
_WAY = "A net that is hybridized whole keeps the outputs of its first mode (T39): use mxkit.nets.hybridize(net)"


class NetLoss:
    """A loss that calls the net itself.

    Attributes:
        only_in_training: Whether the net gives what the loss needs in training alone; validation then has no loss.
        moves: What labels are: "boxes", "mask" or "points".
        counts_images: Whether the divisor is the number of images; else it is what `count` returns.
    """

    only_in_training = True
    counts_images = False
    moves = "boxes"
    _classes = 0

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Any:
        """Return the sum of each image's losses, shape (B,), or `(losses, output)`."""
        raise NotImplementedError

    def count(self, inputs: Arrays, labels: Arrays) -> float:
        """Return what a batch adds to the divisor: its objects."""
        numbers = to_host(self.boxes(labels))[:, :, 4]
        self._refuse_beyond(numbers)
        return float((numbers >= 0).sum())

    def check_classes(self, classes: int, numbers: Any) -> None:
        """Refuse a class number that the net lacks. Only the first batch waits for it; `count` looks at each.

        Raises:
            LabelError: There is one.
        """
        if self._classes != classes:
            self._classes = classes
            self._refuse_beyond(to_host(numbers))

    def _refuse_beyond(self, numbers: "np.ndarray") -> None:
        most = int(numbers.max()) if numbers.size else -1
        if most >= self._classes > 0:
            raise LabelError(
                f"{type(self).__name__}: a label is class {most}, but the net has {self._classes} classes, 0 to "
                f"{self._classes - 1}: make it with classes={most + 1} or more"
            )

    def boxes(self, labels: Arrays) -> Any:
        """The boxes of a batch.

        Raises:
            DataError: The batch's last label is no table of boxes.
        """
        if not labels or len(labels[-1].shape) != 3 or labels[-1].shape[2] != 6:
            shapes = [tuple(one.shape) for one in labels]
            raise DataError(
                f"{type(self).__name__}: expected boxes (B, M, 6): left, top, right, bottom, class, difficult, as "
                f"mxkit.data.AnnotatedImages gives them; received labels of {shapes}"
            )
        return labels[-1]

    def __repr__(self) -> str:
        settings = ", ".join(f"{name.strip('_')}={value!r}" for name, value in vars(self).items() if name[0] != "_")
        return f"{type(self).__name__}({settings})"


class SSDLoss(NetLoss):
    """Loss of gluoncv's `SSD`: Liu et al. 2016, arXiv:1512.02325, with targets by gluoncv's `SSDTargetGenerator`.

    The divisor is the number of objects. gluoncv's is that of anchors that an object is assigned to, some 3 to 10 for
    each, which only the net knows: divide the learning rate of its script by as much.

    Args:
        negatives: Background anchors for each one with an object, those with the largest losses.
        iou: An anchor is assigned to an object if their intersection is at least this share of their union.
        box_weight: Weight of the distance of boxes.
    """

    def __init__(self, negatives: float = 3.0, iou: float = 0.5, box_weight: float = 1.0) -> None:
        self.negatives, self.iou, self.box_weight = negatives, iou, box_weight
        self._targets: Any = None

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Any:
        boxes = self.boxes(labels)
        scores, offsets, anchors = _outputs(net(*inputs), 3, "SSD")
        if anchors.shape[:2] != (1, scores.shape[1]):
            raise DataError(f"the net gives detections in training. {_WAY}")
        self.check_classes(scores.shape[2] - 1, boxes[:, :, 4])
        with autograd.pause():
            classes, targets = self.targets(anchors.astype(boxes.dtype, copy=False), boxes)
            targets, objects = targets.astype(scores.dtype, copy=False), classes > 0
            positive = objects.astype(scores.dtype, copy=False)
        nd = mx.nd
        entropy = -nd.pick(nd.log_softmax(scores), classes)
        rank = (entropy * (positive - 1)).argsort(axis=1).argsort(axis=1)
        hard = rank < (objects.sum(axis=1) * self.negatives).expand_dims(-1)
        entropy = nd.where(objects + hard > 0, entropy, nd.zeros_like(entropy))
        distance = nd.smooth_l1(offsets - targets, scalar=1.0) * positive.expand_dims(-1)
        return entropy.sum(axis=1) + self.box_weight * distance.sum(axis=(1, 2))

    def targets(self, anchors: Any, boxes: Any) -> Tuple[Any, Any]:
        """Class of each anchor, (B, N) with 0 for the background, and offsets of its box, (B, N, 4)."""
        if self._targets is None:
            from gluoncv.model_zoo.ssd.target import SSDTargetGenerator

            self._targets = SSDTargetGenerator(iou_thresh=self.iou, negative_mining_ratio=-1)
        classes, offsets, _ = self._targets(anchors, None, boxes[:, :, :4], boxes[:, :, 4:5])
        # of an image without objects gluoncv's offsets are infinite, and 0 times infinity is NaN (T266)
        positive = (classes > 0).expand_dims(-1).broadcast_like(offsets)
        return classes, mx.nd.where(positive, offsets, mx.nd.zeros_like(offsets))


class YOLO3Loss(NetLoss):
    """Loss of gluoncv's `YOLOV3`: Redmon and Farhadi 2018, arXiv:1804.02767. The divisor is the number of images."""

    counts_images = True

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Any:
        boxes, size = self.boxes(labels), inputs[0].shape[2:]
        if not hasattr(net, "yolo_outputs"):
            raise DataError(f"yolo3: expected gluoncv's YOLOV3; received a {type(net).__name__}")
        if any(side % layer._stride for side in size for layer in net.yolo_outputs):
            raise DataError(f"yolo3: expected sides that are multiples of the net's strides; received {size}")
        self.check_classes(len(net.classes), boxes[:, :, 4])
        with autograd.pause():
            targets = self.targets(net, size, boxes)
        if not autograd.is_recording():
            raise DataError("yolo3: the net gives its losses only while gradients are recorded; validate by metrics")
        given = (one.astype(inputs[0].dtype, copy=False) for one in (boxes[:, :, :4], *targets))
        return mx.nd.add_n(*_outputs(net(*inputs, *given), 4, "YOLOV3"))

    def targets(self, net: Any, size: Tuple[int, int], boxes: Any) -> Tuple[Any, ...]:
        """What gluoncv's `YOLOV3PrefetchTargetGenerator` gives, without a wait for the device.

        Returns:
            Objectness (B, N, 1); centres, logarithms of sizes, and weights, (B, N, 2); classes (B, N, C), -1 for none.
        """
        nd, layers = mx.nd, list(net.yolo_outputs)
        anchors = [layer.anchors.data(boxes.ctx).reshape((-1, 2)).astype(boxes.dtype, copy=False) for layer in layers]
        maps = [(size[0] // layer._stride, size[1] // layer._stride) for layer in layers]
        counts = [len(one) for one in anchors]
        begins = np.cumsum([0] + [rows * columns * count for (rows, columns), count in zip(maps, counts)])
        layout = zip(begins, counts, maps)
        table = [(begin, count, place, *cells) for begin, count, cells in layout for place in range(count)]
        everything = nd.concat(*anchors, dim=0)
        left, top, right, bottom, number = (boxes[:, :, column] for column in range(5))
        width, height = right - left, bottom - top
        common = nd.broadcast_minimum(width.expand_dims(-1), everything[:, 0].reshape((1, 1, -1)))
        common = common * nd.broadcast_minimum(height.expand_dims(-1), everything[:, 1].reshape((1, 1, -1)))
        union = nd.broadcast_add((width * height).expand_dims(-1), everything.prod(axis=1).reshape((1, 1, -1))) - common
        best = (common / union).argmax(axis=-1)
        begin, count, place, rows, columns = (
            nd.take(nd.array(column, ctx=boxes.ctx), best) for column in np.array(table, np.float32).T
        )
        x, y = (left + right) / 2 / size[1] * columns, (top + bottom) / 2 / size[0] * rows
        index = begin + (y.floor() * columns + x.floor()) * count + place
        anchor = nd.take(everything, best)
        values = nd.stack(
            nd.ones_like(x),
            x - x.floor(),
            y - y.floor(),
            nd.log(nd.maximum(width, 1) / anchor[:, :, 0]),
            nd.log(nd.maximum(height, 1) / anchor[:, :, 1]),
            2 - width * height / size[0] / size[1],
            axis=-1,
        )
        values = nd.concat(values, nd.one_hot(number, len(net.classes)), dim=-1)
        # of two objects at one place the later one wins, as in gluoncv
        hot = nd.one_hot(index, int(begins[-1])) * (number >= 0).expand_dims(-1)
        ranked = nd.broadcast_mul(hot, nd.arange(1, hot.shape[1] + 1, ctx=boxes.ctx).reshape((1, -1, 1)))
        hot = hot * nd.broadcast_equal(ranked, ranked.max(axis=1, keepdims=True))
        found = nd.batch_dot(hot, values, transpose_a=True)
        objectness, weight = found[:, :, :1], found[:, :, 5:6].tile((1, 1, 2))
        return objectness, found[:, :, 1:3], found[:, :, 3:5], weight, found[:, :, 6:] + (objectness - 1)


class CenterNetLoss(NetLoss):
    """Loss of gluoncv's `CenterNet`: Zhou et al. 2019, arXiv:1904.07850. The divisor is the number of objects.

    Args:
        size_weight: Weight of the distance of widths and heights.
        offset_weight: Weight of the distance of centres within their cell.
    """

    def __init__(self, size_weight: float = 0.1, offset_weight: float = 1.0) -> None:
        self.size_weight, self.offset_weight = size_weight, offset_weight

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Any:
        boxes, nd = self.boxes(labels), mx.nd
        heat, sizes, offsets = _outputs(net(*inputs), 3, "CenterNet")
        self.check_classes(heat.shape[1], boxes[:, :, 4])
        with autograd.pause():
            target, cells, *others = self.targets(heat.shape, boxes, net.scale)
            target, size, offset, valid = (one.astype(heat.dtype, copy=False) for one in (target, *others))
        found = nd.log(heat) * (1 - heat) ** 2 * (target == 1)
        empty = nd.log(1 - heat) * heat**2 * (1 - target) ** 4 * (target < 1)
        losses = -(found + empty).sum(axis=(1, 2, 3))
        for output, wanted, weight in ((sizes, size, self.size_weight), (offsets, offset, self.offset_weight)):
            picked = nd.gather_nd(output.transpose((0, 2, 3, 1)), cells)
            losses = losses + weight / 2 * ((picked - wanted).abs() * valid.expand_dims(-1)).sum(axis=(1, 2))
        return losses

    def targets(self, shape: Sequence[int], boxes: Any, scale: float) -> Tuple[Any, ...]:
        """Targets of gluoncv's `CenterNetTargetGenerator`.

        Args:
            shape: Shape (B, C, H, W) of the heat map.
            boxes: Boxes (B, M, 6).
            scale: Pixels of the image for one cell of the map.

        Returns:
            The heat map; cells of the objects (3, B, M), for `gather_nd`; their sizes and their offsets in the cell,
            (B, M, 2), in cells; and 1 for each object, 0 for a missing one, (B, M).
        """
        nd, (batch, classes, rows, columns) = mx.nd, shape
        valid = boxes[:, :, 4] >= 0
        corners = nd.where(boxes[:, :, :4] >= 0, boxes[:, :, :4], nd.zeros_like(boxes[:, :, :4])) / scale
        size = corners[:, :, 2:] - corners[:, :, :2]
        centre = (corners[:, :, 2:] + corners[:, :, :2]) / 2
        x = nd.minimum(centre[:, :, 0].floor(), columns - 1)
        y = nd.minimum(centre[:, :, 1].floor(), rows - 1)
        radius = _radius(size[:, :, 1].ceil(), size[:, :, 0].ceil()).floor().expand_dims(-1)
        across = nd.broadcast_sub(nd.arange(columns, ctx=boxes.ctx).reshape((1, 1, -1)), x.expand_dims(-1))
        down = nd.broadcast_sub(nd.arange(rows, ctx=boxes.ctx).reshape((1, 1, -1)), y.expand_dims(-1))
        sigma = (2 * radius + 1) / 6
        bells = [
            nd.exp(nd.broadcast_div(-(one**2), 2 * sigma**2)) * nd.broadcast_lesser_equal(one.abs(), radius)
            for one in (across, down)
        ]
        heat = nd.zeros((batch, classes, rows, columns), ctx=boxes.ctx)
        hot = nd.one_hot(boxes[:, :, 4], classes) * valid.expand_dims(-1)
        for number in range(boxes.shape[1]):
            bell = nd.batch_dot(bells[1][:, number].expand_dims(-1), bells[0][:, number].expand_dims(1))
            heat = nd.maximum(heat, nd.broadcast_mul(hot[:, number].reshape((0, 0, 1, 1)), bell.expand_dims(1)))
        image = nd.broadcast_like(nd.arange(batch, ctx=boxes.ctx).reshape((-1, 1)), x)
        return heat, nd.stack(image, y, x, axis=0), size, centre - nd.stack(x, y, axis=-1), valid


def _radius(height: Any, width: Any, overlap: float = 0.7) -> Any:
    """Cells by which a centre may move while the boxes keep this overlap: gluoncv's `_gaussian_radius`."""
    total, area = height + width, height * width
    radii = [
        (total + mx.nd.sqrt(total**2 - 4 * area * (1 - overlap) / (1 + overlap))) / 2,
        (2 * total + mx.nd.sqrt(4 * total**2 - 16 * (1 - overlap) * area)) / 2,
        (-2 * overlap * total + mx.nd.sqrt(4 * (overlap * total) ** 2 - 16 * overlap * (overlap - 1) * area)) / 2,
    ]
    return mx.nd.minimum(mx.nd.minimum(radii[0], radii[1]), radii[2])


class FasterRCNNLoss(NetLoss):
    """Loss of gluoncv's `FasterRCNN`, also with a feature pyramid: Ren et al. 2015, arXiv:1506.01497.

    An image's loss is that of gluoncv's script: the entropy of the anchors drawn from it and the distance of their
    boxes, both divided by the number of these anchors; and the same of the regions drawn. The divisor of an update is
    its number of images, so batches of one image accumulate exactly. A device gets one image, as in gluoncv.

    gluoncv's generators draw anchors and regions with NumPy's and MXNet's generators. `fit` seeds NumPy's as a function
    of seed, epoch and update, and the loss seeds MXNet's from it for each image (1 ms), so that the draws do not depend
    on the device.

    Args:
        samples: Anchors drawn from an image: half of them with an object at most, the others background.
    """

    counts_images = True

    def __init__(self, samples: int = 256) -> None:
        self.samples = samples
        self._generator: Any = None
        self._net: Any = None
        self._anchors: Dict[Tuple[int, ...], Any] = {}
        self._entropy, self._distance = gluon.loss.SigmoidBCELoss(), gluon.loss.HuberLoss(rho=1 / 9)
        self._region_entropy, self._region_distance = gluon.loss.SoftmaxCELoss(), gluon.loss.HuberLoss()

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Any:
        x = inputs[0]
        boxes = self.boxes(labels).astype(x.dtype, copy=False)
        if not hasattr(net, "rpn"):
            raise DataError(f"faster_rcnn: expected gluoncv's FasterRCNN; received a {type(net).__name__}")
        images = net.sampler._num_image
        if x.shape[0] != images:
            raise DataError(
                f"faster_rcnn: the net trains on {images} image(s) a device, its per_device_batch_size; "
                f"received {x.shape[0]}: set batch_size to the number of devices, and accumulate for larger updates"
            )
        if not autograd.is_training():
            raise DataError("faster_rcnn: the net gives what the loss needs in training only; validate by metrics")
        table = to_host(boxes)
        self._classes = net.num_class
        self._refuse_beyond(table[:, :, 4])
        _place_target_generator(net, x.context)
        mx.random.seed(int(np.random.randint(2**31)), ctx=x.context)
        outputs = _outputs(net(x, boxes[:, :, :4], boxes[:, :, 4:5]), 12, "FasterRCNN")
        scores, offsets, _, _, _, anchor_scores, anchor_offsets, anchors, classes, targets, masks, _ = outputs
        with autograd.pause():
            made = self.targets(net, x.shape[2:], anchors, table, x.context)
            anchor_classes, *anchor_targets = (one.astype(x.dtype, copy=False) for one in made)
        drawn, regions = anchor_classes >= 0, classes >= 0
        losses = (
            (self._entropy, drawn, anchor_scores.squeeze(axis=-1), anchor_classes, drawn),
            (self._distance, drawn, anchor_offsets, *anchor_targets),
            (self._region_entropy, regions, scores, classes, regions.expand_dims(-1)),
            (self._region_distance, regions, offsets, targets, masks),
        )
        # Gluon's losses are means over each image
        sums = (
            loss(output, target, weight) * (target.size / len(x)) / mx.nd.maximum(counted.sum(axis=1), 1)
            for loss, counted, output, target, weight in losses
        )
        return mx.nd.add_n(*sums)

    def targets(self, net: Any, size: Tuple[int, int], anchors: Any, table: "np.ndarray", device: Any) -> Any:
        """Targets of gluoncv's `RPNTargetGenerator`: class of each anchor (B, N), and offsets and weights (B, N, 4)."""
        if self._net is not net:
            self._net, self._anchors = net, {}
        if size not in self._anchors:  # waits for the net, once a size
            found = anchors if isinstance(anchors, (list, tuple)) else [anchors]
            self._anchors[size] = _checked_anchors(np.concatenate([one.asnumpy()[0] for one in found]), *size)
        if self._generator is None:
            from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator

            self._generator = RPNTargetGenerator(num_sample=self.samples)
        # a missing row would make objects of the anchors that gluoncv ignores; of no row at all it takes no targets
        known = [own[own[:, 4] >= 0, :4] if (own[:, 4] >= 0).any() else np.full((1, 4), -1.0) for own in table]
        with np.errstate(divide="ignore"):  # the logarithm of a side of -1, which no anchor has as its target
            rows = [self._generator(mx.nd.array(own), self._anchors[size], *size[::-1]) for own in known]
        return [mx.nd.array(np.stack(column), ctx=device) for column in zip(*rows)]


def _checked_anchors(anchors: "np.ndarray", height: int, width: int) -> Any:
    inside = (anchors[:, :2] >= 0).all(axis=1) & (anchors[:, 2] < width) & (anchors[:, 3] < height)
    if not inside.any():  # gluoncv would take all of them for objects
        smallest = np.ceil((anchors[:, 2:] - anchors[:, :2] + 1).min(axis=0))
        raise DataError(
            f"faster_rcnn: no anchor lies within an image of {width} x {height}, the smallest sides are "
            f"{smallest[0]:.0f} x {smallest[1]:.0f}: take larger images, or a net with smaller scales"
        )
    return mx.nd.array(anchors)


def _place_target_generator(net: Any, device: Any) -> None:
    """Make a net's target generator, and put its two constants on a device.

    gluoncv makes it in the first forward pass of training, on the first CPU, and then it is a child: the net has other
    parameters than before (T270).
    """
    generator = net._target_generator
    if callable(generator) and not isinstance(generator, gluon.Block):
        generator = generator()
        generator.initialize(ctx=device)
        object.__setattr__(net, "_target_generator", generator)
    constants = generator.collect_params()
    if device not in constants.list_ctx():
        constants.reset_ctx([*constants.list_ctx(), device])


# Weights of a net's further outputs in gluoncv's scripts: train.py of segmentation, and ICNetLoss.
_AUX_WEIGHTS: Dict[str, Sequence[float]] = {"ICNet": (0.4, 0.4, 1.0)}


class PixelLoss(NetLoss):
    """Loss of nets of masks: softmax cross-entropy of each pixel, of the net's output and of its auxiliary outputs.

    gluoncv's `MixSoftmaxCrossEntropyLoss` and `ICNetLoss` compute gradients by `SoftmaxOutput`, which ignores the
    weight of an auxiliary output (T267), and divide by the labelled pixels of each batch. Here the weight counts, and
    the divisor is the number of labelled pixels of the update.

    Labels are class numbers (B, H, W); outputs (B, classes, H, W), which are resized to the labels if they are smaller.

    Args:
        aux_weight: Weight of each further output; None takes that of gluoncv's script: 0.5, for ICNet 0.4, 0.4 and 1.
        ignored: Class number of pixels that do not count; mxkit's data sets of masks and its metrics have -1 there.
    """

    only_in_training, moves = False, "mask"

    def __init__(self, aux_weight: Union[None, float, Sequence[float]] = None, ignored: int = -1) -> None:
        self.aux_weight, self.ignored = aux_weight, ignored

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Tuple[Any, Any]:
        outputs = net(*inputs)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        weights = self.weights(net, len(outputs) - 1)
        self.check_classes(outputs[0].shape[1], labels[0])
        numbers = labels[0].astype("float32", copy=False)  # -1 is 255 in uint8
        shares = numbers != self.ignored
        numbers = mx.nd.where(shares, numbers, mx.nd.zeros_like(numbers))
        total = self._entropy(outputs[0], numbers, shares)
        for output, weight in zip(outputs[1:], weights):
            total = total + weight * self._entropy(output, numbers, shares)
        return total, outputs[0]

    def weights(self, net: Any, outputs: int) -> Sequence[float]:
        """The weights of a net's further outputs.

        Raises:
            DataError: Their number is another one.
        """
        given: Any = _AUX_WEIGHTS.get(type(net).__name__, 0.5) if self.aux_weight is None else self.aux_weight
        weights = given if isinstance(given, (list, tuple)) else [given] * outputs
        if len(weights) != outputs:
            raise DataError(f"pixel_ce: {outputs} auxiliary outputs; received aux_weight {given!r}")
        return weights

    def _entropy(self, output: Any, numbers: Any, shares: Any) -> Any:
        if len(numbers.shape) != 3 or len(output.shape) != 4:
            raise LossShapeError(
                f"pixel_ce: expected outputs (B, classes, H, W) and labels (B, H, W); received {tuple(output.shape)} "
                f"and {tuple(numbers.shape)}"
            )
        if output.shape[2:] != numbers.shape[1:]:
            output = mx.nd.contrib.BilinearResize2D(output, height=numbers.shape[1], width=numbers.shape[2])
        # log_softmax over axis 1 of 21 classes takes four times as long as over the last one
        logs = mx.nd.log_softmax(output.transpose((0, 2, 3, 1)), axis=-1)
        picked = mx.nd.pick(logs, numbers, axis=-1)
        return -(picked * shares.astype(picked.dtype, copy=False)).sum(axis=(1, 2))

    def count(self, inputs: Arrays, labels: Arrays) -> float:
        numbers = to_host(labels[0])
        self._refuse_beyond(numbers)
        return float((numbers != self.ignored).sum())

    def _refuse_beyond(self, numbers: "np.ndarray") -> None:
        labelled = numbers[numbers != self.ignored]
        if labelled.size and labelled.min() < 0:
            way = "" if self.ignored == -1 else ". mxkit's data sets give -1 to pixels that do not count: leave it out"
            raise LabelError(
                f"pixel_ce: a pixel has the label {labelled.min():g}, which is no class; pixels of {self.ignored}, its "
                f"argument ignored, do not count{way}"
            )
        super()._refuse_beyond(labelled)


class PoseLoss(NetLoss):
    """Loss of gluoncv's `SimplePoseResNet`: half the squared distance to heat maps with a bell at each point.

    Xiao et al. 2018, arXiv:1804.06208. Labels are points (B, K, 3): x, y in pixels of the image, and 1 if the point is
    known; outputs (B, K, H, W). The divisor is the number of images.

    Args:
        sigma: Standard deviation of the bells in cells of the heat map; None is 2 cells for 64 rows, in proportion.
    """

    only_in_training, counts_images, moves = False, True, "points"

    def __init__(self, sigma: Optional[float] = None) -> None:
        self.sigma = sigma

    def forward(self, net: Any, inputs: Arrays, labels: Arrays) -> Tuple[Any, Any]:
        output, points = net(*inputs), labels[0]
        if len(points.shape) != 3 or points.shape[1:] != (output.shape[1], 3):
            raise LossShapeError(
                f"pose: expected points (B, {output.shape[1]}, 3) for outputs {tuple(output.shape)}; received "
                f"{tuple(points.shape)}"
            )
        if output.shape[2] * inputs[0].shape[3] != output.shape[3] * inputs[0].shape[2]:
            raise DataError(
                f"pose: a map of {tuple(output.shape[2:])} cells has another ratio than the image, "
                f"{tuple(inputs[0].shape[2:])}: take sides that are multiples of 32"
            )
        with autograd.pause():
            target, known = (one.astype(output.dtype) for one in self.targets(output.shape, inputs[0].shape, points))
        losses = mx.nd.broadcast_mul((output - target) ** 2, known.reshape((0, 0, 1, 1)))
        return losses.mean(axis=(1, 2, 3)) / 2, output

    def spread(self, rows: int) -> float:
        """`sigma` for a heat map of this height."""
        return max(1.0, 2.0 * rows / 64) if self.sigma is None else self.sigma

    def targets(self, shape: Sequence[int], image: Sequence[int], points: Any) -> Tuple[Any, Any]:
        """Heat maps of gluoncv's `SimplePoseGaussianTargetGenerator`, and 1 for each point that is known."""
        nd, (_, _, rows, columns) = mx.nd, shape
        sigma = self.spread(rows)
        known = points[:, :, 2] > 0
        bells = []
        for place, cells, pixels in ((points[:, :, 0], columns, image[3]), (points[:, :, 1], rows, image[2])):
            centre = (place * (cells / pixels) + 0.5).floor()
            away = nd.broadcast_sub(nd.arange(cells, ctx=points.ctx).reshape((1, 1, -1)), centre.expand_dims(-1))
            bells.append(nd.exp(-(away**2) / (2 * sigma**2)) * (away.abs() <= 3 * sigma))
        return nd.broadcast_mul(bells[1].expand_dims(-1), bells[0].expand_dims(2)), known


# By the names that `loss=` takes, beside those of `mxkit.losses.named_losses.LOSSES`.
NET_LOSSES: Dict[str, Callable[..., NetLoss]] = {
    "centernet": CenterNetLoss,
    "faster_rcnn": FasterRCNNLoss,
    "pixel_ce": PixelLoss,
    "pose": PoseLoss,
    "ssd": SSDLoss,
    "yolo3": YOLO3Loss,
}


def _outputs(outputs: Any, expected: int, name: str) -> Sequence[Any]:
    if not isinstance(outputs, (list, tuple)) or len(outputs) != expected:
        shapes = [tuple(one.shape) for one in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]
        raise DataError(f"expected {expected} outputs of gluoncv's {name} in training; received {shapes}. {_WAY}")
    return outputs
