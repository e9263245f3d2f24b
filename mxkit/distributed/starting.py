"""Starts the processes beside the workers."""

import os
from pathlib import Path
import socket
import subprocess
import sys
from typing import List

from mxkit.distributed import schedulers
from mxkit.distributed.schedulers import Place
from mxkit.errors import DistributedError


def start_servers(place: Place) -> List["subprocess.Popen[bytes]"]:
    """Start the scheduler and the servers of a job on this machine; they end with the thread that calls this.

    Raises:
        DistributedError: The port is in use.
    """
    listener = listen(place)
    variables = variables_of(place)
    node = [sys.executable, "-m", "mxkit.distributed.side_processes"]
    with listener:
        number = listener.fileno()
        started = [subprocess.Popen([*node, "scheduler", str(number)], env=variables, pass_fds=[number])]
    started += [subprocess.Popen([*node, "server", str(one)], env=variables) for one in range(place.servers)]
    return started


def variables_of(place: Place) -> "dict[str, str]":
    """The environment of a process beside the workers."""
    own = {
        schedulers.RANK: "0",
        schedulers.SIZE: str(place.size),
        schedulers.SERVERS: str(place.servers),
        schedulers.ADDRESS: f"{place.host}:{place.port}",
        schedulers.SECRET: place.secret,
        "OMP_NUM_THREADS": "1",  # the servers only add
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])),
    }
    return {**os.environ, **own}


def listen(place: Place) -> socket.socket:
    """Listen where the members meet.

    Raises:
        DistributedError: The port is in use, or the host is not this machine.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((place.host, place.port))
    except OSError as error:
        listener.close()
        raise DistributedError(
            f"rank 0 cannot listen at {place.host}:{place.port}: {error.strerror or error}. It runs on "
            f"{socket.gethostname()}. Does another job use this port, or is the host another machine? Set "
            f"{schedulers.ADDRESS}=HOST:PORT"
        ) from None
    listener.listen(128)
    return listener
