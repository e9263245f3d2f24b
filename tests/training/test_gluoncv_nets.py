"""Training of gluoncv's detectors, segmentation and pose nets equals a plain Gluon loop; it resumes to the bit."""

from callback_runs import check_killed_runs, largest_difference, values
import mxkit
from mxkit.losses import BatchLoss
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
from oracle import drawn_boxes, fit, in_batches
import pytest

SIDE, IMAGES = 64, 14
WINDOWS = [[0, 1], [2, 3], [4]]  # batches of an update, the last one alone: batches of 3, the last with 2 images


BOXES = drawn_boxes([0, 0, 0, *(number % 4 for number in range(3, IMAGES))], 4)  # none in the first batch


X = np.random.default_rng(1).uniform(size=(IMAGES, 3, SIDE, SIDE)).astype(np.float32)
MASKS = np.random.default_rng(2).integers(-1, 4, (IMAGES, SIDE, SIDE)).astype(np.int32)
MASKS[:2] = -1  # two images without a labelled pixel
POINTS = np.random.default_rng(3).uniform(0, SIDE, (IMAGES, 5, 3)).astype(np.float32)
POINTS[:, :, 2] = POINTS[:, :, 2] > 20

# Name of the net, its arguments, its labels, and the divisor of a batch.
FAMILIES = {
    "ssd": ({"classes": 3}, BOXES, lambda y: (y[:, :, 4] >= 0).sum()),
    "yolo3": ({"classes": 3}, BOXES, len),
    "centernet": ({"classes": 3}, BOXES, lambda y: (y[:, :, 4] >= 0).sum()),
    "fcn": ({"classes": 4}, MASKS, lambda y: (y >= 0).sum()),
    "deeplab": ({"classes": 4}, MASKS, lambda y: (y >= 0).sum()),
    "pose": ({"points": 5}, POINTS, len),
}
LOSSES = {"fcn": "pixel_ce", "deeplab": "pixel_ce"}


def make(family, devices=None, global_statistics=True):
    """A small net; with global statistics its samples do not mix, so that accumulation can be exact."""
    arguments = dict(FAMILIES[family][0])
    arguments.update({"channels": (4, 6, 8, 8, 8)} if family == "pose" else {"size": SIDE, "channels": (4, 6, 8)})
    mxkit.seed_all(0)
    net = mxkit.models.get_model(f"small_{family}", **arguments)
    mxkit.initialize(net, devices=devices or [mx.cpu()], sample=mx.nd.zeros((1, 3, SIDE, SIDE)))
    if global_statistics:
        net.apply(lambda block: getattr(block, "_kwargs", {}).update(use_global_stats=True) if is_norm(block) else None)
    net.apply(lambda block: setattr(block, "_rate", 0.0) if isinstance(block, gluon.nn.Dropout) else None)
    mxkit.nets.hybridize(net)
    return net


def is_norm(block):
    return isinstance(block, gluon.nn.BatchNorm)


def batches(family):
    return in_batches(X, FAMILIES[family][1], 3)


def plain_loop(family, net, windows):
    """gluoncv's loop with each window as one batch, and the divisor of the whole window."""
    loss, count = BatchLoss(LOSSES.get(family, family)), FAMILIES[family][2]
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    for x, y in windows:
        with autograd.record():
            _, losses = loss.forward(net, (mx.nd.array(x),), (mx.nd.array(y, dtype=y.dtype),))
        losses.backward()
        trainer.step(max(1.0, float(count(y))))


def trained(family, net, **arguments):
    loss = LOSSES.get(family, family)
    optimizer = ("sgd", {"learning_rate": 0.01, "momentum": 0.9})
    return fit(net, batches(family), loss=loss, trainer=optimizer, **arguments)


