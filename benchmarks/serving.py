"""`mxkit.Predictor` on LeNet: requests of 16 threads, beside the hybridized net called one by one in one thread.

- Throughput: each thread asks for the next answer when it has the last one; windows of a second take turns. Both have
  one thread of MXNet, which is the fastest for single images. The ratio should be at least 3.
- Half load: 16 threads submit requests at random times (exponential), together at half of that rate, whether or not
  earlier ones are answered; `max_wait_ms` is 2. p99 should be at most 3 x p50 + 2 ms. Latency counts from when a
  request was due to its answer. How late the system let a sleeping thread run is part of it, and has a row of its own.
- `gc.freeze()` is called first, as the pages about servers do.
- A minute of traffic with accidents: besides good requests, samples of a wrong shape, clients that give up after a
  millisecond, and bursts of 300 requests at a queue of 256. Every accepted request must end, and the answers of every
  20th batch must have the bits of the same padded batch in the hybridized net, called alone after it. Memory is
  compared with that after the first tenth: what is used, after `malloc_trim`. The process may hold more: glibc keeps
  what a client's burst allocated (256 images) for later allocations of the same thread.
"""

from concurrent.futures import CancelledError, Future
from contextlib import suppress
import ctypes
import gc
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import mxkit  # before mxnet
from mxkit.errors import BusyError, DataError
import mxnet as mx
import numpy as np

from benchmarks.harness import Row, Taken, in_child, mxnet_threads, resident_memory, rows_of

TITLE = "Serving: a Predictor"
THREADS, MAX_WAIT, EACH = 16, 2.0, 4
NUMBERS = 2**19  # of good requests, each of which has a number of its own in a corner of its image
ALONE, TOGETHER = "hybridized net, one by one", f"Predictor, {THREADS} threads"
SIZES = {"rounds": 9, "window": 1.0, "half": 10.0, "minute": 60.0}
QUICK_SIZES = {"rounds": 2, "window": 0.2, "half": 0.5, "minute": 1.0}


def run(quick: bool) -> Iterator[Row]:
    sizes = QUICK_SIZES if quick else SIZES
    asked = {name: sizes[name] for name in ("rounds", "window", "half")}
    found = in_child("benchmarks.serving:speed", asked, environment=mxnet_threads(1))
    taken = {way: Taken(seconds, []) for way, seconds in found["seconds"].items()}
    rows = rows_of("LeNet, full load", taken, against=ALONE, scale=1, unit="requests/s")
    yield from rows
    yield Row("LeNet, full load: times the rate of one by one", TOGETHER, rows[1].ratio or 0.0, "x", bar=3.0)
    p50, p99 = np.percentile(found["latencies"], [50, 99])
    yield Row("LeNet, half load: p50", TOGETHER, p50, "ms")
    share = p99 / (3 * p50 + MAX_WAIT)
    yield Row(
        "LeNet, half load: p99", TOGETHER, p99, "ms",
        against="(3 x p50 + max_wait)", ratio=share, ratio_low=share, ratio_high=share, bar=1.0,
    )  # fmt: skip
    yield Row("LeNet, half load: a thread submits late, p99", TOGETHER, float(np.percentile(found["late"], 99)), "ms")
    for name, value, unit in in_child(
        "benchmarks.serving:accidents", {"seconds": sizes["minute"]}, environment=mxnet_threads(1)
    ):
        yield Row(f"LeNet, {sizes['minute']:g} s with accidents: {name}", TOGETHER, value, unit)


def lenet() -> Any:
    mxkit.seed_all(0)
    net = mxkit.models.lenet()
    mxkit.initialize(net, "xavier", devices="cpu", sample=mx.nd.zeros((1, 1, 28, 28)))
    return net


def pictures() -> Any:
    return np.random.RandomState(0).rand(256, 1, 28, 28).astype(np.float32)


