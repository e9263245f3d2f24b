"""Hand-written probes of GluonCV (`probes.py` runs them): each returns what is compared."""

import numpy as np
from probes_shared import _each, _folder, _image

BOXES = np.array([[5, 4, 20, 18, 0], [10, 6, 30, 22, 1]], dtype="float32")


def probe_nets(mx):
    from gluoncv.model_zoo import get_model

    def run(name, size=64, **kwargs):
        net = get_model(name, pretrained_base=False, **kwargs) if kwargs.pop("base", True) else get_model(name)
        net.initialize(mx.init.Xavier())
        out = net(mx.nd.random.uniform(shape=(1, 3, size, size)))
        return [one.shape for one in (out if isinstance(out, (list, tuple)) else [out])]

    plain = (
        "cifar_resnet20_v1 resnet18_v1b mobilenetv2_0.25 se_resnext50_32x4d resnest14 hrnet_w18_small_v1_c googlenet"
    )
    items = [(name, lambda n=name: run(n, 224 if n == "googlenet" else 64, base=False)) for name in plain.split()]
    items += [
        ("ssd_300_vgg16_atrous_voc", lambda: run("ssd_300_vgg16_atrous_voc", 300)),
        ("yolo3_darknet53_voc", lambda: run("yolo3_darknet53_voc", 128)),
        ("center_net_resnet18_v1b_voc", lambda: run("center_net_resnet18_v1b_voc", 128)),
        ("faster_rcnn_resnet50_v1b_voc", lambda: run("faster_rcnn_resnet50_v1b_voc", 256)),
        ("mask_rcnn_resnet18_v1b_coco", lambda: run("mask_rcnn_resnet18_v1b_coco", 256)),
        ("fcn_resnet50_voc", lambda: run("fcn_resnet50_voc", 480)),
        ("simple_pose_resnet18_v1b", lambda: run("simple_pose_resnet18_v1b", 64)),
        ("hrnet_w18_small_v1_s", lambda: run("hrnet_w18_small_v1_s", 64)),
    ]  # fmt: skip
    return _each(items)


def probe_transforms(mx):
    from gluoncv.data import transforms as t
    from gluoncv.data.transforms import presets

    x = mx.nd.array(_image(48, 64), dtype="uint8")
    box = BOXES.copy()
    rgb = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    items = [
        ("bbox", lambda: [t.bbox.flip(box, (64, 48), flip_x=True), t.bbox.resize(box, (64, 48), (32, 24))]),
        ("crop", lambda: [t.bbox.crop(box, (2, 2, 30, 30)), t.bbox.translate(box, np.int64(1), 2)]),
        ("affine", lambda: t.bbox.get_affine_transform(np.float32([32, 24]), 64.0, 0, (32, 32))),
        ("expand", lambda: t.image.random_expand(x, fill=[1, 2, 3])),
        ("flip", lambda: t.image.random_flip(x, px=0.9)), ("contain", lambda: t.image.resize_contain(x, (40, 40))),
        ("within", lambda: t.image.resize_short_within(x, np.int64(20), 30)),
        ("long", lambda: t.image.resize_long(x, 20)), ("pca", lambda: t.image.random_pca_lighting(x, 0.1)),
        ("ten", lambda: t.image.ten_crop(x, (16, 16))),
        ("distort", lambda: t.experimental.image.random_color_distort(x.astype("float32"))),
        ("distort np", lambda: t.experimental.image.np_random_color_distort(_image(dtype="float32") / 255)),
        ("constrained", lambda: t.experimental.bbox.random_crop_with_constraints(box, (64, 48))),
        ("mask", lambda: t.mask.fill(np.ones((2, 14, 14), "float32"), BOXES[:, :4], (64, 48))),
        ("ssd", lambda: presets.ssd.SSDDefaultTrainTransform(32, 32)(x, box)),
        ("ssd val", lambda: presets.ssd.SSDDefaultValTransform(32, 32)(x, box)),
        ("ssd test", lambda: presets.ssd.transform_test(x, 32)),
        ("yolo", lambda: presets.yolo.YOLO3DefaultTrainTransform(32, 32)(x, box)),
        ("yolo test", lambda: presets.yolo.transform_test(x, 32)),
        ("rcnn", lambda: presets.rcnn.FasterRCNNDefaultTrainTransform(32, 64)(x, box)),
        ("rcnn test", lambda: presets.rcnn.transform_test(x, 32)),
        ("center", lambda: presets.center_net.CenterNetDefaultTrainTransform(64, 64, 2)(x, box)),
        ("center test", lambda: presets.center_net.transform_test(x, 32)),
        ("imagenet", lambda: presets.imagenet.transform_eval(x, 40, 32)),
        ("segmentation", lambda: presets.segmentation.test_transform(x, mx.cpu())),
        (
            "video",
            lambda: t.video.VideoGroupTrainTransform(size=(16, 16), scale_ratios=[1.0, 0.8], mean=rgb[0], std=rgb[1])(
                [_image()] * 2
            ),
        ),
        ("video val", lambda: t.video.VideoGroupValTransform(size=16, mean=rgb[0], std=rgb[1])([_image()] * 2)),
        ("erasing", lambda: t.block.RandomErasing(probability=1)(x.astype("float32"))),
        ("random crop", lambda: t.block.RandomCrop(16, pad=2)(x)),
    ]  # fmt: skip
    return _each(items)


