"""Reads a worker's rank, the number of workers and where they meet from the variables that schedulers set."""

import hashlib
import os
from pathlib import Path
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple
import zlib

from mxkit.errors import DistributedError

# Where workers meet if neither the user nor the scheduler says so.
PORT = 29400
# Names of ours, which win over every scheduler's.
ADDRESS, RANK, SIZE, SERVERS = "MXKIT_ADDRESS", "MXKIT_RANK", "MXKIT_SIZE", "MXKIT_SERVERS"
# Of SERVERS: a server beside each worker.
EACH = "each"
# Set by `mxkit launch`: it has started the scheduler of MXNet already, and the servers unless they are beside each.
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
        secret: A text that all members of the job know, and no other job.
        spread: Whether each worker starts the server of its rank beside itself.
    """

    rank: int
    size: int
    host: str = "127.0.0.1"
    port: int = PORT
    servers: int = 1
    told_by: str = "nobody"
    launched: bool = False
    secret: str = ""
    spread: bool = False

    @property
    def stated_servers(self) -> str:
        """The servers, as the user states them."""
        return EACH if self.spread else str(self.servers)


class _Way(NamedTuple):
    """Names of the variables of one scheduler; those after `size` may be missing.

    Attributes:
        name: Of the scheduler.
        rank, size: Tell the rank, and the number of workers.
        here: Tells the number of workers on this machine.
        job: Differ from job to job, and are the same on all machines of one.
    """

    name: str
    rank: str
    size: str
    here: str = ""
    job: Tuple[str, ...] = ()


_SLURM = _Way("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", ("SLURM_JOB_ID", "SLURM_STEP_ID"))
_PMI = _Way("MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ("I_MPI_HYDRA_UUID", "PMI_JOBID"))
# The order is the precedence, from the inner to the outer: `mpirun` and torchrun start one process on each machine
# through `srun`, whose variables the workers inherit.
_WAYS = (
    _Way("mxkit", RANK, SIZE),
    _Way("Kubernetes", "JOB_COMPLETION_INDEX", SIZE),
    _Way("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    _Way(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        # the last one, of version 4, is random, and only the processes of its user can read it
        ("PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"),
    ),
    _Way("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", ("HOROVOD_GLOO_RENDEZVOUS_PORT",)),
    _PMI,
    # not SLURM_NTASKS, which the script of `sbatch` and the shell of `salloc` have, too, where one process runs
    _SLURM,
    _Way("the variables RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")),
)

# Those that stay as long as their workers.
LAUNCHERS = ("torchrun", "Open MPI", _PMI.name, _SLURM.name)


def place_of(variables: Mapping[str, str]) -> Optional[Place]:
    """A worker's place by its environment; None if it is alone.

    Args:
        variables: Like `os.environ`. `MXKIT_RANK`, `MXKIT_SIZE`, `MXKIT_SERVERS` and `MXKIT_ADDRESS` ("host:port") win
            over those of torchrun, Open MPI, MPICH and others with PMI (`mpirun`), SLURM's steps (`srun`), and
            `RANK` and `WORLD_SIZE`. In an indexed Job of Kubernetes, which does not tell the number of its pods, set
            `MXKIT_SIZE` and `MXKIT_ADDRESS` beside its `JOB_COMPLETION_INDEX`.

    Raises:
        DistributedError: A variable is no number, a rank is out of range, the workers are on several machines and
            no variable says where they meet, or the process has a role of MXNet's own launchers.

    >>> place_of({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).rank
    1
    >>> place_of({}) is None
    True
    """
    _refuse_roles(variables)
    way = _way_of(variables)
    if way is None:
        return None
    rank, size = _number(variables, way.rank), _number(variables, way.size)
    if not 0 <= rank < size:
        raise DistributedError(f"{way.rank}={rank}: expected a rank from 0 to {size - 1}, because {way.size}={size}")
    if size == 1:
        return None
    servers, spread = servers_of(variables.get(SERVERS) or "1", size, SERVERS)
    job = _job_of(variables, way)
    host, port = _address(variables, way, size, job)
    secret = variables.get(SECRET) or (hashlib.sha256(job.encode()).hexdigest() if job else "")
    return Place(rank, size, host, port, servers, way.name, bool(variables.get(LAUNCHED)), secret, spread)


def servers_of(text: str, workers: int, name: str) -> Tuple[int, bool]:
    """The number of servers, and whether they are beside each worker.

    Args:
        text: A number, or "each".
        workers: Number of workers.
        name: Of what has this value, for the error.

    Raises:
        DistributedError: It is something else.
    """
    if text == EACH:
        return workers, True
    if not text.isdecimal() or int(text) < 1:
        raise DistributedError(f"{name}={text!r:.100}: expected a number of at least 1, or {EACH}")
    return int(text), False


def variables_of(place: Place) -> Dict[str, str]:
    """The variables that give a process its place, as `mxkit launch` and rank 0 set them."""
    return {
        RANK: str(place.rank),
        SIZE: str(place.size),
        SERVERS: place.stated_servers,
        ADDRESS: f"{place.host}:{place.port}",
        SECRET: place.secret,
        LAUNCHED: "1" if place.launched else "",
    }


def _way_of(variables: Mapping[str, str]) -> Optional[_Way]:
    """Who tells the rank and the size."""
    for way in _WAYS:
        if not variables.get(way.rank) or not variables.get(way.size):
            continue
        if way.name == "torchrun" and not variables.get("TORCHELASTIC_RUN_ID"):
            continue
        if way is _PMI and all(variables[a] == variables.get(b) for a, b in zip(_PMI[1:3], _SLURM[1:3])):
            continue  # `srun --mpi=pmi2`: SLURM tells the machines, too
        return way
    if variables.get(RANK) or variables.get(SIZE):
        set_name, other = (RANK, SIZE) if variables.get(RANK) else (SIZE, RANK)
        raise DistributedError(f"{set_name} is set and {other} is not: set both, or neither")
    if variables.get(ADDRESS):
        raise DistributedError(
            f"{ADDRESS} is set, and no variable tells the rank of this process: start it with mpirun, srun or "
            f"torchrun, or set {RANK} and {SIZE}"
        )
    return None


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise DistributedError(f"{name}={variables[name]!r:.100}: expected a whole number") from None


def _job_of(variables: Mapping[str, str], way: _Way) -> str:
    """What tells this job from others; empty if nothing does."""
    values = [variables[name] for name in way.job if variables.get(name)]
    if not values and way.here and variables.get(way.here) == variables[way.size]:
        values = [_launcher(way.rank)]  # MPICH names no job
    if not values and way.name != "mxkit" and variables.get("SLURM_JOB_ID"):
        values = [variables["SLURM_JOB_ID"]]  # not the step, of which each machine may have another one
    return "/".join([way.name, *values]) if values else ""


def _launcher(variable: str) -> str:
    """Number and start of the nearest process above this one that lacks a variable: the one that set it."""
    number = os.getpid()
    try:
        while True:
            # after the name, in brackets: the state, the parent's number ..., and as the 20th the time of the start
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            parent = int(fields[1])
            if f"\0{variable}=".encode() not in b"\0" + Path(f"/proc/{parent}/environ").read_bytes():
                return f"{parent} {Path(f'/proc/{parent}/stat').read_text().rpartition(')')[2].split()[19]}"
            number = parent
    except (OSError, IndexError, ValueError):
        return ""


def _refuse_roles(variables: Mapping[str, str]) -> None:
    role = variables.get("DMLC_ROLE")
    if role:
        raise DistributedError(
            f"DMLC_ROLE={role} is set: MXNet's own launcher or Kubeflow's MXJob started this process. mxkit starts "
            "MXNet's scheduler and servers itself, beside rank 0. Start only the workers, without the variables "
            "DMLC_*, with mxkit launch, mpirun, srun or an indexed Job of Kubernetes"
        )


def _address(variables: Mapping[str, str], way: _Way, size: int, job: str) -> Tuple[str, int]:
    """Where the workers meet."""
    port = _port_of(job)
    if variables.get(ADDRESS):
        return _split(variables[ADDRESS], port)
    if variables.get(way.here) == str(size) or (way is _SLURM and variables.get("SLURM_STEP_NUM_NODES") == "1"):
        return "127.0.0.1", port
    if way.rank == "RANK" and variables.get("MASTER_ADDR"):
        if way.name != "torchrun" and variables.get("MASTER_PORT"):  # torchrun itself listens there
            port = _number(variables, "MASTER_PORT")
        return variables["MASTER_ADDR"], port
    # under mpirun a step of SLURM may leave out the first machine, where mpirun needs no step
    nodes = variables.get("SLURM_STEP_NODELIST" if way is _SLURM else "SLURM_JOB_NODELIST")
    if nodes and way.name not in ("mxkit", "Kubernetes"):
        return first_host(nodes), port
    raise DistributedError(
        f"{way.name} started {size} workers on several machines, or does not say that they are on one: set "
        f"{ADDRESS}=HOST:PORT for all of them, the host of rank 0 and a free port of it, like {ADDRESS}=node1:{PORT}"
    )


def _split(address: str, port: int) -> Tuple[str, int]:
    host, colon, digits = address.rpartition(":")
    if not colon:
        return address, port
    if not host or not digits.isdigit() or not 0 < int(digits) < 2**16:
        raise DistributedError(f"{ADDRESS}={address!r:.100}: expected HOST:PORT, like node1:{PORT}")
    return host.strip("[]"), int(digits)


def _port_of(job: str) -> int:
    """A port that two jobs on one machine hardly share; below those that Linux gives to outgoing connections."""
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
