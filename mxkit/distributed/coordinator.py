"""Knows all members of a job: lets them meet, passes small values between workers, and tells all who is lost.

MXNet's parameter servers carry the gradients. They have no words for a member that is gone: all others wait for ever
(T74). So each member, also each server, holds a connection to this process from its start to its end.
"""

import asyncio
import contextlib
import hmac
import time
from typing import Any, Dict, List, Optional

from mxkit.distributed.messages import BEAT, MOST_BYTES, SILENCE, decoded, encoded


class _Connection:
    def __init__(self, hello: Dict[str, Any], writer: asyncio.StreamWriter) -> None:
        self.role, self.rank = str(hello["role"]), int(hello["rank"])
        self.host, self.pid = str(hello.get("host", "?")), hello.get("pid")
        self.hello, self.writer = hello, writer
        self.heard, self.left = time.monotonic(), False

    def send(self, message: Dict[str, Any]) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):  # its own reader notices that it is lost
            self.writer.write(encoded(message))

    def __str__(self) -> str:
        return f"{self.role} {self.rank} on {self.host} (process {self.pid})"


class Coordinator:
    """Serves the members of one job.

    Args:
        workers: Number of them.
        servers: Number of MXNet's servers.
        secret: What each member must know.
        told: What each member learns when all are there.
        patience: Seconds from the start until all must be there.
    """

    def __init__(self, workers: int, servers: int, secret: str, told: Dict[str, Any], patience: float) -> None:
        self._sizes = {"worker": workers, "server": servers}
        self._secret, self._told, self._patience = secret, told, patience
        self._members: Dict[Any, _Connection] = {}
        self._waiting: Dict[int, Dict[str, Any]] = {}
        self._complete = False
        self._since = 0.0
        self._warned = 0.0
        self.fault: Optional[str] = None
        self._over = asyncio.Event()

    async def run(self, listener: Any) -> Optional[str]:
        """Serve until all workers have left.

        Args:
            listener: A bound socket.

        Returns:
            What went wrong, or None.
        """
        await asyncio.start_server(self._serve, sock=listener, limit=MOST_BYTES)
        watch = asyncio.ensure_future(self._watch())
        await self._over.wait()
        watch.cancel()
        for one in self._members.values():
            with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
                await asyncio.wait_for(one.writer.drain(), 2)
        return self.fault

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        member: Optional[_Connection] = None
        try:
            member = self._joined(decoded(await asyncio.wait_for(reader.readline(), 10)), writer)
            while member is not None:
                line = await reader.readline()
                if not line:
                    break
                member.heard = time.monotonic()
                self._handle(member, decoded(line))
        except (ConnectionError, ValueError, KeyError, TypeError, asyncio.TimeoutError):
            pass  # a stranger, or a lost member, below
        finally:
            if member is None:
                writer.close()
            elif not member.left and not self._over.is_set():
                self._lost(member, "its connection is closed: it was killed, or it crashed")

    def _joined(self, hello: Dict[str, Any], writer: asyncio.StreamWriter) -> Optional[_Connection]:
        if not hmac.compare_digest(str(hello.get("secret", "")), self._secret):
            writer.write(encoded({"fault": "another job listens at this address: choose another port"}))
            return None
        member = _Connection(hello, writer)
        problem = self._problem(member)
        if problem is None:
            self._members[member.role, member.rank] = member
            missing = self._missing()
            if not missing:
                self._complete = True
                for one in self._members.values():
                    one.send(self._told)
            return member
        member.send({"fault": problem})
        self._fail(problem)
        return None

    def _problem(self, member: _Connection) -> Optional[str]:
        """Why a member cannot take part."""
        size = self._sizes.get(member.role)
        if self.fault is not None:
            return self.fault
        if size is None or not 0 <= member.rank < size:
            return f"{member} came, but the job has {self._sizes['worker']} workers and {self._sizes['server']} servers"
        other = self._members.get((member.role, member.rank))
        if other is not None:
            return f"{member} and {other} have the same rank: do two jobs use one address?"
        for other in self._members.values():
            for name, value in member.hello.get("facts", {}).items():
                theirs = other.hello.get("facts", {}).get(name, value)
                if theirs != value:
                    return f"{member} has {name} {value}, {other} has {theirs}: all members must have the same"
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
        answer = {"values": [waiting[rank].get("value") for rank in sorted(waiting)]}
        for rank in waiting:
            self._members["worker", rank].send(answer)

    def _check_left(self) -> None:
        """A worker that waits for one that has left would wait for ever."""
        gone = next((one for one in self._members.values() if one.left and one.role == "worker"), None)
        if self._waiting and gone is not None:
            rank, message = next(iter(self._waiting.items()))
            self._fail(f"{gone} has ended, and worker {rank} waits for it at {message['key']}")

    def _lost(self, member: _Connection, why: str) -> None:
        member.left = True
        self._fail(f"{member} is lost: {why}")

    def _fail(self, text: str) -> None:
        if self.fault is None:
            self.fault = text
            for one in self._members.values():
                one.send({"fault": text})
            self._end()

    def _end(self) -> None:
        for one in self._members.values():
            one.send({"end": True})
        self._over.set()

    async def _watch(self) -> None:
        begun = time.monotonic()
        while True:
            await asyncio.sleep(BEAT)
            now = time.monotonic()
            for one in list(self._members.values()):
                one.send({"beat": True})
                if not one.left and now - one.heard > SILENCE:
                    self._lost(one, f"nothing was heard of it for {SILENCE:g} s, as if its machine stands still")
            if not self._complete and now - begun > self._patience:
                came = ", ".join(map(str, self._members.values())) or "nobody"
                self._fail(
                    f"{', '.join(self._missing())} did not come within {self._patience:g} s; came: {came}. "
                    "Do all of them start, and do they reach this address?"
                )
            if self._waiting and now - self._warned > 60:
                self._warned = now
                absent = sorted(set(range(self._sizes["worker"])) - set(self._waiting))
                text = f"waiting for worker {', '.join(map(str, absent))} since {now - self._since:.0f} s"
                for rank in self._waiting:
                    self._members["worker", rank].send({"note": text})
