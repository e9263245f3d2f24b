"""Losses of gluoncv's detectors, segmentation and pose nets: targets and sums equal gluoncv's."""

from gluoncv.loss import HeatmapFocalLoss, MaskedL1Loss, SSDMultiBoxLoss
from gluoncv.model_zoo.center_net.target_generator import CenterNetTargetGenerator
from gluoncv.model_zoo.simple_pose.pose_target import SimplePoseGaussianTargetGenerator
from gluoncv.model_zoo.ssd.target import SSDTargetGenerator
from gluoncv.model_zoo.yolo.yolo_target import YOLOV3PrefetchTargetGenerator
import mxkit
from mxkit.errors import DataError, LabelError, LossShapeError
from mxkit.losses.net_losses import CenterNetLoss, PixelLoss, PoseLoss, SSDLoss, YOLO3Loss
import mxnet as mx
from mxnet import autograd
import numpy as np
from oracle import drawn_boxes
import pytest

SIDE, CLASSES = 64, 3


def small(name, **arguments):
    mx.random.seed(3)
    net = mxkit.models.get_model(f"small_{name}", size=SIDE, channels=(4, 6, 8), **arguments)
    net.initialize(mx.init.Xavier())
    return net


IMAGES = np.random.default_rng(1).uniform(size=(4, 3, SIDE, SIDE)).astype(np.float32)
TABLE = drawn_boxes([0, 1, 2, 3], 2)


def test_ssd_equals_gluoncv_where_that_is_finite():
    """T266: of an image without an object gluoncv's targets are infinite, and its loss is NaN."""
    net, loss = small("ssd", classes=CLASSES), SSDLoss()
    x, table = mx.nd.array(IMAGES[1:]), mx.nd.array(TABLE[1:])
    with autograd.record():
        own = loss.forward(net, (x,), (table,))
        scores, offsets, anchors = net(x)
        classes, targets, _ = SSDTargetGenerator(negative_mining_ratio=-1)(
            anchors, None, table[:, :, :4], table[:, :, 4:5]
        )
        theirs, _, _ = SSDMultiBoxLoss()([scores], [offsets], [classes], [targets])
    positive = (classes > 0).sum().asscalar()
    np.testing.assert_allclose(own.sum().asscalar(), theirs[0].sum().asscalar() * positive, rtol=1e-5)
    own_classes, own_targets = loss.targets(anchors, mx.nd.array(TABLE[:1]))
    assert own_classes.sum().asscalar() == 0
    assert np.isfinite(own_targets.asnumpy()).all()
    assert loss.count((x,), (table,)) == (TABLE[1:, :, 4] >= 0).sum()
    with autograd.record():
        alone = loss.forward(net, (mx.nd.array(IMAGES),), (mx.nd.array(TABLE),))
    assert np.isfinite(alone.asnumpy()).all()


def test_yolo3_targets_equal_gluoncv():
    net, table = small("yolo3", classes=CLASSES), TABLE.copy()
    table[3, 1] = table[3, 0]  # two objects at one place: the later one wins
    table[3, 1, 4] = (table[3, 0, 4] + 1) % CLASSES
    x, marks = mx.nd.array(IMAGES), mx.nd.array(table)
    with autograd.train_mode():
        _, anchors, offsets, maps, *_ = net(x)
    theirs = YOLOV3PrefetchTargetGenerator(CLASSES)(x, maps, anchors, offsets, marks[:, :, :4], marks[:, :, 4:5])
    own = YOLO3Loss().targets(net, (SIDE, SIDE), marks)
    for ours, wanted in zip(own, theirs):
        np.testing.assert_allclose(ours.asnumpy(), wanted.asnumpy(), atol=1e-6)
    with autograd.record():
        losses = YOLO3Loss().forward(net, (x,), (marks,))
        each = mx.nd.add_n(*net(x, marks[:, :, :4], *theirs))
    assert losses.shape == (4,)
    np.testing.assert_allclose(losses.asnumpy(), each.asnumpy(), rtol=1e-5)


