"""How time and memory grow with updates, parameters, samples and devices.

- updates: one `mxkit.fit` of a small MLP (batches of 16) with accuracy and checks for NaN. It waits for each of the 100
  updates before a mark; the row is their median, and the process's resident memory. All other updates run as always.
  The time should be flat: bar 1.05 for update 10,000 against update 100. Each run is a fresh process.
- parameters: an update of a chain of Dense(4) layers, batches of 4: almost nothing to compute, 10 to 2,000 tensors. A
  round is a call of `fit` with 20 updates (of devices 100), so a part of its beginning and end is in it.
- samples: an epoch of an `ArrayLoader` alone, shuffled, batches of 256 of 16 bytes; and what the process's memory
  grows by meanwhile. Each size is a fresh process.
- devices: an update of an MLP, 64 samples in all, split over 1 to 4 virtual devices of one processor: what splitting
  costs where it gains nothing.

"slope" and "deviation" are those of the straight line that fits best (least squares of the relative errors); a small
deviation says that the growth is linear.
"""

import statistics
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import mxkit  # before mxnet
from mxkit.data import ArrayLoader
import mxnet as mx
from mxnet.gluon import nn
import numpy as np

from benchmarks.harness import Row, in_child, peak_memory, resident_memory, take_turns

TITLE = "Growth with updates, parameters, samples and devices"
SIZES: Dict[str, Sequence[int]] = {
    "marks": (100, 1_000, 10_000),
    "tensors": (10, 100, 500, 2_000),
    "samples": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    "devices": (1, 2, 3, 4),
}
QUICK_SIZES: Dict[str, Sequence[int]] = {
    "marks": (100, 200),
    "tensors": (10, 40),
    "samples": (1_000, 10_000),
    "devices": (1, 2),
}
ROUNDS = {False: 5, True: 2}


def run(quick: bool) -> Iterator[Row]:
    sizes, rounds = QUICK_SIZES if quick else SIZES, ROUNDS[quick]
    yield from with_updates(sizes["marks"], rounds)
    yield from with_parameters(sizes["tensors"], rounds, 3 if quick else 20)
    yield from with_samples(sizes["samples"], rounds)
    yield from with_devices(sizes["devices"], rounds, 3 if quick else 100)


def with_updates(marks: Sequence[int], rounds: int) -> Iterator[Row]:
    runs = [in_child("benchmarks.growth:updates", {"marks": marks}) for _ in range(rounds)]
    for position, mark in enumerate(marks):
        case, first = f"update {mark:,}", f"update {marks[0]:,}"
        seconds, memory = zip(*(one[position] for one in runs))
        ratios = [one / other[0][0] for one, other in zip(seconds, runs)]
        row = plain_row("updates", case, "us/update", [1e6 * one for one in seconds])
        yield row._replace(
            against=first, ratio=statistics.median(ratios), ratio_low=min(ratios), ratio_high=max(ratios),
            bar=1.05 if position == len(marks) - 1 else None,
        )  # fmt: skip
        yield plain_row("updates", f"memory at update {mark:,}", "MB", memory)


def updates(marks: List[int]) -> List[List[float]]:
    """For each mark the median seconds of the 100 updates before it, and the resident MB then; in a child."""
    watch = Watch(marks)
    rng = np.random.RandomState(0)
    data = ArrayLoader(rng.rand(1_600, 16).astype("float32"), rng.randint(0, 10, 1_600), 16, shuffle=True, seed=0)
    net = hybridized(mxkit.models.mlp(hidden=[32]))
    mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", epochs="50 updates", metrics=["accuracy"], progress=False)
    mxkit.fit(
        net, data, loss="softmax_ce", trainer="sgd", epochs=f"{marks[-1]} updates", metrics=["accuracy"],
        progress=False,
        callbacks=[watch],
    )  # fmt: skip
    return watch.found


class Watch(mxkit.Callback):
    """Times each of the 100 updates before each mark."""

    def __init__(self, marks: Sequence[int]) -> None:
        self.found: List[List[float]] = []
        self._marks, self._seconds, self._since = marks, [], 0.0

    def on_update(self, state: Any, update: Any) -> None:
        mark = self._marks[len(self.found)] if len(self.found) < len(self._marks) else float("inf")
        if state.updates < mark - 100:
            return
        mx.nd.waitall()
        now = time.perf_counter()
        if state.updates > mark - 100:
            self._seconds.append(now - self._since)
        if state.updates == mark:
            self.found.append([statistics.median(self._seconds[1:]), resident_memory()])
            self._seconds = []
        self._since = time.perf_counter()


