"""Boxes, masks and points in all formats: equal to gluoncv's readers, and every mistake has file and line."""

import json
import random
import shutil

from annotation_files import NAMES, drawn, write_coco, write_csv, write_records, write_voc, write_yolo
import cv2
from gluoncv.data import COCODetection, RecordFileDetection, VOCDetection
import mxkit
from mxkit.data import box_records, boxes_csv, coco_boxes, coco_points, mask_folder, voc_boxes, voc_masks, yolo_boxes
from mxkit.data.augment_labels import BoxCrop
from mxkit.errors import DataError, TrapWarning
from mxkit.recipe.marks import CocoResults
from mxkit.recipe.net_facts import ImageForm, image_reader
from mxkit.recipe.reading import load_recipe
import mxnet as mx
import numpy as np
from PIL import Image
import pytest
from sharing import text_of

SAMPLES = drawn(12)


class OwnVOC(VOCDetection):
    """gluoncv's reader with the classes of the test."""

    CLASSES = NAMES


class OwnCOCO(COCODetection):
    """gluoncv's reader with the classes of the test."""

    CLASSES = NAMES


def write_masks(root, colours=None):
    """Two folders of images and masks; with colours the masks are RGB."""
    for number, (image, _) in enumerate(SAMPLES):
        mask = np.random.default_rng(number).integers(0, 3, image.shape[:2]).astype(np.uint8)
        mask[0, :4] = 255
        for folder, pixels in (("images", image), ("masks", mask if colours is None else colours[mask])):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / folder / f"{number}.png")
    return root


def test_voc_equals_gluoncv(tmp_path):
    write_voc(tmp_path, SAMPLES, valid=3)
    parts = voc_boxes(tmp_path, train="VOC2007/trainval", valid="VOC2007/test", classes=NAMES)
    theirs = OwnVOC(root=str(tmp_path), splits=((2007, "trainval"),))
    assert len(parts.train) == len(theirs) == 9
    assert len(parts.valid) == 3
    assert parts.classes == NAMES
    for number, (_, boxes) in enumerate(SAMPLES[:9]):
        image, _ = parts.train[number]
        np.testing.assert_array_equal(parts.train.labels[number], boxes)
        if len(boxes):
            their_image, their_boxes = theirs[number]
            np.testing.assert_array_equal(image, their_image.asnumpy())
            np.testing.assert_array_equal(parts.train.labels[number], their_boxes)


def test_coco_equals_gluoncv(tmp_path):
    pytest.importorskip("pycocotools")
    samples = [(image, boxes * [1, 1, 1, 1, 1, 0]) for image, boxes in SAMPLES]  # gluoncv leaves crowds out
    write_coco(tmp_path, samples)
    parts = coco_boxes(tmp_path, valid=None, classes=None)
    theirs = OwnCOCO(root=str(tmp_path), splits=("instances_train2017",), skip_empty=False)
    for number, (_, boxes) in enumerate(samples):
        own = parts.train.labels[number]
        np.testing.assert_array_equal(own[:, :5], theirs[number][1][:, :5] if len(boxes) else own[:, :5])
        np.testing.assert_array_equal(own[:, :2], boxes[:, :2])


def test_coco_results_have_the_ids_and_boxes_of_the_annotation_file(tmp_path):
    path = write_coco(tmp_path, [(image, boxes * [1, 1, 1, 1, 1, 0]) for image, boxes in drawn(9)])
    changes = ["data.name=coco_boxes", f"data.root={tmp_path}", "data.valid=null", "data.augment=null"]
    recipe = load_recipe("ssd_shapes", overrides=changes)
    part = mxkit.data.coco_boxes(tmp_path, valid=None).train
    results, rows = CocoResults(recipe, part.names, part.classes), []
    for name, label in zip(part.names, part.labels):
        found = [{"class": part.classes[int(row[4])], "score": 0.9, "box": row[:4].tolist()} for row in label]
        rows += results.rows(name, {"boxes": found})
    expected = json.loads(path.read_text("utf-8"))["annotations"]
    keys = ("image_id", "category_id", "bbox")
    assert [[row[key] for key in keys] for row in rows] == [[one[key] for key in keys] for one in expected]
    Image.new("RGB", (9, 9)).save(tmp_path / "other.png")
    with pytest.raises(DataError, match=r"other\.png is no image of the annotation files"):
        CocoResults(recipe, [*part.names, str(tmp_path / "other.png")], part.classes)


