"""Pictures of data: which pixels, in which order, under which name."""

import sys

import mxkit
from mxkit.data.augment import Augment
from mxkit.data.loader import ArrayLoader
from mxkit.errors import DataError
from mxkit.plots.data_plots import show_augment, show_batch, show_images
import mxnet as mx
import numpy as np
import pytest

IMAGES = np.random.RandomState(0).randint(0, 256, (5, 9, 12, 3)).astype(np.uint8)
GREY = IMAGES[..., :1]


def drawn(figure):
    """Colours of each image from 0 to 1."""
    return [np.asarray(image.get_array()) for image in figure.axes[0].images]


def titles(figure):
    return [text.get_text() for text in figure.axes[0].texts]


UNIT = IMAGES / 255.0


@pytest.mark.parametrize(
    "images",
    [
        IMAGES,
        IMAGES.transpose(0, 3, 1, 2),
        mx.nd.array(IMAGES.transpose(0, 3, 1, 2), dtype="uint8"),
        list(IMAGES),
        [mx.nd.array(image.transpose(2, 0, 1)) for image in IMAGES],
        UNIT,
        UNIT.transpose(0, 3, 1, 2).astype("float32"),
        IMAGES.astype("float32"),
    ],
    ids=["NHWC", "NCHW", "NDArray", "list", "list of CHW", "unit", "unit NCHW", "float 255"],
)
def test_images_of_all_layouts_and_units_are_the_same_picture(images):
    np.testing.assert_allclose(drawn(show_images(images)), UNIT, atol=1e-6)


def test_grey_images():
    for images in (GREY, GREY[..., 0], GREY.transpose(0, 3, 1, 2)):
        np.testing.assert_allclose(drawn(show_images(images)), np.repeat(GREY / 255.0, 3, axis=-1))


def test_normalized_images_are_put_back():
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.3, 0.1])
    found = drawn(show_images(((UNIT - mean) / std).transpose(0, 3, 1, 2), mean=tuple(mean), std=tuple(std)))
    np.testing.assert_allclose(np.stack(found), UNIT, atol=1e-9)
    with pytest.raises(DataError, match="mean=... and std=..."):
        show_images((UNIT - mean) / std)


def test_lost_pixels_are_green():
    images = UNIT.copy()
    images[1, 2, 3, 0] = np.nan
    images[1, 4, 4] = np.inf
    found = drawn(show_images(images))
    assert found[1][2, 3].tolist() == found[1][4, 4].tolist() == [0, 1, 0]
    np.testing.assert_allclose(found[0], UNIT[0])


def test_labels_and_what_a_net_said():
    figure = show_images(IMAGES, [0, 1, 2, 0, 1], predicted=np.array([0, 2, 2, 0, 0]), classes=["ant", "bee", "$cow"])
    assert titles(figure) == ["ant", "bee\n" + r"read as \$cow", r"\$cow", "ant", "bee\nread as ant"]
    colours = [text.get_color() for text in figure.axes[0].texts]
    assert [colour == colours[1] for colour in colours] == [False, True, False, False, True]
    assert len(figure.axes[0].patches) == 2  # frames of the wrong ones
    assert titles(show_images(IMAGES, mx.nd.array([3, 1.0, 2, 0.25, 7]))) == ["3", "1", "2", "0.25", "7"]
    assert titles(show_images(IMAGES, predicted=list("abcde"))) == list("abcde")
    soft = np.array([[0.7, 0.3, 0], [0, 1, 0], [0.2, 0.3, 0.5], [1, 0, 0], [0, 0.004, 0.996]])
    assert titles(show_images(IMAGES, soft))[:3] == ["0 70%, 1 30%", "1 100%", "2 50%, 1 30%"]


def test_titles_never_reach_into_their_neighbours():
    names = ["a very long name of a class that does not fit above an image", "Wwwwwwwwwwwwwwwwwwwwwwwwwwwwww", "b"]
    for columns in (1, 3, 12):
        figure = show_images(np.zeros((12, 1, 8, 8)), np.arange(12) % 3, classes=names, columns=columns)
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        boxes = [text.get_tightbbox(renderer) for text in figure.axes[0].texts]
        pictures = [image.get_window_extent(renderer) for image in figure.axes[0].images]
        for number, box in enumerate(boxes):
            others = [other for place, other in enumerate(boxes) if place != number]
            assert not any(box.overlaps(other) for other in [*others, *pictures])
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.width
            assert box.y1 <= figure.bbox.height


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((IMAGES[0],), r"one image of shape .*\[image\]"),
        ((np.zeros((2, 5, 6, 7)),), "1 or 3 channels"),
        (([],), "no image"),
        ((np.full((2, 3, 8, 8), 300.0),), "from 300 to 300"),
        ((IMAGES, [1, 2]), "5 images and 2 labels"),
        ((["a"],), "1 or 3 channels"),
        ((UNIT, None, (0.1, 0.2)), "for images of 3 channels"),
    ],
)
def test_what_cannot_be_drawn(arguments, match):
    with pytest.raises(DataError, match=match):
        show_images(*arguments[:2], mean=(*arguments, None, None)[2])


