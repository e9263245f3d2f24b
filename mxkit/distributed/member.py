"""A process's connection to the coordinator, from its start to its end."""

import contextlib
import os
import queue
import socket
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from mxkit.distributed.messages import BEAT, SILENCE, decoded, encoded
from mxkit.errors import DistributedError

# Seconds that a process has to end by itself after a fault, before and after its main thread knows of it. MXNet's
# calls wait for ever for a lost server, and no exception reaches a thread inside them.
GRACE, MOST_GRACE = 6.0, 20.0
# Exit status of a process that is ended because another one is lost: EX_TEMPFAIL, "try again".
STATUS = 75


class Member:
    """A process of a job.

    Two threads of it run until the end: one reads messages, one sends a sign of life every 2 seconds. If a member is
    lost, `gather` raises. A process that does not end within 6 seconds, because MXNet waits inside it, is ended.

    Args:
        address: Host and port of the coordinator.
        hello: Its role, rank and facts.
        patience: Seconds to wait for the coordinator, and for the others.

    Attributes:
        told: What the coordinator told when all were there.
        local_host, remote_host: The IP addresses of both ends of the connection.
        fault: Who was lost, or None.

    Raises:
        DistributedError: The coordinator is not there, refuses the process, or the others do not come.
    """

    def __init__(self, address: Tuple[str, int], hello: Dict[str, Any], patience: float) -> None:
        self.name = f"{hello['role']} {hello['rank']} on {hello['host']}"
        self.fault: Optional[str] = None
        self.told: Dict[str, Any] = {}
        self._answers: queue.Queue[Optional[Dict[str, Any]]] = queue.Queue()
        self._sending = threading.Lock()
        self._knows = threading.Event()  # the main thread knows of the fault
        self._over = threading.Event()
        self._socket = _connect(address, patience)
        self.local_host, self.remote_host = self._socket.getsockname()[0], self._socket.getpeername()[0]
        self._heard = time.monotonic()
        self._send(hello)
        for work in (self._read, self._beat):
            threading.Thread(target=work, name="mxkit-member", daemon=True).start()
        self.told = self._next(f"{address[0]}:{address[1]}")

    def gather(self, key: str, value: Any = None) -> List[Any]:
        """Wait until all workers have called it, and return the values of all, by rank.

        Args:
            key: The place in the program. It must be the same on all workers.
            value: Of JSON's types.

        Raises:
            DistributedError: A member is lost, has ended, or is at another place.
        """
        self._send({"key": key, "value": value})
        values: List[Any] = self._next(key)["values"]
        return values

    def leave(self, reason: str = "") -> None:
        """Say that this process ends; a reason ends the others, too."""
        if not self._over.is_set():
            self._over.set()
            with contextlib.suppress(OSError):
                self._socket.sendall(encoded({"leave": reason}))

    def wait_for_the_end(self) -> None:
        """Wait until the job is over, in a process that serves."""
        self._over.wait()

    def _next(self, where: str) -> Dict[str, Any]:
        answer = None if self.fault else self._answers.get()
        if answer is None:
            self._knows.set()
            raise DistributedError(f"{self.name} stopped at {where}: {self.fault}")
        return answer

    def _send(self, message: Dict[str, Any]) -> None:
        try:
            with self._sending:
                self._socket.sendall(encoded(message))
        except OSError as error:
            self._set_fault(f"the coordinator is lost: {error}")

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            if self.fault is not None:
                return
            self._send({"beat": True})
            if time.monotonic() - self._heard > SILENCE:
                self._set_fault(f"nothing was heard of the coordinator (rank 0's machine) for {SILENCE:g} s")

    def _read(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._heard = time.monotonic()
                    self._handle(decoded(line))
        except (OSError, ValueError) as error:
            self._set_fault(f"the coordinator is lost: {error}")
        self._set_fault("the coordinator is lost: the scheduler's process on rank 0's machine was killed, or crashed")

    def _handle(self, message: Dict[str, Any]) -> None:
        if "fault" in message:
            self._set_fault(str(message["fault"]))
        elif "note" in message:
            print(f"mxkit: {self.name}: {message['note']}", file=sys.stderr, flush=True)
        elif "end" in message:
            self._over.set()
        elif "beat" not in message:
            self._answers.put(message)

    def _set_fault(self, text: str) -> None:
        if self.fault is None and not self._over.is_set():
            self.fault = text
            threading.Thread(target=self._end_process, name="mxkit-member-end", daemon=True).start()
            self._answers.put(None)

    def _end_process(self) -> None:
        """End the process if it does not end by itself."""
        begun = time.monotonic()
        if not self._knows.wait(GRACE):
            self._say("MXNet waits in it, or other code; it is ended")
            os._exit(STATUS)
        time.sleep(max(0.0, begun + MOST_GRACE - time.monotonic()))
        if not self._over.is_set():
            self._say("it does not end by itself")
            os._exit(STATUS)

    def _say(self, what: str) -> None:
        print(f"mxkit: {self.name}: {self.fault}. {what}", file=sys.stderr, flush=True)


def _connect(address: Tuple[str, int], patience: float) -> socket.socket:
    """Connect; the other end may start later, and its name may lead to another machine then."""
    until, error = time.monotonic() + patience, None
    while time.monotonic() < until:
        try:
            connection = socket.create_connection(address, timeout=max(0.1, min(5.0, until - time.monotonic())))
        except OSError as caught:
            error = caught
            time.sleep(0.1)
        else:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise DistributedError(
        f"nobody listens at {address[0]}:{address[1]} after {patience:g} s ({error}): is worker 0 started, is its "
        "machine reachable from here, and is the port the same for all?"
    )
