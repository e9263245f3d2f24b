"""Knows all members of a job: lets them meet, passes small values between workers, and tells all who is lost.

MXNet's parameter servers carry the gradients. They have no words for a member that is gone: all others wait for ever
(T74). So each member, also each server, holds a connection to this process from its start to its end.
"""

import asyncio
import contextlib
import hmac
import os
import time
from typing import Any, Dict, List, Optional

from mxkit.distributed.messages import (
    BEAT,
    HELLO_BYTES,
    MOST_BYTES,
    decoded,
    encoded,
    length_of,
    patience,
    silence,
    watch_link,
)
from mxkit.distributed.schedulers import Place
from mxkit.errors import DistributedError

# Seconds at the end in which members may still read why; a connection that is closed earlier loses what is under way.
LINGER = 3.0


class _Connection:
    def __init__(self, hello: Dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.role, self.rank = str(hello["role"]), int(hello["rank"])
        self.host, self.pid = str(hello.get("host", "?")), hello.get("pid")
        self.facts: Dict[str, Any] = dict(hello.get("facts", {}))
        self.writer = writer
        self.beats_missed, self.left, self.open = 0, False, True

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # its own reader notices that it is lost
            self.writer.write(message)

    def __str__(self) -> str:
        return f"{self.role} {self.rank} on {self.host} (process {self.pid})"


class Coordinator:
    """Serves the members of one job.

    Args:
        place: Of any member: the number of workers and servers, and the secret that each must know.
        told: What each member learns when all are there.
        starter: Number of the process that started this one.
    """

    def __init__(self, place: Place, told: Dict[str, Any], starter: int) -> None:
        self._sizes = {"worker": place.size, "server": place.servers}
        self._place, self._told, self._starter = place, told, starter
        self._patience, self._silence = patience(), silence()
        self._members: Dict[Any, _Connection] = {}
        self._waiting: Dict[int, Dict[str, Any]] = {}
        self._complete = False
        self._first: Optional[float] = None  # when the first worker came
        self._since = self._warned = 0.0
        self._over: Optional[asyncio.Event] = None  # belongs to the loop of `run`
        self.fault: Optional[str] = None

    async def run(self, listener: Any) -> Optional[str]:
        """Serve until all workers have left.

        Args:
            listener: A bound socket.

        Returns:
            What went wrong, or None.
        """
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._serve, sock=listener)
        watches = [asyncio.ensure_future(one) for one in (self._watch(), self._watch_starter())]
        await self._over.wait()
        until = time.monotonic() + LINGER
        while any(one.open for one in self._members.values()) and time.monotonic() < until:
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
        except (ValueError, KeyError, TypeError) as error:
            why = f"it sent what is no message ({error!s:.200})"
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
        refusal = self._refusal(member)
        if refusal is not None:
            member.send(encoded({"fault": refusal}))
            return None
        problem = self._problem(member)
        self._members[member.role, member.rank] = member
        if problem is not None:
            self._fail(problem)
        elif not self._missing():
            self._complete = True
            self._send_all(self._told)
        if member.role == "worker" and self._first is None:
            self._first = time.monotonic()
        return member

    def _refusal(self, member: _Connection) -> Optional[str]:
        """Why a newcomer cannot take part, while the others go on."""
        if self.fault is not None:
            return self.fault
        other = self._members.get((member.role, member.rank))
        if other is not None:
            return (
                f"{member} and {other} have the same rank. Do two jobs use one address, or did a worker start a "
                "process that joins again? It inherits MXKIT_RANK and the like: unset them for it"
            )
        return None

    def _problem(self, member: _Connection) -> Optional[str]:
        """Why no job comes of these members."""
        for other in self._members.values():
            for name, value in member.facts.items():
                theirs = other.facts.get(name, value)
                if theirs != value:
                    return f"{member} has {name} {value}, {other} has {theirs}: all members must have the same"
        if not 0 <= member.rank < self._sizes.get(member.role, 0):
            return f"{member} came, but the job has {self._sizes['worker']} workers and {self._sizes['server']} servers"
        return None

    def _missing(self) -> List[str]:
        wanted = [(role, rank) for role, size in self._sizes.items() for rank in range(size)]
        return [f"{role} {rank}" for role, rank in wanted if (role, rank) not in self._members]

    def _handle(self, member: _Connection, message: Dict[str, Any]) -> None:
        if "leave" in message:
            member.left = True
            if message["leave"]:  # why it ends before the others
                self._fail(f"{member} {message['leave']}")
            self._check_left()
            if all(one.left for one in self._members.values() if one.role == "worker") and self._complete:
                self._end()
        elif "key" in message and member.role == "worker":
            if not self._waiting:
                self._since = self._warned = time.monotonic()
            self._waiting[member.rank] = message
            self._check_left()
            if len(self._waiting) == self._sizes["worker"]:
                self._answer()

    def _answer(self) -> None:
        """All workers wait: give each the values of all."""
        waiting, self._waiting = self._waiting, {}
        keys = {rank: str(message["key"]) for rank, message in waiting.items()}
        different = next((rank for rank in keys if keys[rank] != keys[0]), None)
        if different is not None:
            self._fail(
                f"the workers are at different places: worker 0 at {keys[0]}, worker {different} at {keys[different]}. "
                "Each must make the same calls in the same order"
            )
            return
        try:
            answer = encoded({"values": [waiting[rank].get("value") for rank in sorted(waiting)]})
        except DistributedError as error:
            self._fail(f"the values of all workers at {keys[0]} are too many: {error}")
            return
        for rank, message in waiting.items():
            number = encoded({"answers": message.get("number")})  # a worker may have stopped waiting for an earlier one
            self._members["worker", rank].send(number + answer)

    def _check_left(self) -> None:
        """A worker that waits for one that has left would wait for ever."""
        gone = next((one for one in self._members.values() if one.left and one.role == "worker"), None)
        if self._waiting and gone is not None:
            rank, message = next(iter(self._waiting.items()))
            self._fail(f"{gone} has ended, and worker {rank} waits for it at {message['key']}")

    def _lost(self, member: _Connection, why: str) -> None:
        member.left = True
        if self._over is not None and not self._over.is_set():
            self._fail(f"{member} is lost: {why}")

    def _fail(self, text: str) -> None:
        if self.fault is None:
            self.fault = text
            self._send_all({"fault": text})
            self._end()

    def _end(self) -> None:
        self._send_all({"end": True})
        if self._over is not None:
            self._over.set()

    def _send_all(self, message: Dict[str, Any]) -> None:
        encoded_once = encoded(message)
        for one in self._members.values():
            one.send(encoded_once)

    async def _watch(self) -> None:
        """Look for members that are silent, and for those that do not come."""
        while True:
            await asyncio.sleep(BEAT)
            self._send_all({"beat": True})
            for one in list(self._members.values()):
                # counted, because by the clock all would be silent after this process itself has stood still
                one.beats_missed += not one.left
                if one.beats_missed * BEAT > self._silence:
                    self._lost(one, f"nothing was heard of it for {self._silence:g} s, as if it stands still")
            now = time.monotonic()
            if not self._complete and self._first is not None and now - self._first > self._patience:
                came = ", ".join(map(str, self._members.values()))
                self._fail(
                    f"{', '.join(self._missing())} did not come within {self._patience:g} s; came: {came}. Do all of "
                    f"them start, and do they reach {self._place.host}:{self._place.port}, which is "
                    f"{self._told.get('ip', 'the same')} here? MXKIT_PATIENCE=SECONDS waits longer"
                )
            if self._waiting and now - self._warned > 60:
                self._warned = now
                absent = sorted(set(range(self._sizes["worker"])) - set(self._waiting))
                text = f"waiting for worker {', '.join(map(str, absent))} since {now - self._since:.0f} s"
                for rank in self._waiting:
                    self._members["worker", rank].send(encoded({"note": text}))

    async def _watch_starter(self) -> None:
        """End with the process that started this one; worker 0, if it is that one, has a connection later."""
        name = "mxkit launch" if self._place.launched else "worker 0"
        while self._place.launched or ("worker", 0) not in self._members:
            if os.getppid() != self._starter:
                self._fail(f"{name} (process {self._starter}) is lost: it was killed, or it crashed")
                return
            await asyncio.sleep(0.2)


async def _read(reader: asyncio.StreamReader, most: int) -> Dict[str, Any]:
    length = length_of(await reader.readexactly(4), most)
    return decoded(await reader.readexactly(length))
