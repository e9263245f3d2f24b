"""The same trained net in the forms that MXNet can give it for predictions: images a second through `mxkit.predict`.

- eager: as it is; hybridized: `net.hybridize()`; static: with `static_alloc=True, static_shape=True`.
- fused: `net.optimize_for(x, backend="MKLDNN", static_alloc=True, static_shape=True)`: BatchNorm, sums and ReLU become
  part of the convolution before them.
- bfloat16: `amp.convert_hybrid_block(net, target_dtype="bfloat16", ctx=mx.cpu(), cast_optional_params=True)`, static;
  without the last argument weights are cast anew in each call. Needs AVX512_BF16 to be fast.
- int8: `quantization.quantize_net_v2(net, calib_mode="naive", quantize_mode="smart")`, calibrated on 96 images, static.
  Fast where the processor has AVX512_VNNI.
- AMX: with the tiles of processors that have them, which oneDNN 2.4 uses only on demand: `DNNL_MAX_CPU_ISA=
  AVX512_CORE_AMX`, and the kernel must be asked for them first (`arch_prctl`), or the process dies of an illegal
  instruction.

Ratios are rates, above 1 faster than static. The nets are trained for a while on scikit-learn's digits, enlarged, so
that the classes which a form predicts can be compared: how many of 360 held-out digits it gets right, and on how many
it agrees with the eager net.
"""

import ctypes
from functools import lru_cache, partial
from pathlib import Path
import tempfile
import time
from typing import Any, Dict, Iterator, NamedTuple, Tuple
import warnings

import mxkit  # before mxnet
import mxnet as mx
from mxnet.contrib import amp, quantization
import numpy as np
from sklearn.datasets import load_digits

from benchmarks.harness import Child, Row, rows_of, take_turns

TITLE = "Predicting: eager, hybridized, fused, bfloat16, int8"
AGAINST = "static"
FORMS = ("eager", "hybridized", "static", "fused", "bfloat16", "int8")
ON_TILES = ("bfloat16", "int8")
UPDATES = {"lenet": 200, "resnet18": 60}
CALIBRATION, HELD_OUT = 96, 360
ROUNDS = {True: 2, False: 5}
ASK_FOR_TILES = (158, 0x1023, 18)  # x86-64: arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA


class Case(NamedTuple):
    title: str
    net: str
    size: int
    batch: int
    images: int


CASES = [
    Case("LeNet, batch 1", "lenet", 28, 1, 64),
    Case("LeNet, batch 32", "lenet", 28, 32, 640),
    Case("ResNet-18, 64 px, batch 1", "resnet18", 64, 1, 16),
    Case("ResNet-18, 64 px, batch 32", "resnet18", 64, 32, 64),
    Case("ResNet-18, 224 px, batch 1", "resnet18", 224, 1, 4),
    Case("ResNet-18, 224 px, batch 32", "resnet18", 224, 32, 32),
]


