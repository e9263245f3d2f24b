"""Figures of detection, segmentation and pose equal gluoncv, pycocotools and NumPy over unequal batches."""

from gluoncv.utils.metrics.segmentation import SegmentationMetric
from gluoncv.utils.metrics.voc_detection import VOC07MApMetric, VOCMApMetric
from mxkit.errors import DataError
from mxkit.metrics import get_metric
from mxkit.metrics.detection import confusion, points_of
import mxnet as mx
import numpy as np
import pytest

CLASSES = 4


def batches(seed, sizes=(5, 3, 1, 8), ties=False):
    """Objects and findings near them; class 3 has no object, some objects are difficult, some images are empty."""
    rng = np.random.default_rng(seed)
    for size in sizes:
        truth = np.full((size, 5, 6), -1, np.float32)
        for number in range(size):
            for row in range(rng.integers(0, 6)):
                x, y = rng.integers(0, 50, 2)
                width, height = rng.integers(5, 40, 2)
                truth[number, row] = [x, y, x + width, y + height, rng.integers(3), rng.integers(4) == 0]
        near = truth[:, :, :4] + rng.normal(0, 2, (size, 5, 4))
        far = rng.uniform(0, 40, (size, 4, 4))
        far[:, :, 2:] += far[:, :, :2]
        ids = np.concatenate([truth[:, :, 4:5], rng.integers(-1, CLASSES, (size, 4, 1))], axis=1)
        scores = rng.integers(1, 4, ids.shape) / 4 if ties else rng.random(ids.shape)
        found = [ids, scores, np.concatenate([near, far], axis=1)]
        yield truth, [one.astype(np.float32) for one in found]


def updated(metric, data):
    for truth, found in data:
        metric.update([mx.nd.array(truth)], tuple(map(mx.nd.array, found)))
    return metric


@pytest.mark.parametrize("points", [None, 11])
@pytest.mark.parametrize("seed", range(4))
def test_voc_map_equals_gluoncv(points, seed):
    names = list("abcd")
    theirs = (VOC07MApMetric if points else VOCMApMetric)(0.5, names)
    for truth, (ids, scores, boxes) in batches(seed):
        marks = [truth[:, :, :4], truth[:, :, 4:5], truth[:, :, 5:6]]
        theirs.update([boxes], [ids], [scores], *([one] for one in marks))
    metric = updated(get_metric(("voc_map", {"points": points})), batches(seed))
    by_name = dict(zip(*theirs.get()))
    assert set(metric.by_class()) == {0, 1, 2}
    for number, value in metric.by_class().items():
        assert value == pytest.approx(by_name[names[number]], abs=1e-9)
    assert metric.get() == pytest.approx(np.mean([by_name[name] for name in "abc"]), abs=1e-9)


@pytest.mark.parametrize("ties", [False, True])
def test_confusion_equals_a_loop_over_images(ties):
    table, truths, founds = np.zeros((CLASSES + 1, CLASSES + 1), np.int64), [], []
    for objects, (ids, scores, boxes) in batches(5, ties=ties):
        truths += [one[one[:, 4] >= 0] for one in objects]
        founds += [np.column_stack(one)[one[0][:, 0] >= 0] for one in zip(ids, scores, boxes)]
    for truth, found in zip(truths, founds):
        answers = [CLASSES] * len(truth)
        for kind, score, *box in sorted(found.tolist(), key=lambda row: -row[1]):
            if score < 0.5:
                continue
            shares = []
            for left, top, right, bottom, *_ in truth:
                width = max(0, min(right, box[2]) - max(left, box[0]) + 1)
                height = max(0, min(bottom, box[3]) - max(top, box[1]) + 1)
                own = (right - left + 1) * (bottom - top + 1)
                shares.append(width * height / (own + (box[2] - box[0] + 1) * (box[3] - box[1] + 1) - width * height))
            best = int(np.argmax(shares)) if shares else 0
            if not shares or shares[best] < 0.5 or (not truth[best, 5] and answers[best] != CLASSES):
                table[CLASSES, int(kind)] += 1
            elif not truth[best, 5]:
                answers[best] = int(kind)
        for row, answer in zip(truth, answers):
            table[int(row[4]), answer] += not row[5]
    assert table[:-1, :-1].trace() > 10
    assert (table[:, -1].sum() > 1) & (table[-1].sum() > 1) & (table.sum() - table.trace() > 10)
    metric = updated(get_metric("voc_map"), batches(5, ties=ties))
    np.testing.assert_array_equal(confusion(*metric.rows(0.5), CLASSES), table)


