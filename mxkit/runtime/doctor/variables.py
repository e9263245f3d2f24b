"""Environment variables that MXNet and its libraries read."""

import os
from typing import Tuple

from mxkit.runtime.doctor.findings import Line
from mxkit.runtime.doctor.probes import refused_variables

_PREFIXES = ("MXNET_", "MXKIT_", "OMP_", "KMP_", "GOMP_", "DNNL_", "MKLDNN_", "DMLC_", "PS_", "NVIDIA_", "CUDA_")
_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONNOUSERSITE", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def variable_lines(noise: str, openmp: Tuple[str, ...]) -> Tuple[Line, ...]:
    """Lines about the variables that are set, judged by what MXNet's probe wrote when it met them.

    Args:
        noise: Of MXNet's probe.
        openmp: The OpenMP libraries that it loaded.
    """
    refused = refused_variables(noise)
    names = (name for name in sorted(os.environ) if name.startswith(_PREFIXES) or name in _NAMES)
    found = tuple(_line(name, os.environ[name], refused.get(name, "ok"), openmp) for name in names)
    return found or (Line("variables", "none that MXNet reads"),)


def _line(name: str, value: str, status: str, openmp: Tuple[str, ...]) -> Line:
    if status == "problem":
        return Line(name, value, status, f"MXNet ends the process at it: unset {name}, or give it one whole number")
    if status == "warning":
        return Line(name, value, status, f"OpenMP cannot read it and ignores it: unset {name}, or mend its value")
    if name == "DMLC_ROLE" and value in ("server", "scheduler"):
        return Line(name, value, "warning", "`import mxnet` serves and never returns: unset DMLC_ROLE (T72)")
    if name.startswith("KMP_") and openmp and all("libgomp" in path for path in openmp):
        return Line(name, f"{value} (not read: MXNet's OpenMP here is GNU's)")
    return Line(name, value)
