"""Number of threads of MXNet's operators on the CPU: chosen before its library is loaded (T96), changed while it runs.

MXNet reads its variables once, while the library is loaded (src/engine/openmp.cc). `MXNET_OMP_MAX_THREADS` is set
only during that time: no other library reads it, forked workers still use one thread each, and it works even if OpenMP
was loaded before. `OMP_NUM_THREADS` has none of these properties, and child processes would mistake it for a setting
of the user.

OpenMP keeps a number for each thread. MXNet uses that of the engine's worker, up to the number of the import. So a
function that runs on a device's worker changes the number for all later operators there (T185).
"""

from contextlib import ExitStack, contextmanager
import ctypes
from functools import lru_cache
from importlib import import_module
import operator
import os
import platform
from queue import SimpleQueue
import re
import sys
import threading
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set
import warnings

from mxkit.errors import TrapWarning
from mxkit.runtime.machine import Processors, read_processors

_OPENMP = "OMP_NUM_THREADS"
_MOST = "MXNET_OMP_MAX_THREADS"
# Variables with which a user sets MXNet's threads, in order of precedence, with the value that means the default. mxkit
# chooses only if none is set. Other engines compute in threads that `_MOST` does not affect.
_SETTINGS = {
    _OPENMP: "",
    _MOST: "",
    "MXNET_CPU_WORKER_NTHREADS": "1",
    "MXNET_ENGINE_TYPE": "ThreadedEnginePerDevice",
}
# Idle threads spin for milliseconds before they sleep. If other programs need the cores too, that costs more than a
# second thread gains, so they spin only for the usual gap between operators. Relative to one thread, on two cores,
# ResNet-18 at 32 px takes 0.72 of the time (0.66 with libgomp's default, 300,000) and LeNet 0.84 (0.82); beside two
# processes of a test suite LeNet takes 1.4 (3 to 5 with 30,000; 1.0 with 0, which takes 1.6 on an idle machine).
_SPINS = {"GOMP_SPINCOUNT": "3000"}
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


class Choice(NamedTuple):
    """The number of threads of MXNet's operators, and the setting that decided it.

    Attributes:
        taken: Threads of an operator; None if a variable is not a number, in which case MXNet ends the process.
        alone: Threads of an operator without mxkit.
        setting: The user's variable that decides instead of mxkit, or the variable that is not a number; else empty.
    """

    taken: Optional[int]
    alone: Optional[int]
    setting: str = ""

    @property
    def by_mxkit(self) -> bool:
        """Whether mxkit changes MXNet's own number."""
        return self.taken != self.alone


_loaded: Optional[Choice] = None