def test_records_equal_gluoncv(tmp_path):
    path = write_records(tmp_path, [one for one in SAMPLES if len(one[1])])
    parts, theirs = box_records(path, classes=NAMES), RecordFileDetection(str(path))
    for number in range(len(theirs)):
        np.testing.assert_array_equal(parts.train[number][0], theirs[number][0].asnumpy())
        np.testing.assert_allclose(parts.train.labels[number], theirs[number][1], rtol=1e-5)


def test_the_same_boxes_in_yolo_and_csv_format(tmp_path):
    parts = yolo_boxes(write_yolo(tmp_path / "yolo", SAMPLES, valid=3))
    assert [len(parts.train), len(parts.valid)] == [9, 3]
    assert parts.classes == NAMES
    for name, boxes in zip(parts.train.names, parts.train.labels):
        wanted = SAMPLES[int(name.rpartition("/")[2][:-4])][1]
        np.testing.assert_allclose(boxes[:, :5], wanted[:, :5], atol=1e-4)
    table = boxes_csv(write_csv(tmp_path / "csv", SAMPLES), valid=0, test=0, classes=NAMES)
    assert len(table.train) == 12
    for name, boxes in zip(table.train.names, table.train.labels):
        np.testing.assert_array_equal(boxes, SAMPLES[int(name.rpartition("/")[2][:-4])][1])


def test_samples_are_padded_and_images_without_an_object_stay(tmp_path):
    part = yolo_boxes(write_yolo(tmp_path, SAMPLES, valid=3)).train
    most = max(len(boxes) for _, boxes in SAMPLES[:9])
    labels = [label for _, label in (part[number] for number in range(9))]
    assert {label.shape for label in labels} == {(most, 6)}
    assert [int((label[:, 4] >= 0).sum()) for label in labels] == [len(boxes) for boxes in part.labels]
    assert min(map(len, part.labels)) == 0


def test_an_image_without_a_file_of_boxes_is_said(tmp_path):
    root = write_yolo(tmp_path, SAMPLES, valid=3)
    (root / "labels/train/2.txt").unlink()
    with pytest.warns(TrapWarning, match="1 images have no file of boxes"):
        yolo_boxes(root)


def test_masks_by_number_by_palette_and_by_colour(tmp_path):
    colours = np.zeros((256, 3), np.uint8)
    colours[:3], colours[255] = [(0, 0, 0), (128, 0, 0), (0, 128, 0)], 9
    grey = mask_folder(write_masks(tmp_path / "grey"), classes=["ground", "cat", "dog"], valid=0, test=0)
    table = {"ground": (0, 0, 0), "cat": (128, 0, 0), "dog": (0, 128, 0)}
    root = write_masks(tmp_path / "colour", colours)
    coloured = mask_folder(root, classes=table, ignored=[9, 9, 9], valid=0, test=0)
    for number, (image, mask) in enumerate(grey.train[place] for place in range(12)):
        assert mask.shape == image.shape[:2]
        assert mask.dtype == np.int32
        np.testing.assert_array_equal(mask[0, :4], -1)
        np.testing.assert_array_equal(mask, coloured.train[number][1])
    voc = tmp_path / "voc"
    (voc / "ImageSets/Segmentation").mkdir(parents=True)
    for folder, source, ending in (("JPEGImages", "images", "jpg"), ("SegmentationClass", "masks", "png")):
        (voc / folder).mkdir()
        for number in range(12):
            with Image.open(tmp_path / "grey" / source / f"{number}.png") as image:
                if ending == "png":
                    image = image.convert("P")
                    image.putpalette(colours.ravel().tolist())
                    pixels = np.asarray(Image.open(tmp_path / "grey/masks" / f"{number}.png"))
                    image.putdata(pixels.ravel().tolist())
                image.save(voc / folder / f"{number}.{ending}")
    for part, numbers in (("train", range(9)), ("val", range(9, 12))):
        (voc / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(map(str, numbers)), "utf-8")
    parts = voc_masks(voc, classes=["ground", "cat", "dog"])
    order = [int(name.rpartition("/")[2][:-4]) for name in grey.train.names]
    for number in range(9):
        np.testing.assert_array_equal(parts.train[number][1], grey.train[order.index(number)][1])


