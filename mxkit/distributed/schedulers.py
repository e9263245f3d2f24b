"""Where the workers of a job are: by the variables that schedulers set, or by a file of hosts."""

import contextlib
import hashlib
import os
from pathlib import Path
import re
import socket
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple, Union
import zlib

from mxkit.errors import DistributedError

# Port at which workers meet if neither the user nor the scheduler sets one.
PORT = 29400
# mxkit's own variables, which win over those of every scheduler.
ADDRESS, RANK, SIZE, SERVERS = "MXKIT_ADDRESS", "MXKIT_RANK", "MXKIT_SIZE", "MXKIT_SERVERS"
# Value of MXKIT_SERVERS: a server beside each worker.
EACH = "each"
# Set by `mxkit launch`, which has started MXNet's scheduler, and the servers unless each worker starts its own.
LAUNCHED, SECRET, RESTARTS = "MXKIT_LAUNCHED", "MXKIT_SECRET", "MXKIT_RESTARTS"


class WorkerPlace(NamedTuple):
    """A worker's place among all workers.

    Attributes:
        rank: Rank, from 0.
        size: Number of workers.
        host, port: Address of the coordinator, at which all members meet.
        servers: Number of MXNet's parameter servers.
        scheduler: Name of the scheduler whose variables gave the place.
        launched: Whether `mxkit launch` started the scheduler and the servers; otherwise rank 0 does.
        secret: A text that only the members of the job know.
        spread: Whether each worker starts its own server.
    """

    rank: int
    size: int
    host: str = "127.0.0.1"
    port: int = PORT
    servers: int = 1
    scheduler: str = ""
    launched: bool = False
    secret: str = ""
    spread: bool = False

    @property
    def stated_servers(self) -> str:
        """The servers in the form of MXKIT_SERVERS."""
        return EACH if self.spread else str(self.servers)


class _Way(NamedTuple):
    """Names of the variables of one scheduler; those after `size` may be missing.

    Attributes:
        name: Name of the scheduler.
        rank: Variable with the rank.
        size: Variable with the number of workers.
        here: Variable with the number of workers on this machine.
        job: Variables that identify the job, the same on all its machines.
    """

    name: str
    rank: str
    size: str
    here: str = ""
    job: Tuple[str, ...] = ()


_SLURM = _Way("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", ("SLURM_JOB_ID", "SLURM_STEP_ID"))
_PMI = _Way("MPI (PMI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", ("I_MPI_HYDRA_UUID", "PMI_JOBID"))
_OMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
# In order of precedence, the inner scheduler first: `mpirun` and torchrun start one process on each machine through
# `srun`, whose variables the workers inherit.
_WAYS = (
    _Way("mxkit", RANK, SIZE),
    _Way("Kubernetes", "JOB_COMPLETION_INDEX", SIZE),
    _Way("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")),
    # the last one, of version 4, is random; only processes of its user can read it
    _Way("Open MPI", *_OMPI, ("PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports")),
    _Way("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", ("HOROVOD_GLOO_RENDEZVOUS_PORT",)),
    _PMI,
    # not SLURM_NTASKS: the script of `sbatch` and the shell of `salloc`, which are single processes, have it too
    _SLURM,
    _Way("the variables RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")),
)

# Schedulers whose launcher stays as long as the workers.
LAUNCHERS = ("torchrun", "Open MPI", _PMI.name, _SLURM.name)


def place_of(variables: Mapping[str, str]) -> Optional[WorkerPlace]:
    """Read a worker's place from environment variables; None if the worker is alone.

    Args:
        variables: As `os.environ`. `MXKIT_RANK`, `MXKIT_SIZE`, `MXKIT_SERVERS` and `MXKIT_ADDRESS` ("host:port") win
            over those of torchrun, Open MPI, MPICH and others with PMI (`mpirun`), SLURM's steps (`srun`), and
            `RANK` and `WORLD_SIZE`. An indexed Job of Kubernetes gives its pods `JOB_COMPLETION_INDEX` but not their
            number: set `MXKIT_SIZE` and `MXKIT_ADDRESS`.

    Raises:
        DistributedError: A variable is not a number, a rank is out of range, the workers are on several machines and
            no variable has an address, or MXNet's own launcher has set the role of the process.

    >>> place_of({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}).rank
    1
    >>> place_of({}) is None
    True
    """
    if variables.get("DMLC_ROLE"):
        text = "MXNet's own launcher or Kubeflow started this process: start only the workers, without DMLC_*"
        raise DistributedError(f"DMLC_ROLE={variables['DMLC_ROLE']} is set: {text}")
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
    return WorkerPlace(rank, size, host, port, servers, way.name, bool(variables.get(LAUNCHED)), secret, spread)


