"""What MXNet and its libraries read once, while MXNet is loaded: threads, switches of exactness, AMX, kernels.

MXNet reads its variables while the library is loaded (src/engine/openmp.cc; T96, T187). `MXNET_OMP_MAX_THREADS` is set
only during that time: no other library reads it, forked workers still use one thread each, and it works even if OpenMP
was loaded before. `OMP_NUM_THREADS` has none of these properties, and child processes would mistake it for a setting
of the user.

`MXKIT_EXACT=1` in the environment sets switches that make a GPU compute the same bits each time (T132). They stay set,
so that child processes compute the same bits and a run's record holds them.

oneDNN 2.4 uses AMX, the registers of some processors for bfloat16 and int8, only with `DNNL_MAX_CPU_ISA` set, and does
not request them from Linux: the process then ends with an illegal instruction (T222). mxkit requests them. It does not
set the variable, because child processes would inherit it.
"""

import _ctypes
from contextlib import contextmanager
import ctypes
from functools import lru_cache
import operator
import os
from pathlib import Path
import platform
import re
import sys
from typing import Callable, Dict, Iterator, Mapping, MutableMapping, NamedTuple, Optional
import warnings

from mxkit.errors import MXNetImportError, TrapWarning
from mxkit.runtime.machine import ROOT, Processors, processor_flags, read_processors

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
# second thread gains, so they spin only for the usual gap between operators, also where the user sets the number of
# threads. Relative to one thread, on two cores, ResNet-18 at 32 px takes 0.72 of the time (0.66 with libgomp's default,
# 300,000) and LeNet 0.84 (0.82); beside two processes of a test suite LeNet takes 1.4 (3 to 5 with 30,000; 1.0 with 0,
# which takes 1.6 on an idle machine). Beside two busy processes, gluon's DataLoader with 4 workers takes 0.3 s with
# 3,000 and 3 with the default (docs/runtime.md).
_SPINS = {"GOMP_SPINCOUNT": "3000"}
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
# Operators on all devices of the CPU share this many temporary spaces, and those with the same space take turns (T292).
# An update of a transformer on two devices with one thread each: 80 ms with MXNet's 4, 64 with 8, 53 with 32, 51 with
# 64 or 512. One device gains nothing, and an LSTM takes up to 470 MB more, so they are not the default.
SPACES, SPACES_OF_SEVERAL = "MXNET_CPU_TEMP_COPY", "64"
# With them OpenMP may give an operator fewer threads than it asks for.
_LIMITS = ("OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS")
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


_wanted: Optional[int] = None  # of `threads`
_loaded: Optional[Choice] = None


def choose(processors: Processors, environment: Mapping[str, str], wanted: Optional[int] = None) -> Choice:
    """Choose one thread per physical core, within the quota, shared among the workers of a job on this host.

    Args:
        processors: The processors that this process may use.
        environment: Environment variables; a user's setting wins.
        wanted: The number of `threads`, if it was called.

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
    taken = wanted or max(1, processors.threads // (local_workers(environment) or 1))
    return Choice(min(taken, _granted(environment)), alone)


def limits(environment: Mapping[str, str]) -> str:
    """The variables with which OpenMP may give an operator fewer threads than it asks for; empty if none is set.

    >>> limits({"OMP_DYNAMIC": "true", "OMP_NUM_THREADS": "2"})
    'OMP_DYNAMIC=true'
    """
    return " and ".join(f"{name}={environment[name]}" for name in _LIMITS if environment.get(name))


def _granted(environment: Mapping[str, str]) -> int:
    """Threads that OpenMP surely gives to an operator: with fewer than it asked for, numbers are wrong (T300)."""
    limit, dynamic, levels = (environment.get(name, "").strip().lower() for name in _LIMITS)
    most = int(limit) if limit.isdigit() and int(limit) else sys.maxsize
    return 1 if dynamic in ("true", "1") or levels == "0" else most


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
        If MXNet alone would take another number, sets `MXNET_OMP_MAX_THREADS` inside; and `GOMP_SPINCOUNT`, unless a
        variable says how threads wait. Both are restored at the end.

    Raises:
        MXNetImportError: The user's variables ask for more threads than OpenMP surely gives (T300).
    """
    global _loaded
    choice = choose(read_processors(), os.environ, _wanted)
    if (choice.taken or 0) > _granted(os.environ):
        asked = f"{choice.setting}={os.environ[choice.setting]}"
        text = f"{asked} asks for {choice.taken} threads, of which {limits(os.environ)} may give fewer"
        raise MXNetImportError(f"{text}: MXNet would compute wrong numbers (T300). Unset one of them")
    spins = {} if any(map(os.environ.get, _WAITING)) else _SPINS
    with environment({**spins, **({_MOST: str(choice.taken)} if choice.taken != choice.alone else {})}):
        yield
    _loaded = choice


