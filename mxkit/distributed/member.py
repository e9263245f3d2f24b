"""A process's connection to the coordinator, its messages (JSON, after its length in four bytes), and how it ends."""

import contextlib
import ctypes
import json
import multiprocessing
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from mxkit.errors import DistributedError

# Longest message, and longest first message, whose sender is not known yet. Metrics of many classes and small arrays
# fit; gradients go through MXNet's servers.
MOST_BYTES, HELLO_BYTES = 64 * 2**20, 2**16
# Seconds between two heartbeats.
BEAT = 2.0
# Seconds until a connection counts as lost whose other machine acknowledges nothing. The kernel of a stopped process
# still acknowledges: `silence` is for it. After a network failure of 10 s, TCP tries again within 16 s; a lost member
# must be named within 30 s.
LINK = 20.0


# Seconds to wait for all members, and seconds without a message until a member counts as lost. These are long, because
# a library that holds Python's lock, for example to read a large JSON file, delays the heartbeats.
_SECONDS = {"MXKIT_PATIENCE": 120.0, "MXKIT_SILENCE": 60.0}


def seconds_of(name: str) -> float:
    """Seconds of an environment variable: MXKIT_PATIENCE or MXKIT_SILENCE."""
    text = os.environ.get(name) or str(_SECONDS[name])
    with contextlib.suppress(ValueError):
        if float(text) > 0:
            return float(text)
    raise DistributedError(f"{name}={text!r:.100}: expected a number of seconds, like {name}={_SECONDS[name]:g}")


def encoded(message: Dict[str, Any]) -> bytes:
    """Encode a message as bytes.

    Raises:
        DistributedError: The message is too long.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MOST_BYTES:
        raise DistributedError(f"a message of {len(body)} bytes is too long: at most {MOST_BYTES}")
    return struct.pack(">I", len(body)) + body


def length_of(head: bytes, most: int = MOST_BYTES) -> int:
    """Number of bytes that follow the first four.

    Raises:
        ValueError: The sender is not a member of a job.
    """
    length = int(struct.unpack(">I", head)[0])
    if length > most:
        raise ValueError(f"expected a message of mxkit; received {head!r}")
    return length


def decoded(body: bytes) -> Dict[str, Any]:
    """Decode a message from its bytes without the first four.

    Raises:
        ValueError: The bytes are not a message.
    """
    with contextlib.suppress(RecursionError):
        message = json.loads(body)
        if isinstance(message, dict):
            return message
    raise ValueError(f"expected an object; received {body[:100]!r}")


def watch_link(connection: Any) -> None:
    """Let the kernel close a connection whose other machine is lost, and send small messages immediately."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(LINK * 1000))


# Seconds that a process has to end by itself after a fault: until its main thread gets the error, and in all. MXNet's
# calls wait for ever for a lost server, and no exception reaches a thread inside them.
GRACE, MOST_GRACE = 6.0, 20.0
# Exit status of a process that is ended because another one is lost: 75, "try again".
STATUS = os.EX_TEMPFAIL