def with_parameters(sizes: Sequence[int], rounds: int, updates: int) -> Iterator[Row]:
    nets = {}
    for tensors in sizes:
        net = nn.HybridSequential()
        net.add(*(nn.Dense(4, in_units=4) for _ in range(tensors // 2)))
        nets[tensors] = hybridized(net)
    x, y = mx.nd.random.uniform(shape=(4, 4)), mx.nd.zeros(4)
    yield from growth_of_updates("parameters", "tensor", nets, [(x, y)], rounds, updates)


def with_devices(sizes: Sequence[int], rounds: int, updates: int) -> Iterator[Row]:
    nets = {
        count: hybridized(mxkit.models.mlp(in_channels=1, input_size=28), [mx.cpu(one) for one in range(count)])
        for count in sizes
    }
    x, y = mx.nd.random.uniform(shape=(64, 1, 28, 28)), mx.nd.zeros(64)
    yield from growth_of_updates("devices", "device", nets, [(x, y)], rounds, updates)


def growth_of_updates(
    case: str, what: str, nets: Mapping[int, Any], batches: List[Any], rounds: int, updates: int
) -> Iterator[Row]:
    """Rows of updates of nets that take turns, by their size."""

    def trains(net: Any) -> Any:
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, update_on_kvstore=False)
        given = {"loss": "softmax_ce", "trainer": trainer, "epochs": 1, "progress": False}
        return lambda: mxkit.fit(net, batches * updates, **given)

    ways = {str(size): trains(net) for size, net in nets.items()}
    taken = take_turns(ways, rounds=rounds, wait=mx.nd.waitall)
    values = {size: [1e6 * one / updates for one in taken[str(size)].wall] for size in nets}
    yield from growth_rows(case, what, "us/update", "us", values)


def with_samples(sizes: Sequence[int], rounds: int) -> Iterator[Row]:
    runs = {size: [in_child("benchmarks.growth:epoch", {"samples": size}) for _ in range(rounds)] for size in sizes}
    values = {size: [1e6 * seconds for seconds, _ in found] for size, found in runs.items()}
    yield from growth_rows("samples", "sample", "us/epoch", "ns", values, slope_scale=1e3)
    for size, found in runs.items():
        yield plain_row("samples", f"memory gained, {size:,}", "MB", [memory for _, memory in found])


def epoch(samples: int) -> List[float]:
    """Median seconds of three epochs, and the MB by which the peak grew; in a child."""
    x = np.zeros((samples, 16), np.uint8)
    x += 1  # zeros alone take no memory
    loader = ArrayLoader(x, np.ones(samples, np.int32), 256, shuffle=True, seed=0, drop_last=True)
    warm = ArrayLoader(x[:1_000], loader.y[:1_000], 256, shuffle=True, seed=0)
    seconds, before = [], 0.0
    for one in (warm, loader, loader, loader):
        before = before or (peak_memory() if one is loader else 0.0)
        begun = time.perf_counter()
        for _ in one:
            pass
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begun)
    return [statistics.median(seconds[1:]), peak_memory() - before]


def growth_rows(
    case: str,
    what: str,
    unit: str,
    slope_unit: str,
    values: Mapping[int, Sequence[float]],
    slope_scale: float = 1.0,
) -> Iterator[Row]:
    """A row a size, the slope of the line through their medians, and how far the farthest lies from it."""
    for size, found in values.items():
        yield plain_row(case, f"{size:,} {what}{'s' if size > 1 else ''}", unit, found)
    sizes, medians = np.array(list(values), float), np.array([statistics.median(one) for one in values.values()])
    slope, start = np.polyfit(sizes, medians, 1, w=1 / medians)
    deviation = 100 * np.abs((slope * sizes + start) / medians - 1).max()
    yield Row(case, "slope", slope_scale * float(slope), f"{slope_unit}/{what}")
    yield Row(case, "largest deviation from the line", round(float(deviation), 3), "%")


def plain_row(case: str, way: str, unit: str, values: Sequence[float]) -> Row:
    return Row(case, way, statistics.median(values), unit, low=min(values), high=max(values))


def hybridized(net: Any, devices: Optional[List[Any]] = None) -> Any:
    mxkit.seed_all(0)
    mxkit.initialize(net, "xavier", devices=devices or "cpu")
    net.hybridize(static_alloc=True, static_shape=True)
    return net
