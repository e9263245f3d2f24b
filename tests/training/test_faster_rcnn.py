"""Training of gluoncv's Faster R-CNN equals the loop of gluoncv's script; images accumulate exactly, a run resumes."""

from built_nets import ready
from callback_runs import check_killed_runs, largest_difference, values
from gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn import FasterRCNN
from gluoncv.model_zoo.rcnn.rpn.rpn_target import RPNTargetGenerator
import mxkit
from mxkit.errors import DataError, LabelError
from mxkit.losses import BatchLoss
from mxkit.losses.net_losses import FasterRCNNLoss
from mxkit.models.detectors import Pyramid
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import drawn_boxes, fit
import pytest

SIDE, IMAGES = 64, 7


X = np.random.default_rng(1).uniform(size=(IMAGES, 3, SIDE, SIDE)).astype(np.float32)
Y = drawn_boxes([0, *(1 + number % 3 for number in range(1, IMAGES))], 8)


def make(devices=None):
    mxkit.seed_all(0)
    net = mxkit.models.get_model("small_faster_rcnn", classes=3, size=SIDE, channels=(4, 6, 8))
    mxkit.nets.hybridize(ready(net, devices=devices or [mx.cpu()], sample=(1, 3, SIDE, SIDE)))
    return net


def pyramid():
    """A net with two maps, of 1/4 and 1/8 of the image, as gluoncv's `fpn` nets."""
    mxkit.seed_all(0)
    head = gluon.nn.Dense(8)
    maps = Pyramid((4, 6, 6), first=1, norm=gluon.nn.InstanceNorm)
    net = FasterRCNN(
        maps, None, ["a", "b", "c"], head, min_stage=2, max_stage=3, strides=(4, 8), scales=(1, 2), base_size=12,
        alloc_size=(16, 16), roi_size=(3, 3), rpn_channel=8, rpn_train_pre_nms=64, rpn_train_post_nms=64,
        rpn_test_post_nms=16, rpn_min_size=4, num_sample=16, max_num_gt=10,
    )  # fmt: skip
    return ready(net, sample=(1, 3, SIDE, SIDE))


def scripts_loss(net, x, label, rpn_targets):
    """The loss of one image in gluoncv's train_faster_rcnn.py."""
    rpn_cls_targets, rpn_box_targets, rpn_box_masks = (mx.nd.array(one[None]) for one in rpn_targets)
    rpn_cls_loss, rpn_box_loss = gluon.loss.SigmoidBCELoss(from_sigmoid=False), gluon.loss.HuberLoss(rho=1 / 9.0)
    rcnn_cls_loss, rcnn_box_loss = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.loss.HuberLoss()
    outputs = net(x, label[:, :, :4], label[:, :, 4:5])
    cls_pred, box_pred, _, _, _, rpn_score, rpn_box, _, cls_targets, box_targets, box_masks, _ = outputs
    rpn_score = rpn_score.squeeze(axis=-1)
    num_rpn_pos = (rpn_cls_targets >= 0).sum()
    rpn_loss1 = rpn_cls_loss(rpn_score, rpn_cls_targets, rpn_cls_targets >= 0) * rpn_cls_targets.size / num_rpn_pos
    rpn_loss2 = rpn_box_loss(rpn_box, rpn_box_targets, rpn_box_masks) * rpn_box.size / num_rpn_pos
    num_rcnn_pos = (cls_targets >= 0).sum()
    weights = cls_targets.expand_dims(-1) >= 0
    rcnn_loss1 = rcnn_cls_loss(cls_pred, cls_targets, weights) * cls_targets.size / num_rcnn_pos
    rcnn_loss2 = rcnn_box_loss(box_pred, box_targets, box_masks) * box_pred.size / num_rcnn_pos
    return rpn_loss1.sum() + rpn_loss2.sum() + rcnn_loss1.sum() + rcnn_loss2.sum()


def anchors_of(net):
    """The anchors of an image in training, (N, 4)."""
    with autograd.train_mode():
        found = net(mx.nd.array(X[:1]), mx.nd.array(Y[:1, :, :4]), mx.nd.array(Y[:1, :, 4:5]))[7]
    return mx.nd.concat(*(found if isinstance(found, list) else [found]), dim=1)[0]


def rpn_targets(anchors, boxes):
    """Targets of gluoncv's generator for the objects of one image; all background if there is none."""
    known = boxes[boxes[:, 4] >= 0, :4]
    if not len(known):  # gluoncv takes no image without objects; an object that no anchor touches stands for none
        known = np.float32([[-9, -9, -8, -8]])
    return RPNTargetGenerator()(mx.nd.array(known), anchors, SIDE, SIDE)