def run(quick: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, Child({}) as plain, Child(
        {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}
    ) as tiles:
        ways = {form: partial(plain.ask, form=form, folder=folder) for form in FORMS}
        if tiles.ask("benchmarks.inference:ask_for_tiles"):
            ways.update({f"{form}, AMX": partial(tiles.ask, form=form, folder=folder) for form in ON_TILES})
        for net, updates in UPDATES.items():
            plain.ask("benchmarks.inference:train", net=net, updates=updates // 10 if quick else updates, folder=folder)
        for case in CASES:
            if quick and case.size > 64:
                continue
            images = case.batch if quick else case.images
            asked = {"net": case.net, "size": case.size, "batch": case.batch, "images": images}
            timed = {way: partial(ask, "benchmarks.inference:seconds", **asked) for way, ask in ways.items()}
            taken = take_turns(timed, rounds=ROUNDS[quick])
            yield from rows_of(case.title, taken, against=AGAINST, scale=images, unit="images/s")
        for net in UPDATES:
            for way, ask in ways.items():
                if way not in ("hybridized", "static"):
                    right, same = ask("benchmarks.inference:agreement", net=net)
                    yield Row(f"{net}: digits that are right", way, right, "%")
                    if way != "eager":
                        yield Row(f"{net}: digits seen as eager sees them", way, same, "%")


def ask_for_tiles() -> bool:
    """Ask the kernel for AMX's registers, in a child: oneDNN 2.4 does not, and would die of SIGILL.

    Returns:
        Whether it has them: the processor must, and Linux be 5.16 or newer.
    """
    return "amx_int8" in Path("/proc/cpuinfo").read_text() and ctypes.CDLL(None).syscall(*ASK_FOR_TILES) == 0


@lru_cache(maxsize=None)
def digits(net: str) -> Tuple[Any, Any]:
    """Enlarged digits, shuffled; shapes (1797, C, H, W) and (1797,)."""
    data = load_digits()
    factor, border, channels = (8, 0, 3) if net == "resnet18" else (3, 2, 1)
    images = np.kron(data.images / 16, np.ones((factor, factor)))
    images = np.pad(images, ((0, 0), (border, border), (border, border)), mode="constant")
    order = np.random.RandomState(0).permutation(len(images))
    return np.repeat(images[order, None], channels, axis=1).astype(np.float32), data.target[order].astype(np.int32)


def train(net: str, updates: int, folder: str) -> None:
    """Train a net on what is not held out, and write its parameters to `folder`."""
    mxkit.seed_all(0)
    made = mxkit.models.get_model(net)
    mxkit.initialize(made, "xavier")
    made.hybridize(static_alloc=True)
    x, y = digits(net)
    loader = mxkit.data.ArrayLoader(x[HELD_OUT:], y[HELD_OUT:], 32, shuffle=True, seed=0)
    mxkit.fit(
        made,
        loader,
        loss="softmax_ce",
        trainer=("adam", {"learning_rate": 0.001}),
        epochs=f"{updates} updates",
        progress=False,
    )
    made.save_parameters(f"{folder}/{net}.params")


@lru_cache(maxsize=None)
def in_form(form: str, net: str, folder: str) -> Any:
    """The trained net in one of FORMS."""
    made = mxkit.models.get_model(net)
    made.load_parameters(f"{folder}/{net}.params")
    x, _ = digits(net)
    sample = mx.nd.array(x[HELD_OUT : HELD_OUT + CALIBRATION])
    static = {"static_alloc": True, "static_shape": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "fused":
            made.optimize_for(sample, backend="MKLDNN", **static)
        elif form == "bfloat16":
            made.hybridize()
            made(sample)
            made = amp.convert_hybrid_block(made, target_dtype="bfloat16", ctx=mx.cpu(), cast_optional_params=True)
        elif form == "int8":
            data = mx.gluon.data.ArrayDataset(sample, mx.nd.zeros(CALIBRATION))
            made = quantization.quantize_net_v2(
                made, quantize_mode="smart", calib_data=mx.gluon.data.DataLoader(data, 32), calib_mode="naive"
            )
    if form in ("static", "bfloat16", "int8"):
        made.hybridize(**static)
    elif form == "hybridized":
        made.hybridize()
    return made


def seconds(form: str, net: str, size: int, batch: int, images: int, folder: str) -> float:
    """Seconds that `mxkit.predict` takes for so many images, in batches."""
    made = in_form(form, net, folder)
    x = inputs(net, size, batch)
    begun = time.perf_counter()
    mxkit.predict(made, [x] * (images // batch))
    return time.perf_counter() - begun


@lru_cache(maxsize=None)
def inputs(net: str, size: int, batch: int) -> Any:
    return mx.nd.random.uniform(shape=(batch, 3 if net == "resnet18" else 1, size, size))


def agreement(form: str, net: str, folder: str) -> Tuple[float, float]:
    """Percent of the held-out digits that a form gets right, and of those that it sees as the eager net does."""
    x, y = digits(net)
    classes: Dict[str, Any] = {}
    for one in (form, "eager"):
        classes[one] = mxkit.predict(in_form(one, net, folder), x[:HELD_OUT]).asnumpy().argmax(1)
    return 100 * float(np.mean(classes[form] == y[:HELD_OUT])), 100 * float(np.mean(classes[form] == classes["eager"]))
