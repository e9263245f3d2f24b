"""Folders and records of images: the same pixels as MXNet's, in splits that new files do not change."""

from concurrent.futures import ThreadPoolExecutor
import pickle
import shutil

from genuine_files import write
import gluoncv
from made_images import picture, write_records
from mxkit.data.augment import IMAGENET_MEAN
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.image_bytes import decode, pack, write_record
from mxkit.data.image_files import ImageRecords, image_folder, image_records, imagenet
from mxkit.data.pixels import drawn_by_dataset
from mxkit.errors import DataError, TrapWarning
import mxnet as mx
from mxnet.gluon.data.vision import transforms
import numpy as np
from PIL import Image
import pytest


def write_classes(root, classes=("ant", "bee", "cat"), count=4, start=0):
    for number, name in enumerate(classes):
        for image in range(start, start + count):
            write(root / name / f"{image}.jpg", picture(100 * number + image))
    return root


def whole_folder(root, **settings):
    """All images in the training part."""
    return image_folder(root, valid=0, test=0, **settings)


def names_of(part):
    return [part.path(row).relative_to(part.root).as_posix() for row in range(len(part))]


def sizes(data):
    return [len(part) for part in data[:3]]


# Decoding


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGB"), ("PNG", "L"), ("PNG", "RGBA"), ("BMP", "RGB")]
)
@pytest.mark.parametrize("channels", [3, 1])
def test_pixels_are_those_of_mxnet(kind, mode, channels):
    content = picture(1, kind, mode)
    expected = mx.image.imdecode(content, flag=int(channels == 3)).asnumpy()
    found = decode(content, "a file", channels)
    assert found.shape == (30, 40, channels)
    assert found.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(found, expected)


NO_PICTURES = [
    *[
        (picture(1, kind)[: int(len(picture(1, kind)) * cut)], f"some/file: the {kind} ends before its end")
        for kind in ("JPEG", "PNG")
        for cut in (0.1, 0.5, 0.9, 0.99)
    ],
    (b"", "some/file: the file is empty. Fetch it again or remove it"),
    (b"<html>not found</html>", "file: it is no image that OpenCV knows; it begins with b'<html>.*Remove it"),
]


@pytest.mark.parametrize(("content", "words"), NO_PICTURES)
def test_files_that_were_cut_off_or_are_no_images(content, words):
    """T102: MXNet reads them."""
    with pytest.raises(DataError, match=words):
        decode(content, "some/file")


def test_pictures_with_a_thumbnail_and_an_orientation_are_those_of_mxnet():
    inner, exif = picture(2, size=(8, 8)), Image.Exif()
    exif[0x0112] = 6  # turned, which MXNet ignores
    content = picture(1, exif=b"Exif\0\0" + exif.tobytes() + inner)
    assert content.count(b"\xff\xd9") == 2
    np.testing.assert_array_equal(decode(content + inner, "a"), mx.image.imdecode(content).asnumpy())
    with pytest.raises(DataError, match="the JPEG ends before its end"):
        decode(content[:-20], "a")


# Folders


@pytest.mark.parametrize("channels", [3, 1])
def test_a_folder_is_read_as_gluon_reads_it(tmp_path, channels):
    write_classes(tmp_path, count=2)
    oracle = mx.gluon.data.vision.ImageFolderDataset(str(tmp_path), flag=int(channels == 3))
    data = whole_folder(tmp_path, channels=channels)
    assert data.classes == oracle.synsets
    assert sizes(data) == [len(oracle), 0, 0] == [6, 0, 0]
    for row in range(len(oracle)):
        image, label = data.train[row]
        np.testing.assert_array_equal(image, oracle[row][0].asnumpy())
        assert label == oracle[row][1] == data.train.labels[row]
        assert str(data.train.path(row)) == oracle.items[row][0]
    assert data.train.labels.dtype == np.int32
    assert data.train[-1][1] == 2
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(data.train))[3][0], data.train[3][0])
    for index, error in ((6, IndexError), (slice(0, 2), TypeError)):
        with pytest.raises(error):
            data.train[index]


