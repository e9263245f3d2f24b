"""Chooses how many threads MXNet's operators take on the CPU, just before its library is loaded (T96).

MXNet reads its variables once, while the library is loaded (src/engine/openmp.cc). `MXNET_OMP_MAX_THREADS` is set
only meanwhile: no other library reads it, forked workers still take one thread each, and it works even if OpenMP was
loaded before. `OMP_NUM_THREADS` has none of these properties, and child processes would take it for the user's own.
"""

from contextlib import contextmanager
import ctypes
from importlib import import_module
import os
import platform
import re
import sys
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional

from mxkit.runtime.machine import Processors, read_processors

_OPENMP = "OMP_NUM_THREADS"
_MOST = "MXNET_OMP_MAX_THREADS"
# Variables by which a user sets MXNet's threads, the strongest first, with the value that means the default. mxkit
# chooses only if none is set. Other engines compute in threads that `_MOST` does not reach.
_SETTINGS = {
    _OPENMP: "",
    _MOST: "",
    "MXNET_CPU_WORKER_NTHREADS": "1",
    "MXNET_ENGINE_TYPE": "ThreadedEnginePerDevice",
}
# Idle threads spin for milliseconds before they sleep. If other programs need the cores too, that costs more than a
# second thread gains, so they spin only as long as the usual gap between operators. Relative to one thread, on two
# cores, ResNet-18 at 32 px takes 0.72 of the time (0.66 with libgomp's default, 300,000) and LeNet 0.84 (0.82); beside
# two processes of a test suite LeNet takes 1.4 (3 to 5 with 30,000; 1.0 with 0, which takes 1.6 on an idle machine).
_SPINS = {"GOMP_SPINCOUNT": "3000"}
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


class Choice(NamedTuple):
    """The threads of MXNet's operators, and who chose them.

    Attributes:
        taken: How many an operator takes; None if a variable is not a number, at which MXNet ends the process.
        alone: How many it would take without mxkit.
        setting: The user's variable that decides instead of mxkit, or the one that is not a number; else empty.
    """

    taken: Optional[int]
    alone: Optional[int]
    setting: str = ""

    @property
    def by_mxkit(self) -> bool:
        """Whether mxkit changes what MXNet would take."""
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
    wrong = next((name for name in (_OPENMP, _MOST) if not _is_number(environment.get(name) or "0")), "")
    if wrong:
        return Choice(None, None, wrong)
    alone = _alone(processors, environment)
    setting = next((name for name, usual in _SETTINGS.items() if environment.get(name, "") not in ("", usual)), "")
    if setting:
        return Choice(alone, alone, setting)
    return Choice(max(1, processors.threads // (local_workers(environment) or 1)), alone)


def _is_number(value: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d+\s*", value) is not None


def _alone(processors: Processors, environment: Mapping[str, str]) -> int:
    """The number that MXNet 1.9.1 takes: half of the processors on x86, since it assumes two per core."""
    named = {name: int(environment[name]) for name in (_OPENMP, _MOST) if environment.get(name)}
    if _OPENMP in named:
        return named[_OPENMP] if named[_OPENMP] > 0 else processors.usable  # OpenMP ignores others
    intel = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
    most = named.get(_MOST, processors.usable // 2 if intel else processors.usable)
    return max(1, min(most, processors.usable)) if most else processors.usable  # 0 means no limit


def local_workers(environment: Mapping[str, str]) -> Optional[int]:
    """How many workers of this process's distributed job compute on this host; None if that is not known.

    MXNet's launchers tell each process the number of workers. Only the local launcher says that all are on this host.

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


def in_force() -> Optional[int]:
    """Threads that an operator of this process's MXNet takes on the CPU; sums depend on their number (T67).

    Returns:
        Their number, even if the environment has changed since. If MXNet was imported before mxkit, the number that
        it takes alone with the present variables; None if those are not numbers.
    """
    if _loaded is None:
        return choose(read_processors(), os.environ).alone
    if _loaded.setting == _OPENMP:  # OpenMP ignores it if another library had loaded OpenMP before it was set
        return _of_a_new_thread()
    return _loaded.taken


def _of_a_new_thread() -> int:
    from concurrent.futures import ThreadPoolExecutor  # its import would slow down `import mxkit`

    with ThreadPoolExecutor(1) as pool:
        return int(pool.submit(sys.modules["mxnet.base"]._LIB.omp_get_max_threads).result())


class _Cpu(ctypes.Structure):
    """`cpu(0)` in the memory layout of MXNet's C++ code."""

    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]  # noqa: RUF012 - ctypes wants a list


_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def take_one_thread() -> None:
    """Make operators of this process on `cpu(0)` take one thread, because it is one of several workers.

    Call it in a worker that imported MXNet itself. Forked workers take one thread anyway, and MXNet's operators can
    hang in them. A user's setting wins here too.

    Side effects:
        Waits for all work of MXNet.
    """
    if _loaded is None or _loaded.setting:
        return
    base: Any = import_module("mxnet.base")
    task = _Task(lambda *_: base._LIB.MXSetNumOMPThreads(1))  # in the engine's thread: OpenMP has one number per thread
    where = ctypes.byref(_Cpu(1, 0))
    base.check_call(base._LIB.MXEnginePushSync(task, None, None, where, None, 0, None, 0, None, 0, None))
    base.check_call(base._LIB.MXNDArrayWaitAll())
