"""The queue of `mxkit.Predictor`, its end, and forks: nothing hangs, and nothing that was accepted is lost."""

from concurrent.futures import wait
import gc
import os
import subprocess
import sys
import threading
import time
import warnings

from asking_threads import LONGEST, Gate, at_once, images, lenet
import mxkit
from mxkit.errors import BusyError, DataError
from mxkit.serving.dispatching import Called, Dispatcher, Submitted
from mxnet import gluon
import numpy as np
import pytest


def test_a_full_queue_refuses_and_loses_nothing_that_it_accepted(gate):
    net, predictor = gate
    held = net.shut(predictor)
    futures = [predictor.submit([number]) for number in range(6)]
    with pytest.raises(BusyError, match="busy: 6 requests wait, and max_queue is 6") as caught:
        predictor.submit([7])
    assert (caught.value.waiting, caught.value.limit) == (6, 6)
    assert (predictor.stats()["queue"], predictor.stats()["refused"]) == (6, 1)
    assert futures[0].cancel()
    assert predictor.stats()["queue"] == 5
    futures.append(predictor.submit([6]))  # a place is free
    net.open.set()
    assert [one.result(LONGEST)[0] for one in [held, *futures[1:]]] == [-2, 2, 4, 6, 8, 10, 12]
    assert 0 not in net.rows  # what was cancelled is not computed


def test_a_request_waits_for_as_many_as_came_together_before_and_not_for_ever():
    net, x = Gate(), np.zeros(1, np.float32)
    with mxkit.Predictor(net, sample=x, max_wait_ms=1e6) as predictor:
        held = net.shut(predictor)  # a single client never waits
        futures = [predictor.submit(x) for _ in range(3)]
        x[:] = 7  # the caller's own array
        net.open.set()
        assert [one.result(LONGEST).tolist() for one in [held, *futures]] == [[-2], [0], [0], [0]]
        early = [predictor.submit([number]) for number in (1, 2)]
        assert wait(early, 0.1).not_done == set(early)
        assert predictor([3], timeout=LONGEST) == [6]
    with mxkit.Predictor(net, sample=x, max_wait_ms=20) as predictor:
        at_once(3, lambda number: predictor([number]))
        assert predictor([3], timeout=LONGEST) == [6]


def test_a_batch_fills_a_size_where_padding_would_be_more_than_a_quarter():
    net = Gate()
    with mxkit.Predictor(net, sample=[0.0], max_batch=24, max_wait_ms=0) as predictor:
        for waiting, sizes in ((5, [4, 1]), (6, [8]), (11, [8, 4]), (12, [16]), (17, [16, 1]), (30, [24, 8])):
            net.shut(predictor)
            futures = [predictor.submit([number]) for number in range(waiting)]
            net.sizes.clear()
            net.open.set()
            assert [one.result(LONGEST)[0] for one in futures] == [2 * number for number in range(waiting)]
            assert net.sizes == [1, *sizes]


@pytest.mark.parametrize(
    ("kind", "overlaps", "order"),
    [
        (Called, True, "start start end end"),
        (Called, False, "start end start end"),
        (Submitted, True, "start end start end"),
    ],
)
def test_the_next_batch_starts_before_the_answers_unless_foreign_code_could_run(kind, overlaps, order, monkeypatch):
    events, computed = [], threading.Event()
    end = kind.end
    monkeypatch.setattr(kind, "end", lambda self, result: (events.append("end"), end(self, result)))

    def compute(samples):
        events.append("start")
        return lambda: computed.wait(LONGEST) and samples

    dispatcher = Dispatcher([1, 2], 0, 9)
    dispatcher.start(lambda: (compute, overlaps))
    asking = [threading.Thread(target=dispatcher.ask, args=(number, LONGEST)) for number in range(2)]
    for waiting, thread in enumerate(asking):
        if kind is Called:
            thread.start()
        else:
            dispatcher.submit(waiting)
        while not events or len(dispatcher._waiting) < waiting:
            time.sleep(0.001)
    computed.set()
    dispatcher.close()
    assert events == order.split()


def test_callers_that_give_up_are_not_computed(gate):
    net, predictor = gate
    held = net.shut(predictor)
    with pytest.raises(TimeoutError, match="no answer within 0.01 s"):
        predictor([5], timeout=0.01)
    assert predictor.stats()["queue"] == 0
    late = predictor.submit([6])
    net.open.set()
    assert held.result(LONGEST) == [-2]
    assert late.result(LONGEST) == [12]
    assert 5 not in net.rows
    late = predictor.submit([7])
    late.set_result("its owner's own")  # breaks nothing
    assert predictor([8], timeout=LONGEST) == [16]


