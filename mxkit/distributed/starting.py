"""Starts the processes beside the workers."""

import os
from pathlib import Path
import socket
import subprocess
import sys
from typing import Dict

from mxkit.distributed import schedulers
from mxkit.distributed.schedulers import Place
from mxkit.errors import DistributedError

Processes = Dict[str, "subprocess.Popen[bytes]"]


def start_servers(place: Place, listener: socket.socket) -> Processes:
    """Start the scheduler and the servers of a job on this machine, by name.

    They end with the job, and with the process that calls this.

    Args:
        place: Of any worker.
        listener: Where the members meet, by `listen`. The scheduler takes it over.
    """
    own = {
        schedulers.RANK: "0",
        schedulers.SIZE: str(place.size),
        schedulers.SERVERS: str(place.servers),
        schedulers.ADDRESS: f"{place.host}:{place.port}",
        schedulers.SECRET: place.secret,
        schedulers.LAUNCHED: "1" if place.launched else "",
        "OMP_NUM_THREADS": "1",  # the servers only add
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])),
    }
    numbers = {"the scheduler": ("scheduler", listener.fileno())}
    numbers.update({f"server {number}": ("server", number) for number in range(place.servers)})
    node, starter = [sys.executable, "-m", "mxkit.distributed.side_processes"], str(os.getpid())
    started = {}
    with listener:
        for name, (role, number) in numbers.items():
            started[name] = subprocess.Popen(
                [*node, role, str(number), starter],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                pass_fds=[number] if role == "scheduler" else [],
            )
    return started


def listen(host: str, port: int = 0) -> socket.socket:
    """Listen where the members meet, at a free port if none is given.

    Raises:
        DistributedError: The port is in use, or the host is not this machine.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise DistributedError(
            f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}. It runs on "
            f"{socket.gethostname()}. Does another job use this port, or is the host another machine? Set "
            f"{schedulers.ADDRESS}=HOST:PORT"
        ) from None
    listener.listen(128)
    return listener