def test_a_batch_is_looked_at_without_moving_its_loader():
    x = GREY.transpose(0, 3, 1, 2)
    loader = ArrayLoader(x, np.arange(5), 4, shuffle=True, seed=2)
    expected = [label for _, y in loader for label in y.asnumpy().tolist()]
    loader.epoch = 0
    figure = show_batch(loader, count=3)
    assert loader.epoch == 0
    assert titles(figure) == [str(label) for label in expected[:3]]
    np.testing.assert_allclose(drawn(figure)[0], np.repeat(UNIT[expected[0]][..., :1], 3, axis=-1), atol=1e-6)
    assert [label for _, y in loader for label in y.asnumpy().tolist()] == expected


def test_gluons_loader_draws_what_it_would_have_drawn():
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(UNIT.astype("float32"), np.arange(5)), 4, shuffle=True)
    mxkit.seed_all(3)
    expected = [y.asnumpy().tolist() for _, y in loader]
    mxkit.seed_all(3)
    show_batch(loader)
    assert [y.asnumpy().tolist() for _, y in loader] == expected


def test_batches_of_all_kinds():
    batch = (UNIT.astype("float32"), np.arange(5))
    assert titles(show_batch([batch], count=2, classes=list("vwxyz"))) == ["v", "w"]
    assert titles(show_batch(lambda: iter([batch]))) == list("01234")
    assert titles(show_batch([(UNIT.astype("float32"),)], count=2)) == ["", ""]
    pair = show_batch([((UNIT, UNIT[::-1]), (np.arange(5), np.arange(5)))], count=2)
    assert titles(pair) == ["0", "1", "0", "1"]
    np.testing.assert_allclose(drawn(pair)[2], UNIT[4])
    iterator = mx.io.NDArrayIter(UNIT.transpose(0, 3, 1, 2), np.arange(5), 2)
    assert titles(show_batch(iterator)) == ["0", "1"]
    assert len(list(iterator)) == 3
    with pytest.raises(DataError, match="generator can be read only once"):
        show_batch(batch for _ in range(3))
    with pytest.raises(ValueError, match="count"):
        show_batch([batch], count=0)


def test_an_augmentation_is_drawn_after_the_image():
    augment = Augment(["flip", ("crop", {"size": 8}), "colour_jitter"])
    figure = show_augment(IMAGES[0], augment, 2, 3, seed=4)
    found = drawn(figure)
    assert titles(figure) == ["original: 12x9", *(f"{number}: 8x8" for number in range(5))]
    np.testing.assert_allclose(found[0], UNIT[0])
    for number in range(5):
        expected = augment(IMAGES[0], np.random.Generator(np.random.PCG64([4, number])))
        np.testing.assert_allclose(found[number + 1], expected / 255.0)
    assert len(figure.axes[0].patches) == 1
    for augment in ("flip", ("crop", {"size": 8}), ["flip"], mx.image.BrightnessJitterAug(0.5)):
        assert len(drawn(show_augment(IMAGES[0], augment, rows=2, columns=2))) == 4


@pytest.mark.parametrize("white", [1.0, 255])
def test_normalized_and_float_results_look_like_the_image(white):
    image = UNIT[0] * white
    normalize = ("normalize", {"mean": (0.4, 0.5, 0.6), "std": 0.2})
    for steps in (["to_tensor", normalize], ["to_tensor"], [lambda pixels: pixels]):
        for one in drawn(show_augment(image, Augment(steps, white=white), 1, 2)):
            np.testing.assert_allclose(one, UNIT[0], atol=1e-6)


def test_pictures_are_saved_and_pyplot_is_left_alone(tmp_path):
    had = "matplotlib.pyplot" in sys.modules
    show_images(IMAGES, path=tmp_path / "images.png")
    show_augment(IMAGES[0], "flip", path=str(tmp_path / "augment.svg"))
    show_batch([IMAGES], path=tmp_path / "batch.png")
    starts = {path.name: path.read_bytes()[:4] for path in tmp_path.iterdir()}
    assert starts == {"images.png": b"\x89PNG", "augment.svg": b"<?xm", "batch.png": b"\x89PNG"}
    assert ("matplotlib.pyplot" in sys.modules) == had
