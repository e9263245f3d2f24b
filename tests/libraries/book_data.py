"""Made data in place of what the chapters of books download; the scripts of .ci/books import this first."""

import contextlib
import csv
import io
import itertools
from pathlib import Path
import random
import tarfile
import zipfile

import IPython.display
from matplotlib.axes import Axes
import matplotlib_inline.backend_inline
import mxnet as mx
from mxnet.gluon import utils
from mxnet.gluon.data import DataLoader
from mxnet.gluon.data.vision import datasets
import numpy as np
import requests

BATCHES = 6  # of a DataLoader's epoch
WORDS = """time machine traveller the a of and i to in he she it was go calm home . , ! ? won got lost hi run baby chip
man woman king beautiful bad good great nice movie film two people are sleeping there swimming girl boy dog""".split()
_rng = random.Random(0)


def text(lines, words=9):
    return "\n".join(" ".join(_rng.choice(WORDS) for _ in range(words)) for _ in range(lines)) + "\n"


def picture(height=32, width=32, mask=False):
    import cv2

    # 128, 0, 0 in BGR's last place is a color of VOC's classes
    values = np.zeros((height, width, 3), "uint8")
    values[height // 4 : height // 2] = (0, 0, 128) if mask else [_rng.randrange(256) for _ in range(3)]
    return cv2.imencode(".png", values)[1].tobytes()


def table(rows, delimiter=","):
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return file.getvalue()


def numbers(count, digits=4):
    return [round(_rng.gauss(0, 1), digits) for _ in range(count)]


def houses(is_train):
    names = ["MSSubClass", "MSZoning", "LotFrontage", "LotArea", "Street", "Alley", *(f"N{k}" for k in range(70))]
    yield ["Id", *names, "YrSold", "SaleType", "SaleCondition", *["SalePrice"] * is_train]
    for k in range(160):
        texts = [_rng.choice(["RL", "Pave", "NA"]) for _ in range(40)]
        row = [k + 1, 60, texts[0], 65, 8450 + k, *texts[1:3], *numbers(35, 1), *texts[3:38], 2008, "WD", "Normal"]
        yield row + [_rng.randrange(50000, 400000)] * is_train


def vectors(dimension):
    return "".join(f"{word} {' '.join(map(str, numbers(dimension)))}\n" for word in dict.fromkeys(WORDS))


def snli():
    yield ["gold_label", "s1", "s2"]
    for k in range(80):
        label = ("entailment", "contradiction", "neutral")[k % 3]
        yield [label, "( ( a man ) ( is here ) )", f"( a {_rng.choice(WORDS)} )"]


def voc():
    root = "VOCdevkit/VOC2012"
    for part in ("train", "val"):
        yield f"{root}/ImageSets/Segmentation/{part}.txt", "".join(f"{part}{k}\n" for k in range(8))
        for k in range(8):
            yield f"{root}/JPEGImages/{part}{k}.jpg", picture(330, 490)
            yield f"{root}/SegmentationClass/{part}{k}.png", picture(330, 490, True)


def bananas():
    for part in ("train", "val"):
        boxes = [[f"{k}.png", 0, 10, 20, 90, 120] for k in range(8)]
        yield f"banana-detection/bananas_{part}/label.csv", table([["img_name", "label", *"abcd"], *boxes])
        yield from ((f"banana-detection/bananas_{part}/images/{k}.png", picture(256, 256)) for k in range(8))


def kaggle(root, labels, names):
    yield f"{root}/{labels}", table([["id", "label"], *([k + 1, names[k % len(names)]] for k in range(40))])
    yield from ((f"{root}/{part}/{k + 1}.png", picture()) for part in ("train", "test") for k in range(40))


def reviews():
    for part, kind, k in itertools.product(("train", "test"), ("pos", "neg"), range(40)):
        yield f"aclImdb/{part}/{kind}/{k}_{k % 10}.txt", text(1, 30)


def made(name):
    """What stands in a file that a book downloads: bytes, text, or the files of an archive."""
    parts = ("train", "valid", "test")
    makers = {
        "timemachine.txt": lambda: text(3000),
        "airfoil_self_noise.dat": lambda: table((numbers(6) for _ in range(1503)), "\t"),
        "kaggle_house_pred_train.csv": lambda: table(houses(True)),
        "kaggle_house_pred_test.csv": lambda: table(houses(False)),
        "fra-eng.zip": lambda: {
            "fra-eng/fra.txt": "".join(f"{text(1, 3)[:-1]}.\t{text(1, 4)[:-1]} !\n" for _ in range(900))},
        "ptb.zip": lambda: {f"ptb/ptb.{part}.txt": text(500, 14) for part in parts},
        "wikitext-2-v1.zip": lambda: {f"wikitext-2/wiki.{part}.tokens": text(200, 40) for part in parts},
        "hotdog.zip": lambda: {
            f"hotdog/{part}/{kind}/{k}.png": picture(256, 256)
            for part in ("train", "test") for kind in ("hotdog", "not-hotdog") for k in range(8)
        },
        "banana-detection.zip": lambda: dict(bananas()),
        "VOCtrainval_11-May-2012.tar": lambda: dict(voc()),
        "kaggle_cifar10_tiny.zip": lambda: dict(kaggle("kaggle_cifar10_tiny", "trainLabels.csv", ("frog", "cat"))),
        "kaggle_dog_tiny.zip": lambda: dict(kaggle("kaggle_dog_tiny", "labels.csv", ("boston_bull", "dingo"))),
        "pokemon.zip": lambda: {f"pokemon/a/{k}.png": picture(64, 64) for k in range(40)},
        "aclImdb_v1.tar.gz": lambda: dict(reviews()),
        "snli_1.0.zip": lambda: {f"snli_1.0/snli_1.0_{part}.txt": table(snli(), "\t") for part in parts},
        "ml-100k.zip": lambda: {"ml-100k/u.data": table(
            ([k % 943 + 1, _rng.randrange(1682) + 1, k % 5 + 1, 88000000 + k] for k in range(6000)), "\t")},
        "ctr.zip": lambda: {f"ctr/{part}.csv": table(
            ([k % 2, *(_rng.randrange(9) for _ in range(34))] for k in range(400)), "\t") for part in parts},
    }  # fmt: skip
    for file, dimension in (("glove.6B.50d", 50), ("glove.6B.100d", 100), ("glove.42B.300d", 300), ("wiki.en", 300)):
        makers[f"{file}.zip"] = lambda file=file, dimension=dimension: {f"{file}/vec.txt": vectors(dimension)}
    _rng.seed(name)
    return makers.get(name, lambda: b"")()


def as_bytes(content):
    return content.encode() if isinstance(content, str) else content


def content_of(url):
    """The bytes of a made file."""
    name = url.split("/")[-1]
    content = made(name)
    if not isinstance(content, dict):
        return as_bytes(content)
    file = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(file, "w") as archive:
            for path, part in content.items():
                archive.writestr(path, part)
    else:
        with tarfile.open(fileobj=file, mode="w:gz" if name.endswith("gz") else "w") as archive:
            for path, part in content.items():
                member = tarfile.TarInfo(path)
                member.size = len(as_bytes(part))
                archive.addfile(member, io.BytesIO(as_bytes(part)))
    return file.getvalue()


def download(url, path=None, *rest, fname=None, dirname=None, **named):
    """For gluon.utils.download and mx.test_utils.download."""
    name = url.split("/")[-1]
    place = Path(dirname or "", path or fname or name)
    place = place / name if place.is_dir() or str(path or "").endswith("/") else place
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content_of(url))
    return str(place)


