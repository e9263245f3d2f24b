"""Reads a worker's rank, the number of workers and where they meet from the variables that schedulers set."""

import re
from typing import List, Mapping, NamedTuple, Optional, Tuple
import zlib

from mxkit.errors import DistributedError

# Where workers meet if neither the user nor the scheduler says so; also torchrun's default.
PORT = 29400
# Names of ours, which win over every scheduler's.
ADDRESS, RANK, SIZE, SERVERS = "MXKIT_ADDRESS", "MXKIT_RANK", "MXKIT_SIZE", "MXKIT_SERVERS"
# Set by `mxkit launch`: it has started the scheduler and the servers of MXNet already.
LAUNCHED, SECRET, RESTARTS = "MXKIT_LAUNCHED", "MXKIT_SECRET", "MXKIT_RESTARTS"


class Place(NamedTuple):
    """A worker's place among all workers.

    Attributes:
        rank: From 0.
        size: Number of workers.
        host: Where rank 0 lets them meet.
        port: Of the same.
        servers: Number of MXNet's parameter servers.
        told_by: Who set the variables.
        launched: Whether `mxkit launch` started the scheduler and the servers; otherwise rank 0 does.
        secret: A text that all members of the job know.
    """

    rank: int
    size: int
    host: str = "127.0.0.1"
    port: int = PORT
    servers: int = 1
    told_by: str = "nobody"
    launched: bool = False
    secret: str = ""


def place_of(variables: Mapping[str, str]) -> Optional[Place]:
    """A worker's place by its environment; None if it is alone.

    Args:
        variables: Like `os.environ`. `MXKIT_RANK`, `MXKIT_SIZE`, `MXKIT_SERVERS` and `MXKIT_ADDRESS` ("host:port") win
            over those of SLURM's steps (`srun`), Open MPI, MPICH and others with PMI (`mpirun`), and torchrun's
            `RANK` and `WORLD_SIZE`. In an indexed Job of Kubernetes, which does not tell the number of its pods, set
            `MXKIT_SIZE` and `MXKIT_ADDRESS` beside its `JOB_COMPLETION_INDEX`.

    Raises:
        DistributedError: A variable is no number, a rank is out of range, or the workers are on several machines and
            no variable says where they meet.

    >>> place_of({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).rank
    1
    >>> place_of({}) is None
    True
    """
    names = _names_of(variables)
    if names is None:
        return None
    told_by, rank_name, size_name = names
    rank, size = _number(variables, rank_name), _number(variables, size_name)
    if not 0 <= rank < size:
        raise DistributedError(f"{rank_name}={rank}: expected a rank from 0 to {size - 1}, because {size_name}={size}")
    if size == 1:
        return None
    servers = _number(variables, SERVERS) if variables.get(SERVERS) else 1
    if servers < 1:
        raise DistributedError(f"{SERVERS}={servers}: expected at least 1")
    host, port = _address(variables, told_by, size)
    launched, secret = bool(variables.get(LAUNCHED)), variables.get(SECRET, "")
    return Place(rank, size, host, port, servers, told_by, launched, secret)


def _names_of(variables: Mapping[str, str]) -> Optional[Tuple[str, str, str]]:
    """Who tells the rank and the size, and the names of the variables."""
    ways = [
        ("mxkit", RANK, SIZE),
        ("Kubernetes", "JOB_COMPLETION_INDEX", SIZE),
        # not SLURM_NTASKS, which the script of `sbatch` has, too, where one process runs
        ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("MPI (PMI)", "PMI_RANK", "PMI_SIZE"),
        ("torchrun", "RANK", "WORLD_SIZE"),
    ]
    for way in ways:
        if variables.get(way[1]) and variables.get(way[2]):
            return way
    if variables.get(RANK) or variables.get(SIZE):
        set_name, other = (RANK, SIZE) if variables.get(RANK) else (SIZE, RANK)
        raise DistributedError(f"{set_name} is set and {other} is not: set both, or neither")
    return None


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise DistributedError(f"{name}={variables[name]!r:.100}: expected a whole number") from None


def _address(variables: Mapping[str, str], told_by: str, size: int) -> Tuple[str, int]:
    """Where the workers meet."""
    if variables.get(ADDRESS):
        return _split(variables[ADDRESS])
    if told_by == "torchrun":
        return variables.get("MASTER_ADDR", "127.0.0.1"), int(variables.get("MASTER_PORT", PORT))
    if told_by == "SLURM":
        hosts = first_host(variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_JOB_NODELIST", "localhost")))
        return hosts, _port_of(variables.get("SLURM_JOB_ID", "") + variables.get("SLURM_STEP_ID", ""))
    local = variables.get("OMPI_COMM_WORLD_LOCAL_SIZE", variables.get("MPI_LOCALNRANKS"))
    if told_by.endswith(("MPI", "(PMI)")) and local == str(size):
        job = variables.get("PMIX_NAMESPACE", variables.get("OMPI_MCA_ess_base_jobid", variables.get("PMI_FD", "")))
        return "127.0.0.1", _port_of(job) if "PMI_FD" not in variables else PORT
    raise DistributedError(
        f"{told_by} started {size} workers on several machines, or does not say that they are on one: set "
        f"{ADDRESS}=HOST:PORT for all of them, the host of rank 0 and a free port of it, like {ADDRESS}=node1:{PORT}"
    )


def _split(address: str) -> Tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon:
        return address, PORT
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise DistributedError(f"{ADDRESS}={address!r:.100}: expected HOST:PORT, like node1:{PORT}")
    return host.strip("[]"), int(port)


def _port_of(job: str) -> int:
    """A port that two jobs on one machine hardly share."""
    return 20000 + zlib.crc32(job.encode()) % 10000 if job else PORT


def first_host(nodes: str) -> str:
    """First host of a list in SLURM's form.

    >>> first_host("gpu[07-09,12]"), first_host("a1,b2"), first_host("rack[2,4]-n[01-16]")
    ('gpu07', 'a1', 'rack2-n01')
    """
    parts: List[str] = re.split(r"(\[[^\]]*\])", nodes)
    host = ""
    for part in parts:
        if part.startswith("["):
            host += re.split(r"[-,]", part[1:-1])[0]
        else:
            host += part.split(",")[0]
            if "," in part:
                break
    return host
