"""A worker's view of its job: rank, size, and the operations that all workers call together."""

import atexit
import base64
import contextlib
import ctypes
import os
from pathlib import Path
import subprocess
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import is_numpy, legacy, of_kind
from mxkit.core.blocks import distinct, parameters_by_path
from mxkit.core.device import set_own_gpus, usable_gpus
from mxkit.core.replicas import values_of
from mxkit.core.system import LOG
from mxkit.distributed import side_processes
from mxkit.distributed.member import Member, end_without_destructors, forks_die_with_it, seconds_of
from mxkit.distributed.schedulers import LAUNCHED, LAUNCHERS, RESTARTS, WorkerPlace, place_of
from mxkit.distributed.side_processes import Processes
from mxkit.errors import DistributedError
import mxnet as mx
import numpy as np

# Most elements in one message to a server, 1 MB of float32. The first sums come back while the next gradients are sent;
# an array of 20 MB would use the network in one direction at a time. On one machine it only costs copies.
PIECE = 2**18


class Slot(NamedTuple):
    """Identifies an array that the workers add up in each update; equal on all workers.

    Attributes:
        name: Name of the arrays that are added up together.
        number: Position of the array among them.
        shape, dtype: Shape and dtype of the array.
    """

    name: str
    number: int
    shape: Tuple[int, ...]
    dtype: str


