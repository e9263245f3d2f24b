"""Longer uses of single names of GluonCV, for calls/gluoncv.txt."""

from collections import namedtuple
import shutil

from api_parts import BOXES, began, folder, of, picture, pictures, ramp, text_file
import gluoncv
from gluoncv.data.transforms import presets
import matplotlib.pyplot as plt
import mxnet as mx
import numpy as np
from PIL import Image

BOXES4 = BOXES[0][:, :4]
IOUS = np.float32([[0.9, 0.1], [0.2, 0.4], [0.3, 0.8], [0.0, 0.1]])
LABELS16 = (np.arange(256).reshape(1, 16, 16) * 7 % 4 - 1).astype("float32")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def matched():
    """Samples, matches and anchors of three boxes for two objects."""
    samples, matches = np.float32([[1, -1, 1]]), np.float32([[0, 1, 1]])
    return of(samples), of(matches), of((BOXES[2][:, :4] + 1)[None])


def sampled():
    ious = of(IOUS[None])
    named = {"num_sample": 3, "pos_thresh": 0.5, "neg_thresh_high": 0.3, "pos_ratio": 0.5}
    return mx.nd.Custom(of(np.float32([[0, -1, 1, -1]])), ious, op_type="quota_sampler", **named)


def written_net(export):
    net = began(gluoncv.model_zoo.get_model("cifar_resnet20_v1"))
    place = folder()
    export(str(place / "n"), net, data_shape=(32, 32, 3), preprocess=True)
    return sorted(path.name for path in place.iterdir())


def temporary(scope):
    with scope(suffix=".txt") as name:
        return name.endswith(".txt")


def unpacked(unpack, kind):
    place = folder({"in/a.txt": "a"})
    unpack(shutil.make_archive(str(place / "archive"), kind, str(place / "in")), str(place / "out"))
    return sorted(path.name for path in (place / "out").iterdir())


def segmented(metric):
    metric.update([of(LABELS16[:, :4, :4])], [of((1, 3, 4, 4))])
    return metric.get()


def detected(metric):
    """Average precision over images with 2, 1 and 3 boxes."""
    for boxes in BOXES:
        corners, kinds = of(boxes[None, :, :4]), of(boxes[None, :, 4:])
        scores = of(np.linspace(0.9, 0.5, len(boxes), dtype="float32")[None, :, None])
        metric.update([corners], [kinds], [scores], [corners + 1], [kinds], None)
    boxes = BOXES[2][None]
    metric.update(boxes[:, :1, :4], boxes[:, :1, 4:], np.float32([[[0.7]]]), boxes[..., :4], boxes[..., 4:])
    return metric.get()


def paralleled(parallel):
    class Doubled(gluoncv.utils.parallel.Parallelizable):
        def forward_backward(self, x):
            return x * 2

    runner = parallel(2, Doubled())
    runner.put(of((2, 3)))
    return runner.get()


def history(one):

    one.update([1.0, 2.0])
    one.update([np.float64(0.5), 1])
    path = folder() / "a.png"
    one.plot(save_path=str(path))
    return [one.history, path.exists()]


def photo():
    return Image.fromarray(picture(48, 64))


def rcnn_batch(batchify):
    """Training batches of images of two sizes."""
    net = gluoncv.model_zoo.get_model("faster_rcnn_resnet50_v1b_voc", pretrained_base=False)
    net.initialize()
    transform = presets.rcnn.FasterRCNNDefaultTrainTransform(64, 128, net)
    images = [mx.nd.array(picture(*size), dtype="uint8") for size in ((96, 128), (128, 96))]
    return batchify(net)([transform(image, boxes.copy()) for image, boxes in zip(images, BOXES)])


def mixed(dataset):
    """Images of two sizes with different numbers of boxes, mixed half and half."""
    pairs = [(mx.nd.array(picture(24 + n, 32)), boxes) for n, boxes in enumerate(BOXES)]
    return [dataset(mx.gluon.data.SimpleDataset(pairs), lambda: np.float64(0.5))[n] for n in range(3)]


def imagenet():
    return pictures(("val/cats/0", "val/cats/1", "val/dogs/2", "val/dogs/3"))


def clips(dataset, name_pattern="img_%05d.jpg"):
    """A clip of a folder of frames, as the data sets of videos read it."""
    files = {f"video/{name_pattern % number}": picture(48 + number, 64) for number in range(1, 9)}
    place = folder({**files, "list.txt": "video 8 3\n"})
    size = {"new_width": 40, "new_height": 32, "target_width": 40, "target_height": 32}
    one = dataset(str(place), str(place / "list.txt"), num_segments=2, new_length=1, name_pattern=name_pattern, **size)
    return one[0]


def velodyne():
    return text_file((ramp(12, 4) * 20).astype("float32").tobytes(), "points.bin")


def depth_map(generate):
    camera = "R_rect_00: 1 0 0 0 1 0 0 0 1\nP_rect_02: 10 0 16 0 0 10 12 0 0 0 1 0\nS_rect_02: 32 24\n"
    turn = "R: 0 -1 0 0 0 -1 1 0 0\nT: 0 0 0\n"
    return generate(str(folder({"calib_cam_to_cam.txt": camera, "calib_velo_to_cam.txt": turn})), velodyne())


def joints():
    return np.stack([np.abs(ramp(17, 3)) * 40, np.ones((17, 3))], axis=2).astype("float32")


def person():
    return {"bbox": [5, 4, 40, 40], "joints_3d": joints()}


def anchors():
    return mx.nd.contrib.MultiBoxPrior(mx.nd.zeros((1, 3, 4, 4)), sizes=(0.3, 0.5)) * 1.0


def yolo():
    net = gluoncv.model_zoo.get_model("yolo3_darknet53_voc", pretrained_base=False)
    net.initialize()
    return net


def corner():
    return namedtuple("Corner", "x1 y1 x2 y2")(40, 40, 90, 90)


def drawn(axes):
    """What stands in a picture of Matplotlib."""
    found = [len(axes.patches), [text.get_text() for text in axes.texts], [one.get_array() for one in axes.images]]
    plt.close("all")
    return found
