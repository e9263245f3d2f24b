"""Largest resident memory of gradient accumulation beside large and small batches: fresh processes, Linux's VmHWM.

ResNet-18 on images of 64 px, where activations weigh more than parameters; SGD without momentum, float32, `mxkit.fit`.
All hold the same 256 images and train on them twice:

- batch 32, and batch 256;
- batch 32 with accumulate=8, whose gradient equals that of batch 256;
- batch 32 plus gradients: the first, and what the gradients take, computed: the least that can be hoped for from
  something that keeps a sum beside each gradient. Bar: accumulate=8 takes at most 1.1 x that.

"nothing trained" tells what MXNet, the images and the net take.
"""

import statistics
from typing import Any, Dict, Iterator, List

import mxkit  # before mxnet
import mxnet as mx
import numpy as np

from benchmarks.harness import Row, in_child, peak_memory

TITLE = "Memory of gradient accumulation"
IDLE, SMALL, LARGE, SUMMED = "nothing trained", "batch 32", "batch 256", "batch 32, accumulate=8"
FLOOR = "batch 32 plus gradients"
WAYS: Dict[str, Dict[str, Any]] = {
    IDLE: {"updates": 0},
    SMALL: {"batch": 32},
    LARGE: {"batch": 256},
    SUMMED: {"batch": 32, "accumulate": 8},
}
SIZES = {"net": "resnet18", "pixels": 64}


def run(quick: bool) -> Iterator[Row]:
    found: Dict[str, List[float]] = {way: [] for way in (*WAYS, FLOOR)}
    for _ in range(1 if quick else 3):
        for way, arguments in WAYS.items():
            peak, gradients = in_child("benchmarks.memory:peak", {**SIZES, **arguments})
            found[way].append(peak)
        found[FLOOR].append(found[SMALL][-1] + gradients)
    case = f"ResNet-18, {SIZES['pixels']} px, 256 images"
    for way in (IDLE, SMALL, FLOOR, SUMMED, LARGE):
        against = FLOOR if way == SUMMED else SUMMED if way == LARGE else None
        ratios = [one / other for one, other in zip(found[way], found[against or way])] if against else [None]
        yield Row(
            case, way, statistics.median(found[way]), "MB", low=min(found[way]), high=max(found[way]), against=against,
            ratio=statistics.median(ratios) if against else None, ratio_low=min(ratios), ratio_high=max(ratios),
            bar=1.1 if way == SUMMED else None,
        )  # fmt: skip


def peak(net: str, pixels: int, batch: int = 32, accumulate: int = 1, updates: int = 2) -> List[float]:
    """Peak of this process in MB after some passes over the images, and what the gradients take."""
    mxkit.seed_all(0)
    made = mxkit.models.get_model(net)
    mxkit.initialize(made, "xavier", devices="cpu")
    made.hybridize(static_alloc=True, static_shape=True)
    made(mx.nd.zeros((1, 3, pixels, pixels)))
    rng = np.random.RandomState(0)
    batches = [
        (mx.nd.array(rng.rand(batch, 3, pixels, pixels).astype("float32")), mx.nd.array(rng.randint(0, 10, batch)))
        for _ in range(256 // batch)
    ]
    mx.nd.waitall()
    if updates:
        trainer = mx.gluon.Trainer(made.collect_params(), "sgd", {"learning_rate": 0.01})
        mxkit.fit(
            made, batches, loss="softmax_ce", trainer=trainer, epochs=2, accumulate=accumulate, progress=False
        )  # fmt: skip
        mx.nd.waitall()
    sizes = [one.data().size for one in made.collect_params().values() if one.grad_req != "null"]
    return [peak_memory(), 4 * sum(sizes) / 1e6]