def test_accidents_leave_no_request_in_memory(gate):
    """Also without the garbage collector: an error that kept itself alive would keep the sample of its request."""
    net, predictor = gate

    def accidents():
        met = set()
        held = net.shut(predictor)
        futures = [predictor.submit([number]) for number in (66, 1, 2, 3, 4)]
        for x, timeout in (([1, 2], None), ([5], 0.01), ([float("nan")], None), ([6], 0), ([7], 0)):
            try:
                predictor(x, timeout=timeout)
            except (DataError, TimeoutError, BusyError) as error:
                met.add(type(error).__name__)
        try:
            futures += [predictor.submit([number]) for number in range(9)]
        except BusyError as error:
            met.add(type(error).__name__)
        futures[1].cancel()
        net.open.set()
        wait([held, *futures], LONGEST)
        met.add(type(futures[0].exception()).__name__)
        return met

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert accidents() == {"DataError", "TimeoutError", "BusyError", "ForwardError"}
        predictor.close()  # its thread holds the last requests for a moment
        assert not [one for one in gc.get_objects() if isinstance(one, (Called, Submitted))]
    finally:
        gc.enable()


def test_close_answers_what_waits_and_refuses_the_rest(gate):
    net, predictor = gate
    net.shut(predictor)
    futures = [predictor.submit([number]) for number in range(5)]
    closing = [threading.Thread(target=predictor.close) for _ in range(2)]
    for thread in closing:
        thread.start()
    while not predictor._dispatcher._closed:
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="it is closed, and takes no more requests"):
        predictor([1])
    net.open.set()
    for thread in closing:
        thread.join(LONGEST)
        assert not thread.is_alive()
    assert [one.result(0)[0] for one in futures] == [0, 2, 4, 6, 8]
    predictor.close()


def test_a_callback_cannot_wait_for_its_own_thread_and_may_close(gate):
    net, predictor = gate
    said, closed = [], threading.Event()

    def after(future):
        try:
            predictor([1])
        except RuntimeError as error:
            said.append(str(error))
        predictor.close()
        closed.set()

    held = net.shut(predictor)
    held.add_done_callback(after)
    net.open.set()
    assert closed.wait(LONGEST)
    assert said == ["Predictor: a callback of a future runs in its thread and cannot wait for it: use submit"]


def test_a_dead_thread_leaves_nobody_waiting(gate):
    net, predictor = gate
    net.shut(predictor)
    futures = [predictor.submit([number]) for number in (1, 99, 2, 3, 4, 5)]  # of two batches
    net.open.set()
    assert not wait(futures, LONGEST).not_done
    for future in futures:
        with pytest.raises(RuntimeError, match="its thread was ended by SystemExit: 99 ends the thread. Make a new"):
            future.result(0)
    with pytest.raises(RuntimeError, match="its thread was ended by SystemExit"):
        predictor([1])
    predictor.close()


def forked(child):
    """Call a function in a forked process; return the process's number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, on threads
        process = os.fork()
    if process == 0:
        try:
            child()
        finally:
            os._exit(0)
    return process


def test_a_forked_process_is_told(gate):
    _, predictor = gate
    read, write = os.pipe()

    def child():
        predictor.close()
        with pytest.raises(RuntimeError, match="its thread does not exist in this one"):
            predictor([1])
        os.write(write, b"told")

    os.waitpid(forked(child), 0)
    os.close(write)
    assert os.read(read, 9) == b"told"
    assert predictor([1]) == [2]


def test_a_fork_in_the_middle_of_traffic_stops_nothing():
    """T202."""
    x, ended = images(1)[0], threading.Event()
    with mxkit.Predictor(lenet(), sample=x) as predictor:

        def work(number):
            if number:
                while not ended.is_set():
                    predictor(x, timeout=LONGEST)
            else:
                for _ in range(20):
                    os.waitpid(forked(lambda: None), 0)
                    time.sleep(0.005)
                ended.set()

        assert at_once(4, work) == [None] * 4


def test_the_end_of_the_program_answers_what_waits():
    code = """
import mxkit, mxnet as mx, numpy as np
net = mxkit.models.mlp(3, hidden=[8])
mxkit.initialize(net, sample=mx.nd.ones((1, 4)))
predictor = mxkit.Predictor(net, sample=np.ones(4))
for _ in range(100):
    predictor.submit(np.ones(4)).add_done_callback(lambda future: print(future.result().shape))
"""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, timeout=300, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["(3,)"] * 100


def test_a_forgotten_predictor_ends_its_thread():
    predictor = mxkit.Predictor(gluon.nn.HybridLambda(lambda F, x: x * 2), sample=[1.0])
    thread, future = predictor._dispatcher._thread, predictor.submit([2.0])
    del predictor
    gc.collect()
    thread.join(LONGEST)
    assert not thread.is_alive()
    assert future.result(0) == [4]


def test_arguments_out_of_range_are_refused():
    for arguments, text in [
        ({"max_batch": 0}, "Predictor: max_batch: expected a whole number, at least 1; received 0"),
        ({"max_queue": 1.5}, "Predictor: max_queue: expected a whole number"),
        ({"max_wait_ms": -1}, "Predictor: max_wait_ms: expected a finite number, at least 0; received -1"),
        ({"which": "best"}, "which: 'best' is for the folder of a run"),
    ]:
        with pytest.raises(ValueError, match=text):
            mxkit.Predictor(gluon.nn.HybridLambda(lambda F, x: x * 2), **arguments)