class Member:
    """The connection of a process of a job.

    Two threads run until its end: one reads messages, one sends a heartbeat every 2 seconds. If a member is lost,
    `gather` raises. If MXNet waits inside the process for 6 seconds after that, the process is ended.

    Args:
        address: Host and port of the coordinator.
        hello: Role, rank and facts of this process.
        patience: Seconds to wait for the coordinator.

    Attributes:
        welcome: The coordinator's message when all members have joined.
        local_host, remote_host: The IP addresses of both ends of the connection.
        fault: Text that names the lost member, or None.

    Raises:
        DistributedError: The coordinator does not answer or refuses this process, or the other members do not join.
    """

    def __init__(self, address: Tuple[str, int], hello: Dict[str, Any], patience: float) -> None:
        self.name = f"{hello['role']} {hello['rank']} on {hello['host']}"
        self.fault: Optional[str] = None
        self._where, self._silence = f"{address[0]}:{address[1]}", seconds_of("MXKIT_SILENCE")
        self._answers: queue.Queue[Optional[Dict[str, Any]]] = queue.Queue()
        self._number = self._answering = 0
        self._asking, self._sending, self._failing = threading.RLock(), threading.Lock(), threading.Lock()
        self._knows = threading.Event()  # the main thread got the fault as an error
        self._over = threading.Event()
        self._left = self._forked = False
        self._beats_missed = 0
        self._socket = _connect(address, patience)
        os.register_at_fork(after_in_child=self._forget)
        self.local_host, self.remote_host = self._socket.getsockname()[0], self._socket.getpeername()[0]
        self._send(hello)
        for work in (self._read, self._beat):
            threading.Thread(target=work, name="mxkit-member", daemon=True).start()
        self.welcome = self._next("the start")

    def gather(self, key: str, value: Any = None) -> List[Any]:
        """Wait until all workers have called `gather`, and return the values of all, by rank.

        Args:
            key: The place in the program; it must be the same on all workers.
            value: A value that JSON can hold.

        Raises:
            DistributedError: A member is lost or has ended, or a worker is at another place.
        """
        if self._forked:
            raise DistributedError(f"{key}: this process was forked from {self.name}, and is not a worker itself")
        with self._asking:
            self._number += 1
            self._send({"key": key, "value": value, "number": self._number})
            values: List[Any] = self._next(key)["values"]
            return values

    def leave(self, reason: str = "") -> None:
        """Announce that this process ends; a reason ends the other members, too."""
        if not self._left and not self._forked:
            self._left = True
            with contextlib.suppress(OSError), self._sending:
                self._socket.sendall(encoded({"leave": reason}))
                self._socket.shutdown(socket.SHUT_WR)

    def wait_for_the_end(self) -> Optional[str]:
        """Wait until the job is over, in the process of a server; return the fault."""
        self._over.wait()
        return self.fault

    def _next(self, where: str) -> Dict[str, Any]:
        while self.fault is None:
            answer = self._answers.get()
            if answer is not None and answer["answers"] == self._number:  # else it belongs to an interrupted call
                return answer
        self._knows.set()
        raise DistributedError(f"{self.name} stopped at {where}: {self.fault}")

    def _send(self, message: Dict[str, Any]) -> None:
        body = encoded(message)
        with contextlib.suppress(OSError), self._sending:  # `_read` gets the cause, and may first read a fault
            self._socket.sendall(body)

    def _beat(self) -> None:
        while self.fault is None and not self._left:
            time.sleep(BEAT)
            if not self._left:
                self._send({"beat": True})
            # as in `Coordinator._watch`
            self._beats_missed += 1
            if self._beats_missed * BEAT > self._silence:
                self._set_fault(f"the coordinator at {self._where} sent nothing for {self._silence:g} s")

    def _read(self) -> None:
        why = "the scheduler's process on rank 0's machine was killed, or crashed"
        try:
            with self._socket.makefile("rb") as stream:
                while True:
                    head = stream.read(4)
                    if len(head) < 4:
                        break
                    message = decoded(stream.read(length_of(head)))
                    self._beats_missed = 0
                    self._handle(message)
        except ConnectionError:
            pass
        except (OSError, ValueError) as error:
            why = str(error)
        self._set_fault(f"the coordinator at {self._where} is lost: {why}")

    def _handle(self, message: Dict[str, Any]) -> None:
        if "fault" in message:
            self._set_fault(str(message["fault"]))
        elif "end" in message:
            self._over.set()
        elif "answers" in message:
            self._answering = message["answers"]
        elif "beat" not in message:
            self._answers.put({"answers": self._answering, **message})

    def _set_fault(self, text: str) -> None:
        with self._failing:
            if self.fault is not None or self._left or self._over.is_set():
                return
            self.fault = text
        threading.Thread(target=self._end_process, name="mxkit-member-end", daemon=True).start()
        self._answers.put(None)
        self._over.set()

    def _end_process(self) -> None:
        """End the process if it does not end by itself."""
        begun = time.monotonic()
        why = "MXNet, or other code, waits inside this process; it is ended"
        if self._knows.wait(GRACE):
            time.sleep(max(0.0, begun + MOST_GRACE - time.monotonic()))
            why = "This process does not end by itself; it is ended"
        print(f"mxkit: {self.name}: {self.fault}. {why}", file=sys.stderr, flush=True)
        end_now(STATUS)

    def _forget(self) -> None:
        """Close the connection in a forked process: it must end with the process that it belongs to."""
        if not self._forked:
            self._forked = True
            with contextlib.suppress(OSError):
                os.close(self._socket.detach())


def _connect(address: Tuple[str, int], patience: float) -> socket.socket:
    """Connect; the coordinator may start later, and its name may resolve to another machine then."""
    until, error = time.monotonic() + patience, ""
    while time.monotonic() < until:
        try:
            connection = socket.create_connection(address, timeout=max(0.1, min(5.0, until - time.monotonic())))
        except OSError as caught:
            error = str(caught)
        else:
            if connection.getsockname() != connection.getpeername():  # TCP may connect a port that is free to itself
                connection.settimeout(None)
                watch_link(connection)
                return connection
            connection.close()
        time.sleep(0.1)  # a refused connection returns immediately
    text = f"no process listens at {address[0]}:{address[1]} after {patience:g} s ({error})"
    raise DistributedError(f"{text}: is worker 0 started, its machine reachable, and the port the same for all?")


def forks_die_with_it() -> None:
    """Let forked processes, like those of a DataLoader, end with this one, also if it is killed.

    It holds for forks by the main thread: Linux ends such a process with the thread that forked it.
    """
    worker, libc = os.getpid(), ctypes.CDLL(None)
    main = threading.main_thread()

    def child() -> None:
        # after a fork by another thread, that thread is the main one; a grandchild, like a daemon, may outlive us
        if threading.main_thread() is main and os.getppid() == worker:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG

    os.register_at_fork(after_in_child=child)


def end_without_destructors() -> None:
    """Let this process end after Python has, with its exit status, and without C++'s destructors.

    ps-lite's destructor waits for all others, and for ever if one of them is lost.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.on_exit(libc.fcloseall, None)  # runs first: it writes what C code has printed


def end_now(status: int) -> None:
    """End this process from any thread, with the processes that `multiprocessing` has started."""
    try:
        flush = threading.Thread(target=_flush, daemon=True)  # it may wait for a stream that the main thread has locked
        flush.start()
        flush.join(1.0)
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(status)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
