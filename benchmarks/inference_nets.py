"""MXNet's side of `inference`, in a child: nets that are trained for a while, and their forms for prediction."""

from functools import lru_cache
from pathlib import Path
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple
import warnings

import mxkit  # before mxnet
import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

SAMPLE, HELD_OUT = 100, 360
CALIBRATION = {True: 512, False: 16}  # images by whether they are of the size of the training; of another, SAMPLE is 4
BATCH = 32
SHAPES, SIDE = 3000, 32


class Images(NamedTuple):
    """Images in float32, (N, C, H, W), and their classes: the first are held out, then comes the sample."""

    x: Any
    y: Any


@lru_cache(maxsize=None)
def images(data: str, size: int) -> Images:
    """One of DATA in a size: scikit-learn's digits, enlarged, or shapes. In other sizes they stand side by side."""
    own, made = DATA[data]
    x, y = made()
    times = -(-size // own)
    return Images(np.tile(x, (1, 1, times, times))[:, :, :size, :size] if size != own else x, y)


def gray_digits() -> Images:
    return _digits(3, 2, 1)


def digits() -> Images:
    return _digits(4, 0, 3)


def large_digits() -> Images:
    return _digits(8, 0, 3)


@lru_cache(maxsize=None)
def _digits(factor: int, border: int, channels: int) -> Images:
    data = load_digits()
    pixels = np.kron(data.images / 16, np.ones((factor, factor)))
    pixels = np.pad(pixels, ((0, 0), (border, border), (border, border)), mode="constant")
    order = np.random.RandomState(0).permutation(len(pixels))
    return Images(
        np.repeat(pixels[order, None], channels, axis=1).astype(np.float32), data.target[order].astype(np.int32)
    )


@lru_cache(maxsize=None)
def shapes() -> Images:
    """Five shapes in warm or cold colours, 3 x 32 x 32 like CIFAR's: colours, size and place by chance, with noise."""
    rng = np.random.RandomState(0)
    y = np.arange(SHAPES, dtype=np.int32) % (2 * len(OUTLINES))
    rng.shuffle(y)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    x = np.empty((SHAPES, 3, SIDE, SIDE), np.float32)
    for image, kind in zip(x, y):
        (top, left), radius = rng.uniform(12, 19, 2), rng.uniform(9, 12)
        inside = OUTLINES[kind // 2]((rows - top) / radius, (columns - left) / radius)
        front = rng.uniform((0.6, 0.2, 0), (1, 0.8, 0.3))[:: 1 if kind % 2 else -1]
        image[:] = np.where(inside, front[:, None, None], rng.uniform(0, 0.5, (3, 1, 1)))
    return Images(x + rng.normal(0, 0.1, x.shape).astype(np.float32), y)


@lru_cache(maxsize=None)
def large_shapes() -> Images:
    x, y = shapes()
    return Images(x.repeat(2, 2).repeat(2, 3), y)


def _within(y: Any, x: Any) -> Any:
    return np.maximum(abs(y), abs(x)) < 1


OUTLINES: List[Callable[[Any, Any], Any]] = [  # y and x are from -1 to 1 inside a square
    lambda y, x: y * y + x * x < 1,  # disc
    lambda y, x: _within(y, x) & ~_within(1.7 * y, 1.7 * x),  # frame
    lambda y, x: _within(y, x) & (np.minimum(abs(y), abs(x)) < 0.3),  # cross
    lambda y, x: _within(y, x) & (np.floor(2.5 * y) % 2 == 0),  # bars
    lambda y, x: _within(y, x) & (2 * abs(x) < y + 1),  # triangle
]
DATA: Dict[str, Tuple[int, Callable[[], Images]]] = {
    "gray digits": (28, gray_digits),
    "digits": (SIDE, digits),
    "large digits": (2 * SIDE, large_digits),
    "shapes": (SIDE, shapes),
    "large shapes": (2 * SIDE, large_shapes),
}


@lru_cache(maxsize=None)
def trained(net: str, data: str, updates: int) -> Any:
    """A net of mxkit or MXNet's zoo after so many updates, hybridized with static memory."""
    mxkit.seed_all(0)
    made = mxkit.models.get_model(net)
    mxkit.initialize(made, "xavier")
    made.hybridize(static_alloc=True, static_shape=True)
    x, y = images(data, DATA[data][0])
    first = HELD_OUT + SAMPLE
    mxkit.fit(
        made,
        mxkit.data.ArrayLoader(x[first:], y[first:], BATCH, shuffle=True, seed=0),
        loss="softmax_ce",
        trainer=("adam", {"learning_rate": 0.002}),
        epochs=f"{updates} updates",
        progress=False,
    )
    return made


@lru_cache(maxsize=None)
def in_form(net: str, data: str, updates: int, size: int, form: str) -> Any:
    """The net as it is, or optimized with a sample of one size."""
    made = trained(net, data, updates)
    if form == "static":
        return made
    x, _ = images(data, size)
    own = size == DATA[data][0]
    given: Dict[str, Any] = {"calibration": [calibration(data, size)]} if form == "int8" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MXNet's
        sample = mx.nd.array(x[HELD_OUT : HELD_OUT + (SAMPLE if own else 4)])
        return mxkit.optimize(made, sample, precision=form, limit=0.02 if own else 0.5, **given)


def calibration(data: str, size: int) -> Any:
    """Images of the training for int8."""
    first = HELD_OUT + SAMPLE
    return images(data, size).x[first : first + CALIBRATION[size == DATA[data][0]]]


def prepare(form: str, **case: Any) -> Tuple[str, int]:
    """Make a form; why it cannot be made, and how many of its layers stay float32."""
    try:
        made = in_form(form=form, **case)
    except (ValueError, mx.base.MXNetError) as error:
        return " ".join(str(error).split())[-300:], 0
    return "", 0 if form == "static" else len(made.report.kept)


def write(net: str, data: str, updates: int, size: int, folder: str) -> Tuple[str, Dict[str, str], List[int]]:
    """Write a net for PyTorch and onnxruntime, with images; where, what failed, an image's shape."""
    base = f"{folder}/{net}-{data}-{size}".translate(str.maketrans(": .", "___"))
    failed = {}
    shape = (1, *images(data, size).x.shape[1:])
    for kind in ("torch", "onnx"):
        if not Path(f"{base}.{'py' if kind == 'torch' else kind}").exists():
            try:
                mxkit.export(trained(net, data, updates), base, format=kind, input_shape=shape, verify=False)
            except ImportError as error:
                failed[kind] = str(error)
    np.save(f"{base}-calibration.npy", calibration(data, size))
    np.save(f"{base}-held-out.npy", images(data, size).x[:HELD_OUT])
    return base, failed, list(shape[1:])


def seconds(form: str, batch: int, calls: int, **case: Any) -> float:
    """Seconds of so many calls, each until its numbers are there."""
    made = in_form(form=form, **case)
    x = mx.nd.random.uniform(shape=(batch, *images(case["data"], case["size"]).x.shape[1:]))
    x.wait_to_read()
    made(x).wait_to_read()  # after a rest, not counted
    begun = time.perf_counter()
    for _ in range(calls):
        made(x).wait_to_read()
    return time.perf_counter() - begun


def classes(form: str, **case: Any) -> List[int]:
    """What a form sees in the images that are held out."""
    x = images(case["data"], case["size"]).x[:HELD_OUT]
    return mxkit.predict(in_form(form=form, **case), x).asnumpy().argmax(1).tolist()


def truth(data: str) -> List[int]:
    return DATA[data][1]().y[:HELD_OUT].tolist()