class Group:
    """All workers of the job, from the view of this one.

    Args:
        place: This worker's place in the job.
        member: Its connection to the coordinator.
        store: MXNet's kvstore "dist_sync".
        beside: Processes that this worker has started: the scheduler and the servers.

    Attributes:
        rank: Rank of this worker.
        size: Number of workers.
        place: As the argument.
        piece: Most elements in one message to a server; the same on all workers.
        used: Whether this worker has called an operation of all workers.
        compressions: Number of calls of `compress`.
    """

    def __init__(self, place: WorkerPlace, member: Member, store: Any, beside: Processes) -> None:
        self.place, self.rank, self.size = place, place.rank, place.size
        self._member, self._store, self._beside, self._process = member, store, beside, os.getpid()
        self._keys: Dict[Slot, int] = {}
        self._pieces: Dict[Tuple[Slot, Tuple[Any, ...]], List[List[Any]]] = {}
        self._free = 0  # the next key
        self.compressions = 0
        self.used = False
        self.piece = sys.maxsize if member.remote_host.startswith("127.") else PIECE

    def gather(self, key: str, value: Any = None) -> List[Any]:
        """The values of all workers by rank, as `Member.gather`."""
        self.used = True
        return self._member.gather(key, value)

    def compress(self) -> int:
        """Let MXNet send -1, 0 or 1 for each number from now on, and the rest later; MXNet cannot switch this off.

        Arrays that must not be compressed then go through the coordinator, like float64.

        Returns:
            Number of calls, for the name of arrays of which no rest is kept yet.
        """
        self.gather("compression", self.compressions)
        if not self.compressions:
            mx.nd.waitall()
            # not the user's threshold, which the servers get with six decimals only (T236)
            self._store.set_gradient_compression({"type": "2bit", "threshold": 1.0})
            self.gather("compression begins")
        self.compressions += 1
        return self.compressions

    def add_up(self, name: str, groups: Sequence[Sequence[Any]], *, compressed: bool = False) -> None:
        """Replace arrays by their sums over all replicas and workers, through MXNet's servers.

        All workers call it at the same place, with arrays of equal shapes and dtypes. It does not wait for the sums.
        The next call with this name must get the same arrays, or arrays that were computed from their sums: otherwise
        MXNet's engine would send the next values before the sums are back (T224).

        Args:
            name: Distinguishes arrays of equal shapes that are sent at the same time.
            groups: Replicas of each array, on the devices of this worker.
            compressed: Send float32 in 2 bits a number, after `compress`.
        """
        exact = bool(self.compressions) and not compressed
        arrays = {}
        for number, replicas in enumerate(groups):
            replicas = legacy(list(replicas))
            # MXNet's servers abort for integers (T226), and may round float64 to float32 (T225)
            if exact or np.dtype(replicas[0].dtype) not in (np.float32, np.float16):
                self._add_up_exactly(f"{name} {number}", replicas)
                continue
            arrays[Slot(name, number, replicas[0].shape, np.dtype(replicas[0].dtype).name)] = replicas
        self._begin([slot for slot in arrays if slot not in self._keys])
        for number, (slot, replicas) in enumerate(arrays.items()):
            key, pieces = self._keys[slot], self._pieces_of(slot, replicas)
            flat = [value.reshape((-1,)) for value in replicas] if pieces else []
            begin = 0
            for one in pieces:
                for whole, piece in zip(flat, one):
                    mx.nd.slice_axis(whole, axis=0, begin=begin, end=begin + piece.size, out=piece)
                begin += one[0].size
            for place, one in enumerate(pieces or [replicas]):
                if compressed:  # pushpull refuses it
                    self._store.push(key + place, one, priority=-number)
                    self._store.pull(key + place, one, priority=-number)
                else:  # push and pull would take a second round trip, and the pulls would wait for all pushes
                    self._store.pushpull(key + place, one, out=one, priority=-number)
            for place, whole in enumerate(flat):
                joined = _joined([one[place] for one in pieces])
                mx.nd.slice_axis(joined, axis=0, begin=0, end=joined.size, out=whole)

    def _sizes(self, slot: Slot) -> List[int]:
        """Number of elements of each piece in which an array goes to the servers."""
        size = int(np.prod(slot.shape))
        number = max(1, -(-size // self.piece))
        return [size * (part + 1) // number - size * part // number for part in range(number)]

    def _begin(self, slots: Sequence[Slot]) -> None:
        """Give keys to new arrays, and make them known to the servers."""
        zeros = {}
        for slot in slots:
            self._keys[slot] = self._free
            for size in self._sizes(slot):
                # MXNet starts from the values of one worker, which it chooses; zeros are the same on all
                zeros[self._free] = mx.nd.zeros((size,), dtype=slot.dtype)
                self._free += 1
        if zeros:
            self._store.init(list(zeros), list(zeros.values()))
            mx.nd.waitall()  # a late answer would replace the first sum (T73)

    def _pieces_of(self, slot: Slot, replicas: Sequence[Any]) -> List[List[Any]]:
        """Replicas of the pieces that are sent in place of an array, the same at each call; none for a short vector."""
        sizes, devices = self._sizes(slot), tuple(one.ctx for one in replicas)
        # ps-lite cannot read arrays in oneDNN's blocked layout, such as gradients and weights of convolutions (T230)
        if len(sizes) == 1 == len(slot.shape):
            return []
        if (slot, devices) not in self._pieces:
            self._pieces[slot, devices] = [
                [mx.nd.empty((size,), ctx=device, dtype=slot.dtype) for device in devices] for size in sizes
            ]
        return self._pieces[slot, devices]

    def _add_up_exactly(self, key: str, replicas: Sequence[Any]) -> None:
        """Add up through the coordinator, in the order of the ranks."""
        dtype = np.dtype(replicas[0].dtype)
        parts = self.gather(key, [base64.b64encode(one.asnumpy().tobytes()).decode() for one in replicas])
        arrays = [np.frombuffer(base64.b64decode(one), dtype) for part in parts for one in part]
        exact = np.float64 if dtype.kind == "f" else object  # Python's integers have no limit
        total = np.array(arrays, exact).sum(axis=0).reshape(replicas[0].shape)
        whole = dtype.kind != "f" and total.size
        if whole and not np.iinfo(dtype).min <= total.min() <= total.max() <= np.iinfo(dtype).max:
            raise OverflowError(f"{key}: a sum over {self.size} workers does not fit into {dtype}: pass a wider dtype")
        total = total.astype(dtype)
        for one in replicas:
            one[:] = total

    def compare(self, what: str, facts: Mapping[str, Any]) -> None:
        """Raise an error on all workers if a fact is not the same on all of them.

        Args:
            what: Subject of the facts, for messages.
            facts: Values that JSON can hold, by name.

        Raises:
            DistributedError: A fact differs; the text names both values.
        """
        refuse_differences(f"in {what}", self.gather(what, facts))

    def leave(self, reason: str = "") -> None:
        """Announce that this worker ends, after its arrays have reached the servers; a reason ends the others, too.

        A worker that has started servers waits until all have left.
        """
        sound = not reason and self._member.fault is None
        try:
            if sound:
                mx.nd.waitall()
            else:  # at the end of the process, MXNet would wait for sums that never come
                atexit.unregister(mx.base._notify_shutdown)
        finally:
            self._member.leave(reason)
        if self._beside and os.getpid() == self._process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in self._beside.values():
                    process.wait(None if sound else 5.0)  # the scheduler, which is first, sends the others the reason


def _joined(pieces: Sequence[Any]) -> Any:
    """Concatenate vectors; `mx.nd.concat` takes eight times as long, also for a single one."""
    if len(pieces) == 1:
        return pieces[0]
    whole = mx.nd.empty((sum(one.size for one in pieces),), ctx=pieces[0].ctx, dtype=pieces[0].dtype)
    begin = 0
    for one in pieces:
        one.copyto(whole[begin : begin + one.size])
        begin += one.size
    return whole


def refuse_differences(where: str, workers: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if a worker has another value than worker 0.

    Args:
        where: Where they differ, for the message.
        workers: The facts of each worker, by rank.

    Raises:
        DistributedError: They differ.
    """
    for rank, theirs in enumerate(workers):
        for name in {**workers[0], **theirs}:
            first, other = (one.get(name, "nothing") for one in (workers[0], theirs))
            if first != other:
                values = f"worker 0 has {first!s:.300}, worker {rank} has {other!s:.300}"
                raise DistributedError(f"the workers differ {where}: {name}: {values}")


_group: Optional[Group] = None
_has_left = False


def current() -> Optional[Group]:
    """The group of this process; None if it works alone."""
    return _group


def initialize() -> bool:
    """Join the other workers of the job, by the variables of `mxkit launch`, `srun`, `mpirun`, torchrun and others.

    Rank 0 starts MXNet's scheduler and servers, unless `mxkit launch` has; with `MXKIT_SERVERS=each` each worker starts
    a server. Afterwards `fit` trains together with the other workers. Without such variables, and when it is called
    twice, `initialize` does nothing.

    Returns:
        Whether there are other workers.

    Raises:
        DistributedError: A variable has a wrong value; the others did not join within 120 seconds (`MXKIT_PATIENCE`);
            a port is in use; the members differ in versions or in numbers of workers; `shutdown` was called before.

    Side effects:
        The workers of a machine divide its GPUs: from now on `mxkit.devices("auto")` returns those of this worker.
        Starts threads. If another member is lost, calls raise DistributedError, and the process is ended with status
        75 if it waits inside MXNet for 6 seconds, or does not end by itself within 20. The process gets SIGTERM when
        its launcher, such as `mpirun`, is gone. Processes that the main thread forks later end with this one.
        Destructors of C++ do not run at its end.
    """
    global _group
    if _group is not None:
        return True
    if _has_left:
        raise DistributedError("initialize: this process has left its job by shutdown, and MXNet can join only once")
    place = place_of(os.environ)
    if place is None:
        return False
    beside: Processes = {}
    if place.rank == 0 and not place.launched:
        beside = side_processes.start_servers(place, side_processes.listen(place.host, place.port))
    if place.spread:
        beside.update(side_processes.start_own_server(place))
    if place.scheduler in LAUNCHERS:
        side_processes.end_with_launcher()
    hello = side_processes.hello_of("worker", place.rank, place, MXNet=mx.__version__)
    member = Member((place.host, place.port), hello, seconds_of("MXKIT_PATIENCE"))
    side_processes.join(member)
    take_own_gpus(member, place.rank)
    forks_die_with_it()
    os.environ["DMLC_ROLE"] = "worker"
    try:
        store = mx.kv.create("dist_sync")
    except BaseException as error:
        member.leave(_text_of(error))
        raise
    finally:
        del os.environ["DMLC_ROLE"]  # processes that this one starts must not inherit it
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))  # its destructor would wait; the coordinator ends the servers
    end_without_destructors()
    _group = Group(place, member, store, beside)
    atexit.register(_leave)
    return True


def _leave() -> None:
    """Leave the group, at the end of the process too; the other workers get the error that ends this one."""
    if _group is None:
        return
    error = getattr(sys, "last_value", None)
    if error is None and not _group.used:
        text = "mxkit: worker %d made no update with the others: trainer.step of Gluon trains this worker's net alone. "
        LOG.warning(f"{text}Use mxkit.fit, mxkit.updates or mxkit.Accumulator", _group.rank)
    _group.leave("" if error is None else _text_of(error))


def _text_of(error: BaseException) -> str:
    return f"ended with {type(error).__name__}: {str(error)[:300]}"


def rank() -> int:
    """Number of this worker from 0; 0 if it works alone."""
    return 0 if _group is None else _group.rank


def size() -> int:
    """Number of workers; 1 if this one works alone."""
    return 1 if _group is None else _group.size


def barrier(name: str = "barrier") -> None:
    """Wait until all workers have called `barrier`.

    Args:
        name: Name for messages; it must be the same on all workers.

    Raises:
        DistributedError: A worker is lost, has ended or waits at another place.
    """
    if _group is not None:
        _group.gather(f"barrier {name!r}")


def all_reduce(array: Any) -> Any:
    """The sum of an array over all workers, a new array on the same device.

    Args:
        array: A dense NDArray, or an array of `mx.np`, of the same shape and dtype on all workers; not bool.

    Raises:
        TypeError: It is something else.
        OverflowError: A sum of integers does not fit into their dtype.
        DistributedError: A worker is lost, or has another shape or dtype.
    """
    if not isinstance(array, mx.nd.NDArray) or array.stype != "default" or np.dtype(array.dtype) == np.bool_:
        raise TypeError(f"all_reduce: expected a dense NDArray of numbers; received {type(array).__name__}")
    total = array.copy()
    if _group is not None:
        _group.compare("the array of all_reduce", {"shape and dtype": [list(array.shape), np.dtype(array.dtype).name]})
        if array.size:
            flat = legacy(total.reshape((-1,)))
            _group.add_up("all_reduce", [[flat]])
            flat.wait_to_read()
            total = of_kind(flat, is_numpy([array])).reshape(array.shape)
    return total


def broadcast_parameters(net: Any) -> None:
    """Give all workers the parameters of worker 0, bit for bit, including running statistics.

    Args:
        net: An initialized block.

    Raises:
        DistributedError: A worker is lost, or its net has other parameters.
    """
    if _group is None:
        return
    parameters = distinct(parameters_by_path(net))  # a shared one would be added up twice
    replicas = {path: legacy(list(values_of(one) or ())) for path, one in parameters.items()}
    waiting = [path for path, values in replicas.items() if not values]
    if waiting:
        raise DistributedError(f"broadcast_parameters: {waiting[0]} has no values yet: call the net once")
    shapes = {path: [list(values[0].shape), np.dtype(values[0].dtype).name] for path, values in replicas.items()}
    _group.compare("the parameters of the net", shapes)
    for values in replicas.values():
        for value in values if _group.rank else values[1:]:
            value[:] = 0
    _group.add_up("broadcast", list(replicas.values()))  # 0 + x is x
    mx.nd.waitall()


def shutdown() -> None:
    """Leave the other workers, which continue until they need this one; without `initialize` it does nothing.

    A worker that has started servers waits until all have left: worker 0 without `mxkit launch`, and every worker with
    `MXKIT_SERVERS=each`.
    """
    global _group, _has_left
    if _group is not None:
        _leave()
        _group, _has_left = None, True


def take_own_gpus(member: Member, rank: int) -> None:
    """Limit `mxkit.devices` to this worker's part of the GPUs that several workers see; all workers call it.

    The GPUs' identities decide, not local ranks: Kubernetes and torchrun's variables alone give none, and a worker that
    sees only its own GPU by `CUDA_VISIBLE_DEVICES` must not use it as an offset.
    """
    gpus = usable_gpus()
    seen: List[List[str]] = member.gather("the GPUs", list(gpus.values()))
    numbers = list(gpus)
    own = [numbers[place] for place in own_places(seen, rank)]
    set_own_gpus(own)
    sharers = len(_sharers(seen, rank))
    if sharers > 1 and own:
        names = ", ".join(f"gpu({number})" for number in own)
        text = 'mxkit: worker %d takes %s: %d workers see the same %d GPUs. devices="gpu:0" names others'
        LOG.warning(text, rank, names, sharers, len(gpus))


def own_places(seen: Sequence[Sequence[str]], rank: int) -> List[int]:
    """Positions of a worker's own GPUs among the GPUs that it sees.

    Workers that see the same GPUs get equal parts, and share GPUs if there are more workers than GPUs. A worker that
    sees other GPUs than the others takes all that it sees: SLURM or `CUDA_VISIBLE_DEVICES` has divided them.

    Args:
        seen: Identities of the GPUs that each worker sees, by rank.
        rank: The worker.

    >>> [own_places([["a", "b", "c", "d"]] * 2, rank) for rank in (0, 1)]
    [[0, 1], [2, 3]]
    >>> [own_places([["a", "b"], ["c", "d"], ["a", "b"], ["d"]], rank) for rank in range(4)]
    [[0], [0, 1], [1], [0]]
    """
    sharers = _sharers(seen, rank)
    order = seen[sharers[0]]  # CUDA_VISIBLE_DEVICES=1,0 shows another worker the same GPUs in another order
    each = max(1, len(order) // len(sharers))
    begin = sharers.index(rank) * each % max(1, len(order))
    return sorted(seen[rank].index(gpu) for gpu in order[begin : begin + each])


def _sharers(seen: Sequence[Sequence[str]], rank: int) -> List[int]:
    """Workers that see the same GPUs as this one."""
    return [other for other, gpus in enumerate(seen) if set(gpus) == set(seen[rank])]


# File in the folder of the job, with the path of the run that the first worker made.
_NOTE = "run"


def note_run(folder: Path) -> None:
    """Write down the folder of the run, for a restart."""
    job = os.environ.get(LAUNCHED)
    if job and rank() == 0:
        Path(job).mkdir(mode=0o700, exist_ok=True)  # the first worker may be on another machine than the launcher
        Path(job, _NOTE).write_text(str(folder.absolute()), encoding="utf-8")


def restarted_run() -> Optional[Path]:
    """The run to resume after a restart by `mxkit launch`; None for a new run."""
    group, job = current(), os.environ.get(LAUNCHED)
    if not job or os.environ.get(RESTARTS, "0") == "0":
        return None
    note = Path(job, _NOTE)
    run = note.read_text(encoding="utf-8") if note.is_file() else ""
    if group is not None:  # the folder of the job is on the first worker's machine
        run = group.gather("the run to resume", run)[0]
    return Path(run) if run and Path(run, "recipe.yaml").is_file() else None