def choose(processors: Processors, environment: Mapping[str, str]) -> Choice:
    """Choose one thread per physical core, within the quota, shared among the workers of a job on this host.

    Args:
        processors: The processors that this process may use.
        environment: Environment variables; a user's setting wins.

    >>> choose(Processors(64, 64, 4.0), {}).taken
    4
    >>> choose(Processors(64, 64, None), {"OMP_NUM_THREADS": "8"})
    Choice(taken=8, alone=8, setting='OMP_NUM_THREADS')
    """
    number = re.compile(r"\s*[+-]?\d+\s*")
    wrong = next((name for name in (_OPENMP, _MOST) if not number.fullmatch(environment.get(name) or "0")), "")
    if wrong:
        return Choice(None, None, wrong)
    alone = _alone(processors, environment)
    setting = next((name for name, usual in _SETTINGS.items() if environment.get(name, "") not in ("", usual)), "")
    if setting:
        return Choice(alone, alone, setting)
    return Choice(max(1, processors.threads // (local_workers(environment) or 1)), alone)


def _alone(processors: Processors, environment: Mapping[str, str]) -> int:
    """The number that MXNet 1.9.1 takes: half of the processors on x86, since it assumes two per core."""
    named = {name: int(environment[name]) for name in (_OPENMP, _MOST) if environment.get(name)}
    if _OPENMP in named:
        return named[_OPENMP] if named[_OPENMP] > 0 else processors.usable  # OpenMP ignores others
    intel = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
    most = named.get(_MOST, processors.usable // 2 if intel else processors.usable)
    return max(1, min(most, processors.usable)) if most else processors.usable  # 0 means no limit


def local_workers(environment: Mapping[str, str]) -> Optional[int]:
    """Number of workers of this process's distributed job that compute on this host; None if it is unknown.

    MXNet's launchers give each process the number of workers. Only with the local launcher all are on this host.

    >>> local_workers({"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "4", "DMLC_JOB_CLUSTER": "local"})
    4
    >>> local_workers({})
    1
    """
    workers = environment.get("DMLC_NUM_WORKER", "1")
    if not environment.get("DMLC_ROLE") or workers == "1":
        return 1
    here = environment.get("DMLC_JOB_CLUSTER") == "local" or environment.get("DMLC_PS_ROOT_URI") in _THIS_HOST
    return int(workers) if here and workers.isdigit() else None


@contextmanager
def chosen_threads() -> Iterator[None]:
    """Make the MXNet library that is loaded inside take the number of threads of `choose`.

    Side effects:
        If MXNet alone would take another number, sets `MXNET_OMP_MAX_THREADS` inside, and `GOMP_SPINCOUNT` unless a
        variable says how threads wait. Both are restored at the end.
    """
    global _loaded
    choice = choose(read_processors(), os.environ)
    variables: Dict[str, str] = {}
    if choice.by_mxkit:
        spins = {} if any(map(os.environ.get, _WAITING)) else _SPINS
        variables = {_MOST: str(choice.taken), **spins}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:  # it was set to an empty text
                os.environ[name] = value
    _loaded = choice


# Devices whose workers get a user's number immediately; other devices get it when `fit` or `predict` begins.
_VIRTUAL_DEVICES = range(16)
_present: Optional[int] = None  # the number of the workers of `_reached`; None means the number of the import
_reached: Set[int] = {0}
_by_user = False  # the user's `threads` decides
# Modules of threads that do not use MXNet: progress bars, notebooks, debuggers. mxkit's own threads wait for a request
# for a batch, or write NumPy arrays to a checkpoint.
_WITHOUT_MXNET = (
    *("mxkit", "tqdm", "rich", "ipykernel", "IPython", "zmq", "tornado", "debugpy", "_pydevd_bundle", "execnet"),
)
_choosing = False  # a call chooses the number, and calls inside it use the same
# Functions of MXNet that end the engine's workers before a fork, and start new ones after it. oneDNN allocates the
# memory of an operator's kernel for the present number of threads, and MXNet keeps the kernel for its worker. With more
# threads the kernel writes past that memory: LeNet ends the process (T187). A new worker has no kernels.
_RESTART = ("_ZN5mxnet22pthread_atfork_prepareEv", "_ZN5mxnet21pthread_atfork_parentEv")


def in_force() -> Optional[int]:
    """Threads that an operator of this process's MXNet takes on the CPU; sums depend on their number (T67).

    Returns:
        Their number, even if the environment has changed since. If MXNet was imported before mxkit, the number that
        it takes alone with the present variables; None if those are not numbers.
    """
    if _present is not None:
        return _present
    if _loaded is None:
        return choose(read_processors(), os.environ).alone
    if _loaded.setting == _OPENMP:  # OpenMP ignores it if another library had loaded OpenMP before it was set
        return _of_a_new_thread()
    return _loaded.taken


def number_set() -> Optional[int]:
    """The number that `threads` or a call set in this process; None if that of the import is in force."""
    return _present


def _of_a_new_thread() -> int:
    from concurrent.futures import ThreadPoolExecutor  # its import would slow down `import mxkit`

    with ThreadPoolExecutor(1) as pool:
        return int(pool.submit(sys.modules["mxnet.base"]._LIB.omp_get_max_threads).result())


def threads(number: Optional[int] = None) -> ContextManager[Any]:
    """Set how many threads an operator of MXNet takes on the CPU, in this process and from now on.

    `fit` then takes this number and does not choose one. In a `with` statement the earlier state is restored at its
    end. The last bits of sums depend on the number (T67), so a loop of your own and a `fit` that are compared need
    the same one.

    Args:
        number: From 1 to the number that was chosen when MXNet was imported: one thread per core
            (`MXNET_OMP_MAX_THREADS` changes it). None keeps the number in force, so that `fit` chooses none.

    Returns:
        A context manager that restores the earlier state.

    Raises:
        ValueError: More threads than MXNet was loaded with; or `OMP_NUM_THREADS` or another engine decides, and MXNet
            keeps its number.
        RuntimeError: Other threads of the program run, which may use MXNet. Threads of mxkit, progress bars and
            notebooks do not count.

    Side effects:
        Imports MXNet, waits for all its work and restarts its workers, as a fork does, in 1 to 10 ms. In that time no
        other thread of the program, such as a loader's, may use MXNet: call it before a training, not in a callback.
        The number holds for cpu(0) to cpu(15), and for the devices of nets that `fit` gets. Worker processes of
        loaders keep one thread.

    >>> with mxkit.threads(1):
    ...     mxkit.runtime.engine_threads.in_force()
    1
    """
    global _by_user
    if number is not None:
        check_number(number)
    before = _present, _by_user
    if number is not None and not obstacle():
        if _other_threads() and number != in_force():
            raise RuntimeError(_kept())
        _set(operator.index(number), _VIRTUAL_DEVICES)
    _by_user = True

    def restore(error: Any, *_: Any) -> None:
        global _by_user
        _restore(before[0], check=error is None)
        _by_user = before[1]

    restoring = ExitStack()
    restoring.push(restore)
    return restoring


def check_number(number: int) -> None:
    """Check that `threads` can set this number.

    Raises:
        ValueError: It cannot.
    """
    import_module("mxnet")
    if isinstance(number, bool) or not hasattr(number, "__index__") or number < 1:
        raise ValueError(f"threads: expected a whole number of at least 1; received {number!r:.100}")
    reason = obstacle()
    if reason and number != in_force():
        raise ValueError(f"threads: MXNet takes {in_force()}, and {number} cannot be set: {reason}")
    if not reason and number > most():
        raise ValueError(
            f"threads: at most {most()}, as many as MXNet was loaded with, one per core that this process may use; "
            f"received {number}. MXNET_OMP_MAX_THREADS={number}, set before Python starts, allows more, up to the "
            "number of processors"
        )


def most() -> int:
    """The largest number that this process can take: that of the import."""
    return (_loaded and _loaded.taken) or 1


@lru_cache(maxsize=None)
def obstacle() -> str:
    """The reason why the number cannot be changed while this process runs; empty if it can. MXNet must be imported."""
    if _loaded is None:
        return "MXNet was imported before mxkit. Import mxkit first"
    if _loaded.setting not in ("", _MOST):
        return f"{_loaded.setting} decides. Unset it before Python starts, or set it to this number"
    if os.environ.get("DMLC_ROLE"):
        return "a distributed job exchanges gradients in other threads. Set OMP_NUM_THREADS before Python starts"
    library = sys.modules["mxnet.base"]._LIB
    if import_module("mxnet.runtime").Features().is_enabled("CUDA"):
        return "this wheel computes on GPUs, and mxkit restarts the engine's workers on the CPU only"
    for name in ("MXEnginePushSync", "MXSetNumOMPThreads", "omp_get_max_threads", *_RESTART):
        if not hasattr(library, name):
            return f"MXNet's library lacks {name}. mxkit knows this interface of MXNet 1.9.1"
    answers = [answer for number in (1, most()) for answer in _on_workers(number, [0])]
    if answers != [1, most()]:
        return f"OpenMP answers {answers} where 1 and {most()} were set. MXNet uses another OpenMP than libgomp"
    return ""


def may_choose() -> bool:
    """Whether a call may choose the number.

    It may not if the user or an outer call has chosen, MXNet was loaded with one thread, the number cannot be changed,
    or the program has another thread, which may use MXNet.
    """
    decided = _choosing or _by_user or most() == 1 or (_loaded is not None and _loaded.setting)
    return not decided and not _other_threads() and not obstacle()


def _other_threads() -> List[str]:
    """Names of the program's other threads, which may use MXNet."""
    others = (one for one in threading.enumerate() if one is not threading.current_thread())
    return [one.name for one in others if _home(one).partition(".")[0] not in _WITHOUT_MXNET]


def _home(thread: threading.Thread) -> str:
    """The module of a thread's class, or of its function; mxkit's threads are known by their names."""
    kind = "mxkit" if thread.name.startswith("mxkit-") else type(thread).__module__
    return kind if kind != "threading" else str(getattr(getattr(thread, "_target", None), "__module__", ""))


@contextmanager
def choosing() -> Iterator[Optional[Callable[[Optional[int], Iterable[int]], None]]]:
    """Let a call choose the number until the end of `with`.

    Yields:
        A function of a number and of the virtual devices' numbers, which sets it; None unless `may_choose`.
    """
    global _choosing
    if not may_choose():
        yield None
        return
    _choosing = True
    finished = False
    try:
        yield _set
        finished = True
    finally:
        _choosing = False
        if not _by_user:  # code inside may have called `threads`
            _restore(None, check=finished)


def _restore(number: Optional[int], check: bool) -> None:
    if _other_threads() and number != _present:
        warnings.warn(_kept(), TrapWarning, stacklevel=4)
    else:
        _set(number, (), check=check)


def _kept() -> str:
    names = ", ".join(_other_threads()[-5:])  # the last that started
    return (
        f"threads: MXNet keeps {in_force()}, because other threads of the program run, which may use it: {names}. Set "
        "the number before they start; end them, or a loader's iterator, before the earlier one is restored (T187)"
    )


def reach(devices: Iterable[int]) -> None:
    """Give the number in force to the workers of these virtual devices, which may have another one."""
    if _present is not None:
        _set(_present, devices)


def _set(number: Optional[int], devices: Iterable[int], check: bool = True) -> None:
    """Let operators use a number of threads.

    Args:
        number: The number; None is that of the import, which workers of new devices have.
        devices: Virtual devices whose workers may not have the present number yet.
        check: Raise the errors of queued operators. False after another error, which must not be hidden.
    """
    global _present
    number = None if number == most() else number
    new = set(devices) - _reached
    if number == _present and (number is None or not new):
        return
    base: Any = sys.modules["mxnet.base"]
    result = base._LIB.MXNDArrayWaitAll()
    for name in _RESTART:
        getattr(base._LIB, name)()
    _reached.update(new)
    _on_workers(most() if number is None else number, _reached)
    _present = number
    _restore_after_forks()
    if check:
        base.check_call(result)


class _Cpu(ctypes.Structure):
    """`cpu(0)` in the memory layout of MXNet's C++ code."""

    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]  # noqa: RUF012 - ctypes wants a list


_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_answers: "SimpleQueue[int]" = SimpleQueue()


@lru_cache(maxsize=None)  # a task that ends must not be freed while the worker leaves it
def _task(number: int) -> Any:
    library = sys.modules["mxnet.base"]._LIB

    def run(*_: Any) -> None:
        library.MXSetNumOMPThreads(number)
        _answers.put(library.omp_get_max_threads())

    return _Task(run)


def _on_workers(number: int, devices: Iterable[int]) -> List[int]:
    """Set OpenMP's number in the engine's worker of each virtual device; return the numbers that OpenMP then has there.

    It waits for each worker: a fork waits for the engine and may hold Python's lock, which a task needs.
    """
    base: Any = sys.modules["mxnet.base"]
    answers = []
    for device in devices:
        where = ctypes.byref(_Cpu(1, device))
        base.check_call(base._LIB.MXEnginePushSync(_task(number), None, None, where, None, 0, None, 0, None, 0, None))
        answers.append(_answers.get())
    return answers


@lru_cache(maxsize=None)
def _restore_after_forks() -> Any:
    """Restore the number after forks: MXNet then starts new workers with the number of the import (T186)."""

    def restore() -> None:
        if _present is not None:
            _on_workers(_present, _reached)

    os.register_at_fork(after_in_parent=restore)
    if sys.version_info < (3, 10):  # its `subprocess` forks without Python's handlers; later ones call vfork
        handler = ctypes.CFUNCTYPE(None)(restore)
        ctypes.CDLL(None)["__register_atfork"](None, handler, None, None)
        return handler  # kept by the cache
    return None


def take_one_thread() -> None:
    """Let operators of this process on `cpu(0)` use one thread, because it is one of several workers.

    Call it in a worker that imported MXNet itself and has run no operator. Forked workers use one thread anyway, and
    MXNet's operators can hang in them. A user's setting wins here too.
    """
    if _loaded is not None and not _loaded.setting:
        _on_workers(1, [0])