def test_parts_share_nothing_lose_nothing_and_stay_when_files_come(tmp_path):
    write_classes(tmp_path, count=40)
    data = image_folder(tmp_path, valid=0.2, test=0.3)
    before = [set(names_of(part)) for part in data[:3]]
    assert sum(map(len, before)) == len(set.union(*before)) == 120
    assert [len(part) for part in before] == pytest.approx([60, 24, 36], abs=12)
    write_classes(tmp_path, start=40, count=7)
    write_classes(tmp_path, classes=["aardvark"], count=30)
    after = [set(names_of(part)) for part in image_folder(tmp_path, valid=0.2, test=0.3)[:3]]
    for one, other in zip(before, after):
        assert one <= other
    # a larger test part takes from the others, and gives nothing back
    assert after[2] <= set(names_of(image_folder(tmp_path, valid=0.2, test=0.5).test))
    assert set(names_of(image_folder(tmp_path, valid=0.2, test=0.3, seed=1).test)) != after[2]


@pytest.mark.filterwarnings("ignore:.*test has . samples?, and none of")
def test_the_cut_is_frozen(tmp_path):
    write_classes(tmp_path, count=10)
    assert names_of(image_folder(tmp_path).test) == ["ant/8.jpg", "bee/5.jpg", "bee/6.jpg", "bee/8.jpg"]


@pytest.mark.filterwarnings("ignore:.*test has . samples?, and none of")
def test_folders_that_are_parts(tmp_path):
    write_classes(tmp_path / "train", count=30)
    write_classes(tmp_path / "Val", count=2)
    write_classes(tmp_path / "test", classes=["bee"], count=3)
    data = image_folder(tmp_path)
    assert sizes(data) == [90, 6, 3]
    assert data.test.labels.tolist() == [1, 1, 1]
    assert data.test.classes == data.classes == ["ant", "bee", "cat"]
    shutil.rmtree(str(tmp_path / "Val"))
    cut = image_folder(tmp_path, valid=0.2, test=0.2)
    assert len(cut.train) + len(cut.valid) == 90
    assert 6 <= len(cut.valid) <= 30
    assert len(cut.test) == 3
    shutil.rmtree(str(tmp_path / "test"))
    assert len(image_folder(tmp_path, test=0.5).test) == 0


def test_a_class_may_be_called_train(tmp_path):
    write_classes(tmp_path, classes=["car", "plane", "train"])
    assert whole_folder(tmp_path).classes == ["car", "plane", "train"]
    write(tmp_path / "train/steam/9.jpg", picture(1))
    assert whole_folder(tmp_path).classes == ["car", "plane", "train"]
    write_classes(tmp_path / "other", classes=["test", "train"])
    assert whole_folder(tmp_path / "other").classes == ["test", "train"]


def test_what_systems_leave_behind_is_ignored_and_other_files_are_told_once(tmp_path):
    write_classes(tmp_path)
    for name in (".DS_Store", ".hidden/1.jpg", "__MACOSX/1.jpg", "ant/.1.jpg", "ant/Thumbs.db", "ant/.git/1.jpg"):
        write(tmp_path / name, b"rubbish")
    data = whole_folder(tmp_path)
    assert (data.classes, len(data.train)) == (["ant", "bee", "cat"], 12)
    write(tmp_path / "ant/notes.txt", b"1")
    write(tmp_path / "bee/deep/notes.doc", b"1")
    with pytest.warns(TrapWarning, match=r"left out 2 files that are no images by their names, like .*ant/notes\.txt"):
        assert len(whole_folder(tmp_path).train) == 12


def test_nested_folders_and_odd_names(tmp_path):
    write(tmp_path / "ant/x/y/é 1.JPG", picture(1))
    write(tmp_path / "ant/x.jpeg", picture(2))
    write(tmp_path / "bee/\udcff.png", picture(3, "PNG"))
    data = whole_folder(tmp_path)
    assert names_of(data.train)[:2] == ["ant/x.jpeg", "ant/x/y/é 1.JPG"]
    assert [data.train[row][0].shape for row in range(3)] == [(30, 40, 3)] * 3


ONE = ["ant/1.jpg", "bee/1.jpg"]


@pytest.mark.parametrize(
    ("names", "shares", "error", "words"),
    [
        ([*ONE, "dog/"], (0, 0), DataError, "dog: this folder is a class without an image"),
        (None, (0, 0), DataError, "there is no folder"),
        ([], (0, 0), DataError, "folder for each class; it has none. Pass the folder above a class"),
        (["train/ant/1.jpg", "val/dog/1.jpg"], (0, 0), DataError, r"of the training part; it has \['dog'\] too"),
        (ONE, (0.45, 0.45), DataError, "the training part has no image of"),
        (ONE, (0.5, 0.5), ValueError, "expected shares, below 1 together; received"),
        (ONE, (5, 0), ValueError, "expected shares, below 1 together; received"),
    ],
)
def test_folders_that_cannot_be_trained_on(tmp_path, names, shares, error, words):
    for name in names or ():
        write(tmp_path / "root" / name, picture(1)) if name[-1] != "/" else (tmp_path / "root" / name).mkdir()
    (tmp_path / "root").mkdir(exist_ok=True) if names == [] else None
    with pytest.raises(error, match=words):
        image_folder(tmp_path / "root", valid=shares[0], test=shares[1])