def plain_loop(net, windows, seed=1):
    """gluoncv's loop over one image after the other, with the draws of `fit`."""
    anchors = anchors_of(net)
    learned = {name: one for name, one in net.collect_params().items() if one.grad_req != "null"}
    trainer = gluon.Trainer(learned, "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    for one in learned.values():
        one.grad_req = "add"
    mxkit.seed_all(int(np.random.SeedSequence([seed, 0, 0]).generate_state(1)[0]))
    for window in windows:
        for one in learned.values():
            one.zero_grad()
        for number in window:
            mx.random.seed(int(np.random.randint(2**31)))
            targets = rpn_targets(anchors, Y[number])
            with autograd.record():
                loss = scripts_loss(net, mx.nd.array(X[number][None]), mx.nd.array(Y[number][None]), targets)
            loss.backward()
        trainer.step(len(window))


def trained(net, size=1, **arguments):
    data = [(X[first : first + size], Y[first : first + size]) for first in range(0, IMAGES, size)]
    optimizer = ("sgd", {"learning_rate": 0.01, "momentum": 0.9})
    return fit(net, data, loss="faster_rcnn", trainer=optimizer, seed=1, **arguments)


WINDOWS = [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize("build", [make, pyramid])
def test_fit_equals_gluoncvs_loop(build):
    """Bit-equal, with an image without objects. T270: the net has the same parameters after it."""
    own, theirs = build(), build()
    start = values(own)
    trained(own)
    plain_loop(theirs, [[number] for number in range(IMAGES)])
    assert values(own).keys() == start.keys() < values(theirs).keys()
    assert largest_difference(own, theirs) == 0
    assert max(float(np.abs(values(own)[name] - start[name]).max()) for name in start) > 1e-3


def test_accumulated_images_and_two_devices_equal_the_mean_of_all_images():
    """The draws of an image do not depend on its device, nor on how many images a batch has."""
    whole, accumulated, divided = make(), make(), make([mx.cpu(0), mx.cpu(1)])
    plain_loop(whole, WINDOWS)
    trained(accumulated, accumulate=2)
    trained(divided, size=2)
    assert largest_difference(accumulated, whole) < 1e-6
    assert largest_difference(divided, whole) < 1e-6


def test_detections_of_several_images_are_those_of_each():
    """T271: gluoncv's net takes one image a call."""
    net = make()
    x = mx.nd.array(X[:3])
    each = [net(x[number : number + 1]) for number in range(3)]
    for together, *parts in zip(net(x), *each):
        np.testing.assert_array_equal(together.asnumpy(), np.concatenate([one.asnumpy() for one in parts]))


def test_a_pyramid_adds_nothing_for_regions_of_other_levels():
    """T272: on the CPU gluoncv adds what the memory held before; on a GPU zeros."""
    net = pyramid()
    maps = net.features(mx.nd.array(X[:1]))
    regions = mx.nd.array(
        [[0, 4, 4, 20, 20], [0, 8, 8, 20, 30], [0, 0, 0, 60, 60]]
    )  # the last one is of the second map
    for _ in range(20):
        mx.nd.full((3, 6, 3, 3), np.nan).wait_to_read()  # what the memory holds
        found = net._pyramid_roi_feats(mx.nd, maps, regions, (3, 3), (4, 8), roi_canonical_scale=100.0)
        for level, rows in ((0, slice(2)), (1, slice(2, 3))):
            own = mx.nd.contrib.ROIAlign(maps[level], regions[rows], (3, 3), 1 / (4, 8)[level], sample_ratio=2)
            np.testing.assert_array_equal(found[rows].asnumpy(), own.asnumpy())


def lost(net=None, images=1, side=SIDE, training=True, boxes=Y[:1]):
    batch = (mx.nd.zeros((images, 3, side, side)),), (mx.nd.array(boxes),)
    with autograd.record(train_mode=training):
        return FasterRCNNLoss().forward(net or make(), *batch)


REFUSED = {
    "batch": (lambda: lost(images=2), DataError, "1 image.* a device.* received 2.*number of devices"),
    "net": (lambda: lost(gluon.nn.Dense(2)), DataError, "gluoncv's FasterRCNN; received a Dense"),
    "no training": (lambda: lost(training=False), DataError, "validate by metrics"),
    "class": (lambda: lost(boxes=np.full((1, 1, 6), 3.0)), LabelError, "class 3, but the net has 3 classes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


def test_an_image_that_holds_no_anchor_is_refused():
    """gluoncv would train on each anchor as an object."""
    small, far = mx.nd.array([[0, 0, 70, 70], [-4, 0, 20, 20]]), mx.nd.array([[5, 5, 20, 20]])
    classes, _, _ = RPNTargetGenerator()(far, small, SIDE, SIDE)
    assert classes.tolist() == [1, 1]
    with pytest.raises(DataError, match="no anchor lies within an image of 64 x 64, .* 25 x 21"):
        FasterRCNNLoss().targets(None, (SIDE, SIDE), small.expand_dims(0), Y[:1], mx.cpu())


@pytest.mark.long
def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    def run(folder, callback):
        net, loader = make(), mxkit.data.ArrayLoader(X, Y, 1, shuffle=True, seed=4)
        how = {"checkpoint": mxkit.Checkpoints(folder, every="1 epoch"), "resume": "auto", "callbacks": [callback]}
        fit(net, loader, loss=BatchLoss("faster_rcnn"), trainer="adam", epochs=4, accumulate=2, seed=1, **how)
        return net

    check_killed_runs(run, tmp_path, (3, 9, 14))
