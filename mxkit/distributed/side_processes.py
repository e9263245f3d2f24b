"""The processes beside the workers, which mxkit starts as `python -m mxkit.distributed.side_processes`.

The scheduler of MXNet's parameter servers runs in the coordinator's process. Each server runs in a separate process.
"""

import asyncio
import os
import signal
import socket
import sys
import threading
import traceback
from typing import Any, Dict, Mapping

from mxkit.core.system import LOG
from mxkit.distributed.coordinator import Coordinator
from mxkit.distributed.keeper import SIGNALS
from mxkit.distributed.member import STATUS, Member
from mxkit.distributed.messages import patience
from mxkit.distributed.schedulers import Place, place_of
from mxkit.distributed.starting import own_address
from mxkit.errors import DistributedError
from mxkit.version import __version__


def hello_of(role: str, rank: int, place: Place, **facts: Any) -> Dict[str, Any]:
    """The first message of a member."""
    facts = {
        "mxkit": __version__,
        "the number of workers": place.size,
        "the number of servers": place.stated_servers,
        **facts,
    }
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


def scheduler(place: Place, listener: socket.socket, starter: int) -> None:
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


def server(place: Place, rank: int) -> None:
    """Serve until the job is over."""
    # beside the scheduler the port is open before this process starts: if it is closed, the scheduler is lost
    seconds = patience() if place.spread else min(10.0, patience())
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
