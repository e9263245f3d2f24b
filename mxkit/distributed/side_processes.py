"""The processes beside the workers, which mxkit starts as `python -m mxkit.distributed.side_processes`.

The scheduler of MXNet's parameter servers runs in the coordinator's process. Each server runs in a separate process.
"""

import asyncio
import contextlib
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from typing import Any, Dict, Mapping, Tuple

from mxkit.core.system import LOG
from mxkit.distributed import schedulers
from mxkit.distributed.coordinator import Coordinator
from mxkit.distributed.keeper import SIGNALS
from mxkit.distributed.member import STATUS, Member, seconds_of
from mxkit.distributed.schedulers import WorkerPlace, address_on_the_way_to, place_of
from mxkit.errors import DistributedError
from mxkit.version import __version__

Processes = Dict[str, "subprocess.Popen[bytes]"]


def start_servers(place: WorkerPlace, listener: socket.socket) -> Processes:
    """Start the scheduler of a job on this machine, and its servers unless each worker starts its own.

    They end with the job, and with the process that calls this.

    Args:
        place: WorkerPlace of any worker.
        listener: Socket by `listen`, at which the members meet. The scheduler takes it over.

    Returns:
        The processes by name.
    """
    with listener:
        started = {"the scheduler": _start(place, "scheduler", listener.fileno())}
    for number in () if place.spread else range(place.servers):
        started[f"server {number}"] = _start(place, "server", number)
    return started


def start_own_server(place: WorkerPlace) -> Processes:
    """Start the server of a worker's rank on this machine, by name; it ends with the job."""
    return {f"server {place.rank}": _start(place, "server", place.rank)}


def _start(place: WorkerPlace, role: str, number: int) -> "subprocess.Popen[bytes]":
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
        text = f"rank 0 cannot listen at {host}:{port}: {error.strerror or error}. It runs on {socket.gethostname()}"
        way = f"Does another job use this port, or is the host another machine? Set {schedulers.ADDRESS}=HOST:PORT"
        raise DistributedError(f"{text}. {way}") from None
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


def hello_of(role: str, rank: int, place: WorkerPlace, **facts: Any) -> Dict[str, Any]:
    """The first message of a member."""
    facts.update({"mxkit": __version__, "the number of workers": place.size})
    facts["the number of servers"] = place.stated_servers
    host = socket.gethostname()
    return {"role": role, "rank": rank, "host": host, "pid": os.getpid(), "secret": place.secret, "facts": facts}


def join(member: Member) -> None:
    """Set ps-lite's variables: the address of the scheduler, and that of this process."""
    here = member.remote_host.startswith("127.")  # the machine of rank 0, which others reach by another address
    ip = member.welcome["ip"]
    _set_variables(member.welcome, ip if here else member.remote_host, ip if here else member.local_host)


def _set_variables(welcome: Mapping[str, Any], root: str, own: str) -> None:
    os.environ.update(
        DMLC_PS_ROOT_URI=root,
        DMLC_PS_ROOT_PORT=str(welcome["port"]),
        DMLC_NUM_WORKER=str(welcome["workers"]),
        DMLC_NUM_SERVER=str(welcome["servers"]),
        DMLC_NODE_HOST=own,  # ps-lite would take the first address that is not local (T75)
    )


def _serve_mxnet(role: str) -> None:
    """Run MXNet's scheduler or server until the process ends; an error of MXNet ends the process."""
    try:
        import mxkit.runtime  # noqa: F401  # before mxnet, which would serve at once if the role were set
        import mxnet as mx
        from mxnet.kvstore.kvstore_server import KVStoreServer

        os.environ["DMLC_ROLE"] = role
        server = KVStoreServer(mx.kv.create("dist"))
        server._controller = lambda: _refuse_commands
        server.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _refuse_commands(command: int, body: Any, _: Any) -> None:
    """Replace MXNet's own function, which unpickles optimizers from any process that reaches the port (T75)."""
    LOG.warning("mxkit: a command %d for the server was refused", command)


def scheduler(place: WorkerPlace, listener: socket.socket, starter: int) -> None:
    """Coordinate the job until it is over; MXNet's scheduler runs in a thread."""
    host, _ = own_address(place.host)
    with socket.socket() as free:
        free.bind((host, 0))
        port = free.getsockname()[1]
    welcome = {"ip": host, "port": port, "workers": place.size, "servers": place.servers}
    _set_variables(welcome, host, host)
    threading.Thread(target=_serve_mxnet, args=("scheduler",), daemon=True).start()
    fault = asyncio.run(Coordinator(place, welcome, starter).run(listener))
    if fault:
        print(f"mxkit: {fault}", file=sys.stderr, flush=True)
    os._exit(STATUS if fault else 0)


def server(place: WorkerPlace, rank: int) -> None:
    """Serve until the job is over."""
    # beside the scheduler the port is open before this process starts: if it is closed, the scheduler is lost
    patience = seconds_of("MXKIT_PATIENCE")
    seconds = patience if place.spread else min(10.0, patience)
    member = Member((place.host, place.port), hello_of("server", rank, place), seconds)
    join(member)
    threading.Thread(target=_serve_mxnet, args=("server",), daemon=True).start()
    os._exit(STATUS if member.wait_for_the_end() else 0)


def main(role: str, number: int, starter: int) -> None:
    """Run the scheduler, with the number of a listening socket, or the server of this rank."""
    for name in SIGNALS:  # schedulers send them to all processes of a job
        signal.signal(name, signal.SIG_IGN)
    place = place_of(os.environ)
    if place is None:
        raise SystemExit("mxkit.distributed.side_processes: only mxkit starts this program")
    try:
        if role == "scheduler":
            scheduler(place, socket.socket(fileno=number), starter)
        server(place, number)
    except DistributedError as error:
        print(f"mxkit: {error}", file=sys.stderr, flush=True)
        os._exit(STATUS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
