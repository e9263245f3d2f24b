"""Starts all processes of a job, here or over ssh, and ends them all when one of them fails: `mxkit launch`."""

from contextlib import contextmanager, suppress
import json
import os
from pathlib import Path
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence

from mxkit.distributed import keeper, schedulers
from mxkit.distributed.coordinator import LINGER
from mxkit.distributed.member import STATUS
from mxkit.distributed.schedulers import WorkerPlace, address_towards, is_here
from mxkit.distributed.side_processes import Processes, listen, start_servers

# Seconds that workers have to end by themselves after a failure, and then after SIGTERM; and the seconds after a user's
# signal has ended the first worker.
GRACE, AFTER_SIGNAL = (10.0, 5.0), 30.0
# A connection whose other end is lost ends in 15 seconds. A user cannot answer ssh's questions for several hosts.
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=5"]
SSH += ["-o", "ServerAliveCountMax=3"]
# Variables that a worker on another host gets; the shell there may set other values.
_PASSED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
_PASSED_BEGINNINGS = ("MXKIT_", "MXNET_", "OMP_", "CUDA_", "NVIDIA_")


def launch(
    command: Sequence[str],
    hosts: Sequence[str],
    servers: str = "1",
    *,
    restarts: int = 0,
    address: Optional[str] = None,
) -> int:
    """Run a command in several workers, beside MXNet's scheduler and servers on this machine.

    Args:
        command: The program and its arguments, like `["mxkit", "train", "mlp"]`.
        hosts: The host of each worker; hosts other than this machine are reached by ssh.
        servers: Number of MXNet's parameter servers, or "each" for one beside each worker.
        restarts: Number of restarts of all processes after failures.
        address: A host name or IP address of this machine that all hosts reach, with or without a port.

    Returns:
        The exit status: 0, that of the first process that failed, 127 if a command cannot be started, or 128 + the
        number of a signal like Ctrl-C's.

    Raises:
        DistributedError: This machine does not have the address.

    Side effects:
        Prints the rank before each line of output of workers 1, 2, and so on. All processes end with this one, also if
        it is killed.
    """
    host, _, port = (address or address_towards(list(hosts))).partition(":")
    keeper.adopt()
    with _signals() as listened, tempfile.TemporaryDirectory(prefix="mxkit-job-") as folder:
        for attempt in range(restarts + 1):
            job = _Job(servers, listened, folder)
            try:
                status = job.run(command, hosts, host, int(port or 0), attempt)
            finally:
                job.end()
            if status in (0, 127) or job.stopped_by or attempt == restarts:
                break
            _say(f"restart {attempt + 1} of {restarts}")
    return status


