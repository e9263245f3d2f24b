"""Features of every layer of real nets beside what Gluon's own hooks see: MXNet's model zoo and GluonCV's families.

    python tests/zoo/check_features.py            all nets, some minutes
    python tests/zoo/check_features.py --families  without those of MXNet's zoo that are only deeper or wider
    python tests/zoo/check_features.py --only ssd_300_vgg16_atrous_voc

For each net, with random weights: outputs of all blocks of the unhybridized net, as hooks see them, beside
`Features(net, ["*"])` of it, the same object after `net.hybridize()`, and one made after that. Differences are relative
to the largest value of a layer. A net of MXNet's zoo is also described, built and compared. Ends with 1 if a difference
is above 1e-6, or a net could not be checked.
"""

import argparse
from fnmatch import fnmatchcase
import gc
import json
import os
import sys
import tempfile
import time
import warnings

import mxkit  # before mxnet
from mxkit.storage.loading import put_arrays
import mxnet as mx
from mxnet.gluon.model_zoo import vision
import numpy as np
import requests

TOLERANCE = 1e-6
ZOO = {
    **{f"resnet{depth}_v{version}": (32, 32) for depth in (18, 34, 50, 101, 152) for version in (1, 2)},
    **{f"vgg{depth}{bn}": (32, 32) for depth in (11, 13, 16, 19) for bn in ("", "_bn")},
    "alexnet": (64, 64),
    **{f"densenet{depth}": (224, 224) for depth in (121, 161, 169, 201)},
    "squeezenet1.0": (224, 224),
    "squeezenet1.1": (224, 224),
    "inceptionv3": (299, 299),
    **{f"mobilenet{width}": (32, 32) for width in ("0.25", "0.5", "0.75", "1.0")},
    **{f"mobilenetv2_{width}": (32, 32) for width in ("0.25", "0.5", "0.75", "1.0")},
}
DEEPER = {f"resnet{depth}_v{version}" for depth in (34, 101, 152) for version in (1, 2)}
DEEPER |= {f"vgg{depth}{bn}" for depth in (13, 16, 19) for bn in ("", "_bn")}
DEEPER |= {f"densenet{depth}" for depth in (161, 169, 201)}
DEEPER |= {f"mobilenet{width}" for width in ("0.5", "0.75", "v2_0.5", "v2_0.75")}
# Height and width of one image; a third number in front is that of the frames of one clip.
# Two-dimensional nets on frames of videos (TSN) cannot be built without a download of ImageNet's weights.
GLUONCV = {}
for sizes, names in {
    (32, 32): """
        cifar_resnet20_v1 cifar_resnet20_v2 cifar_wideresnet16_10 cifar_resnext29_16x64d
        cifar_residualattentionnet56
    """,
    (64, 64): """
        resnet18_v1b resnet18_v1b_0.89 resnet50_v1b_gn resnet50_v1c resnet50_v1d resnet50_v1d_0.11
        resnet50_v1e resnet50_v1s resnext50_32x4d se_resnet18_v1 se_resnet18_v2 se_resnext50_32x4d senet_154
        resnest14 resnest26 resnest50 mobilenetv3_large mobilenetv3_small darknet53 dla34
        hrnet_w18_small_v1_c hrnet_w18_small_v2_c hrnet_w18_small_v1_s hrnet_w18_small_v2_s
        center_net_resnet18_v1b_voc center_net_resnet18_v1b_dcnv2_voc center_net_mobilenetv3_small_duc_voc
        center_net_dla34_voc fcn_resnet50_voc deeplab_resnet50_ade deeplab_resnest50_ade
        deeplab_v3b_plus_wideresnet_citys danet_resnet50_citys simple_pose_resnet18_v1b
        simple_pose_resnet50_v1d mobile_pose_resnet18_v1b mobile_pose_mobilenetv3_small
        alpha_pose_resnet101_v1b_coco
    """,
    (224, 224): "residualattentionnet56 googlenet shufflenet_v1 shufflenet_v2",
    (128, 128): "xception xception71 nasnet_4_1056 ssd_300_mobilenet0.25_voc",
    (299, 299): "inceptionv3",
    (300, 300): "ssd_300_vgg16_atrous_voc ssd_300_mobilenet1.0_lite_coco ssd_300_resnet34_v1b_voc",
    (256, 256): "ssd_512_resnet18_v1_voc ssd_512_mobilenet1.0_voc",
    (96, 96): """
        yolo3_mobilenet0.25_voc yolo3_darknet53_voc faster_rcnn_resnet50_v1b_voc
        faster_rcnn_fpn_resnet50_v1b_coco doublehead_rcnn_resnet50_v1b_voc mask_rcnn_resnet18_v1b_coco
        mask_rcnn_fpn_resnet18_v1b_coco psp_resnet50_ade fastscnn_citys
    """,
    (480, 480): "icnet_resnet50_citys",
    (16, 64, 64): "p3d_resnet50_kinetics400",
    (8, 64, 64): "r2plus1d_resnet18_kinetics400 i3d_resnet50_v1_kinetics400 i3d_nl5_resnet50_v1_kinetics400",
    (16, 224, 224): "i3d_inceptionv1_kinetics400",
    (36, 64, 64): "slowfast_4x16_resnet50_kinetics400",
    (127, 127): "siamrpn_alexnet_v2_otb15",
    (192, 640): "monodepth2_resnet18_kitti_mono_640x192 monodepth2_resnet18_posenet_kitti_mono_640x192",
}.items():
    GLUONCV.update(dict.fromkeys(names.split(), sizes))