class Answer:
    def __init__(self, url, *rest, **named):
        self.content = content_of(url)
        self.text, self.status_code, self.ok = self.content.decode("latin-1"), 200, True


def images(is_train, side, channels):
    rng = np.random.RandomState(int(is_train))
    labels = np.arange(64 if is_train else 32, dtype="int32") % 10
    values = rng.rand(len(labels), side, side, channels) * 100 + labels.reshape(-1, 1, 1, 1) * 15
    return values.astype("uint8"), labels


def made_images(self):
    """For `_get_data` of Gluon's data sets of images."""
    is_mnist, is_np = isinstance(self, datasets.MNIST), mx.util.is_np_array()
    values, labels = images(self._train, *((28, 1) if is_mnist else (32, 3)))
    self._data = (mx.np.array if is_np else mx.nd.array)(values, dtype="uint8")
    self._label = mx.np.array(labels, dtype="int32") if is_np and is_mnist else labels


def made_mnist():
    """For mx.test_utils.get_mnist."""
    parts = {"train": images(True, 28, 1), "test": images(False, 28, 1)}
    arrays = {f"{part}_data": (one[0].transpose(0, 3, 1, 2) / 255).astype("float32") for part, one in parts.items()}
    return {**arrays, **{f"{part}_label": one[1] for part, one in parts.items()}}


def noted(draw):
    """Prints the mean of what a chapter draws, since d2l shows its scores in figures."""

    def function(self, *args, **named):
        values = [one for one in args if not isinstance(one, str)][:2]
        with contextlib.suppress(TypeError, ValueError, IndexError):  # shapes and dates
            numbers = [float(one.item() if isinstance(one, np.ndarray) else one) for one in values[-1]]
            print(f"drawn {np.mean(numbers):.6g}")
        return draw(self, *args, **named)

    return function


def few(iterate):
    return lambda self: itertools.islice(iterate(self), BATCHES)


mx.gpu = mx.context.gpu = mx.cpu
mx.test_utils.get_mnist = made_mnist
Axes.plot = noted(Axes.plot)
requests.get = Answer
utils.download = mx.test_utils.download = datasets.download = download
datasets.MNIST._get_data = datasets.CIFAR10._get_data = datasets.CIFAR100._get_data = made_images
DataLoader.__iter__, _length = few(DataLoader.__iter__), DataLoader.__len__
DataLoader.__len__ = lambda self: min(_length(self), BATCHES)
# IPython 8 moved it; the books speak the older one.
IPython.display.set_matplotlib_formats = matplotlib_inline.backend_inline.set_matplotlib_formats
IPython.display.display = IPython.display.clear_output = lambda *args, **named: None
random.seed(0), np.random.seed(0), mx.random.seed(0)


class tab:  # noqa: N801
    """What d2l's builder gives its cells."""

    selected = staticmethod(lambda *names: "mxnet" in names)
    interact_select = staticmethod(lambda *names: None)


def show(value):
    if value is not None:
        print(repr(value))
    return value


def fail(number, error):
    print(f"cell {number}: {type(error).__name__}: {str(error).strip().splitlines()[:1]}")
