"""The threads that mxkit chooses, beside those that MXNet takes on its own: time of an update of `mxkit.fit`.

MXNet takes half of the processors it sees, because it presumes two threads a core (T96); mxkit chooses one a core
while MXNet is imported. Two processes take turns: one without a setting, so that mxkit chooses, and one with
`OMP_NUM_THREADS` at what MXNet would take. Same nets and batches as in `peers`.

Bar: ResNet-18 in 1 / 1.4 of the time, where a processor is a core. Other work on the machine turns the picture round:
threads that spin in wait for one another lose more than a second core brings.
"""

from contextlib import ExitStack
from functools import partial
from typing import Iterator

from mxkit.runtime.machine import read_processors
from mxkit.runtime.threads import choose

from benchmarks.harness import Child, Row, rows_of, take_turns
from benchmarks.peers import CASES, seconds

TITLE = "Threads: mxkit's choice beside MXNet's"
ROUNDS = {True: 3, False: 9}
BARS = {"resnet18": 1 / 1.4}
NO_SETTING = dict.fromkeys(("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS", "MXNET_CPU_WORKER_NTHREADS"))


def run(quick: bool) -> Iterator[Row]:
    choice = choose(read_processors(), {})
    mine, default = f"mxkit's choice: {choice.taken}", f"MXNet's: {choice.alone}"
    environments = {mine: NO_SETTING, default: {**NO_SETTING, "OMP_NUM_THREADS": str(choice.alone)}}
    with ExitStack() as stack:
        ask = {
            way: partial(stack.enter_context(Child(environment)).ask, "benchmarks.peers:train")
            for way, environment in environments.items()
        }
        for case in CASES:
            if case.net != "lenet" and case.shape[1] != 64:
                continue
            updates = max(2, case.updates // 10) if quick else case.updates
            ways = {way: partial(seconds, train, case, updates) for way, train in ask.items()}
            bars = {mine: BARS[case.net]} if case.net in BARS and choice.by_mxkit else None
            taken = take_turns(ways, rounds=ROUNDS[quick])
            yield from rows_of(case.title, taken, against=default, scale=1e3 / updates, unit="ms/update", bars=bars)
