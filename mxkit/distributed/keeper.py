"""Starts and watches one worker of `mxkit launch`, here or on another host: `python keeper.py NUMBER`.

NUMBER is the open file to read. The launcher writes a line of JSON, which says what to start, then numbers of signals
to pass on. The end of the file ends the worker: the launcher was killed, or the connection was lost. All processes that
a worker has started end with it.

It runs without mxkit: it starts in 20 ms, and on a host without mxkit the command itself prints a clear message.
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

# Seconds that a worker has to end by itself after its launcher is lost; the worker notices that the scheduler is lost.
GRACE = 10.0
# Signals that a launcher and a keeper handle themselves.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DIE_WITH_PARENT, _ADOPT = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


def adopt() -> None:
    """Become the parent of all descendants whose own parent ends."""
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)


def end_descendants(seconds: float = 5.0) -> None:
    """Kill all descendants of this process, and wait for their end; call `adopt` first."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        descendants = _descendants()
        if not descendants:
            return
        for process in descendants:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)  # a process may have forked just before it was killed: look again


def _descendants() -> List[int]:
    children: Dict[int, List[int]] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    descendants = [os.getpid()]
    for process in descendants:  # the list grows
        descendants += children.get(process, [])
    return descendants[1:]


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
    """Pass signals on; end the worker at the end of the file."""
    for line in control:
        with contextlib.suppress(OSError):
            worker.send_signal(int(line))
    until = time.monotonic() + GRACE
    _say(f"{name}: mxkit launch is lost: it was killed, or the connection to it is broken; this worker is ended")
    with contextlib.suppress(OSError):
        worker.terminate()
        while time.monotonic() < until and worker.poll() is None:
            time.sleep(0.05)  # `Popen.wait` with a time limit polls, too
        worker.kill()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"mxkit: {text}\n".encode())


def main(number: int) -> int:
    """Start a worker and exit with its exit status, or 128 + the number of the signal that ended it."""
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
