"""Predicting with threads or with processes: samples a second of a net whose batches all cores compute.

- one thread: one process, loaded with one thread. The ratios are against it.
- every core's threads: one process, as `import mxkit` loads MXNet.
- a process per core: each with one thread, all at once; their rates are added.

Nets are hybridized with static memory, a call waits for its numbers, and ways take turns. A call's latency is that of
its own process: with a process per core that of one thread, or longer.

Rows that begin with "computed" are not measured. On 16 cores, threads follow from Amdahl's law and the times with one
thread and with every core's; processes reach 16 times what each of them reached here. Memory that cores share is left
out.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from statistics import median
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import mxkit  # before mxnet
from mxkit.runtime.machine import read_processors
import mxnet as mx

from benchmarks.harness import Child, Row, Taken, mxnet_threads, rows_of, take_turns

TITLE = "Predicting: threads or processes"
ONE, EVERY, EACH = "one thread", "every core's threads", "a process per core, one thread each"
ROUNDS = {True: 1, False: 5}
SECONDS = {True: 0.05, False: 0.5}
CORES = 16


class Case(NamedTuple):
    title: str
    net: str
    shape: Tuple[int, ...]
    batches: Tuple[int, ...]


CASES = [
    Case("MLP 784-256-10", "mlp", (784,), (1, 16, 64)),
    Case("LeNet, 28 px", "lenet", (1, 28, 28), (1, 16, 64)),
    Case("resnet18_v1, 224 px", "zoo:resnet18_v1", (3, 224, 224), (1, 16)),
]


def run(quick: bool) -> Iterator[Row]:
    cores = read_processors().threads
    children = [Child(mxnet_threads(None)), *(Child(mxnet_threads(1)) for _ in range(cores))]
    try:
        with ThreadPoolExecutor(cores) as pool:
            for case in CASES:
                for batch in case.batches:
                    yield from compared(case, batch, children, pool, SECONDS[quick], ROUNDS[quick])
    finally:
        for child in children:
            child.close()


def compared(
    case: Case, batch: int, children: List[Child], pool: ThreadPoolExecutor, seconds: float, rounds: int
) -> Iterator[Row]:
    """Rows of a net with one size of a batch; the ways measure seconds a sample.

    The first child has every core's threads, the others have one thread each.
    """
    given: Dict[str, Any] = {"net": case.net, "shape": case.shape, "batch": batch, "seconds": seconds}
    every, *others = children

    def ask(child: Child) -> float:
        return float(child.ask("benchmarks.processes:rate", **given))

    ways = {
        ONE: lambda: 1 / ask(others[0]),
        EVERY: lambda: 1 / ask(every),
        EACH: lambda: 1 / sum(pool.map(ask, others)),
    }
    title = f"{case.title}, batch {batch}"
    taken = take_turns(ways, rounds=rounds)
    yield from rows_of(title, taken, against=ONE, scale=1, unit="samples/s")
    yield from computed(title, taken, len(others))


def computed(title: str, taken: Dict[str, Taken], cores: int) -> Iterator[Row]:
    """Rates on a machine of 16 cores."""
    one, every, each = (median(taken[way].wall) for way in (ONE, EVERY, EACH))
    parallel = min(one, max(0.0, (one - every) / (1 - 1 / cores))) if cores > 1 else 0.0
    threads = 1 / (one - parallel + parallel / CORES)
    for way, value in ((EVERY, threads), (EACH, CORES / cores / each)):
        yield Row(f"{title}, on {CORES} cores", f"computed: {way}", value, "samples/s")


@lru_cache(maxsize=None)
def built(net: str, shape: Tuple[int, ...]) -> Any:
    made = mxkit.models.get_model(net)
    mxkit.initialize(made, "xavier", devices="cpu", sample=mx.nd.zeros((1, *shape)))
    made.hybridize(static_alloc=True, static_shape=True)
    return made


def rate(net: str, shape: List[int], batch: int, seconds: float) -> float:
    """Samples a second in this process."""
    made, x = built(net, tuple(shape)), mx.nd.random.uniform(shape=(batch, *shape))
    for _ in range(2):  # makes the graph, and its operators
        made(x).wait_to_read()
    calls, begun = 0, time.perf_counter()
    while calls < 2 or time.perf_counter() - begun < seconds:
        made(x).wait_to_read()
        calls += 1
    return calls * batch / (time.perf_counter() - begun)
