"""Connects the members of a job: they meet here, exchange small values, and get the name of a member that is lost.

MXNet's parameter servers carry the gradients, and do not notice a lost member: all others wait for ever (T74). So each
worker and each server keeps a connection to this process from its start to its end.
"""

import asyncio
import contextlib
import hmac
import os
import time
from typing import Any, Dict, List, Optional

from mxkit.distributed.member import BEAT, HELLO_BYTES, MOST_BYTES, decoded, encoded, length_of, seconds_of, watch_link
from mxkit.distributed.schedulers import WorkerPlace
from mxkit.errors import DistributedError

# Seconds at the end in which members can still read the fault: a closed connection drops what is on its way.
LINGER = 3.0


class _Connection:
    def __init__(self, hello: Dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.role, self.rank = str(hello["role"]), int(hello["rank"])
        self.host, self.pid = str(hello.get("host", "?")), hello.get("pid")
        self.facts: Dict[str, Any] = dict(hello.get("facts", {}))
        self.writer = writer
        self.beats_missed, self.left, self.open = 0, False, True

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # `_serve` notices that the connection is lost
            self.writer.write(message)

    def __str__(self) -> str:
        return f"{self.role} {self.rank} on {self.host} (process {self.pid})"


class Coordinator:
    """Serves the members of one job.

    Args:
        place: WorkerPlace of any member; it has the numbers of workers and servers, and the secret of the job.
        welcome: Message to each member when all have joined.
        starter: Process id of the process that started this one.
    """

    def __init__(self, place: WorkerPlace, welcome: Dict[str, Any], starter: int) -> None:
        self._sizes = {"worker": place.size, "server": place.servers}
        self._place, self._welcome, self._starter = place, welcome, starter
        self._patience, self._silence = seconds_of("MXKIT_PATIENCE"), seconds_of("MXKIT_SILENCE")
        self._members: Dict[Any, _Connection] = {}
        self._waiting: Dict[int, Dict[str, Any]] = {}
        self._first: Optional[float] = None  # time at which the first worker joined
        self._over: asyncio.Event  # set by `run`: it belongs to the event loop
        self.fault: Optional[str] = None

    async def run(self, listener: Any) -> Optional[str]:
        """Serve until all workers have left.

        Args:
            listener: A bound socket.

        Returns:
            The fault that ended the job, or None.
        """
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._serve, sock=listener)
        watches = [asyncio.ensure_future(watch) for watch in (self._watch(), self._watch_starter())]
        await self._over.wait()
        until = time.monotonic() + LINGER
        while any(member.open for member in self._members.values()) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        for watch in watches:
            watch.cancel()
        server.close()
        return self.fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member: Optional[_Connection] = None
        why = "its connection is closed: it was killed, or it crashed"
        try:
            watch_link(writer.get_extra_info("socket"))
            member = self._joined(await asyncio.wait_for(_read(reader, HELLO_BYTES), 10), writer)
            while member is not None:
                message = await _read(reader, MOST_BYTES)
                member.beats_missed = 0
                self._handle(member, message)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # a stranger, or a member that is lost
        except (asyncio.TimeoutError, OSError) as error:  # TCP's time limit is both from Python 3.11 on
            reason = getattr(error, "strerror", None) or error
            why = f"its connection is broken ({reason}): is its machine or the network down?"
        except (ValueError, KeyError, TypeError, DistributedError) as error:
            why = f"it sent something that is not a message ({error!s:.200})"
        finally:
            writer.close()
            if member is not None:
                member.open = False
                if not member.left:
                    self._lost(member, why)

    def _joined(self, hello: Dict[str, Any], writer: asyncio.StreamWriter) -> Optional[_Connection]:
        if not hmac.compare_digest(str(hello.get("secret", "")).encode(), self._place.secret.encode()):
            writer.write(encoded({"fault": "another job listens at this address: choose another port"}))
            return None
        member = _Connection(hello, writer)
        other = self._members.get((member.role, member.rank))
        same = f"{member} and {other} have the same rank. Do two jobs use one address, or did a worker start a process "
        refusal = self.fault or (other and f"{same} that joins again? Unset MXKIT_RANK and the like for it")
        if refusal:  # the other members continue
            member.send(encoded({"fault": refusal}))
            return None
        problem = self._problem(member)
        self._members[member.role, member.rank] = member
        if problem is not None:
            self._fail(problem)
        elif not self._missing():
            self._send_all(self._welcome)
        if member.role == "worker" and self._first is None:
            self._first = time.monotonic()
        return member

    def _problem(self, member: _Connection) -> Optional[str]:
        """Why a job with this member cannot run."""
        for other in self._members.values():
            for name, value in member.facts.items():
                theirs = other.facts.get(name, value)
                if theirs != value:
                    return f"{member} has {name} {value}, {other} has {theirs}: all members must have the same"
        if not 0 <= member.rank < self._sizes.get(member.role, 0):
            return f"{member} joined, but the job has {self._place.size} workers and {self._place.servers} servers"
        return None

    def _missing(self) -> List[str]:
        wanted = ((role, rank) for role, size in self._sizes.items() for rank in range(size))
        return [f"{role} {rank}" for role, rank in wanted if (role, rank) not in self._members]

    def _handle(self, member: _Connection, message: Dict[str, Any]) -> None:
        if "leave" in message:
            member.left = True
            if message["leave"]:  # the reason why it ends before the others
                self._fail(f"{member} {message['leave']}")
            self._check_left()
            if all(other.left for other in self._members.values() if other.role == "worker") and not self._missing():
                self._end()
        elif "key" in message and member.role == "worker":
            self._waiting[member.rank] = message
            self._check_left()
            if len(self._waiting) == self._place.size:
                self._answer()

    def _answer(self) -> None:
        """Send the values of all workers to each of them, once all wait."""
        waiting, self._waiting = self._waiting, {}
        keys = {rank: str(message["key"]) for rank, message in waiting.items()}
        different = next((rank for rank in keys if keys[rank] != keys[0]), None)
        if different is not None:
            places = f"worker 0 at {keys[0]}, worker {different} at {keys[different]}"
            self._fail(f"the workers are at different places: {places}. All must make the same calls in the same order")
            return
        answer = encoded({"values": [waiting[rank].get("value") for rank in sorted(waiting)]})
        for rank, message in waiting.items():
            number = encoded({"answers": message.get("number")})  # a worker may have left an earlier call by Ctrl-C
            self._members["worker", rank].send(number + answer)

    def _check_left(self) -> None:
        """End the job if a worker waits for one that has left: it would wait for ever."""
        gone = next((other for other in self._members.values() if other.left and other.role == "worker"), None)
        if self._waiting and gone is not None:
            rank, message = next(iter(self._waiting.items()))
            self._fail(f"{gone} has ended, and worker {rank} waits for it at {message['key']}")

    def _lost(self, member: _Connection, why: str) -> None:
        member.left = True
        if not self._over.is_set():
            self._fail(f"{member} is lost: {why}")

    def _fail(self, text: str) -> None:
        if self.fault is None:
            self.fault = text
            self._send_all({"fault": text})
            self._end()

    def _end(self) -> None:
        self._send_all({"end": True})
        self._over.set()

    def _send_all(self, message: Dict[str, Any]) -> None:
        content = encoded(message)
        for member in self._members.values():
            member.send(content)

    async def _watch(self) -> None:
        """Watch for members that send nothing, and for members that do not join."""
        while True:
            await asyncio.sleep(BEAT)
            self._send_all({"beat": True})
            for member in list(self._members.values()):
                # beats are counted: if this process itself was stopped, the clock would make every member look silent
                member.beats_missed += not member.left
                if member.beats_missed * BEAT > self._silence:
                    self._lost(member, f"it sent nothing for {self._silence:g} s, as a stopped process does")
            now, missing = time.monotonic(), self._missing()
            if missing and self._first is not None and now - self._first > self._patience:
                joined = ", ".join(map(str, self._members.values()))
                where = f"{self._place.host}:{self._place.port}, which is {self._welcome.get('ip', 'the same')} here"
                self._fail(
                    f"{', '.join(missing)} did not join within {self._patience:g} s; joined: {joined}. Do all start, "
                    f"and reach {where}? MXKIT_PATIENCE=SECONDS waits longer"
                )

    async def _watch_starter(self) -> None:
        """End the job if the process that started this one is lost; worker 0 has a connection once it has joined."""
        name = "mxkit launch" if self._place.launched else "worker 0"
        while self._place.launched or ("worker", 0) not in self._members:
            if os.getppid() != self._starter:
                self._fail(f"{name} (process {self._starter}) is lost: it was killed, or it crashed")
                return
            await asyncio.sleep(0.2)


async def _read(reader: asyncio.StreamReader, most: int) -> Dict[str, Any]:
    length = length_of(await reader.readexactly(4), most)
    return decoded(await reader.readexactly(length))