def test_points_of_persons_are_cut_out_of_their_image(tmp_path):
    write_coco(tmp_path, SAMPLES, points=4)
    part = coco_points(tmp_path, valid=None).train
    assert part.pairs == ((0, 1), (2, 3))
    assert len(part) == sum(len(boxes) for _, boxes in SAMPLES)
    rows = [(image, row) for image, boxes in SAMPLES for row in boxes]
    for (image, row), (pixels, points) in zip(rows, (part[number] for number in range(len(part)))):
        assert abs(pixels.shape[1] / pixels.shape[0] - 0.75) < 0.1
        for place, (x, y, known) in enumerate(points):
            assert known == 1
            np.testing.assert_array_equal(pixels[int(y), int(x)], image[int(row[1]) + 1, int(row[0]) + place])


def refused(words, read, *arguments, **options):
    text = text_of(DataError, read, *arguments, **options)
    assert all(word in text for word in words)


def rewritten(folder, number, change, **how):
    """An annotation file of COCO whose object of a number is changed."""
    path = write_coco(folder, SAMPLES, **how)
    content = json.loads(path.read_text("utf-8"))
    content["annotations"][number].update(change)
    path.write_text(json.dumps(content), "utf-8")


# What is changed in which file, and the words of the error: the line or field, and what is wrong there.
YOLO = {
    "7 .5 .5 .1 .1": ("line 1", "class", "from 0 to 2"),
    "cat .5 .5 .1 .1": ("line 1", "class"),
    "0 .5 .5 .1": ("line 1", "expected class x y width height"),
    "0 .1 .1 .2 .2 .3 .3 .1 .2": ("line 1", "a polygon"),
    "0 .5 .5 .1 .1\n1 .5 x .1 .1": ("line 2", "y", "'x'"),
    "0 .5 .5 nan .1": ("line 1", "width", "'nan'"),
    "0 .5 .5 -.1 .1": ("line 1", "turned round"),
    "0 .5 .5 0 .1": ("line 1", "no area"),
    "0 .9 .5 .6 .1": ("line 1", "leaves its image"),
}


@pytest.mark.parametrize("text", YOLO)
def test_yolo_refuses(tmp_path, text):
    root = write_yolo(tmp_path, SAMPLES, valid=3)
    (root / "labels/train/1.txt").write_text(text, "utf-8")
    refused(("labels/train/1.txt", *YOLO[text]), yolo_boxes, root)


VOC = {
    "no name": ("<name>dog</name>", "", ("line 3", "no <name>")),
    "unknown": ("<name>dog</name>", "<name>dgo</name>", ("dgo", "dog")),
    "no number": ("<xmin>", "<xmin>a", ("<xmin>", "expected a number")),
    "turned": ("<xmax>", "<xmax>-", ("turned round",)),
    "outside": ("<xmax>", "<xmax>9", ("leaves its image",)),
    "difficult": ("<difficult>", "<difficult>x", ("<difficult>", "0 or 1")),
    "cut": ("</annotation>", "", ("no XML",)),
    "entity": ("<annotation>", '<!DOCTYPE a [<!ENTITY b "c">]><annotation>', ("entity",)),
}


@pytest.mark.parametrize("case", VOC)
def test_voc_refuses(tmp_path, case):
    folder = write_voc(tmp_path, SAMPLES, valid=3)
    before, after, words = VOC[case]
    path = next(path for path in sorted(folder.glob("Annotations/*.xml")) if "<name>dog</name>" in path.read_text())
    path.write_text(path.read_text("utf-8").replace(before, after, 1), "utf-8")
    refused((path.name, *words), voc_boxes, folder, classes=NAMES)


