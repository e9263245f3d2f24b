"""Gluon's image datasets and transforms, computed by OpenCV: each pixel and each draw as gluon's own."""

import random
import warnings

import cv2
from made_images import write_records
from mxkit.core.arrays import switches
from mxkit.data import samples
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.image_files import image_folder, image_records
from mxkit.errors import DataError, TrapWarning
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import ImageFolderDataset, ImageRecordDataset, transforms
import numpy as np
import pytest
from sharing import pairs

NORMALIZE = transforms.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))
# Steps, and how many of them are computed here.
CHAINS = {
    "train": (lambda: [transforms.RandomResizedCrop(24), transforms.RandomFlipLeftRight(), *flipped(), NORMALIZE], 5),
    "eval": (lambda: [transforms.Resize(40, keep_ratio=True), transforms.CenterCrop((32, 24)), *tensor_of(0.5)], 4),
    "grey": (lambda: [transforms.Resize((30, 20), interpolation=3), transforms.CenterCrop(40), *tensor_of(0.4)], 4),
    # bicubic pixels of OpenCV differ from MXNet's in the last bit
    "bicubic": (lambda: [transforms.RandomResizedCrop(24, interpolation=2), transforms.RandomFlipLeftRight()], 0),
    # MXNet's generator has to be where the second flip expects it
    "rest": (lambda: [transforms.RandomResizedCrop(24, 0.5), transforms.RandomFlipLeftRight(), Own(), *flipped()], 1),
    "group": (lambda: [transforms.CenterCrop(24), transforms.RandomFlipLeftRight(), transforms.RandomHue(0.4)], 1),
}


def flipped():
    return [transforms.RandomFlipTopBottom(), transforms.ToTensor()]


def tensor_of(value):
    return [transforms.ToTensor(), transforms.Normalize(value, value)]


class Own(gluon.Block):
    draws = ()

    def forward(self, image):
        assert isinstance(image, mx.nd.NDArray)
        return image


@pytest.fixture
def folder(tmp_path):
    rng = np.random.RandomState(1)
    for number, (height, width) in enumerate([(40, 60), (61, 35), (90, 90), (24, 24), (33, 200), (50, 41)]):
        pixels = cv2.GaussianBlur(rng.randint(0, 256, (height, width, 3)).astype(np.uint8), (5, 5), 2)
        path = tmp_path / "images" / f"class{number % 2}" / f"{number}.{'png' if number == 4 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), pixels)
    cut = path.with_name("cut.jpg")
    cut.write_bytes(path.read_bytes()[:-40])  # MXNet makes grey of the end, and warns of nothing
    return tmp_path / "images"


def by_gluon(dataset, transform, epoch, row):
    """What gluon computes after its generators are seeded from (seed, epoch, sample)."""
    seeds = np.random.SeedSequence([3, epoch, row]).generate_state(3).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[1])
    mx.random.seed(seeds[2], ctx=mx.cpu())
    return transform(dataset[row][0]).asnumpy()


@pytest.mark.parametrize(("chain", "workers"), pairs(list(CHAINS), [0, "thread:2", "process:2"]))
def test_pixels_and_draws_are_gluons(folder, chain, workers):
    steps, computed = CHAINS[chain]
    transform = transforms.Compose(steps())
    dataset = ImageFolderDataset(str(folder), flag=int(chain != "grey"))
    plan = samples._plan(dataset.transform_first(transform), None)
    assert len(plan.changes) == computed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)
        loader = DatasetLoader(dataset.transform_first(transform), 1, seed=3, workers=workers)
    loader.epoch = 2
    images = [x.asnumpy()[0] for x, _ in loader]
    loader.close()
    state = random.getstate(), np.random.get_state()
    try:
        for row, image in enumerate(images):
            np.testing.assert_array_equal(image, by_gluon(dataset, transform, 2, row))
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])


def test_the_middle_of_a_flipped_image_is_there(folder):
    """T189."""
    # MXNet's flips leave the middle column or row of an odd side unwritten
    dataset = ImageFolderDataset(str(folder))
    plain = transforms.Compose([transforms.CenterCrop(15)])
    flips = transforms.Compose([transforms.CenterCrop(15), transforms.RandomFlipLeftRight()])
    for transform, axis in ((flips, 1), (transforms.Compose([plain, transforms.RandomFlipTopBottom()]), 0)):
        images = [x.asnumpy()[0] for x, _ in DatasetLoader(dataset, 1, seed=4, transform=transform)]
        whole = [plain(image).asnumpy() for image, _ in dataset]
        flipped = [np.flip(image, axis) for image in whole]
        kinds = [np.array_equal(a, c) - np.array_equal(a, b) for a, b, c in zip(images, whole, flipped)]
        assert set(kinds) == {1, -1}