def probe_targets(mx):
    """SSD, YOLO and Faster R-CNN: the targets of one training step."""
    import gluoncv
    from gluoncv.data.transforms import presets

    x = mx.nd.array(_image(96, 128), dtype="uint8")

    def ssd():
        net = gluoncv.model_zoo.get_model("ssd_300_vgg16_atrous_voc", pretrained_base=False)
        net.initialize(mx.init.Xavier())
        with mx.autograd.train_mode():
            _, _, anchors = net(mx.nd.zeros((1, 3, 300, 300)))
        return presets.ssd.SSDDefaultTrainTransform(300, 300, anchors)(x, BOXES.copy())

    def yolo():
        net = gluoncv.model_zoo.get_model("yolo3_darknet53_voc", pretrained_base=False)
        net.initialize(mx.init.Xavier())
        return [one.shape for one in presets.yolo.YOLO3DefaultTrainTransform(128, 128, net)(x, BOXES.copy())]

    def rcnn():
        net = gluoncv.model_zoo.get_model("faster_rcnn_resnet50_v1b_voc", pretrained_base=False)
        net.initialize(mx.init.Xavier())
        return [one.shape for one in presets.rcnn.FasterRCNNDefaultTrainTransform(64, 128, net)(x, BOXES.copy())]

    return _each([("ssd", ssd), ("yolo", yolo), ("rcnn", rcnn)])


def probe_metrics(mx):
    from gluoncv.utils import metrics

    nd = mx.nd.array
    boxes, ids, scores = nd(BOXES[None, :, :4]), nd(BOXES[None, :, 4:]), nd([[[0.9], [0.8]]])

    def voc(kind):
        metric = kind(class_names=["a", "b"])
        for _ in range(2):
            metric.update([boxes], [ids], [scores], [boxes + 1], [ids], None)
        return metric.get()

    def segmentation():
        metric = metrics.segmentation.SegmentationMetric(3)
        metric.update([nd([[[0, 1], [2, 1]]])], [mx.nd.random.uniform(shape=(1, 3, 2, 2))])
        return metric.get()

    def update(metric, labels, preds):
        metric.update(labels, preds)
        return metric.get()

    items = [
        ("voc", lambda: voc(metrics.voc_detection.VOCMApMetric)),
        ("voc07", lambda: voc(metrics.voc_detection.VOC07MApMetric)), ("segmentation", segmentation),
        (
            "heatmap",
            lambda: update(
                metrics.heatmap_accuracy.HeatmapAccuracy(),
                [mx.nd.random.uniform(shape=(2, 3, 8, 8))] * 1 + [],
                [mx.nd.random.uniform(shape=(2, 3, 8, 8))],
            ),
        ),
        ("rpn", lambda: update(metrics.rcnn.RPNAccMetric(), [nd([[1, 0]]), nd([[1, 1]])], [nd([[0.4, 0.9]])])),
        ("rpn l1", lambda: update(metrics.rcnn.RPNL1LossMetric(), [nd([[1, 0]]), nd([[1, 1]])], [nd([[0.4, 0.9]])])),
        ("rcnn", lambda: update(metrics.rcnn.RCNNAccMetric(), [nd([[1, 0]])], [nd([[[0.4, 0.9], [0.5, 0.3]]])])),
        ("iou", lambda: metrics.tracking.Iou([1, 1, 4, 4], [2, 2, 4, 4])),
        ("bbox iou", lambda: __import__("gluoncv").utils.bbox_iou(BOXES, BOXES + 1)),
        ("xyxy", lambda: __import__("gluoncv").utils.bbox.bbox_xywh_to_xyxy(BOXES[:, :4])),
        ("clip", lambda: __import__("gluoncv").utils.bbox.bbox_clip_xyxy(BOXES[:, :4] * 3, 64, 48)),
    ]  # fmt: skip
    return _each(items)


