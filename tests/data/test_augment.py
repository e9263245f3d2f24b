"""Augment: pixels as MXNet's own operators make them, random numbers of the sample only, nothing corrupted."""

from concurrent.futures import ThreadPoolExecutor
import pickle
import random
import re
import time

from gluoncv.data.transforms.block import RandomCrop, RandomErasing
from gluoncv.data.transforms.presets.imagenet import transform_eval
from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.core.arrays import switches, to_host
from mxkit.data.augment import STEPS, Augment
from mxkit.data.augment_steps import INTERPOLATIONS
from mxkit.errors import DataError, UnknownNameError
import mxnet as mx
from mxnet.gluon.data.vision import transforms
import numpy as np
import pytest
from sharing import Kind, examples, pairs

NAMED = [
    "flip",
    ("crop", {"size": 20}),
    ("crop", {"size": (28, 24), "padding": 6, "fill": (0.2, 0.5, 1.0)}),
    ("center_crop", {"size": (18, 15)}),
    ("resize", {"size": 31}),
    *[("resized_crop", {"size": 16, "interpolation": name}) for name in INTERPOLATIONS],
    ("colour_jitter", {"hue": 0.3}),
    ("colour_jitter", {"brightness": 2.0, "contrast": 2.0, "saturation": 2.0}),
    "hue",
    ("lighting", {"std": 1.0}),
    ("gray", {"p": 0.5}),
    "cutout",
    ("erasing", {"p": 0.9}),
    ("letterbox", {"size": (24, 20)}),
    ("scaled_crop", {"size": 20}),
]
FOREIGN = [
    mx.image.BrightnessJitterAug(0.5),
    mx.image.ColorJitterAug(0.4, 0.4, 0.4),
    mx.image.HorizontalFlipAug(0.5),
    mx.image.LightingAug(0.5, np.array([55.0, 5.0, 1.0]), np.eye(3)),
    mx.image.SequentialAug([mx.image.RandomCropAug((20, 20)), mx.image.RandomGrayAug(0.5)]),
    transforms.RandomFlipLeftRight(),
    transforms.RandomColorJitter(0.4, 0.4, 0.4, 0.2),
    transforms.RandomResizedCrop(20),
    transforms.Compose([transforms.RandomLighting(0.3), transforms.CenterCrop(20)]),
    RandomErasing(0.9),
    RandomCrop(24, pad=4),
    lambda image, rng: image * rng.random(),
    lambda image: image * random.random() * np.random.rand() * mx.nd.random.uniform(),
]
RANDOM_FOREIGN = FOREIGN[:-1]


KINDS = ["uint8", "unit", "float 255", "NDArray", "mx.np"]


def generator(*key):
    return np.random.Generator(np.random.PCG64(list(key)))


def picture(seed=0, height=26, width=30, channels=3):
    return np.random.RandomState(seed).randint(0, 256, (height, width, channels)).astype(np.uint8)