def test_centernet_equals_gluoncv():
    net, loss = small("centernet", classes=CLASSES), CenterNetLoss()
    x, marks = mx.nd.array(IMAGES), mx.nd.array(TABLE)
    with autograd.record():
        own = loss.forward(net, (x,), (marks,))
        heat, sizes, offsets = net(x)
    generator = CenterNetTargetGenerator(CLASSES, SIDE // 4, SIDE // 4)
    total = 0.0
    for number, table in enumerate(TABLE):
        known = table[table[:, 4] >= 0]
        target, size, size_mask, offset, offset_mask = (
            one.expand_dims(0) for one in generator(known[:, :4] / 4, known[:, 4:5])
        )
        one, count = slice(number, number + 1), max(1, len(known))
        focal = HeatmapFocalLoss(from_logits=True)(heat[one], target) * count
        distance = MaskedL1Loss(weight=0.1)(sizes[one], size, size_mask) * count
        distance = distance + MaskedL1Loss(weight=1.0)(offsets[one], offset, offset_mask) * count
        np.testing.assert_allclose(own[number].asscalar(), (focal + distance).asscalar(), rtol=1e-4)
        total += count if len(known) else 0
    assert loss.count((x,), (marks,)) == total


def test_pose_targets_equal_gluoncv():
    rng, points = np.random.default_rng(0), np.zeros((4, 5, 3), np.float32)
    points[:, :, :2], points[:, :, 2] = rng.uniform(-0.4, SIDE - 0.6, (4, 5, 2)), rng.integers(0, 2, (4, 5))
    target, known = PoseLoss(sigma=2).targets((4, 5, 16, 16), IMAGES.shape, mx.nd.array(points))
    generator = SimplePoseGaussianTargetGenerator(5, (SIDE, SIDE), (16, 16), sigma=2)
    for number, own in enumerate(points):
        joints = np.zeros((5, 3, 2), np.float32)
        joints[:, :2, 0], joints[:, :2, 1] = own[:, :2], own[:, 2:]
        wanted, weight = generator(joints)
        np.testing.assert_array_equal(known[number].asnumpy(), weight.ravel())
        mask = weight.reshape((-1, 1, 1))
        np.testing.assert_allclose(target[number].asnumpy() * mask, wanted, atol=1e-6)


def test_pixel_ce_equals_numpy_with_ignored_pixels_and_an_auxiliary_output():
    """T267: the weight of the auxiliary output counts in the gradient."""
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(2, 4, 6, 5)).astype(np.float32) for _ in range(2))
    labels = rng.integers(-1, 4, (2, 6, 5)).astype(np.int32)

    def entropy(scores):
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        picked = np.take_along_axis(shares, labels.clip(0)[:, None], axis=1)[:, 0]
        return -(np.log(picked) * (labels >= 0)).sum(axis=(1, 2))

    outputs = [mx.nd.array(one) for one in (first, second)]
    for one in outputs:
        one.attach_grad()
    gradients = []
    for weight in (0.5, 0.25):
        with autograd.record():
            losses, output = PixelLoss(aux_weight=weight).forward(
                lambda _: tuple(outputs), (0,), (mx.nd.array(labels),)
            )
        losses.backward()
        gradients.append(outputs[1].grad.asnumpy())
        np.testing.assert_allclose(losses.asnumpy(), entropy(first) + weight * entropy(second), rtol=1e-5)
    assert output is outputs[0]
    np.testing.assert_allclose(gradients[0], 2 * gradients[1], rtol=1e-5)
    assert PixelLoss().count((), (labels,)) == (labels >= 0).sum()


@pytest.mark.parametrize("name", ["ssd", "yolo3", "centernet"])
def test_a_class_that_the_net_lacks_is_refused(name):
    net, table = small(name, classes=2), mx.nd.array(np.where(TABLE >= 0, TABLE, -1))
    assert TABLE[:, :, 4].max() == 2
    with pytest.raises(LabelError, match="class 2, but the net has 2 classes"), autograd.record():
        mxkit.losses.get_loss(name).forward(net, (mx.nd.array(IMAGES),), (table,))


def test_a_later_batch_is_looked_at_too():
    loss = PixelLoss()
    loss.forward(lambda x: x, (mx.nd.zeros((1, 3, 4, 4)),), (mx.nd.zeros((1, 4, 4)),))
    with pytest.raises(LabelError, match="class 3, but the net has 3 classes"):
        loss.count((), (np.full((1, 4, 4), 3),))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_pixels_that_do_not_count_are_those_of_the_argument_ignored(dtype):
    labels = np.random.default_rng(0).integers(0, 3, (2, 4, 4))
    labels[:, :2] = 255
    scores, plain = mx.nd.random.normal(shape=(2, 3, 4, 4)), PixelLoss()
    loss, given = PixelLoss(ignored=255), mx.nd.array(labels.astype(dtype), dtype=dtype)
    expected, _ = plain.forward(lambda x: x, (scores,), (mx.nd.array(np.where(labels == 255, -1, labels)),))
    np.testing.assert_array_equal(loss.forward(lambda x: x, (scores,), (given,))[0].asnumpy(), expected.asnumpy())
    assert loss.count((), (given,)) == (labels != 255).sum()
    with pytest.raises(LabelError, match="class 255, but"):
        PixelLoss().forward(lambda x: x, (scores,), (given,))
    with pytest.raises(LabelError, match="label -1, which is no class.* give -1"):
        loss.count((), (-np.ones((2, 4, 4)),))
    with pytest.raises(LabelError, match="label -7, which is no class; pixels of -1"):
        plain.count((), (np.where(labels == 255, -7, labels),))


def outputs(*shapes):
    """A net that gives such outputs."""
    arrays = tuple(map(mx.nd.zeros, shapes))
    return lambda x: arrays if len(arrays) > 1 else arrays[0]


IMAGE, BOXES, PIXELS = (4, 3, SIDE, SIDE), TABLE.shape, (1, 3, 4, 4)
REFUSED = [
    (PoseLoss(), outputs((1, 5, 24, 24)), ((1, 3, 96, 72), (1, 5, 3)), DataError, "multiples of 32"),
    (PoseLoss(), outputs((1, 5, 4, 4)), (IMAGE, (1, 4, 3)), LossShapeError, r"points \(B, 5, 3\)"),
    (YOLO3Loss(), small("yolo3"), ((1, 3, 60, 64), BOXES), DataError, "multiples of the net's strides"),
    (YOLO3Loss(), small("ssd"), (IMAGE, BOXES), DataError, "gluoncv.s YOLOV3"),
    (SSDLoss(), outputs(PIXELS, PIXELS), (IMAGE, (2, 3, 5)), DataError, r"boxes \(B, M, 6\)"),
    (SSDLoss(), outputs(PIXELS, PIXELS), (IMAGE, BOXES), DataError, "mxkit.nets.hybridize"),
    (PixelLoss(), outputs(PIXELS), (PIXELS, (1, 2)), LossShapeError, r"labels \(B, H, W\)"),
    (PixelLoss(aux_weight=[1.0, 2.0]), outputs(PIXELS, PIXELS), (PIXELS, (1, 4, 4)), DataError, "1 auxiliary outputs"),
]


@pytest.mark.parametrize(("loss", "net", "shapes", "error", "words"), REFUSED)
def test_refuses(loss, net, shapes, error, words):
    inputs, labels = (mx.nd.zeros(shape) for shape in shapes)
    with pytest.raises(error, match=words):
        loss.forward(net, (inputs,), (labels,))