def probe_pictures(mx):
    import matplotlib

    matplotlib.use("Agg")
    from gluoncv.utils import viz

    image, boxes = _image(48, 64), BOXES[:, :4]
    masks = np.ones((2, 14, 14), "float32")
    joints = np.random.RandomState(0).rand(2, 17, 2) * 30

    def pixels(axes):
        return len(axes.patches), len(axes.texts), len(axes.images)

    items = [
        (
            "bbox",
            lambda: pixels(viz.plot_bbox(image, boxes, np.array([0.9, 0.8]), np.array([0, 1]), class_names=["a", "b"])),
        ),
        (
            "bbox nd",
            lambda: pixels(
                viz.plot_bbox(mx.nd.array(image), mx.nd.array(boxes), mx.nd.array([0.9, 0.8]), mx.nd.array([0, 1]))
            ),
        ),
        ("cv bbox", lambda: viz.cv_plot_bbox(image.copy(), boxes, np.array([0.9, 0.8]), np.array([0, 1])).shape),
        ("image", lambda: pixels(viz.plot_image(mx.nd.array(image)))),
        ("mask", lambda: viz.plot_mask(image, viz.expand_mask(masks, boxes, (64, 48), np.array([0.9, 0.8]))[0]).shape),
        (
            "keypoints",
            lambda: pixels(
                viz.plot_keypoints(
                    image,
                    mx.nd.array(joints),
                    mx.nd.ones((2, 17, 1)),
                    mx.nd.zeros((1, 2, 1)),
                    mx.nd.array(boxes[None]),
                    mx.nd.ones((1, 2, 1)),
                )
            ),
        ),
        ("pallete", lambda: np.asarray(viz.get_color_pallete(image[:, :, 0] % 20))),
    ]
    return _each(items)


def probe_datasets_and_batches(mx):
    from gluoncv.data import LstDetection, RecordFileDetection, VOCDetection, batchify
    from gluoncv.data.sampler import SplitSortedBucketSampler

    def voc():
        import cv2

        root = _folder()
        for part in ("Annotations", "JPEGImages", "ImageSets/Main"):
            (root / "VOC2007" / part).mkdir(parents=True)
        cv2.imwrite(str(root / "VOC2007/JPEGImages/1.jpg"), _image(48, 64))
        (root / "VOC2007/ImageSets/Main/train.txt").write_text("1\n")
        thing = (
            "<object><name>cat</name><difficult>0</difficult><bndbox>"
            "<xmin>5</xmin><ymin>4</ymin><xmax>20</xmax><ymax>18</ymax></bndbox></object>"
        )
        (root / "VOC2007/Annotations/1.xml").write_text(
            f"<a><size><width>64</width><height>48</height></size>{thing}</a>"
        )
        return VOCDetection(root=str(root), splits=[(2007, "train")])[0][1]

    def records():
        folder = _folder()
        path = str(folder / "a")
        writer = mx.recordio.MXIndexedRecordIO(f"{path}.idx", f"{path}.rec", "w")
        label = [4, 5, 64, 48, 0, 0.1, 0.2, 0.6, 0.7]
        writer.write_idx(0, mx.recordio.pack_img(mx.recordio.IRHeader(0, label, 0, 0), _image(48, 64), img_fmt=".png"))
        writer.close()
        return RecordFileDetection(f"{path}.rec")[0][1]

    def listed():
        import cv2

        folder = _folder()
        cv2.imwrite(str(folder / "1.jpg"), _image(48, 64))
        (folder / "a.lst").write_text("0\t4\t5\t64\t48\t0\t0.1\t0.2\t0.6\t0.7\t1.jpg\n")
        return LstDetection(str(folder / "a.lst"), root=str(folder))[0][1]

    items = [
        ("voc", voc), ("records", records), ("lst", listed),
        ("pad", lambda: batchify.Pad(pad_val=-1)([mx.nd.ones((2, 3)), mx.nd.ones((1, 3))])),
        ("pad np", lambda: batchify.Pad(pad_val=np.float32(-1))([np.ones((2, 3)), np.ones((1, 3))])),
        ("stack", lambda: batchify.Tuple(batchify.Stack(), batchify.Append())([(np.ones(2), np.ones(3))] * 2)),
        ("sampler", lambda: [list(one) for one in SplitSortedBucketSampler([3, 1, 2, 5], 2)]),
    ]  # fmt: skip
    return _each(items)


def probe_tools(mx):
    import gluoncv
    from gluoncv.utils import LRScheduler, LRSequential, export_block, freeze_bn

    def export():
        net = gluoncv.model_zoo.get_model("cifar_resnet20_v1")
        net.initialize()
        folder = _folder()
        export_block(str(folder / "n"), net, data_shape=(32, 32, 3), preprocess=True)
        freeze_bn(net)
        return sorted(path.name for path in folder.iterdir())

    def schedule():
        one = LRSequential(
            [
                LRScheduler("linear", 0, 0.1, niters=np.int64(3)),
                LRScheduler("cosine", 0.1, nepochs=2, iters_per_epoch=4),
            ]
        )
        return [one(step) for step in range(10)]

    items = [
        ("export", export), ("schedule", schedule),
        (
            "steps",
            lambda: [
                LRScheduler("step", 0.1, niters=8, step_iter=[np.int64(2), 5], step_factor=np.float32(0.1))(n)
                for n in range(8)
            ],
        ),
        (
            "compress",
            lambda: gluoncv.utils.get_compressed_model if hasattr(gluoncv.utils, "get_compressed_model") else None,
        ),
    ]  # fmt: skip
    return _each(items)