def at_once(work: Callable[[int], None]) -> None:
    """Let all threads work, and wait for them."""
    errors: List[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def speed(rounds: int, window: float, half: float) -> Dict[str, Any]:
    """Seconds for a request, by way and round, and latencies at half load in ms."""
    net, x = lenet(), pictures()
    net.hybridize()
    gc.freeze()
    seconds: Dict[str, List[float]] = {ALONE: [], TOGETHER: []}
    with mxkit.Predictor(net, sample=x[0], max_wait_ms=MAX_WAIT) as predictor:
        ways = {
            ALONE: lambda: one_by_one(net, x, window),
            TOGETHER: lambda: together(predictor, x, window),
        }
        for number in range(-1, rounds):
            for way in sorted(ways, reverse=bool(number % 2)):
                taken = ways[way]()
                if number >= 0:
                    seconds[way].append(taken)
        rate = 0.5 / float(np.median(seconds[TOGETHER]))
        latencies, late = half_load(predictor, x, rate, half)
    return {"seconds": seconds, "latencies": latencies, "late": late}


def one_by_one(net: Any, x: Any, window: float) -> float:
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < window:
        net(mx.nd.array(x[count % 256][None])).asnumpy()
        count += 1
    return (time.perf_counter() - begun) / count


def together(predictor: Any, x: Any, window: float) -> float:
    counts, begun = [0] * THREADS, time.perf_counter()

    def work(number: int) -> None:
        while time.perf_counter() - begun < window:
            predictor(x[(counts[number] * THREADS + number) % 256])
            counts[number] += 1

    at_once(work)
    return (time.perf_counter() - begun) / sum(counts)


def half_load(predictor: Any, x: Any, rate: float, seconds: float) -> Tuple[List[float], List[float]]:
    """Latencies of requests at random times, and how late threads that slept came, in ms."""
    latencies: List[float] = []
    late: List[float] = []
    begun = time.perf_counter()

    def work(number: int) -> None:
        random, due = np.random.RandomState(number), begun
        while due < begun + seconds:
            due += random.exponential(THREADS / rate)
            time.sleep(max(0.0, due - time.perf_counter()))  # a thread that is late submits immediately
            late.append((time.perf_counter() - due) * 1e3)
            future = predictor.submit(x[number])
            future.add_done_callback(lambda _, due=due: latencies.append((time.perf_counter() - due) * 1e3))
        future.result()

    at_once(work)
    return latencies, late


class Client:
    """Good requests, and now and then an accident."""

    def __init__(self, predictor: Any, number: int, answers: Any) -> None:
        self.predictor, self.number, self.answers = predictor, number, answers
        self.random, self.x = np.random.RandomState(number), pictures()
        self.counts = {"answered": 0, "wrong": 0, "gave up": 0, "busy": 0}

    def ask(self) -> None:
        kind = self.random.rand()
        own = self.counts["answered"] * THREADS + self.number + 1
        image = self.x[own % 256].copy()
        image[0, 0, 0] = own / NUMBERS
        try:
            if kind < 0.02:
                self.predictor(image[:, 1:])
            elif kind < 0.04:
                image[0, 0, 0] = -1
                self.predictor(image, timeout=0.001)
            elif kind < 0.0405:
                self.burst(image)
            else:
                self.answers[own] = self.predictor(image, timeout=60)
                self.counts["answered"] += 1
        except DataError:
            self.counts["wrong"] += 1
        except TimeoutError:
            self.counts["gave up"] += 1
        except BusyError:
            self.counts["busy"] += 1

    def burst(self, image: Any) -> None:
        image[0, 0, 0] = -1
        accepted: List[Future[Any]] = []
        try:
            for _ in range(300):
                accepted.append(self.predictor.submit(image))
        except BusyError:
            self.counts["busy"] += 1
        for future in accepted[::2]:
            future.cancel()
        for future in accepted:
            with suppress(CancelledError):
                future.result(60)


def accidents(seconds: float) -> List[Any]:
    """Names, values and units."""
    net, taken = lenet(), Taped()
    answers = np.ones((NUMBERS, 10), np.float32)  # touched at the start, as Taped.free is
    predictor = mxkit.Predictor(net, sample=pictures()[0], max_wait_ms=MAX_WAIT)
    compute = predictor._dispatcher._compute
    predictor._dispatcher._compute = lambda samples: taken.taped(samples, compute(samples))
    clients = [Client(predictor, number, answers) for number in range(THREADS)]
    begun, memory = time.perf_counter(), []

    def work(number: int) -> None:
        while time.perf_counter() - begun < seconds:
            clients[number].ask()
            if number == 0 and len(memory) == 0 and time.perf_counter() - begun > seconds / 10:
                memory.append(used_memory())

    at_once(work)
    held = resident_memory()
    memory.append(used_memory())
    last = [predictor.submit(np.zeros((1, 28, 28))) for _ in range(100)]
    predictor.close()
    assert all(one.done() and one.result().shape == (10,) for one in last)
    net.hybridize()
    different = sum(taken.different(net, at, answers) for at in range(len(taken.inputs)))
    counts = {name: sum(client.counts[name] for client in clients) for name in clients[0].counts}
    stats = predictor.stats()
    assert stats["queue"] == stats["failed"] == different == 0, (stats, different)
    return [
        *((name, count, "requests") for name, count in counts.items()),
        ("samples of a batch", stats["samples_per_batch"], "samples"),
        ("batches compared", len(taken.inputs), "batches"),
        ("rows with other bits", different, "rows"),
        ("p50", stats["p50_ms"], "ms"),
        ("p99", stats["p99_ms"], "ms"),
        ("memory grown", memory[1] - memory[0], "MB"),
        ("memory that the process holds and does not use", held - memory[1], "MB"),
    ]


def used_memory() -> float:
    """Resident memory in MB, after what is free has gone back to the system."""
    ctypes.CDLL(None).malloc_trim(0)
    return resident_memory()


class Taped:
    """Every 4th batch, in memory that is taken at the start."""

    def __init__(self) -> None:
        self.inputs: List[Any] = []
        self.outputs: List[Any] = []
        self.free = [np.ones((32, 1, 28, 28), np.float32) for _ in range(1000)]
        self.batches = 0

    def taped(self, samples: Any, finish: Any) -> Any:
        return lambda: self.tape(samples, finish())

    def tape(self, samples: Any, results: Any) -> Any:
        self.batches += 1
        if self.batches % EACH == 0 and self.free:
            held = self.free.pop()[: len(samples)]
            held[:] = [arrays[0] for arrays, _ in samples]
            self.inputs.append(held)
            self.outputs.append(np.array(results))
        return results

    def different(self, net: Any, at: int, answers: Any) -> int:
        """Rows with other bits than those of the padded batch alone, or than what its client got."""
        x = self.inputs[at]
        size = 1 << (len(x) - 1).bit_length()
        padded = np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)])
        alone = net(mx.nd.array(padded)).asnumpy()[: len(x)]
        numbers = (x[:, 0, 0, 0] * NUMBERS).astype(int)
        got = np.where(numbers[:, None] <= 0, self.outputs[at], answers[numbers])
        return int(((alone != self.outputs[at]) | (alone != got)).any(axis=1).sum())