@contextmanager
def one_thread_in_children() -> Iterator[None]:
    """Let processes that `multiprocessing` starts inside load MXNet with one thread: the processes work in parallel.

    A user's setting wins. A forked process has one thread in any case.
    """
    with environment({} if choose(read_processors(), os.environ).setting else {_MOST: "1"}):
        yield


@contextmanager
def environment(variables: Mapping[str, Optional[str]]) -> Iterator[None]:
    """Set variables of the environment inside `with`; None removes one."""
    before = {name: os.environ.get(name) for name in variables}
    _set_variables(variables)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, Optional[str]]) -> None:
    for name in variables:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in variables.items() if value is not None})


def threads(number: Optional[int] = None, *, devices: int = 1) -> None:
    """Set how many threads an operator of MXNet takes on the CPU, before `import mxnet`.

    The number holds until the process ends: oneDNN's kernels have memory for the threads with which they were made, and
    write past it with more (T187). `mxkit profile` measures which number suits a training; `threads: N` in a recipe
    sets it for `mxkit train`. The last bits of sums depend on it (T67), so a resumed run needs the same number.

    With several devices on the CPU, `fit` computes a part of each batch on each device at the same time. Nets whose
    operators use one core, like `batch_dot` in a transformer, then use all. `devices: "cpu:N"` in a recipe does so.

    Args:
        number: At least 1. If it is more than the cores that this process may use, within the quota, their number is
            taken, as without a call. None divides the cores among the devices.
        devices: Devices of the CPU that shall compute at the same time, at least 1: `mx.cpu(0)`, `mx.cpu(1)` ...

    Raises:
        ValueError: It is no such number, or a variable like OMP_NUM_THREADS sets another one.
        RuntimeError: MXNet is loaded already, with another number; or for one device, with more than one `devices`.

    Side effects:
        With several `devices`, sets the environment variable MXNET_CPU_TEMP_COPY, unless it is set: MXNet otherwise
        lets the operators of all devices take turns (T292).

    >>> mxkit.threads(mxkit.runtime.engine_settings.in_force())  # MXNet is loaded here, so that no other can be set
    """
    global _wanted
    for name, given in (("threads", number), ("threads: devices", devices)):
        if given is not None and (isinstance(given, bool) or not hasattr(given, "__index__") or given < 1):
            raise ValueError(f"{name}: expected a whole number of at least 1; received {given!r:.100}")
    processors = read_processors()
    choice, loaded = choose(processors, os.environ), "mxnet.base" in sys.modules
    if number is None:
        number = (choice.taken or 1) if choice.setting else max(1, (choice.taken or 1) // devices)
    wanted = min(operator.index(number), processors.threads)
    if choice.setting and choice.taken not in (number, wanted):
        value = os.environ[choice.setting]
        raise ValueError(f"threads: {choice.setting}={value} decides. Unset it before Python starts, to set {number}")
    if not loaded:
        _wanted = wanted
    elif in_force() not in (number, wanted):
        raise RuntimeError(
            f"threads: MXNet is loaded and takes {in_force()}; {number} cannot be set any more. Call "
            f"mxkit.threads({number}) between `import mxkit` and the first `import mxnet`, or set "
            f"MXNET_OMP_MAX_THREADS={number} before Python starts"
        )
    if devices > 1 and not os.environ.get(SPACES):
        if loaded:
            text = f"MXNet is loaded, and its operators on {devices} devices of the CPU take turns"
            way = f"Call it before the first `import mxnet`, or set {SPACES}={SPACES_OF_SEVERAL} before Python starts"
            raise RuntimeError(f"threads: {text}. {way}")
        os.environ[SPACES] = SPACES_OF_SEVERAL


def devices_on_cpu(spec: object) -> int:
    """Number of devices of the CPU that a recipe's `devices` names; 1 if it names none.

    >>> devices_on_cpu("cpu:4"), devices_on_cpu("auto")
    (4, 1)
    """
    named = re.fullmatch(r"\s*cpu:(\d+)\s*", str(spec).lower())
    return max(1, int(named[1])) if named else 1


def threads_of_recipe(number: int) -> None:
    """As `threads`; where a variable or the import of MXNet set fewer, they stay, with a warning (T280).

    `mxkit launch` sets such a variable for workers that share a machine, and the run computes as it should otherwise.
    """
    taken, setting = in_force(), choose(read_processors(), os.environ).setting
    if taken is None or taken >= min(number, read_processors().threads):
        threads(number)
        return
    reason = f"{setting}={os.environ[setting]} decides" if setting else "it is loaded with that number"
    warnings.warn(f"threads: MXNet takes {taken}, not the {number} of the recipe: {reason}", TrapWarning, stacklevel=2)


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


EXACT = "MXKIT_EXACT"
#: Environment variables, each with the value that gives the same bits each time.
SWITCHES = {
    # cuDNN otherwise times its algorithms and selects the one that was fastest (src/operator/nn/convolution.cu)
    "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
    # only algorithms that add in one order (cudnn_convolution-inl.h, cudnn_pooling-inl.h)
    "MXNET_ENFORCE_DETERMINISM": "1",
    # cuDNN's recurrent layers otherwise multiply with a workspace of the moment (cuDNN's release notes from 7.6.5 on)
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    # cuBLAS and cuDNN otherwise multiply float32 with 10 bits of digits on sm_80 and newer (T131)
    "NVIDIA_TF32_OVERRIDE": "0",
}
_NUMBERS = {"true": "1", "false": "0"}

_switches_loaded: Optional[Dict[str, str]] = None


def set_switches(environment: MutableMapping[str, str]) -> None:
    """Set the switches if MXKIT_EXACT is 1; call it before MXNet's library is loaded.

    Raises:
        MXNetImportError: MXKIT_EXACT is neither 1 nor 0 nor empty.

    Warns:
        TrapWarning: A switch had another value.

    >>> environment = {"MXKIT_EXACT": "1"}
    >>> set_switches(environment); environment["NVIDIA_TF32_OVERRIDE"]
    '0'
    """
    global _switches_loaded
    word = environment.get(EXACT, "")
    if word not in ("", "0", "1"):
        raise MXNetImportError(f"{EXACT}: expected 1 or 0; received {word!r}", name="mxnet")
    if word == "1":
        for name, value in SWITCHES.items():
            if environment.get(name, value) != value:
                warnings.warn(f"{EXACT}=1 sets {name}={value}; it was {environment[name]}", TrapWarning, stacklevel=2)
            environment[name] = value
    _switches_loaded = {name: environment[name] for name in SWITCHES if name in environment}


def switches() -> Dict[str, str]:
    """The values of the switches when MXNet was loaded; "not set" for those that were not set."""
    values: Mapping[str, str] = os.environ if _switches_loaded is None else _switches_loaded
    return {name: values.get(name, "not set") for name in SWITCHES}


def switches_off() -> Dict[str, str]:
    """The switches whose value does not give the same bits each time, with the value that does."""
    current = {name: _NUMBERS.get(value.lower(), value) for name, value in switches().items()}
    return {name: value for name, value in SWITCHES.items() if current[name] != value}


def warn_if_late(environment: Mapping[str, str]) -> None:
    """Warn if MXKIT_EXACT=1 was set after MXNet was loaded.

    Warns:
        TrapWarning: It is 1, and a switch was not set.
    """
    if environment.get(EXACT) == "1" and switches_off():
        text = f"{EXACT}=1 does nothing: MXNet was loaded before it was set. Set it before the program starts"
        warnings.warn(text, TrapWarning, stacklevel=2)


MAX_ISA, WITH_TILES, WITHOUT = "DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX", "AVX512_CORE_BF16"
# x86-64: the system call arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA; docs.kernel.org/arch/x86/xstate.html
_REQUEST_AMX = (158, 0x1023, 18)


def has_tiles(root: Path = ROOT) -> bool:
    """Whether the processor has AMX for int8 and bfloat16."""
    return processor_flags(root).issuperset(["amx_int8", "amx_bf16", "amx_tile"])


def ask_linux() -> bool:
    """Request the registers from Linux, for this process and its threads; False before Linux 5.16."""
    return bool(ctypes.CDLL(None).syscall(*_REQUEST_AMX) == 0)


def prepare_tiles(
    environment: MutableMapping[str, str], root: Path = ROOT, ask: Callable[[], bool] = ask_linux
) -> None:
    """Request AMX if the environment asks for it, before MXNet's library is used.

    Args:
        environment: Environment variables.
        root: Root of the file system.
        ask: The function that requests AMX.

    Warns:
        TrapWarning: Linux refuses.

    Side effects:
        If Linux refuses, sets the variable to what the processor can do without AMX.
    """
    if environment.get(MAX_ISA, "").upper() in (WITH_TILES, "ALL") and has_tiles(root) and not ask():
        warnings.warn(f"{MAX_ISA}={WITH_TILES}: Linux refuses AMX, which needs Linux 5.16", TrapWarning, stacklevel=2)
        environment[MAX_ISA] = WITHOUT


CORE, OTHER = "OPENBLAS_CORETYPE", "MXKIT_OPENBLAS"
_OPENBLAS = "libopenblas.so.0"
# Its answer for a processor that it does not know, and its oldest kernels for AVX2; newer builds have some for AVX-512.
_UNKNOWN, _WITH_AVX2, _WITH_AVX512 = "Prescott", "Haswell", "SkylakeX"
_OF_OPENMP = 2  # of openblas_get_parallel
_AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
_other: Optional[Path] = None  # the user's OpenBLAS, once it is loaded


def kernels_of(library: Path) -> str:
    """The processor whose kernels an OpenBLAS chose, in its words; empty without an OpenBLAS.

    Args:
        library: MXNet's library, beside which its own OpenBLAS lies; or another OpenBLAS.

    Side effects:
        Loads OpenBLAS for the time of the question, if it is not loaded.
    """
    path = library if library.name.startswith("libopenblas") else library.parent / _OPENBLAS
    if not path.is_file():  # a build of MXNet with another library
        return ""
    # the import hook tells an OSError here as one of MXNet's own library, which needs this one
    blas = ctypes.CDLL(str(path), mode=os.RTLD_LAZY)
    blas.openblas_get_corename.restype = ctypes.c_char_p
    name = blas.openblas_get_corename().decode()
    _ctypes.dlclose(blas._handle)
    return str(name)


def load_openblas(library: Path, root: Path = ROOT) -> None:
    """Load the OpenBLAS for MXNet, with kernels for AVX2 where it does not know the processor (T288).

    Its own, or that of `MXKIT_OPENBLAS`, which MXNet's library takes for its own because it has the same name. The
    variable is not set while MXNet is loaded: MXNet imports NumPy, whose OpenBLAS would take these kernels too.

    Args:
        library: Path of MXNet's library.
        root: Root of the file system.

    Raises:
        MXNetImportError: `MXKIT_OPENBLAS` is no OpenBLAS of OpenMP that MXNet's library takes for its own.
    """
    global _other
    other, flags = os.environ.get(OTHER), processor_flags(root)
    path = Path(other) if other else library.parent / _OPENBLAS
    kernels = _WITH_AVX512 if other and flags >= _AVX512 else _WITH_AVX2
    try:
        lacking = not os.environ.get(CORE) and kernels_of(path) == _UNKNOWN and flags >= {"avx2", "fma"}
        if other or lacking:
            with environment({CORE: kernels} if lacking else {}):
                blas = ctypes.CDLL(other or str(path))
        if other:
            if blas.openblas_get_parallel() != _OF_OPENMP:
                raise OSError("its threads are not those of OpenMP, whose number MXNet sets")
            ctypes.CDLL(_OPENBLAS, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)  # MXNet's library finds it by this name
    except (OSError, AttributeError) as error:
        if not other:
            raise
        text = f"{OTHER}={other}: {error}. Expected the {_OPENBLAS} of an OpenBLAS with OpenMP"
        raise MXNetImportError(text, name="mxnet") from error
    _other = Path(other) if other else None


@lru_cache(maxsize=None)
def kernels() -> str:
    """`kernels_of` the OpenBLAS that this process's MXNet uses, and its release where it is the user's."""
    if _other is None:
        return kernels_of(Path(sys.modules["mxnet.libinfo"].find_lib_path()[0]))
    blas = ctypes.CDLL(str(_other))
    blas.openblas_get_config.restype = ctypes.c_char_p
    return f"{kernels_of(_other)} of {' '.join(blas.openblas_get_config().decode().split()[:2])}"
