"""Starts all processes of a job on one machine, and ends them all when one of them fails: `mxkit launch`."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, TextIO

from mxkit.distributed import schedulers
from mxkit.distributed.schedulers import Place
from mxkit.distributed.side_processes import die_with_parent
from mxkit.distributed.starting import start_servers

# Seconds that processes have to end by themselves after a failure, and then after SIGTERM.
GRACE = 8.0, 4.0


def launch(command: Sequence[str], workers: int, servers: int = 1, *, restarts: int = 0) -> int:
    """Run a command in several workers on this machine, beside MXNet's scheduler and servers.

    Args:
        command: The program and its arguments, like `["mxkit", "train", "digits-mlp"]`.
        workers: Number of workers, at least 1.
        servers: Number of MXNet's parameter servers.
        restarts: How often all processes are started again after a failure.

    Returns:
        The exit status: 0, or that of the first worker that failed.

    Side effects:
        Prints the output of workers 1, 2 ... with their rank before each line. All processes end with this one, also if
        it is killed.
    """
    with tempfile.TemporaryDirectory(prefix="mxkit-job-") as folder:
        for attempt in range(restarts + 1):
            status = _attempt(command, workers, servers, folder, attempt)
            if status in (0, 128 + signal.SIGINT) or attempt == restarts:
                break
            _say(f"starts again, {attempt + 1} of {restarts}")
    return status


def _attempt(command: Sequence[str], workers: int, servers: int, folder: str, attempt: int) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = Place(0, workers, port=port, servers=servers, secret=secrets.token_hex(16))
    started = start_servers(place) if workers > 1 else []
    names = ["the scheduler", *(f"server {number}" for number in range(servers))][: len(started)]
    for rank in range(workers):
        started.append(_start(command, place._replace(rank=rank), folder, attempt))
        names.append(f"worker {rank}")
    try:
        return _watched(dict(zip(names, started)))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()


def _start(command: Sequence[str], place: Place, folder: str, attempt: int) -> "subprocess.Popen[Any]":
    own = {
        schedulers.RANK: str(place.rank),
        schedulers.SIZE: str(place.size),
        schedulers.SERVERS: str(place.servers),
        schedulers.ADDRESS: f"{place.host}:{place.port}",
        schedulers.SECRET: place.secret,
        schedulers.LAUNCHED: folder,
        schedulers.RESTARTS: str(attempt),
        "PYTHONUNBUFFERED": "1",
    }
    output = None if place.rank == 0 else subprocess.PIPE
    process = subprocess.Popen(
        list(command),
        env={**os.environ, **own},
        stdin=None if place.rank == 0 else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=die_with_parent,
        text=True,
        errors="replace",
    )
    for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
        if source is not None:
            threading.Thread(target=_copy, args=(source, target, place.rank), daemon=True).start()
    return process


def _copy(source: TextIO, target: TextIO, rank: int) -> None:
    for line in source:
        target.write(f"[{rank}] {line}")
        target.flush()


def _watched(processes: Dict[str, "subprocess.Popen[Any]"]) -> int:
    """Wait until all workers have ended; if one fails, end the others."""
    workers = {name: one for name, one in processes.items() if name.startswith("worker")}
    failed: Optional[str] = None
    try:
        while failed is None and any(one.poll() is None for one in workers.values()):
            time.sleep(0.05)
            failed = _failed(processes)
        failed = failed or _failed(workers)
    except KeyboardInterrupt:  # the terminal sends it to all processes
        _wait(list(workers.values()), 30.0)
        return 128 + signal.SIGINT
    if failed is None:
        _wait(list(processes.values()), 5.0)
        return 0
    status = processes[failed].returncode
    _say(f"{failed} {_how(status)}; the others are ended")
    _wait(list(processes.values()), GRACE[0])
    for process in processes.values():
        if process.poll() is None:
            process.terminate()
    _wait(list(processes.values()), GRACE[1])
    return 128 - status if status < 0 else status or 1


def _failed(processes: Dict[str, "subprocess.Popen[Any]"]) -> Optional[str]:
    """A process that failed, first of all one that was not ended because of another one."""
    found: List[str] = [name for name, one in processes.items() if one.poll() not in (None, 0)]
    return min(found, key=lambda name: processes[name].returncode == 75, default=None)


def _how(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    return f"failed with exit status {status}"


def _wait(processes: Sequence["subprocess.Popen[Any]"], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(one.poll() is None for one in processes):
        time.sleep(0.05)


def _say(text: str) -> None:
    print(f"mxkit launch: {text}", file=sys.stderr, flush=True)
