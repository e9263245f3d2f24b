"""How many threads MXNet's operators take on the CPU, chosen just before its library is loaded (T96).

MXNet reads its variables once, while the library is loaded (src/engine/openmp.cc). `MXNET_OMP_MAX_THREADS` stands in
the environment for that moment only: no other library reads it, forked workers still take one thread each, and it
holds where OpenMP was loaded before. `OMP_NUM_THREADS` has none of this, and a child process would take it for the
user's own.
"""

from contextlib import contextmanager
import ctypes
from importlib import import_module
import os
import platform
import re
import sys
import threading
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional

from mxkit.runtime.machine import Processors, read_processors

_OPENMP = "OMP_NUM_THREADS"
_MOST = "MXNET_OMP_MAX_THREADS"
#: What a user says about MXNet's threads, the strongest first, with the value that says nothing; mxkit then leaves
#: them alone. Other engines compute in threads that `_MOST` does not reach.
_SETTINGS = {
    _OPENMP: "",
    _MOST: "",
    "MXNET_CPU_WORKER_NTHREADS": "1",
    "MXNET_ENGINE_TYPE": "ThreadedEnginePerDevice",
}
# Threads without work wait spinning, for milliseconds. Where other programs want the cores too that costs more
# than a second thread brings, so they wait for as long as most operators are apart. On two cores ResNet-18 at 32 px
# then takes 0.72 of the time of one thread (0.66 with libgomp's own, 300,000), LeNet 0.84 (0.82); beside two processes
# of a test suite LeNet takes 1.4 of it (with 30,000 3 to 5, with 0 1.0, but then 1.6 where nothing else computes).
_SPINS = {"GOMP_SPINCOUNT": "3000"}
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_THIS_HOST = ("localhost", "127.0.0.1", "::1")


class Choice(NamedTuple):
    """The threads of MXNet's operators, and who chose them.

    Attributes:
        taken: How many an operator takes; None where a variable's value is no number, at which MXNet ends the process.
        alone: How many it would take without mxkit.
        setting: The user's variable for which mxkit does not choose; empty where there is none. Where `taken` is None,
            the one that is no number.
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
    """One thread a physical core, within the quota, shared with the workers of a distributed job on this host.

    Args:
        processors: What this process may use.
        environment: Variables; a setting of the user's own wins.

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
    """What MXNet 1.9.1 takes by itself: half of the processors on x86, as it presumes two a core."""
    named = {name: int(environment[name]) for name in (_OPENMP, _MOST) if environment.get(name)}
    if _OPENMP in named:
        return named[_OPENMP] if named[_OPENMP] > 0 else processors.usable  # OpenMP ignores what is not above 0
    intel = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
    most = named.get(_MOST, processors.usable // 2 if intel else processors.usable)
    return max(1, min(most, processors.usable)) if most else processors.usable  # 0 is no bound


def local_workers(environment: Mapping[str, str]) -> Optional[int]:
    """How many workers of this process's distributed job compute on this host; None where it cannot be known.

    MXNet's launchers tell each process how many workers there are, and only the local one that all are here.

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
    """Have the library of MXNet that is loaded inside take the threads that `choose` finds.

    Side effects:
        Where MXNet alone would take another number, sets `MXNET_OMP_MAX_THREADS` inside, and `GOMP_SPINCOUNT` where
        nothing says how threads wait; none when it ends.
    """
    global _loaded
    choice = choose(read_processors(), os.environ)
    variables: Dict[str, str] = {}
    if choice.by_mxkit:
        waits = any(os.environ.get(name) for name in _WAITING)
        variables = {_MOST: str(choice.taken), **({} if waits else _SPINS)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:  # set, and empty
                os.environ[name] = value
    _loaded = choice


def in_force() -> Optional[int]:
    """Threads that an operator of the MXNet of this process takes on the CPU; sums depend on their number (T67).

    Returns:
        Their number, whatever the environment says since. Where MXNet was imported before mxkit, what it takes alone
        with today's variables; None where those are no numbers.
    """
    if _loaded is None:
        return choose(read_processors(), os.environ).alone
    if _loaded.setting == _OPENMP:  # not read by an OpenMP that another library had loaded before it was set
        return _of_a_new_thread()
    return _loaded.taken


def _of_a_new_thread() -> int:
    found: List[int] = []
    library = sys.modules["mxnet.base"]._LIB
    thread = threading.Thread(target=lambda: found.append(library.omp_get_max_threads()))
    thread.start()
    thread.join()
    return found[0]


class _Cpu(ctypes.Structure):
    """`cpu(0)` as the C++ code of MXNet 1.9.1 keeps it."""

    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]  # noqa: RUF012 - ctypes wants a list


_Task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def take_one_thread() -> None:
    """Have operators of this process on `cpu(0)` take one thread: it is one of several workers.

    For a worker that imported MXNet itself. Forked ones take one thread anyway, and MXNet's operators can hang in
    them. The user's own setting wins here too.

    Side effects:
        Waits for all work of MXNet.
    """
    if _loaded is None or _loaded.setting:
        return
    base: Any = import_module("mxnet.base")
    task = _Task(lambda *_: base._LIB.MXSetNumOMPThreads(1))  # in the engine's thread: OpenMP keeps one number for each
    where = ctypes.byref(_Cpu(1, 0))
    base.check_call(base._LIB.MXEnginePushSync(task, None, None, where, None, 0, None, 0, None, 0, None))
    base.check_call(base._LIB.MXNDArrayWaitAll())
