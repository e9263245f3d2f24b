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
    """Start the scheduler of a job on this machine, and its servers unless each worker starts one, by name.

    They end with the job, and with the process that calls this.

    Args:
        place: Of any worker.
        listener: Where the members meet, by `listen`. The scheduler takes it over.
    """
    numbers = {} if place.spread else {f"server {number}": ("server", number) for number in range(place.servers)}
    with listener:
        return _start(place, {"the scheduler": ("scheduler", listener.fileno()), **numbers})


def start_own_server(place: Place) -> Processes:
    """Start the server of a worker's rank on this machine, by name; it ends with the job."""
    return _start(place, {f"server {place.rank}": ("server", place.rank)})


def _start(place: Place, numbers: Dict[str, Tuple[str, int]]) -> Processes:
    own = {
        **schedulers.variables_of(place._replace(rank=0)),
        "OMP_NUM_THREADS": "1",  # the servers only add
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])),
    }
    node, starter = [sys.executable, "-m", "mxkit.distributed.side_processes"], str(os.getpid())
    return {
        name: subprocess.Popen(
            [*node, role, str(number), starter],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            pass_fds=[number] if role == "scheduler" else [],
        )
        for name, (role, number) in numbers.items()
    }


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen where the members meet, at a free port if none is given.

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
    """The IPv4 address by which other machines reach this one, which a host is the name of, and that of its name.

    They differ where the name leads to a loopback address, as Debian's `/etc/hosts` has it (127.0.1.1).

    Raises:
        OSError: The name is unknown for 60 seconds. In Kubernetes a pod starts before its own name is known.
    """
    until = time.monotonic() + 60
    while True:
        try:
            named = socket.gethostbyname(host)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(1)  # the resolver has no call that waits for a name
    if not named.startswith("127.") or host in (named, "localhost"):
        return named, named
    return address_on_the_way_to("192.0.2.1") or named, named  # an address that nobody has: the route to other machines


def end_with_launcher() -> None:
    """End this process after the one that started it: Open MPI's `mpirun`, when it is killed, leaves its workers.

    Side effects:
        Starts a thread. The process gets SIGTERM, as if its launcher had ended it, and 20 seconds later it is ended.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)  # a signal from Linux (PR_SET_PDEATHSIG) would not say why
        with contextlib.suppress(OSError):  # whoever read it is gone, too
            print(f"mxkit: process {parent}, which started this worker, is gone; it ends", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
        os._exit(75)  # EX_TEMPFAIL, as after the loss of another worker

    threading.Thread(target=watch, name="mxkit-launcher", daemon=True).start()