@contextmanager
def _signals() -> Iterator[Sequence[int]]:
    """Block signals until `sigtimedwait`; yield those that this process does not ignore."""
    listened = [one for one in keeper.SIGNALS if signal.getsignal(one) != signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*listened, signal.SIGCHLD])
    try:
        yield listened
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Job:
    """All processes of one attempt.

    Attributes:
        stopped_by: The signal by which the user ended it, or 0.
    """

    def __init__(self, servers: str, listened: Sequence[int], folder: str) -> None:
        self.stopped_by, self._folder = 0, folder
        self._servers, self._listened = servers, [*listened, signal.SIGCHLD]
        self._beside: Processes = {}
        self._workers: Processes = {}
        self._controls: Dict[str, Any] = {}
        self._remote: List[str] = []
        self._copies: List[threading.Thread] = []
        self._writing = threading.Lock()

    def run(self, command: Sequence[str], hosts: Sequence[str], host: str, port: int, attempt: int) -> int:
        """Start all processes, and wait until all workers have ended or a process has failed."""
        servers, spread = schedulers.servers_of(self._servers, len(hosts), "launch: --servers")
        place = WorkerPlace(0, len(hosts), host, port, servers, "mxkit", True, secrets.token_hex(16), spread)
        if len(hosts) > 1:
            listener = listen(host, port)
            place = place._replace(port=listener.getsockname()[1])
            self._beside = start_servers(place, listener)
        for rank, where in enumerate(hosts):
            self._start(command, place._replace(rank=rank), where, list(hosts).count(where), attempt)
        failed = self._first_failed()
        if self.stopped_by:
            return 128 + self.stopped_by
        if failed is None:
            self._wait(self._beside, LINGER + 1)
            if any(process.poll() is None for process in self._beside.values()):
                alone = "each has worked alone, unless it used a kvstore of MXNet"
                _say(f"no worker has joined the others: {alone}. A script joins by mxkit.distributed.initialize()")
            return 0
        status = {**self._beside, **self._workers}[failed].returncode
        _say(f"{failed} {_how(status)}; all others are ended")
        self._wait(self._workers, GRACE[0])
        self._pass_on(signal.SIGTERM, self._workers)
        self._wait(self._workers, GRACE[1])
        self._wait(self._beside, LINGER)  # the scheduler prints which member was lost
        return int(128 - status if status < 0 else status)

    def _start(self, command: Sequence[str], place: WorkerPlace, host: str, workers_here: int, attempt: int) -> None:
        remote, first = not is_here(host), place.rank == 0
        name = f"worker {place.rank}" + (f" on {host}" if remote else "")
        variables = {
            **schedulers.variables_of(place),
            schedulers.LAUNCHED: self._folder,  # for files that the next attempt reads
            schedulers.RESTARTS: str(attempt),
            **({} if first else {"PYTHONUNBUFFERED": "1"}),
        }
        if remote:
            passed = (key for key in os.environ if key in _PASSED or key.startswith(_PASSED_BEGINNINGS))
            variables = {**{key: os.environ[key] for key in passed}, **variables}
        order: Dict[str, Any] = {"name": name, "command": list(command), "folder": str(Path.cwd())}
        order.update({"environment": variables, "workers_here": workers_here, "stdin": first and not remote})
        reader, writer = os.pipe()
        keep = [sys.executable, "-I", "-S", str(Path(keeper.__file__)), "0" if remote else str(reader)]
        output = None if first else subprocess.PIPE
        process = self._workers[name] = subprocess.Popen(
            [*SSH, host, f"exec {' '.join(map(shlex.quote, keep))}"] if remote else keep,
            stdin=reader if remote else None if first else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[] if remote else [reader],
            # on a terminal a worker stays in the group that gets Ctrl-C and Ctrl-Z, and may read; ssh would end
            start_new_session=remote or not _on_terminal(),
        )
        os.close(reader)
        self._controls[name] = os.fdopen(writer, "w", encoding="utf-8")
        self._write(name, json.dumps(order))
        self._remote += [name] if remote else []
        for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            if source is not None:
                arguments = source.fileno(), target, place.rank
                self._copies.append(threading.Thread(target=self._copy, args=arguments, daemon=True))
                self._copies[-1].start()

    def _write(self, name: str, line: str) -> None:
        with suppress(OSError, ValueError):  # the worker has ended
            self._controls[name].write(line + "\n")
            self._controls[name].flush()

    def _copy(self, source: int, target: Any, rank: int) -> None:
        """Copy lines, each behind the rank; of a line that a progress bar overwrites, copy the last state."""
        prefix, clear = f"[{rank}] ".encode(), b"\r\x1b[K" if target.isatty() else b""  # over a bar of worker 0
        rest, chunk = b"", b"begin"
        while chunk:
            chunk = os.read(source, 2**16)
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk and rest.strip(b"\r"):
                lines, rest = [rest], b""
            rest = rest[rest.rfind(b"\r", 0, -1) + 1 :]
            shown = [clear + prefix + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n" for line in lines]
            with self._writing, suppress(OSError, ValueError):
                target.buffer.write(b"".join(shown))
                target.flush()

    def _first_failed(self) -> Optional[str]:
        """Wait until all workers have ended or a process has failed, and pass signals on; the name of that process."""
        ended_at = 0.0
        while any(process.poll() is None for process in self._workers.values()):
            self._handle_signal(1.0)
            failed = self._failed({**self._workers, **self._beside})
            if failed is not None and not self.stopped_by:
                return self._named(failed)
            if self.stopped_by and any(process.poll() is not None for process in self._workers.values()):
                ended_at = ended_at or time.monotonic()
                if time.monotonic() - ended_at > AFTER_SIGNAL:
                    break
        return self._failed(self._workers)

    def _named(self, failed: str) -> str:
        """The process that failed by itself, if `failed` was ended because of it."""
        processes, until = {**self._beside, **self._workers}, time.monotonic() + 2.0
        while processes[failed].returncode == STATUS and time.monotonic() < until:
            time.sleep(0.02)  # as in `_wait`
            failed = self._failed(processes) or failed
        return failed

    @staticmethod
    def _failed(processes: Processes) -> Optional[str]:
        """A process that failed: first one that was killed, last one that ended because of others."""
        failed = {name: process.returncode for name, process in processes.items() if process.poll()}
        return min(failed, key=lambda name: (failed[name] == STATUS, 0 <= failed[name] < 128), default=None)

    def _handle_signal(self, seconds: float) -> None:
        """Wait for a signal or the end of a process, and pass a signal on."""
        received = signal.sigtimedwait(self._listened, seconds)
        if received is None or received.si_signo == signal.SIGCHLD:
            return
        self.stopped_by = self.stopped_by or received.si_signo
        # the terminal's driver has sent it to all processes here
        by_terminal = received.si_code > 0 and _on_terminal()
        self._pass_on(received.si_signo, self._remote if by_terminal else self._workers)

    def _pass_on(self, number: int, names: Iterable[str]) -> None:
        for name in names:
            self._write(name, str(int(number)))

    @staticmethod
    def _wait(processes: Processes, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(process.poll() is None for process in processes.values()):
            time.sleep(0.02)  # `Popen.wait` waits for one process

    def end(self) -> None:
        """End all processes that are left, and their descendants."""
        self._pass_on(signal.SIGKILL, self._workers)
        self._wait(self._workers, 3.0)
        left = [one for one in [*self._workers.values(), *self._beside.values()] if one.poll() is None]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # a running one would report the death of another
            for process in left:
                process.send_signal(number)
        for process in left:
            process.wait()
        for control in self._controls.values():
            with suppress(OSError):
                control.close()
        keeper.end_descendants()
        for copy in self._copies:
            copy.join(2.0)


def _on_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _how(status: int) -> str:
    number = -status if status < 0 else status - 128
    with suppress(ValueError):
        return f"was ended by {signal.Signals(number).name}"
    if status == STATUS:
        return "has ended because another process is lost or silent: see above"
    return f"failed with exit status {status}"


def _say(text: str) -> None:
    print(f"mxkit launch: {text}", file=sys.stderr, flush=True)