@pytest.mark.parametrize("family", FAMILIES)
def test_fit_equals_the_plain_loop(family):
    own, theirs = make(family, global_statistics=False), make(family, global_statistics=False)
    start = values(own)
    trained(family, own)
    plain_loop(family, theirs, batches(family))
    assert largest_difference(own, theirs) == 0
    assert max(float(np.abs(values(own)[name] - start[name]).max()) for name in start) > 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulated_batches_and_two_devices_equal_one_big_batch(family, accumulate):
    """The tail, images without objects, and batches of which one device has fewer are exact too."""
    big = make(family)
    whole = [slice(first, first + 3 * accumulate) for first in range(0, len(X), 3 * accumulate)]
    windows = [(X[part], FAMILIES[family][1][part]) for part in whole]
    plain_loop(family, big, windows)
    accumulated, divided = make(family), make(family, [mx.cpu(0), mx.cpu(1)])
    trained(family, accumulated, accumulate=accumulate)
    trained(family, divided, accumulate=accumulate)
    assert largest_difference(big, accumulated) < 1e-5
    assert largest_difference(big, divided) < 1e-5


# gluoncv's nets of masks, and the weights of their auxiliary outputs.
LARGE = {"fastscnn_citys": [0.5], "icnet_resnet50_citys": [0.4, 0.4, 1.0], "danet_resnet50_citys": [0.5, 0.5]}
LARGE.update(dict.fromkeys(("fcn_resnet50_voc", "psp_resnet50_ade", "deeplab_resnet50_ade", "DeepLabV3Plus"), [0.5]))


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_a_net_of_masks_trains_as_a_plain_loop_with_the_weights_of_its_auxiliary_outputs(name):
    def made():
        mxkit.seed_all(0)
        if name == "DeepLabV3Plus":  # gluoncv's get_model does not know its name
            from gluoncv.model_zoo.deeplabv3_plus import DeepLabV3Plus

            net = DeepLabV3Plus(4, pretrained_base=False, crop_size=SIDE)
        else:
            net = mxkit.models.get_model(f"gluoncv:{name}", crop_size=SIDE)
        mxkit.initialize(net, sample=(1, 3, SIDE, SIDE), devices="cpu", force=name == "DeepLabV3Plus")
        net.apply(lambda block: setattr(block, "_rate", 0.0) if isinstance(block, gluon.nn.Dropout) else None)
        net = mxkit.finetune(net, 4, freeze=None, copy=False)
        mxkit.nets.hybridize(net)
        return net

    data = [(X[:2], MASKS[2:4]), (X[2:4], MASKS[4:6])]
    own, theirs = made(), made()
    start, settings = values(own), ("sgd", {"learning_rate": 0.01})
    fit(own, data, loss="pixel_ce", trainer=settings)
    loss, trainer = gluon.loss.SoftmaxCrossEntropyLoss(), gluon.Trainer(theirs.collect_params(), *settings)
    for x, y in data:
        labelled = mx.nd.array(y >= 0).expand_dims(-1)
        with autograd.record():
            outputs = [mx.nd.contrib.BilinearResize2D(one, height=SIDE, width=SIDE) for one in theirs(mx.nd.array(x))]
            # over the last axis, as `pixel_ce`: these nets make 1e-2 of another rounding in two updates
            losses = [loss(one.transpose((0, 2, 3, 1)), mx.nd.array(y), labelled).mean() * y.size for one in outputs]
            total = sum(weight * one for weight, one in zip([1.0, *LARGE[name]], losses))
        total.backward()
        trainer.step((y >= 0).sum())
    assert len(losses) == 1 + len(LARGE[name])
    assert largest_difference(own, theirs) < 1e-5
    trained = [path for path in start if "running" not in path]
    assert sum((values(own)[path] != start[path]).any() for path in trained) > 0.9 * len(trained)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_killed_run_ends_with_the_same_bits(family, tmp_path):
    def run(folder, callback):
        net = make(family, global_statistics=False)
        loader = mxkit.data.ArrayLoader(X, FAMILIES[family][1], 3, shuffle=True, seed=4)
        how = {"checkpoint": mxkit.Checkpoints(folder, every="1 epoch"), "resume": "auto", "callbacks": [callback]}
        fit(net, loader, loss=LOSSES.get(family, family), trainer="adam", epochs=3, seed=1, **how)
        return net

    check_killed_runs(run, tmp_path, (3, 8, 14))
