"""The number of threads that `mxkit.fit` chooses by the net, beside every core's and MXNet's own: time of an update.

MXNet takes half of the processors it sees, because it presumes two threads a core (T96); mxkit loads it with one a
core, and `fit` takes one for each 8 million multiply-adds that a product of the net does for a batch. One process
without a setting; ways take turns: `fit` alone, and inside `mxkit.threads` of 1, 2, 4 ... up to the cores.

Bars: softmax regression in 1 / 1.3 of the time that it takes with every core's threads; ResNet-18 in 1.03 of it. Other
work on the machine turns the picture round: threads that spin in wait for one another lose more than a second core
brings.

Rows that begin with "computed" are not measured. They follow from the times with one and with two threads and from
what OpenMP takes to start a team of two and to wait for it, for a machine of 4 to 64 cores: the parallel part of the
time is divided by the threads, the serial part stays, and a team's start grows with the logarithm of its threads.
"""

from contextlib import nullcontext
from functools import partial
from math import log2
from statistics import median
import time
from typing import Dict, Iterator, List, Mapping, Optional

import mxkit  # before mxnet
from mxkit.nets.layer_table.measures import operator_macs
from mxkit.runtime.engine_threads import choose
from mxkit.runtime.machine import read_processors
from mxkit.training.thread_choice import chosen_number
import mxnet as mx

from benchmarks.harness import Child, Row, Taken, rows_of, take_turns
from benchmarks.peers import CASES, built, seconds, threads_text
from benchmarks.peers import train as train_peer

TITLE = "Threads: the choice of fit beside every core's"
ROUNDS = {True: 3, False: 9}
NO_SETTING = dict.fromkeys(("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS", "MXNET_CPU_WORKER_NTHREADS"))
BARS = {"softmax_regression": 1 / 1.3, "resnet18": 1.03}
AUTOMATIC = "fit's choice"
CORES = (4, 8, 16, 32, 64)


def run(quick: bool) -> Iterator[Row]:
    choice = choose(read_processors(), {})
    every = choice.taken or 1
    numbers = sorted({1, every, *(2**power for power in range(every.bit_length()) if 2**power < every)})
    with Child(NO_SETTING) as child:
        team = child.ask("benchmarks.threads:team_seconds") if every > 1 else 0.0
        for case in CASES:
            updates = max(2, case.updates // 10) if quick else case.updates
            arguments = {"name": case.net, "batch": case.batch, "shape": case.shape}
            ways = {
                _way(number, choice.alone): partial(
                    seconds, partial(child.ask, "benchmarks.threads:train", threads=number), case, updates
                )
                for number in (None, *numbers)
            }
            taken = take_turns(ways, rounds=ROUNDS[quick])
            against = _way(every, choice.alone)
            bars = {AUTOMATIC: BARS[case.net]} if case.net in BARS else None
            yield from rows_of(case.title, taken, against=against, scale=1e3 / updates, unit="ms/update", bars=bars)
            if every > 1:
                work = child.ask("benchmarks.threads:work", **arguments)
                one, two = (taken[_way(number, choice.alone)] for number in (1, 2))
                yield from computed(case.title, one, two, team, work, updates)


def _way(number: Optional[int], alone: Optional[int]) -> str:
    if number is None:
        return AUTOMATIC
    return threads_text(number) + (", MXNet's own" if number == alone else "")


def train(name: str, batch: int, shape: List[int], updates: int, threads: Optional[int]) -> Dict[str, float]:
    """An epoch of `fit` in the child, with a number of threads; None lets `fit` choose."""
    with nullcontext() if threads is None else mxkit.threads(threads):
        return train_peer(name, batch, shape, updates)


def work(name: str, batch: int, shape: List[int]) -> Dict[str, int]:
    """How many threads `fit` would choose on a machine with enough cores, and the operators of an update."""
    net, trainer, _ = built(name, batch, tuple(shape), 8)
    macs = operator_macs(net, [(batch, *shape)]) or []
    return {"threads": chosen_number(macs), "teams": 3 * len(macs) + len(trainer._params)}


def team_seconds(layers: int = 50, calls: int = 20, rounds: int = 9) -> float:
    """Seconds that a team of two threads costs: a layer of a chain of tiny ones with two threads less with one."""
    net = mx.gluon.nn.HybridSequential()
    for _ in range(layers):
        net.add(mx.gluon.nn.Dense(4))
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    array, taken = mx.nd.zeros((4, 4)), {}
    for _ in range(rounds):
        for number in (1, 2):
            with mxkit.threads(number):
                net(array).wait_to_read()
                begun = time.perf_counter()
                for _ in range(calls):
                    net(array).wait_to_read()
                taken.setdefault(number, []).append(time.perf_counter() - begun)
    return max(0.0, median(two - one for one, two in zip(taken[1], taken[2])) / calls / layers)


def computed(title: str, one: Taken, two: Taken, team: float, work: Mapping[str, int], updates: int) -> Iterator[Row]:
    """Times of an update on machines with more cores, by Amdahl's law.

    Args:
        title: The case.
        one, two: Seconds of `updates` updates with one and two threads.
        team: Of `team_seconds`.
        work: Of `work`.
        updates: Updates of a round.
    """
    of_one, of_two = (median(taken.wall) / updates for taken in (one, two))
    teams = work["teams"] * team
    parallel = min(of_one, max(0.0, 2 * (of_one - of_two + teams)))

    def milliseconds(threads: int) -> float:
        return 1e3 * (of_one - parallel + parallel / threads + teams * log2(threads))

    for cores in CORES:
        chosen = min(work["threads"], cores)
        way = f"computed: fit's choice {chosen} (every core's {cores}: {milliseconds(cores):.3g} ms)"
        yield Row(f"{title}, on {cores} cores", way, milliseconds(chosen), "ms/update")
