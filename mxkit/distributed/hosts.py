"""The hosts of `mxkit launch --hosts FILE`."""

import contextlib
from pathlib import Path
import socket
from typing import List, Optional, Union

from mxkit.errors import DistributedError


def hosts_of(file: Union[str, Path], workers: Optional[int]) -> List[str]:
    """The host of each worker, by rank.

    Args:
        file: Each line has a host and the number of its workers (slots), by default 1. `#` begins a comment.
        workers: Number of workers; None fills all slots.

    Raises:
        DistributedError: There are fewer slots than workers, or a line is wrong.
    """
    hosts: List[str] = []
    for number, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = words[1] if len(words) > 1 else "1"
        if len(words) > 2 or not slots.isdigit() or words[0].startswith("-"):
            raise DistributedError(
                f"{file}, line {number}: expected HOST [SLOTS], like node1 2; received {line!r:.100}"
            )
        hosts += [words[0]] * int(slots)
    if not hosts or (workers or 0) > len(hosts):
        raise DistributedError(f"{file} has {len(hosts)} slots for {workers or 'the'} workers: add hosts, or slots")
    return hosts[:workers]


def is_here(host: str) -> bool:
    """Whether a host name is that of this machine."""
    return host in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn())


def address_towards(hosts: List[str]) -> str:
    """An address of this machine that other hosts reach."""
    for host in hosts:
        if not is_here(host):
            # only ssh's configuration may know the name
            return address_on_the_way_to(host.rpartition("@")[2]) or socket.gethostname()
    return "127.0.0.1"


def address_on_the_way_to(host: str) -> Optional[str]:
    """The IPv4 address from which this machine would send to a host; None if there is no route, or no such name."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # chooses the route, and sends nothing
        return str(probe.getsockname()[0])
    return None