COCO = {
    "image": ({"image_id": 1}, ("image_id", "no image 1")),
    "category": ({"category_id": 1}, ("category_id", "no category 1")),
    "crowd": ({"iscrowd": 2}, ("iscrowd", "0 or 1")),
    "three sides": ({"bbox": [1, 2, 3]}, ("bbox", "[1, 2, 3]")),
    "text": ({"bbox": [1, 2, "3", 4]}, ("bbox",)),
    "negative": ({"bbox": [1, 2, -3, 4]}, ("bbox", "above 0")),
    "outside": ({"bbox": [30, 2, 300, 4]}, ("leaves its image",)),
}


@pytest.mark.parametrize("case", COCO)
def test_coco_refuses(tmp_path, case):
    change, words = COCO[case]
    rewritten(tmp_path, 4, change)
    refused(("annotations[4]", *words), coco_boxes, tmp_path, valid=None)


def test_all_mistakes_are_one_error(tmp_path):
    root = write_yolo(tmp_path, SAMPLES, valid=3)
    for number in range(1, 9):
        (root / f"labels/train/{number}.txt").write_text("9 .5 .5 .1 .1", "utf-8")
    with pytest.raises(DataError, match="8 mistakes in the annotations") as error:
        yolo_boxes(root)
    assert "and 3 more" in str(error.value)


def test_an_image_in_two_parts_is_refused(tmp_path):
    folder = write_voc(tmp_path, SAMPLES, valid=3)
    (folder / "ImageSets/Main/test.txt").write_text("001\n010\n011", "utf-8")
    with pytest.raises(DataError, match=r"001\.jpg: the image is in the parts train and valid"):
        voc_boxes(folder, classes=NAMES)


MASKS = {
    "colour": (lambda root: Image.new("RGB", (9, 9)).save(root / "masks/1.png"), ("1.png", "in colour")),
    "size": (lambda root: Image.new("L", (9, 9)).save(root / "masks/1.png"), ("1.png", "(9, 9)")),
    "number": (lambda root: Image.new("L", SAMPLES[1][0].shape[1::-1], 3).save(root / "masks/1.png"), ("class 3",)),
    "missing": (lambda root: (root / "masks/1.png").unlink(), ("1.png", "no mask")),
    "damaged": (lambda root: (root / "masks/1.png").write_bytes(b"x"), ("1.png", "no image")),
}


@pytest.mark.parametrize("case", MASKS)
def test_masks_refuse(tmp_path, case):
    root = write_masks(tmp_path)
    MASKS[case][0](root)
    refused(MASKS[case][1], mask_folder, root, classes=["ground", "cat", "dog"])


POINTS = {
    "few": ({"keypoints": [1, 2, 2]}, ("keypoints", "expected 12 numbers")),
    "outside": ({"keypoints": [999, 2, 2] * 4}, ("point 0 leaves its image",)),
    "box": ({"bbox": [1, 2, 0, 4]}, ("bbox", "with an area")),
}


@pytest.mark.parametrize("case", POINTS)
def test_points_refuse(tmp_path, case):
    change, words = POINTS[case]
    rewritten(tmp_path, 2, change, points=4)
    refused(("annotations[2]", *words), coco_points, tmp_path, valid=None)


def test_errors_of_the_json_file_name_the_function_that_was_called(tmp_path):
    for read in (coco_boxes, coco_points):
        with pytest.raises(DataError, match=f"^{read.__name__}: .*it cannot be read"):
            read(tmp_path)


def mutated(content, rng):
    """Bytes of a file with one change: a byte, a cut, a number, a repeated or lost piece."""
    kind, place = rng.randrange(5), rng.randrange(len(content))
    if kind == 0:
        return content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
    if kind == 1:
        return content[:place]
    if kind == 2:
        digits = [number for number, byte in enumerate(content) if 48 <= byte < 58]
        place = rng.choice(digits or [place])
        return content[:place] + rng.choice([b"-", b"9999", b"1e400", b"nan", b"\x00", b""]) + content[place + 1 :]
    end = min(len(content), place + rng.randrange(1, 40))
    return content[:end] + content[place:] if kind == 3 else content[:place] + content[end:]