def test_coco_ap_equals_pycocotools():
    pytest.importorskip("pycocotools")
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth, found, image = [], [], 0
    for objects, (ids, scores, boxes) in batches(1):
        for number in range(len(objects)):
            for row in objects[number][objects[number][:, 4] >= 0].tolist():
                box = [row[0], row[1], row[2] - row[0], row[3] - row[1]]
                own = {"image_id": image, "category_id": int(row[4]), "bbox": box, "area": box[2] * box[3]}
                truth.append({**own, "id": len(truth) + 1, "iscrowd": int(row[5])})
            for kind, score, box in zip(ids[number, :, 0], scores[number, :, 0], boxes[number].tolist()):
                if kind >= 0:
                    side = [box[0], box[1], box[2] - box[0], box[3] - box[1]]
                    own = {"image_id": image, "category_id": int(kind), "bbox": side, "area": side[2] * side[3]}
                    found.append({**own, "id": len(found) + 1, "score": float(score), "iscrowd": 0})
            image += 1
    common = {"images": [{"id": number} for number in range(image)], "categories": [{"id": one} for one in range(4)]}
    sets = []
    for annotations in (truth, found):
        one = COCO()
        one.dataset = {**common, "annotations": annotations}
        one.createIndex()
        sets.append(one)
    evaluation = COCOeval(*sets, "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    metric = updated(get_metric("coco_ap"), batches(1))
    assert metric.get() == pytest.approx(evaluation.stats[0], abs=1e-6)


@pytest.mark.parametrize("name", ["voc_map", "coco_ap"])
def test_parts_of_workers_and_states_give_the_figure_of_the_whole(name):
    if name == "coco_ap":
        pytest.importorskip("pycocotools")
    whole, data = updated(get_metric(name), batches(2)), list(batches(2))
    parts = [updated(get_metric(name), data[:1]).part(), updated(get_metric(name), data[1:]).part()]
    joined = get_metric(name)
    joined.take(parts)
    assert joined.get() == whole.get()
    numbers, arrays = updated(get_metric(name), data[:2]).state()
    resumed = get_metric(name)
    resumed.load_state(numbers, arrays, [mx.cpu()])
    assert updated(resumed, data[2:]).get() == whole.get()


def test_without_an_object_there_is_no_average_precision():
    empty = [(truth * 0 - 1, found) for truth, found in batches(0)]
    assert np.isnan(updated(get_metric("voc_map"), empty).get())
    assert np.isnan(get_metric("voc_map").get())


def test_segmentation_equals_gluoncv_if_each_class_is_there():
    rng, theirs = np.random.default_rng(0), SegmentationMetric(3)
    metrics = [get_metric("mean_iou"), get_metric("pixel_accuracy")]
    for size in (3, 1, 6):
        labels, scores = rng.integers(-1, 3, (size, 9, 7)), rng.random((size, 3, 9, 7))
        arrays = mx.nd.array(labels), mx.nd.array(scores)
        theirs.update(*arrays)
        for metric in metrics:
            metric.update([arrays[0]], arrays[1])
    accuracy, mean = theirs.get()
    assert metrics[0].get() == pytest.approx(mean, abs=1e-9)
    assert metrics[1].get() == pytest.approx(accuracy, abs=1e-9)


def test_a_class_that_is_nowhere_is_left_out():
    """T268: gluoncv counts it as 0."""
    labels = mx.nd.zeros((1, 4, 4))
    scores = mx.nd.one_hot(labels, 5).transpose((0, 3, 1, 2))
    metric, theirs = get_metric("mean_iou"), SegmentationMetric(5)
    metric.update([labels], scores)
    theirs.update(labels, scores)
    assert metric.get() == 1.0
    assert theirs.get()[1] < 0.3
    assert metric.by_class() == {0: 1.0}


def test_pck_and_oks_equal_numpy():
    rng = np.random.default_rng(0)
    metrics = {"pck": get_metric("pck"), "oks": get_metric(("oks", {"sigma": 0.1}))}
    away, sides, known = [], [], []
    for size in (4, 1, 3):
        heat = rng.random((size, 5, 12, 10)).astype(np.float32)
        points = rng.uniform(0, 40, (size, 5, 3)).astype(np.float32)
        points[:, :, 2] = rng.integers(0, 2, (size, 5))
        points[:, :2, 2] = 1
        points[1:2, :, 2] = [1, 0, 0, 0, 0]  # one point has neither size nor area
        for metric in metrics.values():
            metric.input_shape = (size, 3, 48, 40)
            metric.update([mx.nd.array(points)], mx.nd.array(heat))
        for own, table in zip(points_of(heat), points):
            own_known = table[:, 2] > 0
            span = table[own_known][:, :2]
            away.append(np.hypot(*(own[:, :2] * 4 - table[:, :2]).T))
            sides.append(np.tile(span.max(axis=0) - span.min(axis=0), (5, 1)))
            known.append(own_known & (own_known.sum() > 1))
    away, sides, known = (np.concatenate(one) for one in (away, sides, known))
    sizes, areas = sides.max(axis=1), np.maximum(sides.prod(axis=1), 1e-9)
    near = (away <= 0.1 * sizes)[known].mean()
    assert metrics["pck"].get() == pytest.approx(near)
    by_point = (away <= 0.1 * sizes).reshape(-1, 5), known.reshape(-1, 5)
    for number, value in metrics["pck"].by_class().items():
        assert value == pytest.approx(by_point[0][by_point[1][:, number], number].mean())
    with pytest.raises(DataError, match="pass scale="):
        get_metric("pck").update([mx.nd.array(points)], mx.nd.array(heat))
    alike = np.exp(-(away**2) / (2 * areas * 0.2**2))[known].mean()
    assert metrics["oks"].get() == pytest.approx(alike, rel=1e-5)


def test_points_of_heat_maps_equal_gluoncv():
    from gluoncv.data.transforms.pose import get_max_pred

    heat = np.random.default_rng(0).random((3, 4, 8, 6)).astype(np.float32)
    heat[0, :, [0, 7, 3, 7], [2, 1, 5, 5]] = 2  # at the borders
    places, scores = get_max_pred(mx.nd.array(heat))
    found = points_of(heat)
    assert np.abs(found[:, :, :2] - places.asnumpy()).max() <= 0.25
    np.testing.assert_array_equal(found[:, :, 2:], scores.asnumpy())


@pytest.mark.parametrize(
    ("name", "labels", "output", "words"),
    [("voc_map", (2, 3), (2, 4), "of a detector"), ("mean_iou", (2, 3), (2, 4), "masks")],
)
def test_other_arrays_are_refused(name, labels, output, words):
    with pytest.raises(DataError, match=words):
        get_metric(name).update([mx.nd.zeros(labels)], mx.nd.zeros(output))