# These load weights of the net that they begin with, unless they are told not to.
WITH_BASE = ("ssd", "yolo3", "faster", "mask", "doublehead", "center", "fcn", "psp", "deeplab", "icnet", "danet")
WITH_BASE += ("alpha", "simple_pose", "mobile_pose", "i3d", "monodepth2")
CROPPED = ("fcn_resnet50_voc", "psp_resnet50_ade", "deeplab_resnet50_ade", "deeplab_resnest50_ade", "fastscnn_citys")
CROPPED += ("deeplab_v3b_plus_wideresnet_citys", "danet_resnet50_citys")
OPTIONS = {name: {"crop_size": GLUONCV[name][0]} for name in CROPPED}
# What comes behind ROIAlign differs from run to run in these: it reads foreign memory for boxes of image -1.
GLOBS = {name: ["features*", "rpn*"] for name in GLUONCV if "_rcnn_fpn_" in name}


class Tame(mx.init.Xavier):
    """Xavier, which GluonCV's SSD asks for weights of normalizations too: those are 1 and 0."""

    def _init_weight(self, name, array):
        if array.ndim > 1:
            super()._init_weight(name, array)
        else:
            array[:] = float(not name.endswith(("beta", "bias", "mean")))


def refuse(*arguments, **options):
    raise RuntimeError(f"no downloads here: {arguments}")


def build(source, name):
    """A net with random weights, and one batch for it."""
    mxkit.seed_all(0)
    if source == "mxnet":
        net, size = vision.get_model(name), ZOO[name]
    else:
        import gluoncv

        size, options = GLUONCV[name], dict(OPTIONS.get(name, {}))
        if name.startswith(WITH_BASE):
            options["pretrained_base"] = False
        net = gluoncv.model_zoo.get_model(name, pretrained=False, **options)
    net.initialize(Tame(), force_reinit=True)
    if name.startswith("siamrpn"):
        return net, [mx.nd.random.uniform(shape=(1, 3, *size)), mx.nd.random.uniform(shape=(1, 3, 287, 287))]
    if "_rcnn_" in name:
        net._rpn_test_post_nms = net.rpn._test_post_nms = net._rcnn_max_dets = 8  # of 1000 boxes
    channels = 6 if "posenet" in name else 3
    batch = 2 if "nasnet" in name else 1
    return net, [mx.nd.random.uniform(shape=(batch, channels, *size))]


def seen_by_hooks(net, inputs):
    """Outputs of all blocks inside `net` by their first path, with "#number" where there are several calls."""
    calls = {}
    paths = {}

    def register(block, path):
        if id(block) not in paths:
            paths[id(block)] = path
            if path:
                handles.append(block.register_forward_hook(seen))
        for name, child in block._children.items():
            register(child, f"{path}.{name}" if path else name)

    def seen(block, arguments, output):
        calls.setdefault(paths[id(block)], []).append(flat(output))  # at once: DLA changes lists that it returned

    handles = []
    register(net, "")
    net(*inputs)
    for handle in handles:
        handle.detach()
    found = {}
    for path, outputs in calls.items():
        for number, output in enumerate(outputs):
            if output is not None:
                found[f"{path}#{number}" if len(outputs) > 1 else path] = output
    return found