def servers_of(text: str, workers: int, name: str) -> Tuple[int, bool]:
    """The number of servers, and whether each worker starts its own.

    Args:
        text: A number, or "each".
        workers: Number of workers.
        name: Name of the variable or option, for the error.

    Raises:
        DistributedError: The text is neither.
    """
    if text == EACH:
        return workers, True
    if not text.isdecimal() or int(text) < 1:
        raise DistributedError(f"{name}={text!r:.100}: expected a number of at least 1, or {EACH}")
    return int(text), False


def variables_of(place: WorkerPlace) -> Dict[str, str]:
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
    """The scheduler that gives this process its rank and the number of workers."""
    for way in _WAYS:
        given = variables.get(way.rank) and variables.get(way.size)
        skipped = way.name == "torchrun" and not variables.get("TORCHELASTIC_RUN_ID")
        # `srun --mpi=pmi2`: SLURM's own variables name the machines, too
        skipped |= way is _PMI and all(variables.get(a) == variables.get(b) for a, b in zip(_PMI[1:3], _SLURM[1:3]))
        if given and not skipped:
            return way
    for name in (RANK, SIZE, ADDRESS):
        if variables.get(name):
            way_out = f"set both {RANK} and {SIZE}, or start it with mpirun, srun or torchrun"
            raise DistributedError(f"{name} is set, but not the rank and the number of workers: {way_out}")
    return None


def _number(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise DistributedError(f"{name}={variables[name]!r:.100}: expected a whole number") from None


def _job_of(variables: Mapping[str, str], way: _Way) -> str:
    """A text that identifies the job; empty if no variable does."""
    values = [variables[name] for name in way.job if variables.get(name)]
    if not values and way.here and variables.get(way.here) == variables[way.size]:
        values = [_launcher(way.rank)]  # MPICH has no variable for the job
    if not values and way.name != "mxkit" and variables.get("SLURM_JOB_ID"):
        values = [variables["SLURM_JOB_ID"]]  # not the step, which may differ between machines
    return "/".join([way.name, *values]) if values else ""


def _launcher(variable: str) -> str:
    """Process id and start time of the nearest parent process without a variable, which is the one that set it."""
    number = os.getppid()
    try:
        while f"\0{variable}=".encode() in b"\0" + Path(f"/proc/{number}/environ").read_bytes():
            number = int(_stat(number)[1])
        return f"{number} {_stat(number)[19]}"
    except (OSError, IndexError, ValueError):
        return ""


def _stat(number: int) -> List[str]:
    """Fields of Linux's file on a process, behind its name: the state, the parent, ..., the start time as the 20th."""
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()


def _address(variables: Mapping[str, str], way: _Way, size: int, job: str) -> Tuple[str, int]:
    """The address at which the members meet."""
    port = _port_of(job)
    if variables.get(ADDRESS):
        return _split(variables[ADDRESS], port)
    if variables.get(way.here) == str(size) or (way is _SLURM and variables.get("SLURM_STEP_NUM_NODES") == "1"):
        return "127.0.0.1", port
    if way.rank == "RANK" and variables.get("MASTER_ADDR"):
        if way.name != "torchrun" and variables.get("MASTER_PORT"):  # torchrun itself listens there
            port = _number(variables, "MASTER_PORT")
        return variables["MASTER_ADDR"], port
    # a step of SLURM that mpirun starts may lack the first machine, on which mpirun itself runs
    nodes = variables.get("SLURM_STEP_NODELIST" if way is _SLURM else "SLURM_JOB_NODELIST")
    if nodes and way.name not in ("mxkit", "Kubernetes"):
        return first_host(nodes), port
    text = f"{way.name} started {size} workers on several machines, or does not say that they are on one"
    raise DistributedError(f"{text}: set the host of rank 0 and a free port of it, like {ADDRESS}=node1:{PORT}")


def _split(address: str, port: int) -> Tuple[str, int]:
    host, colon, digits = address.rpartition(":")
    if not colon:
        return address, port
    if not host or not digits.isdigit() or not 0 < int(digits) < 2**16:
        raise DistributedError(f"{ADDRESS}={address!r:.100}: expected HOST:PORT, like node1:{PORT}")
    return host.strip("[]"), int(digits)


def _port_of(job: str) -> int:
    """A port that two jobs on one machine rarely share, below those that Linux gives to outgoing connections."""
    return 20000 + zlib.crc32(job.encode()) % 10000 if job else PORT


def first_host(nodes: str) -> str:
    """The first host of SLURM's list of nodes.

    >>> first_host("gpu[07-09,12]"), first_host("a1,b2"), first_host("rack[2,4]-n[01-16]")
    ('gpu07', 'a1', 'rack2-n01')
    """
    # of each list in brackets only the first number, then the text up to the first comma
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", nodes).partition(",")[0]


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
            raise DistributedError(f"{file}, line {number}: expected HOST [SLOTS], like node1 2; received {line!r:.99}")
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
