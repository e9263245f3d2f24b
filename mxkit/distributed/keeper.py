"""Keeps one worker of `mxkit launch`, here or on another host: `python keeper.py NUMBER`, of the file to read.

The launcher writes a line of JSON, what to start, then numbers of signals to pass on. The end of the file, also because
the launcher is killed or the connection is lost, ends the worker. With a worker end all processes that it has started.

Runs without mxkit: it starts in 20 ms, and a host where mxkit is missing gets a clear message from the command itself.
"""

import contextlib
import ctypes
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

# Seconds that a worker has to end by itself after its launcher is lost: it notices that the scheduler is lost, too.
GRACE = 10.0
# What a launcher and a keeper handle themselves.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DIE_WITH_PARENT, _ADOPT = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


def adopt() -> None:
    """Become the parent of all processes below this one whose own parent ends."""
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)


def end_descendants(seconds: float = 5.0) -> None:
    """Kill all processes below this one, and wait for their end; `adopt` has been called, and no child is wanted."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        below = _descendants()
        if not below:
            return
        for process in below:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)  # a killed process may have forked just before: look again


def _descendants() -> List[int]:
    parents: Dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(folder.name)] = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
    below = {os.getpid()}
    grown = True
    while grown:
        grown = False
        for process, parent in parents.items():
            if parent in below and process not in below:
                below.add(process)
                grown = True
    return sorted(below - {os.getpid()})


def _start(order: Dict[str, Any]) -> "subprocess.Popen[bytes]":
    os.chdir(order["folder"])
    variables = {**os.environ, **order["environment"]}
    if order["workers_here"] > 1 and not variables.get("OMP_NUM_THREADS"):
        variables["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // order["workers_here"]))
    keeper = os.getpid()

    def before() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [*SIGNALS, signal.SIGCHLD])
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(1)

    stdin = None if order["stdin"] else subprocess.DEVNULL
    return subprocess.Popen(order["command"], env=variables, stdin=stdin, preexec_fn=before)


def _obey(control: Any, worker: "subprocess.Popen[bytes]", name: str) -> None:
    """Pass signals on; at the end of the file end the worker."""
    for line in control:
        with contextlib.suppress(OSError):
            worker.send_signal(int(line))
    until = time.monotonic() + GRACE
    _say(f"{name}: mxkit launch is lost: it was killed, or the connection to it is; this worker is ended")
    with contextlib.suppress(OSError):
        worker.terminate()
        while time.monotonic() < until and worker.poll() is None:
            time.sleep(0.05)  # `Popen.wait` with a limit polls, too
        worker.kill()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"mxkit: {text}\n".encode())


def main(number: int) -> int:
    """Start a worker and return its exit status, 128 and the signal if one has ended it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [*SIGNALS, signal.SIGCHLD])
    adopt()
    os.set_inheritable(number, False)
    with os.fdopen(number, encoding="utf-8") as control:
        line = control.readline()
        if not line:
            return 1
        order = json.loads(line)
        try:
            worker = _start(order)
        except (OSError, subprocess.SubprocessError) as error:
            _say(f"{order['name']}: cannot start {order['command'][0]!r} in {order['folder']}: {error}")
            return 127
        threading.Thread(target=_obey, args=(control, worker, order["name"]), daemon=True).start()
        status = worker.wait()
        end_descendants()
        sys.stdout.flush()
        os._exit(128 - status if status < 0 else status)  # the thread waits for the file


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