def flat(output):
    """Arrays of a nested list, None where there is something else or nothing in it."""
    if isinstance(output, mx.nd.NDArray):
        return [output]
    if not isinstance(output, (list, tuple)):
        return None
    parts = [[] if one is None else flat(one) for one in output]
    joined = None if None in parts else [array for part in parts for array in part]
    return joined or None


def difference(found, expected):
    """Largest difference of the outputs of one layer, relative to their largest value."""
    largest = 0.0
    for one, other in zip(found, expected):
        one, other = one.asnumpy().astype(np.float64), other.asnumpy().astype(np.float64)
        if one.shape != other.shape or not np.isfinite(other).all():
            return np.inf
        if one.size:
            largest = max(largest, abs(one - other).max() / max(1.0, abs(other).max()))
    return largest


def round_trip(name):
    """What is unequal between a net of MXNet's zoo and the net built from its description; nothing is ''."""
    mxkit.seed_all(0)
    net = mxkit.models.get_model(f"zoo:{name}", classes=7)
    net.initialize(mx.init.Xavier(magnitude=3))
    x = mx.nd.random.uniform(-1, 1, (1, 3, *ZOO[name]))
    expected, text = net(x).asnumpy(), json.dumps(mxkit.nets.describe(net))
    twin = mxkit.nets.build(json.loads(text))
    if json.dumps(mxkit.nets.describe(twin)) != text:
        return "another description"
    put_arrays(twin, {path: parameter.data() for path, parameter in mxkit.parameters(net).items()})
    return "" if expected.any() and twin(x).asnumpy().tobytes() == expected.tobytes() else "other outputs"


def check(source, name):
    """Check one net.

    Returns:
        Number of layers, the largest relative difference, and how Features ran.
    """
    unequal = round_trip(name) if source == "mxnet" else ""
    if unequal:
        raise AssertionError(f"built from its description: {unequal}")
    net, inputs = build(source, name)
    net(*inputs)  # the call that finishes the initialization calls blocks with symbols too
    globs = GLOBS.get(name, ["*"])
    seen = seen_by_hooks(net, inputs)
    expected = {path: seen[path] for path in seen if any(fnmatchcase(path, glob) for glob in globs)}
    worst = 0.0

    def compare(features):
        nonlocal worst
        found = features(*inputs)
        if set(found) != set(expected):
            raise AssertionError(f"other layers than hooks see: {sorted(set(found) ^ set(expected))[:5]}")
        for path, arrays in expected.items():
            worst = max(worst, difference(flat(found[path]), arrays))

    features = mxkit.Features(net, globs)
    compare(features)
    how = str(features._reason or "graph").splitlines()[0]
    net.hybridize()
    try:
        net(*inputs)
    except Exception as error:
        how += f"; cannot be hybridized: {type(error).__name__}"
    else:
        compare(features)
        compare(mxkit.Features(net, globs))
    return len(expected), worst, how


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these nets")
    parser.add_argument("--families", action="store_true", help="without nets that are only deeper or wider")
    options = parser.parse_args(arguments)
    home = tempfile.TemporaryDirectory()
    os.environ["HOME"] = home.name  # where GluonCV looks for weights: none are there
    requests.get = refuse
    warnings.simplefilter("ignore")
    own = [name for name in ZOO if not (options.families and name in DEEPER)]
    nets = [("mxnet", name) for name in own] + [("gluoncv", name) for name in GLUONCV]
    if options.only:
        nets = [net for net in nets if net[1] in options.only]
    wrong, checked, begun = [], {"mxnet": 0, "gluoncv": 0}, time.perf_counter()
    for source, name in nets:
        started = time.perf_counter()
        try:
            layers, worst, how = check(source, name)
            line = f"{layers:5} layers  {worst:8.1e}  {time.perf_counter() - started:5.1f} s  {how}"
            checked[source] += 1
            if worst > TOLERANCE:
                wrong.append(name)
        except Exception as error:
            line = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
            wrong.append(name)
        sys.stdout.write(f"{source:8} {name:48} {line[:200]}\n")
        sys.stdout.flush()
        gc.collect()
    seconds = time.perf_counter() - begun
    sys.stdout.write(
        f"{checked['mxnet']} + {checked['gluoncv']} nets, {seconds:.0f} s; wrong: {', '.join(wrong) or 'none'}\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
