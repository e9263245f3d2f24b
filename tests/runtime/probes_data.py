"""Hand-written probes of how MXNet reads data (`probes.py` runs them): each returns what is compared."""

import json

import numpy as np
from probes_shared import _data, _each, _folder, _image


def probe_dataloader(mx):
    dataset = mx.gluon.data.ArrayDataset(np.arange(12).reshape(6, 2).astype("float32"), np.arange(6))
    mapped = dataset.transform_first(_double)

    def run(**kwargs):
        loader = mx.gluon.data.DataLoader(mapped, np.int64(4), shuffle=True, last_batch="rollover", **kwargs)
        return [tuple(part.asnumpy() for part in batch) for batch in loader]

    items = [
        ("none", lambda: run()), ("thread", lambda: run(num_workers=2, thread_pool=True)),
        ("process", lambda: run(num_workers=1)),
    ]  # fmt: skip
    items += [
        (
            "dataset",
            lambda: [dataset.take(np.int64(3))[0], dataset.shard(2, 0)[1], dataset.filter(lambda s: s[1] > 2)[0]],
        )
    ]
    items += [("interval", lambda: list(mx.gluon.contrib.data.IntervalSampler(6, interval=2)))]
    return _each(items)


def _double(x):
    return x * 2


def probe_iterators(mx):
    x, y = _data(mx, 7)
    folder = _folder()
    (folder / "a.csv").write_text("1,2\n3,4\n5,6\n")
    (folder / "a.svm").write_text("1 0:0.5 2:1.5\n0 1:2\n")

    def read(iterator):
        return [
            (batch.data[0].asnumpy(), batch.label[0].asnumpy() if batch.label else None, batch.pad)
            for batch in iterator
        ]

    items = [
        (
            "ndarray",
            lambda: read(
                mx.io.NDArrayIter(x.asnumpy(), y.asnumpy(), np.int64(3), shuffle=True, last_batch_handle="pad")
            ),
        ),
        ("discard", lambda: read(mx.io.NDArrayIter({"a": x}, {"b": y}, 3, last_batch_handle="discard"))),
        ("rollover", lambda: read(mx.io.NDArrayIter(x, y, 3, last_batch_handle="roll_over"))),
        ("resize", lambda: read(mx.io.ResizeIter(mx.io.NDArrayIter(x, y, 3), np.int64(2)))),
        ("prefetch", lambda: read(mx.io.PrefetchingIter(mx.io.NDArrayIter(x, y, 3)))),
        (
            "csv",
            lambda: read(
                mx.io.CSVIter(data_csv=str(folder / "a.csv"), data_shape=(np.int64(2),), batch_size=np.int32(2))
            ),
        ),
        (
            "svm",
            lambda: read(mx.io.LibSVMIter(data_libsvm=str(folder / "a.svm"), data_shape=(np.int64(3),), batch_size=2)),
        ),
        ("desc", lambda: str(mx.io.NDArrayIter(x, y, np.int64(3)).provide_data)),
        ("bucket", lambda: read(_bucket(mx))),
    ]  # fmt: skip
    return _each(items)


def _bucket(mx):
    return mx.rnn.BucketSentenceIter(
        [[1, 2, 3], [2, 1], [3, 3, 3, 1], [1, 1], [2, 2, 2]], 2, buckets=[2, 4], invalid_label=0
    )


def probe_records(mx):
    folder = _folder()
    path, index = str(folder / "a.rec"), str(folder / "a.idx")
    writer = mx.recordio.MXIndexedRecordIO(index, path, "w")
    for i in range(4):
        label = [i, 0.5, np.float32(0.25)]
        writer.write_idx(
            i, mx.recordio.pack_img(mx.recordio.IRHeader(0, label, i, 0), _image(), quality=9, img_fmt=".png")
        )
    writer.close()
    reader = mx.recordio.MXIndexedRecordIO(index, path, "r")
    header, image = mx.recordio.unpack_img(reader.read_idx(2))
    dataset = mx.gluon.data.vision.ImageRecordDataset(path)
    rows = [
        (np.asarray(label.asnumpy() if hasattr(label, "asnumpy") else label), data.asnumpy())
        for data, label in (dataset[i] for i in range(4))
    ]
    iterator = mx.io.ImageRecordIter(
        path_imgrec=path,
        data_shape=(3, np.int64(16), 16),
        batch_size=np.int64(2),
        label_width=3,
        mean_r=np.float32(1.5),
    )
    batches = [batch.data[0].asnumpy() for batch in iterator]
    return tuple(header), image, rows, batches, reader.keys


