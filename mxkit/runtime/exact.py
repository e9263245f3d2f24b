"""Switches that make a GPU compute the same bits each time, and facts that its bits depend on (T132).

`MXKIT_EXACT=1` in the environment, read just before MXNet's library is loaded, sets the switches below. They stay set,
so that child processes compute the same bits and a run's record holds them.
"""

import os
from pathlib import Path
import re
from typing import Dict, Mapping, MutableMapping, Optional, Sequence
import warnings

from mxkit.errors import MXNetImportError, TrapWarning
from mxkit.runtime.cuda_libraries import cudnn_version
from mxkit.runtime.driver import read_driver

WORD = "MXKIT_EXACT"
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
_MODULE = Path("/proc/driver/nvidia/version")

_loaded: Optional[Dict[str, str]] = None


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
    global _loaded
    word = environment.get(WORD, "")
    if word not in ("", "0", "1"):
        raise MXNetImportError(f"{WORD}: expected 1 or 0; received {word!r}", name="mxnet")
    if word == "1":
        for name, value in SWITCHES.items():
            if environment.get(name, value) != value:
                warnings.warn(f"{WORD}=1 sets {name}={value}; it was {environment[name]}", TrapWarning, stacklevel=2)
            environment[name] = value
    _loaded = {name: environment[name] for name in SWITCHES if name in environment}


def switches() -> Dict[str, str]:
    """The values of the switches when MXNet was loaded; "not set" for those that were not set."""
    values: Mapping[str, str] = os.environ if _loaded is None else _loaded
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
    if environment.get(WORD) == "1" and switches_off():
        text = f"{WORD}=1 does nothing: MXNet was loaded before it was set. Set it before the program starts"
        warnings.warn(text, TrapWarning, stacklevel=2)


def gpu_facts(numbers: Sequence[int]) -> Dict[str, str]:
    """The facts, as text, that a resumed run must share to compute the same bits.

    Args:
        numbers: Numbers of the GPUs that compute, as in `mx.gpu(0)`.
    """
    gpus = {gpu.index: gpu.name for gpu in read_driver().gpus}
    return {
        "GPUs": ", ".join(gpus.get(number, "unknown") for number in numbers),
        "NVIDIA driver": driver_release() or "unknown",
        "cuDNN": cudnn_version() or "unknown",
        **switches(),
    }


def driver_release() -> str:
    """Release of NVIDIA's driver, like "535.129.03"; empty if Linux does not report it."""
    text = _MODULE.read_text(encoding="utf-8", errors="replace") if _MODULE.is_file() else ""
    release = re.search(r"\s(\d+\.\d[\d.]*)\s", text)
    return release[1] if release else ""
