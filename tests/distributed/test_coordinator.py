"""The coordinator and its members, over real connections; without MXNet."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

from mxkit.distributed.coordinator import Coordinator
from mxkit.distributed.member import HELLO_BYTES, decoded, encoded, length_of, seconds_of
from mxkit.distributed.schedulers import WorkerPlace
from mxkit.distributed.side_processes import listen
from mxkit.errors import DistributedError
import pytest


class Job:
    """A coordinator in a thread."""

    def __init__(self, workers=2, servers=0, *, starter=None, launched=True):
        listener = listen("127.0.0.1")
        self.port = listener.getsockname()[1]
        place = WorkerPlace(0, workers, "127.0.0.1", self.port, servers, launched=launched, secret="s")
        coordinator = Coordinator(place, {"port": 1}, starter or os.getppid())
        self.faults, self.peers = [], []
        run = lambda: self.faults.append(asyncio.run(coordinator.run(listener)))  # noqa: E731
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def fault(self):
        """Close all connections, and return what `run` returned."""
        for peer in self.peers:
            peer.close()
        self.thread.join(20)
        return self.faults[0]

    def peer(self, rank, **hello):
        hello = {"role": "worker", "rank": rank, "host": "h", "pid": 7, "secret": "s", **hello}
        self.peers.append(Peer(self.port, hello))
        return self.peers[-1]


class Peer:
    """The other end, as any member speaks."""

    def __init__(self, port, hello):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.stream = self.socket.makefile("rb")
        self.say(**hello)

    def say(self, **message):
        self.socket.sendall(encoded(message))

    def hear(self):
        """The next message that is no sign of life, or None at the end."""
        while True:
            head = self.stream.read(4)
            if len(head) < 4:
                return None
            message = decoded(self.stream.read(length_of(head)))
            if "beat" not in message:
                return message

    def close(self):
        self.stream.close()
        self.socket.close()


def met(workers=2, **options):
    job = Job(workers, **options)
    peers = [job.peer(rank) for rank in range(workers)]
    assert [one.hear() for one in peers] == [{"port": 1}] * workers
    return job, peers


def test_workers_meet_gather_and_leave():
    job, peers = met(3)
    for number in (1, 2):
        for rank in (2, 0, 1):
            peers[rank].say(key="sum", value=[rank, None], number=number)
        for peer in peers:
            assert peer.hear() == {"answers": number}
            assert peer.hear() == {"values": [[0, None], [1, None], [2, None]]}
    for peer in peers:
        peer.say(leave="")
    assert peers[0].hear() == {"end": True}
    assert job.fault() is None


LOST = "worker 1 on h (process 7) "
NO_MESSAGE = f"{LOST}is lost: it sent something that is not a message"
FAULTS = {
    "worker 0 at update 1, worker 1 at update 2": lambda a, b: (a.say(key="update 1"), b.say(key="update 2")),
    f"{LOST}is lost: its connection is closed": lambda a, b: b.close(),
    f"{LOST}ended with ValueError: bad": lambda a, b: b.say(leave="ended with ValueError: bad"),
    f"{LOST}has ended, and worker 0 waits for it at update 3": lambda a, b: (b.say(leave=""), a.say(key="update 3")),
    f"{NO_MESSAGE} (expected a message": lambda a, b: b.socket.sendall(b"GET / HTTP/1.1\r\n\r\n"),
    f"{NO_MESSAGE} (Expecting value": lambda a, b: b.socket.sendall(b"\0\0\0\1["),
}


@pytest.mark.parametrize("text", FAULTS)
def test_all_hear_the_fault_also_late(text):
    job, peers = met()
    begun = time.monotonic()
    FAULTS[text](*peers)
    time.sleep(0.2)  # the fault is there before it is asked for
    assert text in peers[0].hear()["fault"]
    assert peers[0].hear() == {"end": True}
    assert text in job.fault()
    assert time.monotonic() < begun + 20


@pytest.mark.parametrize(
    ("rank", "version", "text"),
    [
        (1, "0.9", f"{LOST}has mxkit 0.9, worker 0 on h (process 7) has 1.0"),
        (5, "1.0", "worker 5 on h (process 7) joined, but the job has 2 workers and 0 servers"),
    ],
)
def test_members_that_make_no_job(rank, version, text):
    job = Job()
    peers = [job.peer(0, facts={"mxkit": "1.0"}), job.peer(rank, facts={"mxkit": version})]
    assert all(text in peer.hear()["fault"] for peer in peers)
    assert text in job.fault()


def test_strangers_do_not_disturb():
    job, peers = met()
    texts = {"t": "another job listens at this address", "s": f"{LOST}and {LOST}have the same rank"}
    for secret, text in texts.items():  # with the right one: a process of a worker, or another job without a secret
        other = job.peer(1, secret=secret)
        assert text in other.hear()["fault"]
        assert other.hear() is None
    deep, wrong = b"[" * 60000, encoded({"role": "worker", "rank": "x", "secret": "s"})
    lines = [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\3{}", b"\0\0\0\1[", b"\xff" * 100000, wrong]
    for line in (*lines, len(deep).to_bytes(4, "big") + deep, (HELLO_BYTES + 1).to_bytes(4, "big")):
        with socket.create_connection(("127.0.0.1", job.port), timeout=20) as stranger:
            stranger.sendall(line)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    for peer in peers:
        peer.say(key="still here", value=1, number=1)
    assert [peers[0].hear(), peers[0].hear()] == [{"answers": 1}, {"values": [1, 1]}]
    assert job.fault()


def test_who_does_not_come_and_a_launcher_that_is_lost_are_named(monkeypatch):
    monkeypatch.setenv("MXKIT_PATIENCE", "1")
    job, orphan = Job(3, 1), Job(starter=1 << 30)
    peer = job.peer(1)
    text = "worker 0, worker 2, server 0 did not join within 1 s; joined: worker 1 on h (process 7)"
    assert text in peer.hear()["fault"]
    assert text in job.fault()
    assert f"mxkit launch (process {1 << 30}) is lost" in orphan.fault()


@pytest.mark.long
def test_who_is_silent_is_named(monkeypatch):
    monkeypatch.setenv("MXKIT_SILENCE", "3")
    job, peers = met()
    for _ in range(100):
        try:
            peers[0].say(beat=True)
        except OSError:
            break
        time.sleep(0.05)
    assert "worker 1 on h (process 7) is lost: it sent nothing for 3 s" in peers[0].hear()["fault"]
    assert job.fault()


@pytest.mark.long
def test_too_much_for_one_message():
    job, peers = met()
    for peer in peers:
        peer.say(key="large", value="x" * 34_000_000, number=1)
    assert "bytes is too long" in peers[0].hear()["fault"]
    assert job.fault()


# members, in processes of their own: a fault ends them


def member(port, code, *, rank=0, patience=20):
    text = (
        "import os, sys, time\nfrom mxkit.distributed.member import Member\n"
        f"hello = {{'role': 'worker', 'rank': {rank}, 'host': 'h', 'pid': os.getpid(), 'secret': 's'}}\n"
        f"def join(): return Member(('127.0.0.1', {port}), hello, {patience})\n" + code
    )
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_nobody_or_something_else_listens():
    with listen("127.0.0.1") as free:
        port = free.getsockname()[1]
        with pytest.raises(DistributedError, match=f"127.0.0.1:{port}: Address already in use.*MXKIT_ADDRESS"):
            listen("127.0.0.1", port)
    with pytest.raises(DistributedError, match=r"192.0.2.1:0: Cannot assign.* is the host another machine"):
        listen("192.0.2.1")
    alone = member(port, "join()", patience=0.5)
    with listen("127.0.0.1") as listener:
        process = member(listener.getsockname()[1], "join()")
        with listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            text = process.communicate(timeout=60)[1]
    assert "worker 0 on h stopped at the start: the coordinator at 127.0.0.1:" in text
    assert "expected a message of mxkit; received b'HTTP'" in text
    assert f"no process listens at 127.0.0.1:{port} after 0.5 s ([Errno 111]" in alone.communicate(timeout=60)[1]
    assert alone.returncode == 1


@pytest.mark.long
def test_a_process_that_waits_elsewhere_is_ended():
    job = Job()
    process = member(job.port, "m = join()\nprint('joined', flush=True)\ntime.sleep(100)")
    peer = job.peer(1)
    assert process.stdout.readline() == "joined\n"
    peer.close()
    text = process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert "mxkit: worker 0 on h: worker 1 on h (process 7) is lost" in text
    assert "MXNet, or other code, waits inside this process; it is ended" in text
    assert job.fault()


def test_a_killed_worker_is_lost_though_its_children_live():
    job = Job()
    code = """