def probe_image_functions(mx):
    image = mx.image
    x = mx.nd.array(_image(), dtype="uint8")
    f = mx.nd.array(_image(dtype="float32"))
    items = [
        ("resize_short", lambda: image.resize_short(x, np.int64(12))),
        ("imresize", lambda: image.imresize(x, np.int64(8), 9)),
        ("center", lambda: image.center_crop(x, (np.int64(10), 8))),
        ("random", lambda: image.random_crop(x, (10, 8))),
        ("size_crop", lambda: image.random_size_crop(x, (10, 8), (np.float32(0.5), 1), (0.75, 1.33))),
        ("normalize", lambda: image.color_normalize(f, mx.nd.array([1, 2, 3]), mx.nd.array([2, 2, 2]))),
        ("normalize_np", lambda: image.color_normalize(f, np.float32([1, 2, 3]))),
        ("rotate", lambda: image.imrotate(mx.nd.transpose(f, (2, 0, 1)), np.float32(30))),
        ("random_rotate", lambda: image.random_rotate(mx.nd.transpose(f, (2, 0, 1)), (-30, 30), zoom_out=True)),
        ("border", lambda: image.copyMakeBorder(x, 1, np.int64(2), 3, 4)),
        ("scale", lambda: image.scale_down((np.int64(10), 9), (12, np.int64(7)))),
    ]  # fmt: skip
    augmenters = image.CreateAugmenter(
        (3, np.int64(16), 16),
        resize=20,
        rand_crop=True,
        rand_mirror=True,
        mean=True,
        std=True,
        brightness=0.1,
        contrast=0.1,
        saturation=0.1,
        hue=0.1,
        pca_noise=0.1,
        rand_gray=0.5,
    )
    augmenters += image.CreateAugmenter((3, 16, 16), rand_crop=True, rand_resize=True)
    items += [(f"aug {i} {type(a).__name__}", lambda a=a: (a(f), a.dumps())) for i, a in enumerate(augmenters)]
    return _each(items)


def probe_image_detection(mx):
    image = mx.image
    f = mx.nd.array(_image(48, 64, "float32"))
    label = np.array([[0, 0.1, 0.2, 0.6, 0.7], [1, 0.3, 0.3, 0.9, 0.8]], dtype="float32")
    augmenters = image.CreateDetAugmenter(
        (3, 32, 32),
        resize=40,
        rand_crop=0.9,
        rand_pad=0.9,
        rand_gray=0.5,
        rand_mirror=True,
        mean=True,
        std=np.array([1.0, 2.0, 3.0]),
        brightness=0.1,
        contrast=0.1,
        saturation=0.1,
        pca_noise=0.1,
        hue=0.1,
    )
    items = [
        (
            f"{i} {type(a).__name__}",
            lambda a=a: [(p if p is None else p[0], p[1]) for p in (a(f, label.copy()) for _ in range(3))],
        )
        for i, a in enumerate(augmenters)
    ]
    items += [(f"dumps {i}", lambda a=a: json.dumps(a.dumps())) for i, a in enumerate(augmenters)]
    items += [("iter", lambda: _detection_iter(mx)), ("image iter", lambda: _image_iter(mx))]
    return _each(items)


def _write_images(count=4):
    import cv2

    folder = _folder()
    for i in range(count):
        cv2.imwrite(str(folder / f"{i}.png"), _image(40 + i, 48))
    return folder


def _detection_iter(mx):
    folder = _write_images()
    label = [2, 5, 0, 0.1, 0.2, 0.6, 0.7, 1, 0.3, 0.3, 0.9, 0.8]
    iterator = mx.image.ImageDetIter(
        2,
        (3, 32, 32),
        path_root=str(folder),
        imglist=[[label, f"{i}.png"] for i in range(4)],
        rand_crop=1,
        rand_pad=1,
        rand_mirror=True,
        mean=True,
    )
    batch = next(iterator)
    return batch.data[0], batch.label[0], iterator.label_shape


def _image_iter(mx):
    folder = _write_images()
    iterator = mx.image.ImageIter(
        np.int64(2),
        (3, 32, 32),
        path_root=str(folder),
        imglist=[[np.float32(i), f"{i}.png"] for i in range(4)],
        shuffle=True,
        rand_crop=True,
    )
    return [(batch.data[0].asnumpy(), batch.label[0].asnumpy()) for batch in iterator]


