"""DatasetLoader: the same batches whoever reads them, and nobody else's random numbers touched."""

import copy
import gc
import multiprocessing
import os
from pathlib import Path
import random
import signal
import threading
import time
import traceback
import warnings

from batches import assert_same, read
from built_nets import ready
import gluoncv
import mxkit
from mxkit.core.arrays import switches
from mxkit.data import augment, samples
from mxkit.data import workers as reading
from mxkit.data.augment import Augment
from mxkit.data.dataset_loader import DatasetLoader
from mxkit.data.pixels import drawn_by_dataset, drawn_by_transform
from mxkit.data.workers import switches_here
from mxkit.errors import DataError, TrapWarning
import mxnet as mx
from mxnet import gluon
from mxnet.gluon.data.vision import transforms
from mxnet.util import reset_np, set_np
import numpy as np
import pytest
from sharing import Kind, long

WAYS = [(0, None), ("thread:1", None), ("thread:3", None), ("process:1", "fork"), ("process:2", "fork")]


class Drawing:
    """Draws from all three generators, as old datasets do."""

    def __init__(self, size=11):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        drawn = [random.random(), np.random.rand(), mx.nd.random.uniform(shape=(1,)).asscalar(), number]
        return np.array(drawn), number


class Counted:
    """Notes what was read; draws nothing."""

    draws = ()

    def __init__(self, size):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, number):
        self.read.append(number)
        return np.full((2, 3), number, "uint8"), number


def noisy(image, rng):
    return image + rng.random(image.shape)


def quiet_loader(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)
        return DatasetLoader(*arguments, **options)


@pytest.mark.parametrize(("workers", "method"), [*WAYS, ("process:1", "spawn"), long("process:2", "forkserver")])
def test_batches_do_not_depend_on_the_workers_and_skip_leaves_the_rest_as_it_is(workers, method):
    common = {"shuffle": True, "seed": 5, "transform": noisy}
    expected = DatasetLoader(Drawing(), 3, **common)
    epochs = [read(expected), read(expected)]
    with quiet_loader(Drawing(), 3, workers=workers, start_method=method, **common) as loader:
        for whole in epochs:  # what was drawn before decides nothing
            mxkit.seed_all(random.randrange(100))
            assert_same(read(loader), whole)
        for skipped in (1, 4):
            loader.epoch = 0
            loader.skip(skipped)
            assert_same(read(loader), epochs[0][skipped:])
    dataset = Counted(10)
    loader = DatasetLoader(dataset, 3)
    loader.skip(2)
    assert len(read(loader)) == 2
    assert dataset.read == [6, 7, 8, 9]


def test_a_sample_differs_between_epochs_and_neighbours_but_not_by_batch_size():
    small, large = (DatasetLoader(Drawing(), size, seed=5) for size in (2, 11))
    (first,), (second,) = read(large), read(large)
    assert not np.intersect1d(first[0][:, :3], second[0][:, :3]).size
    assert len(np.unique(first[0][:, :3])) == 33
    np.testing.assert_array_equal(np.concatenate([x for x, _ in read(small)]), first[0])
    ((other, _),) = read(DatasetLoader(Drawing(), 11, seed=6))
    assert not np.intersect1d(first[0][:, :3], other[:, :3]).size


def test_the_generators_of_the_caller_are_left_alone():
    mx.random.seed(3)
    expected = mx.nd.random.uniform(shape=(4,)).asnumpy()
    states = random.getstate(), np.random.get_state()[1].copy()

    def check():
        assert random.getstate() == states[0]
        np.testing.assert_array_equal(np.random.get_state()[1], states[1])

    for workers, method in WAYS:
        mx.random.seed(3)
        for _ in quiet_loader(Drawing(), 4, workers=workers, start_method=method):
            if not str(workers).startswith("thread"):  # they share them while they read
                check()
        check()
        if workers:
            np.testing.assert_array_equal(mx.nd.random.uniform(shape=(4,)).asnumpy(), expected)
    with pytest.raises(DataError):
        read(DatasetLoader(Drawing(), 4, transform=lambda x: 1 / 0))
    check()