FORMATS = {
    "voc": (lambda root: write_voc(root, SAMPLES, 3), lambda root: voc_boxes(root / "VOC2007", classes=NAMES)),
    "coco": (lambda root: write_coco(root, SAMPLES), lambda root: coco_boxes(root, valid=None)),
    "points": (lambda root: write_coco(root, SAMPLES, points=4), lambda root: coco_points(root, valid=None)),
    "yolo": (lambda root: write_yolo(root, SAMPLES, 3), yolo_boxes),
    "csv": (lambda root: write_csv(root, SAMPLES), lambda root: boxes_csv(root / "boxes.csv", classes=NAMES)),
    "records": (lambda root: write_records(root, SAMPLES), lambda root: box_records(root / "boxes.rec", classes=NAMES)),
}
ANNOTATIONS = ("*.xml", "*.json", "labels/train/*.txt", "*.csv", "*.rec", "*.yaml")


@pytest.mark.filterwarnings("ignore:.*say little:mxkit.errors.TrapWarning", "ignore:.*no file of boxes")
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_annotations_give_one_error_or_boxes_inside_their_images(tmp_path, name):
    write, read = FORMATS[name]
    write(tmp_path)
    paths = [path for pattern in ANNOTATIONS for path in sorted(tmp_path.rglob(pattern)) if path.stat().st_size]
    refusals = {}
    for seed in range(70):
        rng = random.Random(f"{name} {seed}")
        path = rng.choice(paths)
        content = path.read_bytes()
        path.write_bytes(mutated(content, rng))
        try:
            train = read(tmp_path).train
        except DataError as error:
            refusals[seed] = str(error)
        else:
            for number in range(len(train)):
                label = np.asarray(train.labels[number])
                assert np.isfinite(label).all()
                assert (label[:, :2] >= -60).all()
                assert label.shape[1] == 3 or (label[:, 2:4] > label[:, :2]).all()
        path.write_bytes(content)
        names = (path.name, path.stem, "annotations")
        assert any(name in refusals.get(seed, path.name) for name in names), refusals[seed]


@pytest.mark.filterwarnings("ignore:.*say little:mxkit.errors.TrapWarning")
def test_the_augmented_loader_gives_boxes_that_fit_the_pixels(tmp_path):
    """A box that is drawn white stays around its white pixels, whatever the workers."""
    samples = []
    for image, boxes in drawn(8, seed=3):
        image = np.zeros_like(image)
        boxes = boxes[:1]
        for left, top, right, bottom in boxes[:, :4].astype(int):
            image[top:bottom, left:right] = 255
        samples.append((image, boxes))
    part = yolo_boxes(write_yolo(tmp_path, samples, valid=1)).train
    steps = [("expand", {"fill": 0.0, "ratio": 2.0}), "box_crop", "flip", ("resize", {"size": (64, 48)}), "to_tensor"]
    batches = {}
    for workers in (0, "thread:2", "process:2"):
        augment = mxkit.data.Augment(steps)
        loader = mxkit.data.DatasetLoader(part, 7, shuffle=True, seed=1, transform=augment, workers=workers)
        with loader:
            (batches[workers],) = [tuple(array.asnumpy() for array in batch) for batch in loader]
    for pixels, boxes in batches.values():
        np.testing.assert_array_equal(pixels, batches[0][0])
        np.testing.assert_array_equal(boxes, batches[0][1])
    pixels, boxes = batches[0]
    for image, table in zip(pixels, boxes):
        rows, columns = np.nonzero(image[0] > 0.4)
        own = table[table[:, 4] >= 0]
        assert len(own) == bool(len(rows))
        if len(own):
            seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            np.testing.assert_allclose(own[0, :4], seen, atol=1.1)