def probe_transforms(mx):
    t = mx.gluon.data.vision.transforms
    x, f = mx.nd.array(_image(), dtype="uint8"), mx.nd.array(_image(dtype="float32"))
    chw = f.transpose((2, 0, 1))
    cases = [
        (t.ToTensor(), x), (t.Normalize(np.float64(0.5), np.float32(2)), chw),
        (t.Normalize((np.float64(0.5), 0.4, 0.3), (1, 2, np.float32(3))), chw), (t.Cast(np.float32), x),
        (t.Rotate(np.float32(30)), chw), (t.RandomRotation((-20, np.int64(20))), chw),
        (t.RandomResizedCrop((np.int64(10), 12)), x), (t.CropResize(np.int64(1), 2, 8, 9, (6, 6), 1), x),
        (t.CenterCrop((np.int64(8), 8)), x), (t.Resize(np.int64(9)), x), (t.Resize(9, keep_ratio=True), x),
        (t.RandomFlipLeftRight(), x), (t.RandomFlipTopBottom(), x), (t.RandomBrightness(np.float32(0.5)), x),
        (t.RandomContrast(0.5), x), (t.RandomSaturation(0.5), x), (t.RandomHue(0.5), x),
        (t.RandomColorJitter(0.1, 0.1, 0.1, 0.1), x), (t.RandomLighting(np.float64(0.1)), f),
        (t.RandomApply(t.Cast("float16"), np.float32(0.5)), x),
    ]  # fmt: skip
    items = [(f"{i} {type(a).__name__}", lambda a=a, v=v: a(v)) for i, (a, v) in enumerate(cases)]
    return _each([*items, ("compose", lambda: t.Compose([t.Resize(12), t.ToTensor()])(x))])


def probe_text(mx):
    import collections

    from mxnet.contrib import text

    folder = _folder()
    (folder / "e.txt").write_text("a 0.1 0.2\nb 0.3 0.4\n")
    vocabulary = text.vocab.Vocabulary(
        collections.Counter(text.utils.count_tokens_from_str("a b b c\n c", to_lower=True)), most_freq_count=np.int64(2)
    )
    embedding = text.embedding.CustomEmbedding(
        str(folder / "e.txt"), init_unknown_vec=mx.nd.ones, vocabulary=vocabulary
    )
    embedding.update_token_vectors("b", mx.nd.array([7, 8]))
    return (
        vocabulary.to_indices(["a", "b", "z"]),
        embedding.idx_to_vec,
        embedding.get_vecs_by_tokens(["a", "B"], lower_case_backup=True),
    )


def probe_datasets(mx):
    import gzip
    import pickle
    import struct

    folder = _folder()
    for name in ("train", "t10k"):
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">IIII", 2051, 2, 28, 28) + bytes(range(196)) * 8)
        with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz", "wb") as file:
            file.write(struct.pack(">II", 2049, 2) + bytes([3, 4]))
    vision = mx.gluon.data.vision
    mnist = vision.MNIST.__new__(vision.MNIST)
    images = _write_images()
    (images / "cats").mkdir()
    for path in images.glob("*.png"):
        path.rename(images / "cats" / path.name)
    items = [
        ("mnist", lambda: _mnist(mnist, folder)),
        ("folder", lambda: [vision.ImageFolderDataset(str(images))[1], vision.ImageFolderDataset(str(images)).synsets]),
        ("list", lambda: vision.ImageListDataset(str(images), [[1.0, "cats/0.png"], [np.float32(2), "cats/1.png"]])[1]),
        ("simple", lambda: list(mx.gluon.data.SimpleDataset(np.arange(3)))),
        ("pickle", lambda: pickle.loads(pickle.dumps(mx.nd.ones(2)))),
        ("record", lambda: pickle.loads(pickle.dumps(mx.np.ones(2)))),
    ]  # fmt: skip
    return _each(items)


def _mnist(mnist, folder):
    mnist._root, mnist._train, mnist._namespace = str(folder), True, "mnist"
    mnist._train_data = mnist._test_data = ("train-images-idx3-ubyte.gz", None)
    mnist._train_label = mnist._test_label = ("train-labels-idx1-ubyte.gz", None)
    import mxnet.gluon.data.vision.datasets as module

    module.check_sha1, kept = (lambda *a: True), module.check_sha1
    try:
        mnist._get_data()
    finally:
        module.check_sha1 = kept
    return mnist._data, mnist._label