IMAGES = np.random.RandomState(0).randint(0, 256, (10, 8, 8, 3)).astype("uint8")


def gluon_images():
    return gluon.data.ArrayDataset(mx.nd.array(IMAGES, dtype="uint8"), np.arange(10, dtype="int32"))


class Switched:
    """Samples of the kind of arrays that the switches name; a worker has other switches after each batch."""

    draws = ()

    def __init__(self):
        self.thread = threading.get_ident(), os.getpid()

    def __len__(self):
        return 6

    def __getitem__(self, number):
        shape, array = switches_here()
        return (mx.np if array else mx.nd).array([shape, array, number]) * 1

    def joined(self, samples):
        array = mx.util.is_np_array()
        batch = mx.np.stack(samples) if array else mx.nd.stack(*samples)
        if (threading.get_ident(), os.getpid()) != self.thread:
            set_np(not array, not array)
        return batch, np.arange(len(samples))


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), ("thread:2", None), ("process:2", "fork"), long("process:1", "spawn")]
)
def test_workers_run_code_under_the_switches_of_the_caller(workers, method):
    data = Switched()
    with DatasetLoader(data, 2, workers=workers, batchify=data.joined, start_method=method) as loader:
        for here in ((False, False), (True, True), (True, False)):  # the processes stay, the switches change
            set_np(*here)
            try:
                batches = list(loader)
                assert switches_here() == here
            finally:
                reset_np()
            found = np.concatenate([x.asnumpy() for x, _ in batches])
            np.testing.assert_array_equal(found, [[*here, number] for number in range(6)])
            assert all(isinstance(array, mx.np.ndarray) == here[1] for batch in batches for array in batch)


@pytest.mark.parametrize("workers", ["process:2", long(0), long("thread:2")])
def test_gluons_random_transforms_draw_the_same_for_each_kind(workers):
    jitters = [getattr(transforms, f"Random{name}")(0.4) for name in ("Brightness", "Contrast", "Saturation", "Hue")]
    moves = [transforms.RandomFlipLeftRight(), transforms.RandomFlipTopBottom(), transforms.RandomResizedCrop(6)]
    chain = [*moves, *jitters, transforms.RandomLighting(0.4), transforms.ToTensor(), transforms.Normalize(0.5, 0.2)]
    batches = []
    for numpy in (False, True):
        with switches(numpy):
            images = (mx.np if numpy else mx.nd).array(IMAGES, dtype="uint8")
            dataset = gluon.data.ArrayDataset(images, np.arange(10, dtype="int32")).transform_first(
                transforms.Compose(chain)
            )
            batches.append(read(quiet_loader(dataset, 4, seed=1, workers=workers)))
    assert_same(*batches)


def test_rng_reaches_functions_inside_of_gluons_lazy_datasets():
    def both(image, label, rng):
        return image, label, rng.random()

    dataset = gluon.data.SimpleDataset([(np.zeros(2), i) for i in range(7)])
    chained = dataset.transform_first(noisy).transform(both).take(5).shard(1, 0)
    ((x, y, drawn),) = read(DatasetLoader(chained, 5, seed=9, transform=noisy))
    for number in range(5):
        rng = [np.random.Generator(np.random.PCG64([9, 0, number])) for _ in range(3)]
        np.testing.assert_array_equal(x[number], (noisy(np.zeros(2), rng[0]) + rng[1].random(2)).astype("float32"))
        assert drawn[number] == np.float32(rng[2].random())
    np.testing.assert_array_equal(y, np.arange(5))


