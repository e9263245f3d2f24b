"""AMX, the registers of some processors for bfloat16 and int8.

oneDNN 2.4 uses them only with `DNNL_MAX_CPU_ISA=AVX512_CORE_AMX` in the environment, and does not request them from
Linux: the process then ends with an illegal instruction (T222). mxkit requests them. It does not set the variable,
because child processes would inherit it.
"""

import ctypes
from pathlib import Path
from typing import Callable, MutableMapping
import warnings

from mxkit.errors import TrapWarning
from mxkit.runtime.machine import ROOT, processor_flags

VARIABLE, WITH_TILES, WITHOUT = "DNNL_MAX_CPU_ISA", "AVX512_CORE_AMX", "AVX512_CORE_BF16"
# x86-64: the system call arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA; docs.kernel.org/arch/x86/xstate.html
_REQUEST = (158, 0x1023, 18)


def has_tiles(root: Path = ROOT) -> bool:
    """Whether the processor has AMX for int8 and bfloat16."""
    return processor_flags(root).issuperset(["amx_int8", "amx_bf16", "amx_tile"])


def ask_linux() -> bool:
    """Request the registers from Linux, for this process and its threads; False before Linux 5.16."""
    return bool(ctypes.CDLL(None).syscall(*_REQUEST) == 0)


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
    if environment.get(VARIABLE, "").upper() in (WITH_TILES, "ALL") and has_tiles(root) and not ask():
        warnings.warn(f"{VARIABLE}={WITH_TILES}: Linux refuses AMX, which needs Linux 5.16", TrapWarning, stacklevel=2)
        environment[VARIABLE] = WITHOUT
