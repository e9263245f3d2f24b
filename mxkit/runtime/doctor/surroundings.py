"""Lines about Python and NumPy, environment variables, cache folders, and known limits."""

from contextlib import suppress
from importlib.util import find_spec
import os
from pathlib import Path
import platform
import re
import shutil
import sys
import sysconfig
from typing import Any, Dict, Mapping, Tuple

from mxkit.runtime.doctor.findings import Line, judged
from mxkit.runtime.doctor.probes import refused_variables
from mxkit.runtime.enabling import enabling_file, enabling_text
from mxkit.runtime.wheels import CONTAINER

# The oldest and the newest Python of `.ci/matrix`.
_PYTHONS = ((3, 8), (3, 13))

# Environment variables that MXNet and its libraries read.
_PREFIXES = ("MXNET_", "MXKIT_", "OMP_", "KMP_", "GOMP_", "DNNL_", "MKLDNN_", "DMLC_", "PS_", "NVIDIA_", "CUDA_")
_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONNOUSERSITE", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_MANY = 100_000
# Downloads of mxkit, MXNet and gluoncv that were stopped; `mxkit cache clean` knows those that still run.
_LEFTOVER = re.compile(r"(^\..+\.(part|moving)$)|([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$)")

# Found by running 75 features of MXNet and 25 of gluoncv on Python 3.8 to 3.13 with NumPy 1.23 to 2.x.
_LIMITS = (
    ("float16 on the CPU", 'matrix products: "FP16 gemm on cpu not implemented"; use amp="bfloat16"'),
    ("GPUs from sm_90 on", f"the wheels end at sm_86 and hold no PTX; use {CONTAINER}, or build from source"),
    ("ONNX", "mx.onnx.export_model fails or writes a wrong opset with today's onnx; use mxkit.export"),
    ("gluoncv.auto", "does not import with today's autocfg; build nets by name: mxkit.models"),
    ("dropout in RNN layers", "does nothing on the CPU; put nn.Dropout between them"),
    ("kvstore 'p3'", "silently does not distribute; use dist_sync"),
    ("tools/launch.py", "of the wheel ends with an error from Python 3.9 on"),
    ("pip check", "with NumPy 2 or graphviz from 0.9 on it says that mxnet asks for older ones; they work"),
    ("mxboard", "needs protobuf 3; use mxkit.callbacks.TensorBoardLog"),
)


def interpreter_lines(numpy: Mapping[str, Any]) -> Tuple[Line, ...]:
    """Lines about Python, its environment, the platform, and NumPy, from the answer of its probe."""
    is_tested = _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]
    python = "mxkit is tested on Python 3.8 to 3.13: make an environment with one of them"
    linux = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    kind = "virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    uv = f"uv: `uv pip install --python {sys.executable}`" if shutil.which("uv") else "no pip"
    said = f"{numpy['error']}: {numpy['text'].partition(chr(10))[0]}" if numpy["error"] else numpy["version"]
    reinstall = "python -m pip install --force-reinstall numpy"
    return (
        judged("version", platform.python_version(), is_tested, python),
        Line("executable", sys.executable or "unknown"),
        _enabled(),
        Line("packages", f"{sysconfig.get_path('purelib')} ({kind}, {'pip' if find_spec('pip') else uv})"),
        judged("platform", platform.platform(), linux, "mxkit is tested on Linux with x86-64 processors only"),
        judged("numpy", said, not numpy["error"], reinstall, status="problem"),
    )


def _enabled() -> Line:
    path = enabling_file()
    if not path.is_file():
        return Line(
            "enabled", "no: programs need `import mxkit`, or mxkit run; mxkit enable spares them", data={"on": False}
        )
    is_current = path.read_text(encoding="utf-8", errors="replace") == enabling_text()
    said = f"{path}: programs need no `import mxkit`" if is_current else f"{path} is damaged, or of another mxkit"
    return judged("enabled", said, is_current, "mxkit enable", {"on": True})


def variable_lines(noise: str, openmp: Tuple[str, ...]) -> Tuple[Line, ...]:
    """Lines about the variables that are set, judged by the output of MXNet's probe.

    Args:
        noise: The output of MXNet's probe.
        openmp: The OpenMP libraries that it loaded.
    """
    refused = refused_variables(noise)
    names = (name for name in sorted(os.environ) if name.startswith(_PREFIXES) or name in _NAMES)
    lines = tuple(_variable(name, os.environ[name], refused.get(name, "ok"), openmp) for name in names)
    return lines or (Line("variables", "none that MXNet reads"),)


def _variable(name: str, value: str, status: str, openmp: Tuple[str, ...]) -> Line:
    if status == "problem":
        return Line(name, value, status, f"MXNet ends the process at it: unset {name}, or give it one whole number")
    if status == "warning":
        return Line(name, value, status, f"OpenMP cannot read it and ignores it: unset {name}, or mend its value")
    if name == "DMLC_ROLE" and value in ("server", "scheduler"):
        return Line(name, value, "warning", "`import mxnet` serves and never returns: unset DMLC_ROLE")
    if name.startswith("KMP_") and openmp and all("libgomp" in path for path in openmp):
        return Line(name, f"{value} (not read: MXNet's OpenMP here is GNU's)")
    return Line(name, value)


def cache_lines() -> Tuple[Line, ...]:
    """Lines about each cache folder: its size, and files that stopped downloads left."""
    # MXNet reads MXNET_HOME once, at import; gluoncv 0.10.5 at each call, and for its nets only (T57).
    default = Path.home() / ".mxnet"
    home = Path(os.environ.get("MXNET_HOME") or default).expanduser()
    folders = {"mxnet models": home / "models", "mxnet datasets": home / "datasets"}
    if home != default:
        folders["gluoncv datasets"] = default / "datasets"
    lines = [_cache(name, folder) for name, folder in folders.items()]
    return (*lines, _free(home))


def _cache(name: str, folder: Path) -> Line:
    if not folder.is_dir():
        return Line(name, f"{folder} (not there yet)")
    count = size = stale = 0
    for path in (Path(parent, name) for parent, _, names in os.walk(folder) for name in names):
        with suppress(OSError):  # deleted meanwhile
            size += 0 if path.is_symlink() else path.stat().st_size
        count += 1
        stale += bool(_LEFTOVER.search(path.name))
        if count == _MANY:
            return Line(name, f"{folder} (more than {_MANY:,} files)")
    said = f"{folder} ({count:,} files, {size / 1e6:,.1f} MB)"
    data: Dict[str, object] = {"folder": str(folder), "files": count, "bytes": size, "leftovers": stale}
    left = f", {stale} left by stopped downloads" if stale else ""
    return judged(name, said + left, not stale, "mxkit cache clean", data)


def _free(home: Path) -> Line:
    existing = next(folder for folder in (home, *home.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(str(existing)).free
    fix = "export MXNET_HOME=DIR    puts new downloads on another disk"
    return judged("free disk", f"{free / 1e9:,.1f} GB for {home}", free >= 1e9, fix, {"free": free})


def limit_lines() -> Tuple[Line, ...]:
    """Lines about known limits; a limit is not a fault of this machine, so none is a warning."""
    return tuple(Line(name, text) for name, text in _LIMITS)