def test_shapes_and_types_of_batches():
    parts = [((np.float64(i), np.ones(3, "float64") * i), np.int64(i), i % 2 == 0, 2.5) for i in range(4)]
    ((x, y, even, constant),) = DatasetLoader(parts, 4)
    assert [array.dtype for array in (*x, y, even, constant)] == [np.float32] * 2 + [np.int32] + [np.float32] * 2
    assert [array.shape for array in (*x, y, even, constant)] == [(4,), (4, 3), (4,), (4,), (4,)]
    assert all(array.context == mx.cpu() for array in (*x, y))
    ((alone,),) = DatasetLoader([mx.nd.ones((2, 2), dtype="uint8")] * 3, 3)
    assert (alone.shape, alone.dtype) == ((3, 2, 2), np.uint8)
    ((mixed,),) = DatasetLoader([1, 2.5], 2)
    assert mixed.asnumpy().tolist() == [1, 2.5]


@pytest.mark.parametrize("workers", [0, "process:1"])
def test_empty_parts_and_growing_batches(workers):
    grown = [(np.zeros((0, 4)), np.full((10 ** (1 + i // 2),), i)) for i in range(6)]
    batches = read(DatasetLoader(grown, 2, workers=workers, draws=()))
    assert [(x.shape, y.shape) for x, y in batches] == [((2, 0, 4), (2, 10**length)) for length in (1, 2, 3)]
    assert [y[:, -1].tolist() for _, y in batches] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [0, "thread:2", long("process:2")])
def test_gluoncvs_batchify(workers, kind):
    data = [(kind.of(np.arange(length, dtype="float32")), length) for length in (3, 1, 2, 5)]
    join = gluoncv.data.batchify.Tuple(gluoncv.data.batchify.Pad(pad_val=-1), gluoncv.data.batchify.Stack())
    for switch in (False, kind.numpy):
        with switches(switch):
            (_, (x, y)) = read(DatasetLoader(data, 2, batchify=join, workers=workers))
        np.testing.assert_array_equal(x, [[0, 1, -1, -1, -1], [0, 1, 2, 3, 4]])
        np.testing.assert_array_equal(y, [2, 5])


@pytest.mark.parametrize("workers", [0, "thread:2", "process:2"])
def test_an_exception_names_the_samples_and_keeps_its_traceback(workers):
    def crop_the_bad_one(image):
        if image[0] == 7:
            raise KeyError("no such corner")
        return image

    loader = DatasetLoader([np.full(2, i) for i in range(11)], 3, workers=workers, transform=crop_the_bad_one, draws=())
    with pytest.raises(DataError, match="DatasetLoader: sample 7 of list could not be read in epoch 1: ") as caught:
        read(loader)
    assert isinstance(caught.value.__cause__, KeyError)
    text = "".join(traceback.format_exception(KeyError, caught.value, caught.value.__traceback__))
    assert "crop_the_bad_one" in text
    assert "no such corner" in str(caught.value)
    loader.transform = None
    assert len(read(loader)) == 4  # it is not dead
    text = r"samples 3 and 4 differ in shape: \(3, 20\) and \(3, 21\)\. Bring them to one shape .* batchify"
    with pytest.raises(DataError, match=text):
        read(DatasetLoader([(np.zeros((3, 20 + (i == 4))), i) for i in range(6)], 3, workers=workers))


def test_threads_tell_when_they_must_wait_for_each_other():
    for workers in ("thread:1", "thread:2"):
        with pytest.warns(TrapWarning, match=r"read the samples of Drawing one at a time.*`rng`.*draws=\(\)"):
            DatasetLoader(Drawing(), 4, workers=workers)
    for quiet in ({"draws": ()}, {"draws": ["mxnet"]}):
        DatasetLoader(Drawing(), 4, workers="thread:2", **quiet)
    loader = DatasetLoader(Counted(9), 2, workers="thread:2", transform=noisy, seed=1)
    text = "DatasetLoader(Counted of 9, batch_size=2, 5 batches, workers='thread:2', shuffle=False, seed=1)"
    assert repr(loader) == text


def test_what_is_known_to_draw():
    assert drawn_by_dataset(gluon_images()) == drawn_by_dataset(Kind(True).of(IMAGES)) == set()
    assert drawn_by_dataset(Drawing()) == {"python", "numpy", "mxnet"}
    assert drawn_by_transform(mx.image.HueJitterAug(0.1)) == {"python", "numpy"}
    assert drawn_by_transform(gluoncv.data.transforms.presets.imagenet.transform_eval) == {"python", "numpy", "mxnet"}
    nested = transforms.Compose([transforms.RandomApply(transforms.Compose([transforms.RandomHue(0.1)]), 0.5)])
    assert drawn_by_transform(nested) == {"python", "mxnet"}
    assert drawn_by_dataset(gluon_images().transform_first(noisy)) == set()
    assert drawn_by_dataset(gluon_images().transform_first(lambda x: x).take(3)) == {"python", "numpy", "mxnet"}


DRAWING_BLOCKS = {
    transforms.RandomResizedCrop: (4,),
    transforms.RandomFlipLeftRight: (),
    transforms.RandomFlipTopBottom: (),
    transforms.RandomBrightness: (0.5,),
    transforms.RandomContrast: (0.5,),
    transforms.RandomSaturation: (0.5,),
    transforms.RandomHue: (0.5,),
    transforms.RandomColorJitter: (0.5, 0.5, 0.5, 0.5),
    transforms.RandomLighting: (0.5,),
    transforms.RandomRotation: ((-90, 90),),
}


def test_the_table_of_draws_is_true_and_has_every_random_transform_of_this_mxnet():
    for kind, arguments in DRAWING_BLOCKS.items():
        # seeded by nothing but what the table says, the same numbers must come again
        image = mx.nd.array(IMAGES[0], dtype="float32")
        image = image.transpose((2, 0, 1)) if kind is transforms.RandomRotation else image
        transform = kind(*arguments)
        one, again = (read(DatasetLoader([image] * 6, 6, seed=4, transform=transform)) for _ in range(2))
        assert_same(one, again)
        assert len({row.tobytes() for row in one[0][0]}) > 1
    known = {*DRAWING_BLOCKS, transforms.RandomApply}
    assert {kind for name, kind in vars(transforms).items() if name.startswith("Random")} == known


@pytest.mark.parametrize("workers", ["thread:2", "process:2"])
def test_breaking_off_and_two_iterators_at_once(workers):
    before = left()
    loader = DatasetLoader(Counted(40), 2, workers=workers, shuffle=True, seed=1)
    for _ in loader:
        break
    one, other = iter(loader), iter(loader)
    for epoch, batches in ((2, other), (1, one)):
        np.testing.assert_array_equal(next(batches)[1].asnumpy(), loader.order(epoch)[:2])
    del one, other, batches
    assert left() == before
    read(loader)
    loader.close()
    assert left() == before


def left():
    """File descriptors and child processes of this process, and threads of loaders that are at work."""
    gc.collect()  # loaders of other tests
    children = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return len(list(Path("/proc/self/fd").iterdir())), sorted("".join(children).split()), len(reading._busy)


class SlowToTrace(gluon.HybridBlock):
    draws = ()
    traced = 0

    def hybrid_forward(self, F, x):
        self.traced += 1
        time.sleep(0.05)
        return x + 1


def test_blocks_are_not_traced_by_two_threads_at_once():
    # gluon's thread_pool=True raises "'NoneType' object has no attribute '__exit__'" in some runs
    block = SlowToTrace()
    block.hybridize()
    images = [mx.nd.full((2,), i) for i in range(40)]
    batches = read(DatasetLoader(images, 4, workers="thread:4", transform=block))
    assert block.traced == 1
    np.testing.assert_array_equal(np.concatenate([x for (x,) in batches])[:, 0], np.arange(1, 41))


def test_workers_do_not_wait_for_a_lock_that_another_thread_held_when_they_were_forked():
    held, done = threading.Event(), threading.Event()
    steps = Augment([transforms.RandomHue(0.4), mx.image.BrightnessJitterAug(0.5)])
    loaders = [DatasetLoader(Drawing(), 4, workers="process:1", timeout=15)]
    loaders += [DatasetLoader(IMAGES, 4, workers="process:1", timeout=15, transform=steps, draws=())]
    steps(IMAGES[0])  # begins a thread that no fork has

    def hold():
        with samples._LOCK, augment._lock:
            held.set()
            done.wait(40)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert [len(read(loader)) for loader in loaders] == [3, 3]
    finally:
        done.set()
        thread.join()


def test_processes_stay_until_the_loader_is_closed_or_forgotten():
    before = left()
    with DatasetLoader(Drawing(), 3, workers="process:2", seed=5, shuffle=True) as loader:
        expected = DatasetLoader(Drawing(), 3, seed=5, shuffle=True)
        assert_same(read(loader), read(expected))
        pids = left()[1]
        assert len(pids) == 2 + len(before[1])
        assert_same(read(loader), read(expected))
        assert_same(read(copy.copy(loader)), read(expected))  # a copy has processes of its own
        loader.epoch += 1
        assert left()[1] == pids
        one = next(each for each in multiprocessing.active_children() if str(each.pid) in set(pids) - set(before[1]))
        os.kill(one.pid, signal.SIGKILL)  # it was idle: nothing is lost
        one.join()
        assert_same(read(loader), read(expected))
        for _ in loader:
            break  # what was handed out cannot be taken back: they begin anew
        assert left() == before
        next(expected.__iter__())
        assert_same(read(loader), read(expected))
    assert left() == before
    read(loader)
    assert left() != before
    del loader  # a forgotten loader takes its processes with it
    assert left() == before


def test_processes_that_stay_read_what_the_loader_has_now():
    """T188."""

    class Shifted(Counted):
        shift = 0

        def __getitem__(self, number):
            return super().__getitem__(number)[0] + np.uint8(self.shift), number

    loader = DatasetLoader(Shifted(4), 4, workers="process:1")

    def first():
        return float(next(iter(read(loader)))[0][0, 0, 0])

    assert first() == 0
    loader.dataset.shift = 5  # another object as an attribute
    assert first() == 5
    loader.dataset = Shifted(4)
    assert first() == 0
    loader.transform = lambda image, rng: image + np.uint8(9)
    assert first() == 9
    loader.transform = noisy
    drawn = first()
    loader.load_state_dict({"seed": loader.seed + 1})
    loader.epoch -= 1
    assert first() != drawn


LATE = {
    "Compose": lambda images, late: (images.transform_first(transforms.Compose([transforms.ToTensor(), late])), None),
    "two transforms": lambda images, late: (images.transform_first(to_tensor).take(8).transform_first(late), None),
    "the loader's": lambda images, late: (images.transform_first(to_tensor), late),
}
to_tensor = transforms.ToTensor()


@pytest.mark.parametrize(
    ("way", "late"), list(zip(LATE, [transforms.Resize, transforms.CenterCrop, transforms.RandomResizedCrop]))
)
def test_a_resize_after_to_tensor(way, late):
    """T261."""
    pixels = np.random.RandomState(0).randint(0, 256, (8, 28, 28, 3)).astype("uint8")
    images = gluon.data.SimpleDataset([(mx.nd.array(image, dtype="uint8"), 0) for image in pixels])
    dataset, transform = LATE[way](images, late(24))
    net = ready(gluon.nn.Conv2D(4, 3), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(2))
    loaders = [DatasetLoader(dataset, 4, transform=transform)]
    loaders += [gluon.data.DataLoader(dataset, 4)] if transform is None else []
    for loader in loaders:
        with pytest.warns(TrapWarning, match=rf"train: {late.__name__} comes after ToTensor .* \(T261\)"):
            mxkit.fit(net, loader, loss="softmax_ce", trainer="sgd", epochs=1, progress=False)
    assert net[0].weight.shape[1] == 24  # as MXNet reads it
    right = images.transform_first(transforms.Compose([late(24), transforms.ToTensor(), transforms.Normalize(0.1, 1)]))
    mxkit.data.describe(DatasetLoader(right, 4))  # warns of nothing