def test_threads_read_gluons_images_at_once_and_damaged_files_of_our_own_are_named(folder):
    transform = transforms.Compose([transforms.RandomResizedCrop(24), transforms.RandomFlipLeftRight()])
    DatasetLoader(
        ImageFolderDataset(str(folder)), 2, workers="thread:2", transform=transform
    )  # no generator of the process is touched, so no thread waits
    part = image_folder(folder, valid=0, test=0).train
    with pytest.raises(DataError, match=r"cut\.jpg: the JPEG ends before its end"):
        list(DatasetLoader(part.transform_first(transform), 2))


def test_users_functions_get_what_gluon_gives_them(folder):
    seen = []

    def note(images):
        seen.extend(type(image[0] if isinstance(image, tuple) else image) for image in images)
        return mx.nd.zeros((1,))

    dataset = ImageFolderDataset(str(folder))
    tensor = dataset.transform_first(transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()]))
    for numpy_arrays in (False, True):
        with switches(numpy_arrays):
            for source in (dataset, tensor):
                list(DatasetLoader(source, 2, batchify=note))
            list(DatasetLoader(tensor, 2, transform=lambda image, rng: note([image])))
            kinds = {mx.np.ndarray if numpy_arrays else mx.nd.NDArray}
            assert set(seen) == kinds
            seen.clear()


def records_of(folder, target):
    paths = sorted(folder.glob("*/[0-9].jpg"))
    return write_records(target / "a.rec", [(row, row, path.read_bytes()) for row, path in enumerate(paths)])


def test_records_of_gluon_are_decoded_the_same_way(folder, tmp_path):
    dataset = ImageRecordDataset(str(records_of(folder, tmp_path)))
    batches = list(DatasetLoader(dataset, 1))
    assert [int(y.asscalar()) for _, y in batches] == list(range(5))
    for (x, _), (image, _) in zip(batches, dataset):
        np.testing.assert_array_equal(x.asnumpy()[0], image.asnumpy())


def test_an_augmentation_of_records_follows_from_the_sample_alone(folder, tmp_path):
    """T191."""
    part = image_records(records_of(folder, tmp_path), valid=0, test=0).train
    transform = transforms.Compose([transforms.RandomResizedCrop(9), transforms.RandomFlipLeftRight()])

    def epoch(batch_size, workers, first):
        loader = DatasetLoader(part, batch_size, seed=2, shuffle=True, workers=workers, transform=transform)
        loader.epoch = 7
        loader.skip(first)
        return np.concatenate([x.asnumpy() for x, _ in loader])

    whole = epoch(1, 0, 0)
    assert len({image.tobytes() for image in whole}) == 5
    np.testing.assert_array_equal(epoch(2, "thread:2", 1), whole[2:])
    np.testing.assert_array_equal(epoch(5, "process:1", 0), whole)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("channels", [3, 1])
def test_large_jpegs_are_decoded_at_a_fraction_of_their_size_by_name(tmp_path, channels, progressive):
    rng = np.random.RandomState(1)
    pixels = cv2.GaussianBlur(rng.randint(0, 256, (301, 420, 3)).astype(np.uint8), (9, 9), 4)
    for name, options in (("a.jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]), ("b.png", [])):
        (tmp_path / "class").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "class" / name), pixels, options)
    for reduce_to, factor in ((None, 1), (302, 1), (152, 1), (151, 2), (76, 4), (75, 4), (38, 8), (1, 8)):
        part = image_folder(tmp_path, valid=0, test=0, channels=channels, reduce_to=reduce_to).train
        assert part[0][0].shape == (-(-301 // factor), -(-420 // factor), channels)
        assert part[1][0].shape == (301, 420, channels)  # only JPEG has this
        if factor > 1:
            content = np.frombuffer(part.path(0).read_bytes(), np.uint8)
            kind = "COLOR" if channels == 3 else "GRAYSCALE"
            plain = cv2.imdecode(content, getattr(cv2, f"IMREAD_REDUCED_{kind}_{factor}"))
            np.testing.assert_array_equal(part[0][0], plain[..., ::-1] if channels == 3 else plain[..., None])
    with pytest.raises(ValueError, match="reduce_to: expected a whole number, at least 1; received 0"):
        image_folder(tmp_path, valid=0, test=0, reduce_to=0)