m = join()
child = os.fork()
if not child:
    try:
        m.gather("in the child")
    except Exception as error:
        os.write(1, f"{error}{chr(10)}".encode())  # in one piece: two processes write
    m.leave("nobody hears it")
else:
    os.write(1, f"{child}{chr(10)}".encode())
time.sleep(100)
"""
    process = member(job.port, code)
    peer = job.peer(1)
    lines = sorted([process.stdout.readline(), process.stdout.readline()])
    assert "this process was forked from worker 0 on h" in lines[1]
    peer.hear()
    peer.say(beat=True)
    process.kill()
    assert "worker 0 on h" in peer.hear()["fault"]
    os.kill(int(lines[0]), 9)
    process.communicate()
    assert "is lost: its connection is closed" in job.fault()


def test_answers_of_an_interrupted_call_are_not_taken():
    job = Job()
    code = """
import signal
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
m = join()
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    m.gather("first", 1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
time.sleep(0.5)
print(m.gather("second", 2), flush=True)
m.leave()
"""
    process = member(job.port, code)
    peer = job.peer(1)
    peer.hear()
    assert process.stdout.readline() == "interrupted\n"
    peer.say(key="first", value=10, number=1)
    time.sleep(1)
    peer.say(key="second", value=20, number=2)
    assert process.communicate(timeout=60)[0] == "[2, 20]\n"
    peer.say(leave="")
    assert job.fault() is None


def test_seconds_that_are_none(monkeypatch):
    for value in ("soon", "-1", "nan"):
        monkeypatch.setenv("MXKIT_PATIENCE", value)
        with pytest.raises(DistributedError, match=f"MXKIT_PATIENCE='{value}': expected a number of seconds"):
            seconds_of("MXKIT_PATIENCE")