def test_a_crop_around_boxes_lies_in_the_image():
    image, box = np.zeros((8, 6, 3), np.uint8), np.array([[1, 1, 5, 7, 0, 0]], np.float32)
    ends = set()
    for seed in range(600):
        top, left, height, width = BoxCrop().draw_for(np.random.default_rng(seed), image, box)
        assert min(top, left) >= 0
        ends.add((top + height, left + width))
    assert max(bottom for bottom, _ in ends) == 8
    assert max(right for _, right in ends) == 6


def test_shares_in_a_table_of_pixels_are_refused(tmp_path):
    path = write_csv(tmp_path, SAMPLES)
    path.write_text("image,xmin,ymin,xmax,ymax,class\n1.png,0.1,0.2,0.5,0.6,cat\n", "utf-8")
    with pytest.raises(DataError, match="expected pixels, not shares"):
        boxes_csv(path, valid=0, test=0)


def test_boxes_of_one_pixel_in_coco_are_left_out(tmp_path):
    path = write_coco(tmp_path, SAMPLES)
    content = json.loads(path.read_text("utf-8"))
    content["annotations"][4]["bbox"][2] = 0.7
    path.write_text(json.dumps(content), "utf-8")
    with pytest.warns(TrapWarning, match=r"1 boxes of at most one pixel .*annotations\[4\]"):
        part = coco_boxes(tmp_path, valid=None).train
    assert sum(map(len, part.labels)) == len(content["annotations"]) - 1


def test_images_of_voc_without_an_annotation_are_said(tmp_path):
    folder = write_voc(tmp_path, SAMPLES, valid=3)
    (folder / "Annotations/003.xml").unlink()
    shutil.rmtree(folder / "ImageSets")
    with pytest.warns(TrapWarning, match="1 images have no annotation .* like 003"):
        voc_boxes(folder, classes=NAMES, share=0)


def test_annotations_of_voc_in_folders_are_read(tmp_path):
    folder = write_voc(tmp_path, SAMPLES, valid=3)
    flat = voc_boxes(folder, classes=NAMES, valid=())
    for name in ("Annotations", "JPEGImages"):
        (folder / name).rename(folder / "moved")
        (folder / name).mkdir()
        (folder / "moved").rename(folder / name / "day")
    shutil.rmtree(folder / "ImageSets")
    deep = voc_boxes(folder, classes=NAMES, share=0)
    assert [name.replace("day/", "") for name in deep.train.names][:9] == flat.train.names
    np.testing.assert_array_equal(deep.train.labels[1], flat.train.labels[1])


def test_images_that_exif_turns_are_said_and_read_as_stored(tmp_path):
    """T283: OpenCV and viewers turn them, MXNet does not; boxes are checked against the pixels that are read."""
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(SAMPLES[1][0]).save(path, exif=exif.tobytes())
    height, width = SAMPLES[1][0].shape[:2]
    assert cv2.imread(str(path)).shape[:2] == (width, height)
    assert mx.image.imread(str(path)).shape[:2] == (height, width)
    (tmp_path / "a.csv").write_text(f"image,xmin,ymin,xmax,ymax,class\nphoto.jpg,1,1,{width},{height},cat\n", "utf-8")
    with pytest.warns(TrapWarning, match=r"1 images are turned by their EXIF orientation, like .*photo\.jpg"):
        part = boxes_csv(tmp_path / "a.csv", valid=0, test=0).train
    assert part[0][0].shape[:2] == (height, width)
    reader = image_reader(load_recipe("ssd_shapes"), ImageForm(3), placed=True)
    with pytest.warns(TrapWarning, match="read as stored, as in training"):
        assert reader(path)[1].size == (height, width)


def test_a_transform_of_the_image_alone_is_refused(tmp_path):
    part = yolo_boxes(write_yolo(tmp_path, SAMPLES, valid=3)).train
    with pytest.raises(DataError, match="boxes would not move"):
        mxkit.data.DatasetLoader(part, 4, transform=lambda image, rng: image)
    augment = mxkit.data.Augment([lambda image, rng: image, "to_tensor"])
    with pytest.raises(DataError, match="may move pixels without"):
        next(iter(mxkit.data.DatasetLoader(part, 4, transform=augment)))
