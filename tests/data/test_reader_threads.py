"""Work done ahead in threads: in order, bounded, and let go of however the reading ends."""

import gc
import os
import signal
import time

from mxkit.data import workers
from mxkit.data.workers import read_ahead
import pytest


def at_work():
    return workers._busy


@pytest.mark.parametrize(("count", "ahead"), [(1, 1), (1, 2), (3, 3), (4, 9)])
def test_in_order_and_no_further_ahead_than_told(count, ahead):
    asked, worst = [0], []

    def task(number, _):
        worst.append(number - asked[0])
        time.sleep(0.002 * (number % 3))
        return number

    got = []
    for number in read_ahead(task, range(5, 25), threads=count, ahead=ahead):
        got.append(number)
        asked[0] = number - 4
    assert got == list(range(5, 25))
    assert max(worst) - 5 <= ahead
    assert not at_work()


def test_nothing_begins_before_it_is_asked_for():
    done = []
    results = read_ahead(lambda number, _: done.append(number), range(3), threads=1, ahead=3)
    time.sleep(0.05)
    assert done == []
    assert len(list(results)) == 3


def slow(number, unwanted):
    for _ in range(3000):
        if unwanted():
            return None
        time.sleep(0.01)
    return number


@pytest.mark.parametrize("way", ["close", "drop", "error", "cycle"])
def test_threads_let_go(way):
    ended = []

    def task(number, unwanted):
        ended.append(slow(number, unwanted) if number else 0)

    results = read_ahead(task, range(9), threads=3, ahead=9)
    next(results)
    assert at_work()
    if way == "close":
        results.close()
    elif way == "error":
        with pytest.raises(KeyError):
            results.throw(KeyError())
    elif way == "cycle":
        cycle = [results]
        cycle.append(cycle)
        del cycle
    del results
    gc.collect()
    assert not at_work()
    assert not any(ended)  # none finished its task


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_in_the_middle_harms_neither():
    results = read_ahead(lambda number, _: number, range(50), threads=2, ahead=4)
    next(results)
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(10)
        try:
            results.close()  # its threads are in the parent
            code = 0 if list(read_ahead(lambda number, _: number, range(9), threads=2, ahead=4)) == [*range(9)] else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert list(results) == list(range(1, 50))