def test_a_part_without_a_class_is_told(tmp_path):
    write_classes(tmp_path / "train", ("ant", "bee"), count=6)
    write_classes(tmp_path / "val", ("ant", "bee"), count=1)
    write_classes(tmp_path / "test", ("bee",), count=3)
    with pytest.warns(TrapWarning, match="test has 3 samples, and none of ant: scores over such a part say little"):
        image_folder(tmp_path)
    write_classes(tmp_path / "test", ("ant",), count=1)
    assert len(image_folder(tmp_path).test) == 4  # all classes, and an error where anything is warned of
    shutil.rmtree(str(tmp_path / "test"))
    write(tmp_path / "test/1.jpg", picture(1))
    with pytest.warns(TrapWarning, match="its images have no labels; the test part is left empty"):
        assert len(image_folder(tmp_path).test) == 0


def test_damaged_files_are_told_when_they_are_read(tmp_path):
    write_classes(tmp_path)
    content = picture(1)
    write(tmp_path / "bee/1.jpg", content[: len(content) // 2])
    write(tmp_path / "bee/2.jpg", b"<html></html>")
    train = whole_folder(tmp_path).train
    train.path(7).unlink()
    damages = ("the JPEG ends before its end", "it is no image", "the image cannot be read: No such file")
    for row, words in enumerate(damages, 1):
        with pytest.raises(DataError, match=rf"bee/{row}\.jpg: {words}"):
            train[4 + row]
    assert train[4][0].shape == (30, 40, 3)


def test_gluons_transforms_and_loaders_take_it(tmp_path):
    train = image_folder(write_classes(tmp_path), valid=0, test=0).train
    tensors = train.transform_first(transforms.Compose([transforms.Resize(16), transforms.ToTensor()]))
    assert tensors[0][0].shape == (3, 16, 16)
    loader = mx.gluon.data.DataLoader(tensors, batch_size=5)
    assert [(x.shape, y.shape, y.dtype) for x, y in loader][-1] == ((2, 3, 16, 16), (2,), np.int32)
    assert len(train.take(5)) == 5
    assert train.transform(lambda image, label: (type(image), label))[0] == (mx.nd.NDArray, 0)


# Records


def write_labels(path, labels=tuple(range(12))):
    return write_records(path, [(label, key, picture(key)) for key, label in enumerate(labels)])


@pytest.mark.parametrize("index", [True, False])
def test_records_are_read_as_gluon_reads_them(tmp_path, index):
    path = write_labels(tmp_path / "a.rec")
    oracle = mx.gluon.data.vision.ImageRecordDataset(str(path))
    expected = [(image.asnumpy(), label) for image, label in oracle]
    if not index:
        path.with_suffix(".idx").unlink()
    found = ImageRecords(path)
    assert len(found) == len(expected) == 12
    for row, (image, label) in enumerate(expected):
        np.testing.assert_array_equal(found[row][0], image)
        assert found[row][1] == label
    assert found.labels.tolist() == list(range(12))
    assert found.labels.dtype == np.int32
    assert found.classes == [str(number) for number in range(12)]
    assert found.transform_first(transforms.ToTensor())[0][0].shape == (3, 30, 40)


def test_threads_do_not_move_each_others_reading_position(tmp_path):
    found = ImageRecords(write_labels(tmp_path / "a.rec"))
    rows = np.random.RandomState(0).randint(0, 12, 1500).tolist()
    with ThreadPoolExecutor(8) as threads:
        assert [label for _, label in threads.map(found.__getitem__, rows)] == rows


def test_labels_of_several_numbers(tmp_path):
    path = write_labels(tmp_path / "a.rec", labels=[np.array([1, 0.5]), np.array([2, 3])])
    found = ImageRecords(path)
    np.testing.assert_array_equal(found.labels, [[1, 0.5], [2, 3]])
    np.testing.assert_array_equal(found[0][1], np.float32([1, 0.5]))
    assert found.classes == []
    assert ImageRecords(write_labels(tmp_path / "b.rec", labels=[0.25, 1])).labels.tolist() == [0.25, 1]
    assert ImageRecords(write_labels(tmp_path / "c.rec", labels=[0, 2.0**30])).classes == []
    beyond = ImageRecords(write_labels(tmp_path / "d.rec", labels=[0, 1e20])).labels
    np.testing.assert_array_equal(beyond, np.float32([0, 1e20]))


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("last", [True, False])
def test_files_of_insightface_give_the_images_and_the_persons(index, last, tmp_path):
    """T238."""
    # record 0 has the ids of the first person and after the last one; a person has the ids of his images
    header = [([6, 8], 0, b"")]
    images = [([number // 3], number + 1, picture(number)) for number in range(4)] + [([1, 0.5], 5, picture(4))]
    contents = [*images, ([1, 4], 6, b""), ([4, 6], 7, b"")]
    path = tmp_path / "train.rec"
    with path.open("wb") as file, path.with_suffix(".idx").open("w") as lines:
        for labels, number, content in contents + header if last else header + contents:
            lines.write(f"{number}\t{file.tell()}\n")
            write_record(file, pack(labels, number, content))
    if not index:
        path.with_suffix(".idx").unlink()
    data = image_records(path, valid=0, test=0)
    assert (data.train.labels.tolist(), data.classes) == ([0, 0, 0, 1, 1], ["0", "1"])
    assert data.train.labels.dtype == np.int32
    assert [data.train[i][0].tobytes() for i in range(5)] == [decode(one[2], "it").tobytes() for one in images]
    assert len(image_records(path, valid=0.4, test=0).valid) == 2


def test_a_record_file_that_was_cut_off(tmp_path):
    path = write_labels(tmp_path / "a.rec")
    whole, index = path.read_bytes(), path.with_suffix(".idx").read_text()
    ends = (len(whole) - 1, len(whole) // 2, 10)
    for content, lines, words in [
        *[(whole[:end], index, r"a\.(rec|idx): .*cut off") for end in ends],
        *[(whole[:end], None, r"a\.rec: .*cut off") for end in ends],
        (whole, "".join(index.splitlines(True)[:-1]), "it does not end where the last record of a.idx ends"),
        (whole, "no index", "a.idx: expected lines of a key, a tab and a place"),
        (b"", index, "the file is empty"),
        (b"<html>not a record</html>", None, "no record begins at byte 0: .* no RecordIO file"),
    ]:
        path.write_bytes(content)
        path.with_suffix(".idx").write_text(lines or "")
        if lines is None:
            path.with_suffix(".idx").unlink()
        with pytest.raises(DataError, match=words):
            ImageRecords(path)


def test_a_damaged_record_is_told_when_it_is_read(tmp_path):
    path = write_labels(tmp_path / "a.rec")
    places = [int(line.split("\t")[1]) for line in path.with_suffix(".idx").read_text().splitlines()]
    content = bytearray(path.read_bytes())
    content[places[3]] ^= 1
    content[places[5] + 40 : places[6] - 8] = bytes(places[6] - places[5] - 48)
    path.write_bytes(content)
    found = ImageRecords(path)
    for row, words in ((3, "it is damaged"), (5, "")):
        with pytest.raises(DataError, match=rf"a\.rec, record {row}: {words}"):
            found[row]
    assert found[4][1] == 4


def test_records_in_parts(tmp_path):
    labels = [0, 1, 2, 3] * 5
    write_labels(tmp_path / "train.rec", labels)
    data = image_records(tmp_path / "train.rec", valid=4, test=0.4)
    assert sizes(data) == [8, 4, 8]
    assert sorted(data.test.labels.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.classes == list("0123")
    keys = [part[row][0].tobytes() for part in data[:3] for row in range(len(part))]
    assert len(set(keys)) == 20
    write_labels(tmp_path / "val.rec", [0, 1])
    data = image_records(tmp_path, classes=["a", "b", "c", "d"])
    assert sizes(data) == [20, 2, 0]
    assert data.valid.classes == ["a", "b", "c", "d"]
    write_labels(tmp_path / "rare.rec", [0] * 9 + [1])
    with pytest.warns(TrapWarning, match="test has 1 samples, and none of 1: "):
        image_records(tmp_path / "rare.rec", valid=0)
    with pytest.raises(DataError, match=r"expected a \.rec file, or a folder with train\.rec"):
        image_records(tmp_path / "none")


# ImageNet

IDS = ["n01440764", "n01443537", "n01484850"]


def write_imagenet(root, labels=None):
    """ILSVRC's layout; `val` is flat where a file of labels is given."""
    write_classes(root / "train", IDS, count=3)
    if labels is None:
        return write_classes(root / "val", IDS, count=2)
    for number in range(1, 5):
        write(root / f"val/ILSVRC2012_val_{number:08}.JPEG", picture(number))
    name, text = labels
    write(root / name, text.encode())
    return root


def test_imagenet_in_folders(tmp_path, monkeypatch):
    write_imagenet(tmp_path / "datasets/imagenet")
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    data = imagenet()
    assert sizes(data) == [9, 6, 0]
    assert data.classes == IDS
    assert data.mean == IMAGENET_MEAN
    write_imagenet(tmp_path / "kaggle/ILSVRC/Data/CLS-LOC")
    assert len(imagenet(tmp_path / "kaggle").train) == 9


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("LOC_val_solution.csv", "ILSVRC2012_val_{0:08},{1} 85 1 499 272"),
        ("val.txt", "ILSVRC2012_val_{0:08}.JPEG {2}"),
        ("val/val.txt", "ILSVRC2012_val_{0:08}.JPEG {1}"),
    ],
)
def test_imagenet_with_a_file_of_labels(tmp_path, name, line):
    labels = [2, 0, 1, 2]
    lines = [line.format(number, IDS[label], label) for number, label in enumerate(labels, 1)]
    data = imagenet(write_imagenet(tmp_path, (name, "\n".join(lines) + "\n")))
    assert data.valid.labels.tolist() == labels
    np.testing.assert_array_equal(data.valid[2][0], decode(picture(3), "a"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("490\n361\n", "no label for 4 images"),
        ("ILSVRC2012_val_00000001.JPEG n01440764\n", "no label for 3 images of .*like ILSVRC2012_val_00000002"),
        ("ILSVRC2012_val_00000001.JPEG 1000\n", "expected a class from 0 to 999"),
    ],
)
def test_imagenet_labels_that_cannot_be(tmp_path, text, words):
    write_imagenet(tmp_path, ("mine.txt", text))
    with pytest.raises(DataError, match=words):
        imagenet(tmp_path, val_labels=tmp_path / "mine.txt")
    with pytest.raises(DataError, match="there is no file of labels: pass val_labels="):
        imagenet(tmp_path)


def test_imagenet_that_is_not_there_and_imagenet_as_records(tmp_path):
    with pytest.raises(DataError, match="registered users get ImageNet"):
        imagenet(tmp_path)
    write_classes(tmp_path / "train", ["ant"])
    with pytest.raises(DataError, match="expected folders like n01440764; there is 'ant'"):
        imagenet(tmp_path)
    write_labels(tmp_path / "rec/train.rec", [0, 999, 1])
    write_labels(tmp_path / "rec/val.rec", [2, 2])
    data = imagenet(tmp_path)
    assert sizes(data) == [3, 2, 0]
    assert len(data.classes) == 1000
    assert data.classes[:3] == IDS
    assert data.classes == sorted(data.classes)


@pytest.mark.filterwarnings("ignore:.*test has . samples?, and none of")
def test_transforms_with_rng_get_numpy_and_others_get_mxnets_arrays(tmp_path, kind):
    write_classes(tmp_path, classes=["a", "b"], count=4)
    part = image_folder(tmp_path).train
    seen = []

    def plain(image):
        seen.append(type(image))
        return image.astype("float32")

    def drawing(image, rng):
        seen.append(type(image))
        return image * 0 + rng.integers(255, dtype=np.uint8)

    assert drawn_by_dataset(part) == frozenset()
    assert drawn_by_dataset(part.transform_first(drawing)) == frozenset()
    assert drawn_by_dataset(part.transform_first(plain)) == {"mxnet", "numpy", "python"}
    with kind.switches():
        part.transform_first(plain)[0]
        part.transform(lambda image, label: (plain(image), label))[0]
        assert kind.holds(part.transform_first(gluoncv.data.transforms.block.RandomCrop(4))[0][0])
    batches = [list(DatasetLoader(part.transform_first(drawing), 2, seed=1, workers=one)) for one in (0, "thread:2")]
    assert seen[:2] == [mx.np.ndarray if kind.numpy else mx.nd.NDArray] * 2
    assert set(seen[2:]) == {np.ndarray}
    for (x, y), (other_x, other_y) in zip(*batches):
        assert (x.asnumpy() == other_x.asnumpy()).all()
        assert (y.asnumpy() == other_y.asnumpy()).all()
