"""What the number of threads does to a training: time of an update of `mxkit.fit` with 1, 2, 4 ... up to one a core.

MXNet alone takes half of the processors it sees, because it presumes two threads a core (T96); mxkit loads it with one
a core. The number holds for the whole process (T187), so each has a process of its own, and they take turns.
`threads: 1` in a recipe, or `mxkit.threads(1)` before `import mxnet`, is faster where a net has little work.
Other work on the machine turns the picture round: threads that wait for one another lose more than a second core
brings.
"""

from contextlib import ExitStack
from functools import partial
from typing import Iterator

from mxkit.runtime.engine_settings import choose
from mxkit.runtime.machine import read_processors

from benchmarks.harness import Child, Row, mxnet_threads, rows_of, take_turns
from benchmarks.peers import CASES, seconds, threads_text

TITLE = "Threads of an operator"
ROUNDS = {True: 3, False: 9}


def run(quick: bool) -> Iterator[Row]:
    choice = choose(read_processors(), {})
    every = choice.taken or 1
    numbers = sorted({*(2**power for power in range(every.bit_length())), every})
    with ExitStack() as stack:
        children = {number: stack.enter_context(Child(mxnet_threads(number))) for number in numbers}
        for case in CASES:
            updates = max(2, case.updates // 10) if quick else case.updates
            ways = {
                _way(number, choice.alone): partial(
                    seconds, partial(child.ask, "benchmarks.peers:train"), case, updates
                )
                for number, child in children.items()
            }
            taken = take_turns(ways, rounds=ROUNDS[quick])
            against = _way(every, choice.alone)
            yield from rows_of(case.title, taken, against=against, scale=1e3 / updates, unit="ms/update")


def _way(number: int, alone: object) -> str:
    return threads_text(number) + (", MXNet's own" if number == alone else "")
