"""Starts the processes beside the workers."""

import contextlib
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Dict, Tuple

from mxkit.distributed import schedulers
from mxkit.distributed.hosts import address_on_the_way_to
from mxkit.distributed.schedulers import Place
from mxkit.errors import DistributedError

Processes = Dict[str, "subprocess.Popen[bytes]"]


def start_servers(place: Place, listener: socket.socket) -> Processes:
    """Start the scheduler of a job on this machine, and its servers unless each worker starts its own.

    They end with the job, and with the process that calls this.

    Args:
        place: Place of any worker.
        listener: Socket by `listen`, at which the members meet. The scheduler takes it over.

    Returns:
        The processes by name.
    """
    with listener:
        started = {"the scheduler": _start(place, "scheduler", listener.fileno())}
    for number in () if place.spread else range(place.servers):
        started[f"server {number}"] = _start(place, "server", number)
    return started


def start_own_server(place: Place) -> Processes:
    """Start the server of a worker's rank on this machine, by name; it ends with the job."""
    return {f"server {place.rank}": _start(place, "server", place.rank)}


def _start(place: Place, role: str, number: int) -> "subprocess.Popen[bytes]":
    own = {
        **schedulers.variables_of(place._replace(rank=0)),
        "OMP_NUM_THREADS": "1",  # the servers only add
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "mxkit.distributed.side_processes", role, str(number), str(os.getpid())],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        pass_fds=[number] if role == "scheduler" else [],
    )


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen where the members meet; port 0 is any free port.

    Raises:
        DistributedError: The port is in use, or the host is not this machine.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own, named = own_address(host)
        listener.bind((named if own == named else "", port))
    except OSError as error:
        listener.close()
        raise DistributedError(
            f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}. It runs on "
            f"{socket.gethostname()}. Does another job use this port, or is the host another machine? Set "
            f"{schedulers.ADDRESS}=HOST:PORT"
        ) from None
    listener.listen(128)
    return listener


def own_address(host: str) -> Tuple[str, str]:
    """The IPv4 address by which other machines reach this one, and the address to which this machine's name resolves.

    They differ where the name resolves to a loopback address, as in Debian's `/etc/hosts` (127.0.1.1).

    Args:
        host: The name of this machine.

    Raises:
        OSError: The name does not resolve for 60 seconds. In Kubernetes a pod starts before its own name resolves.
    """
    until = time.monotonic() + 60
    while True:
        try:
            named = socket.gethostbyname(host)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(1)  # the resolver cannot wait for a name
    if not named.startswith("127.") or host in (named, "localhost"):
        return named, named
    return address_on_the_way_to("192.0.2.1") or named, named  # no machine has this address: it takes the default route


def end_with_launcher() -> None:
    """End this process when its launcher is gone: Open MPI's `mpirun` leaves its workers behind when it is killed.

    Side effects:
        Starts a thread. The process gets SIGTERM, as if its launcher had ended it, and 20 seconds later it is ended.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)  # a signal from Linux (PR_SET_PDEATHSIG) would give no reason
        with contextlib.suppress(OSError):  # the reader of this stream may be gone, too
            text = f"mxkit: process {parent}, which started this worker, is gone; the worker ends"
            print(text, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
        os._exit(os.EX_TEMPFAIL)  # as after the loss of another worker

    threading.Thread(target=watch, name="mxkit-launcher", daemon=True).start()