def label(spec):
    """The same in every process: pytest-xdist compares the lists of tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(spec))


def step_of(spec):
    (step,) = Augment([spec]).steps
    return step


def apply(spec, image, drawn):
    """What a step does with given random numbers."""
    return step_of(spec).apply(image, drawn, 255)


@pytest.mark.parametrize(("spec", "kind"), pairs(NAMED + FOREIGN, KINDS), ids=label)
def test_every_step_gives_an_image_of_the_same_kind_and_leaves_the_old_one(spec, kind):
    white = 1.0 if kind == "unit" else 255
    image = picture() if kind == "uint8" else picture() * np.float32(white / 255)
    passed = Kind(kind == "mx.np").of(image) if kind in ("NDArray", "mx.np") else image.copy()
    augment = Augment([spec], white=white)
    results, repeated = ([augment(passed, generator(7, number)) for number in range(3)] for _ in range(2))
    np.testing.assert_array_equal(to_host(passed), image)
    for one, other in zip(results, repeated):
        assert (type(one), one.dtype) == (type(passed), passed.dtype)
        assert kind in ("NDArray", "mx.np") or not np.may_share_memory(one, passed)
        pixels = to_host(one)
        np.testing.assert_array_equal(pixels, to_host(other))
        assert pixels.shape[2] == 3
        assert 0 <= pixels.min() <= pixels.max() <= white  # false for NaN
    # silently black images are what this class prevents (T60)
    floor = -1 if spec in FOREIGN[-2:] else 0.02
    assert min(to_host(one).mean() for one in results) > floor * white


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    channels=st.sampled_from([1, 3]),
    level=st.integers(0, 255),
    chosen=st.lists(st.sampled_from([spec for spec in NAMED if "crop" not in str(spec)]), min_size=1, max_size=4),
)
def test_any_chain_keeps_images_in_range(seed, height, width, channels, level, chosen):
    noise = np.random.RandomState(seed).randint(0, 60, (height, width, channels))
    image = np.clip(noise + level, 0, 255).astype(np.uint8)
    copy = image.copy()
    result = Augment(chosen)(image, generator(seed))
    np.testing.assert_array_equal(image, copy)
    assert result.dtype == np.uint8
    assert result.shape[2] == channels
    floats = Augment([*chosen, "to_tensor"])(image, generator(seed))
    assert floats.dtype == np.float32
    assert 0 <= floats.min() <= floats.max() <= 1
    # the same numbers are drawn, so they differ by one rounding to uint8
    np.testing.assert_allclose(floats.transpose(1, 2, 0) * 255, result, atol=0.501)


@pytest.mark.parametrize("image", [picture(), picture().astype(np.float32)], ids=["uint8", "float32"])
def test_colours_are_those_of_mxnets_operators(image, monkeypatch):
    pixels = mx.nd.array(image, dtype="float32")

    def saturation(pixels, factor, _):
        # not random_saturation, which takes the brightness of blue alone for that of a pixel
        monkeypatch.setattr(random, "uniform", lambda low, high: factor - 1)
        return mx.image.SaturationJitterAug(1)(pixels.copy())

    operators = {
        "brightness": mx.nd.image.random_brightness,
        "contrast": mx.nd.image.random_contrast,
        "saturation": saturation,
    }
    for name, operator in operators.items():
        for factor in (0.0, 0.3, 1.0, 1.7):
            # a range of one number: nothing is random in the operator
            expected = operator(pixels, factor, factor).asnumpy().clip(0, 255)
            np.testing.assert_allclose(apply("colour_jitter", image, [(name, factor)]), expected, atol=0.02)
    chain = [("contrast", 1.4), ("brightness", 0.7), ("saturation", 0.5), ("contrast", 0.8)]
    expected = pixels
    for name, factor in chain:
        expected = operators[name](expected, factor, factor)
    np.testing.assert_allclose(apply("colour_jitter", image, chain), expected.asnumpy().clip(0, 255), atol=0.02)


def test_hue_lighting_and_gray_are_those_of_mxnets_augmenters(monkeypatch):
    image = picture()
    pixels = mx.nd.array(image, dtype="float32")
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    expected = mx.image.HueJitterAug(0.3)(pixels.copy()).asnumpy().clip(0, 255)
    np.testing.assert_allclose(apply("hue", image, [("hue", 0.3)]), expected, atol=0.02)
    drawn = np.array([0.1, -0.2, 0.3])
    monkeypatch.setattr(np.random, "normal", lambda *args, **kwargs: drawn)
    augmenter = mx.image.CreateAugmenter((3, 26, 30), pca_noise=0.1)[-1]
    assert isinstance(augmenter, mx.image.LightingAug)
    expected = augmenter(pixels.copy()).asnumpy().clip(0, 255)
    np.testing.assert_allclose(apply("lighting", image, drawn), expected, atol=0.02)
    expected = mx.image.RandomGrayAug(1.1)(pixels.copy()).asnumpy()
    np.testing.assert_allclose(apply("gray", image, True), expected, atol=0.02)


@pytest.mark.parametrize("code", INTERPOLATIONS.items(), ids=str)
def test_sizes_and_places_are_those_of_mxnet(code):
    name, number = code
    image = picture(height=40, width=52)
    pixels = mx.nd.array(image, dtype="uint8")
    exact = number in (0, 3)  # OpenCV's own versions differ by a rounding in the others

    def check(found, expected):
        assert found.shape == expected.shape
        difference = np.abs(found.astype(int) - expected.asnumpy().astype(int))
        assert difference.max() <= (0 if exact else 1)

    resize = ("resize", {"size": 25, "interpolation": name})
    check(apply(resize, image, None), mx.image.resize_short(pixels, 25, number))
    turned = pixels.transpose((1, 0, 2))
    check(apply(resize, image.transpose(1, 0, 2), None), mx.image.resize_short(turned, 25, number))
    expected = mx.image.fixed_crop(pixels, 7, 3, 31, 22, (20, 24), number)
    check(apply(("resized_crop", {"size": (20, 24), "interpolation": name}), image, (3, 7, 22, 31)), expected)
    check(apply(("center_crop", {"size": (21, 18)}), image, None), mx.image.center_crop(pixels, (21, 18))[0])


def test_resized_crops_are_drawn_by_mxnets_rule(monkeypatch):
    """The same uniform numbers give the same place as mx.image.random_size_crop."""
    image = picture(height=37, width=61)
    area, ratio = (0.5, 1.0), (0.2, 3.0)
    step = step_of(("resized_crop", {"size": (16, 20), "area": area, "ratio": ratio}))

    class Listed:
        """Gives listed numbers; MXNet draws the column first, mxkit the row, so places are the least."""

        def __init__(self, seed):
            self.left = iter(generator(seed).random(60))

        def uniform(self, low, high):
            return low + (high - low) * next(self.left)

        def integers(self, above):
            return 0

    monkeypatch.setattr(random, "randint", lambda low, high: low)
    fallbacks = 0
    for seed in range(200):
        monkeypatch.setattr(random, "uniform", Listed(seed).uniform)
        _, (x, y, width, height) = mx.image.random_size_crop(mx.nd.zeros((37, 61, 3)), (16, 20), area, ratio)
        assert step.draw(Listed(seed), image) == (y, x, height, width)
        fallbacks += x > 0
    assert 0 < fallbacks < 200
    rng = generator(0)
    for _ in range(300):
        top, left, height, width = step.draw(rng, image)
        assert 0 <= top <= 37 - height
        assert 0 <= left <= 61 - width


def test_draws_cover_their_range_evenly():
    image, rng = picture(height=8, width=9), generator(0)

    def drawn(spec, count):
        step = step_of(spec)
        return [step.draw(rng, image) for _ in range(count)]

    assert abs(np.mean(drawn(("flip", {"p": 0.3}), 4000)) - 0.3) < 0.03
    places = {(row, column) for row in range(-2, 5) for column in range(-2, 6)}
    assert set(drawn(("crop", {"size": 6, "padding": 2}), 1000)) == places
    jitter = ("colour_jitter", {"brightness": 0.5, "contrast": 0, "saturation": 0})
    factors = [changes[0][1] for changes in drawn(jitter, 1000)]
    assert 0.5 <= min(factors) < 0.51 < 1.49 < max(factors) <= 1.5
    assert len({tuple(name for name, _ in changes) for changes in drawn("colour_jitter", 200)}) == 6
    assert len({place[1:] for place in drawn("cutout", 1500)}) == 8 * 9


def test_crop_with_padding_is_that_of_an_image_padded_whole():
    image = picture(height=8, width=8)
    step = step_of(("crop", {"size": 8, "padding": 3, "fill": 0.2}))
    padded = np.pad(image, ((3, 3), (3, 3), (0, 0)), constant_values=51)
    for top in range(-3, 4):
        for left in range(-3, 4):
            expected = padded[top + 3 : top + 11, left + 3 : left + 11]
            np.testing.assert_array_equal(step.apply(image, (top, left), 255), expected)


def test_cutout_and_erasing_fill_their_boxes():
    image = np.full((20, 30, 3), 200, np.uint8)
    cut = apply(("cutout", {"size": 6, "fill": (0, 0.5, 1)}), image, (True, 1, 10))
    changed = (cut != 200).all(axis=2)
    rows, columns = np.nonzero(changed)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (0, 3, 7, 12)
    np.testing.assert_array_equal(cut[0, 8], [0, 128, 255])
    erased = apply("erasing", image, (3, 4, 6, 11))
    assert (erased[3:9, 4:15] == [125, 123, 114]).all()
    assert (erased != 200).any(axis=2).sum() == 6 * 11


def test_the_end_is_gluons_to_tensor_and_normalize():
    image = picture()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = transforms.ToTensor()(mx.nd.array(image, dtype="uint8"))
    np.testing.assert_array_equal(Augment(["to_tensor"])(image), expected.asnumpy())
    normalized = transforms.Normalize(mean, std)(expected).asnumpy()
    ours = Augment(["to_tensor", ("normalize", {"mean": mean, "std": std})])
    np.testing.assert_array_equal(ours(image), normalized)
    theirs = Augment([transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])])
    np.testing.assert_array_equal(theirs(image), normalized)
    np.testing.assert_array_equal(theirs(mx.nd.array(image, dtype="uint8")).asnumpy(), normalized)
    np.testing.assert_array_equal(Augment(["to_tensor"])(image / np.float32(255)), expected.asnumpy())


def test_the_eval_preset_is_gluoncvs_transform_eval():
    image = picture(height=300, width=280)
    expected = transform_eval(mx.nd.array(image, dtype="uint8"))[0].asnumpy()
    # OpenCV's versions differ by a rounding, 1/255 of white
    np.testing.assert_allclose(Augment.preset("imagenet_eval")(image), expected, atol=1.01 / 255 / 0.224)
    for name, size in (("imagenet_train", 224), ("imagenet_eval", 224), ("cifar_train", 32)):
        image = picture(height=size, width=size)
        assert Augment.preset(name)(image, generator(1)).shape == (3, size, size)
        smaller = Augment.preset(name, size=28)(image, generator(1))
        assert (smaller.shape, smaller.dtype) == ((3, 28, 28), np.float32)


@pytest.mark.parametrize(
    "steps", [[spec] for spec in NAMED] + [["cutout", "flip", ("crop", {"size": 20}), "hue"]], ids=str
)
@pytest.mark.parametrize(
    "end", [[], ["to_tensor"], ["to_tensor", ("normalize", {"mean": 0.4, "std": (0.1, 0.2, 0.3)})]]
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_batch_is_its_images_one_by_one(steps, end, dtype):
    images = np.stack([picture(seed) for seed in range(5)])
    images = images if dtype == "uint8" else images / np.float32(255)
    x = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    augment, copy = Augment(steps + end), x.copy()
    for rngs, batch in (([generator(3, row) for row in range(5)], x), (generator(9), mx.nd.array(x, dtype=dtype))):
        singles = [generator(3, row) for row in range(5)] if batch is x else [generator(9)] * 5
        found, y = augment.batch(batch, "labels", rngs)
        single = np.stack([augment(image, rng) for image, rng in zip(images, singles)])
        np.testing.assert_array_equal(to_host(found), single if end else single.transpose(0, 3, 1, 2))
        assert (to_host(found).dtype, y) == (single.dtype, "labels")
    np.testing.assert_array_equal(x, copy)


@pytest.mark.parametrize("function", RANDOM_FOREIGN, ids=lambda function: type(function).__name__)
def test_foreign_steps_draw_from_the_sample_and_leave_all_generators(function):
    image, augment = picture(), Augment([function])
    expected = augment(image, generator(5))
    with switches(True):
        np.testing.assert_array_equal(augment(image, generator(5)), expected)
    mxkit.seed_all(11)
    states = random.getstate(), np.random.get_state()[1].tolist()
    for _ in range(3):  # MXNet's RandomOrderAug shuffles its own list for good
        np.testing.assert_array_equal(augment(image, generator(5)), expected)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    after = mx.nd.random.uniform(shape=4).asnumpy()
    mxkit.seed_all(11)
    np.testing.assert_array_equal(mx.nd.random.uniform(shape=4).asnumpy(), after)
    results = {augment(image, generator(6, number)).tobytes() for number in range(12)}
    assert len(results) > 1


def test_functions_run_under_the_switches_of_the_caller(kind):
    seen = []

    def plain(image):
        seen.append((type(image), mx.util.is_np_array(), mx.util.is_np_shape()))
        if plain.draws:
            mx.util.set_np(not kind.numpy, not kind.numpy)
        return image

    with kind.switches():
        for draws in (["mxnet"], ["mxnet"], []):  # those that may draw from MXNet have a thread of their own
            plain.draws = draws
            Augment([plain])(picture(), generator(1))
            assert mx.util.is_np_array() == kind.numpy
    assert seen == [(mx.np.ndarray if kind.numpy else mx.nd.NDArray, kind.numpy, kind.numpy)] * 3


def test_what_draws_is_told_to_loaders_and_every_name_is_tried_here():
    tried = {spec if isinstance(spec, str) else spec[0] for spec in NAMED} | {"to_tensor", "normalize"}
    tried |= {"box_crop", "expand"}  # test_annotations.py
    assert tried == set(STEPS)
    assert Augment(["flip", transforms.RandomFlipLeftRight()]).draws == frozenset()
    assert Augment([mx.image.HorizontalFlipAug(0.5)]).draws == {"python", "numpy"}


def test_threads_at_once_get_what_one_gets():
    def slow(pixels):
        first = random.random()
        time.sleep(0.001)  # lets other threads in
        return pixels * first * np.random.rand()

    slow.draws = ("python", "numpy")
    image = picture()
    augment = Augment([slow, mx.image.ColorJitterAug(0.4, 0.4, 0.4), transforms.RandomHue(0.3), "flip"])
    expected = [augment(image, generator(number)) for number in range(24)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda number: augment(image, generator(number)), range(24)))
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))


def test_an_augment_inside_of_a_foreign_step_does_not_wait_for_itself():
    inner = Augment([transforms.RandomFlipLeftRight(), mx.image.BrightnessJitterAug(0.2)], white=255)
    outer = Augment([lambda image: inner(image)])
    image = picture()
    np.testing.assert_array_equal(outer(image, generator(1)), outer(image, generator(1)))


def test_without_a_generator_numpys_decides():
    augment, image = Augment(["colour_jitter"]), picture()
    np.random.seed(4)
    expected = [augment(image) for _ in range(3)]
    assert not np.array_equal(expected[0], expected[1])
    mxkit.seed_all(4)
    for one in expected:
        np.testing.assert_array_equal(augment(image), one)
    before = np.random.get_state()[1].tolist()
    Augment.preset("cifar_eval")(picture(0, 32, 32))
    assert np.random.get_state()[1].tolist() == before


def test_it_can_be_sent_to_a_fresh_process():
    augment = Augment(
        [transforms.RandomFlipLeftRight(), mx.image.BrightnessJitterAug(0.3), *Augment.preset("cifar_train").steps]
    )
    copy = pickle.loads(pickle.dumps(augment))
    image = picture(0, 32, 32)
    np.testing.assert_array_equal(copy(image, generator(2)), augment(image, generator(2)))
    assert repr(copy) == repr(augment)


def test_colour_steps_leave_grey_images_what_they_have_not():
    image = picture(channels=1)
    for name in ("hue", "lighting", ("gray", {"p": 1.0}), ("colour_jitter", {"brightness": 0, "contrast": 0})):
        np.testing.assert_array_equal(Augment([name])(image, generator(0)), image)
    erased = apply(("erasing", {"fill": (0.2, 0.4, 0.6)}), image, (2, 3, 6, 6))
    assert (erased[2:8, 3:9] == 102).all()
    step = step_of("colour_jitter")
    expected = image * 1.5 - 0.5 * image.mean()
    np.testing.assert_allclose(step.apply(image, [("contrast", 1.5)], 255), expected.clip(0, 255), atol=0.01)


NO_IMAGES = [
    (np.zeros((3, 32, 32), np.uint8), r"received \(3, 32, 32\). augment.batch"),
    (np.zeros((32, 32), np.uint8), r"received \(32, 32\)"),
    (np.zeros((2, 32, 32, 3), np.uint8), "augment.batch"),
    (np.zeros((32, 32, 4), np.uint8), r"1 or 3\); received \(32, 32, 4\)"),
    (np.zeros((0, 32, 3), np.uint8), r"received \(0, 32, 3\)"),
    (np.zeros((32, 32, 3), np.int32), "uint8 or float; received int32"),
    (np.full((32, 32, 3), 200.0), "0 to 1 here; received 200 to 200.*white=255"),
    (np.full((32, 32, 3), -0.5), "received -0.5 to -0.5.*normalize"),
    (np.full((32, 32, 3), np.nan), "received nan to nan"),
    (np.zeros((20, 32, 3), np.uint8), "center_crop: an image of height 20 and width 32 is too small.*28 x 28"),
]
NO_STEPS = [
    (["flipp"], UnknownNameError, "unknown step of Augment 'flipp': did you mean 'flip'"),
    ("flip", TypeError, "expected a list of steps"),
    (["flip", {"p": 1}], TypeError, "expected a name"),
    ([3], TypeError, "received 3"),
    (["crop"], TypeError, "size"),
    ([("crop", {"sise": 3})], TypeError, "sise"),
    ([("crop", {"size": 0})], ValueError, "crop: size"),
    ([("crop", {"size": 8, "padding": -1})], ValueError, "crop: padding"),
    ([("crop", {"size": 8, "fill": 128})], ValueError, "fill: expected 0 for black to 1 for white"),
    ([("flip", {"p": 50})], ValueError, "probability"),
    ([("resized_crop", {"size": 8, "area": 0.5})], ValueError, "area"),
    ([("resize", {"size": 8, "interpolation": 1})], ValueError, "bilinear"),
    ([("hue", {"hue": -1})], ValueError, "hue"),
    ([("lighting", {"std": -1})], ValueError, "lighting"),
    (["to_tensor", "flip"], ValueError, "at the end"),
    ([("normalize", {"mean": 0.5, "std": 0.5})], ValueError, "'to_tensor' and then 'normalize'"),
    (["to_tensor", ("normalize", {"mean": 0, "std": 0})], ValueError, "std above 0"),
    (["to_tensor", ("normalize", {"mean": 123.68, "std": 58.4})], ValueError, "white is 1"),
    ([mx.image.ColorNormalizeAug([1, 1, 1], [1, 1, 1])], TypeError, "ColorNormalizeAug"),
]
CROP = Augment(["flip", ("center_crop", {"size": 28})])
REFUSED = [
    *[(lambda image=image: CROP(image, generator(0)), DataError, words) for image, words in NO_IMAGES],
    *[(lambda steps=steps: Augment(steps), error, words) for steps, error, words in NO_STEPS],
    (lambda: Augment.preset("cifar_trian"), UnknownNameError, "did you mean 'cifar_train'"),
    (lambda: Augment(["flip"])(picture(), 3), TypeError, "received int.*transform_first"),
    (lambda: Augment([lambda x: x.transpose((2, 0, 1))])(picture(), generator(0)), DataError, "gave .*3, 26, 30"),
    (lambda: Augment.preset("cifar_eval", size=20)(picture(channels=1)), DataError, "normalize has 3 means"),
    (lambda: Augment(["flip"], white=0), ValueError, "white"),
    (lambda: Augment(["flip"]).batch(picture()[None]), DataError, r"width\); received \(1, 26, 30, 3\)"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()
