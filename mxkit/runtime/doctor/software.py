"""Lines about Python and NumPy, the installed MXNet, packages, environment variables, caches, and known limits."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
import os
from pathlib import Path
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import textwrap
from typing import AbstractSet, Any, Callable, List, Mapping, NamedTuple, Tuple

from mxkit.runtime.doctor.findings import Line, judged
from mxkit.runtime.doctor.probes import refused_variables
from mxkit.runtime.engine_settings import CORE
from mxkit.runtime.libraries import LIBRARIES, library_of, unmet_needs
from mxkit.runtime.machine import processor_flags
from mxkit.runtime.startup import enabled_libraries, enabling_file, enabling_text
from mxkit.runtime.wheels import RELEASE, Wheel, foreign_name, installed_wheels, package_spec, release, wheel_problem


def build_lines(mxnet: Mapping[str, Any], noise: str) -> Tuple[Line, ...]:
    """Lines about MXNet, from the answers and the output of its probe."""
    if mxnet["error"]:
        # The first operator can fail too (MXNET_ENGINE_TYPE).
        return (*_wheels(), _failure(mxnet, noise))
    version = mxnet["version"]
    fix = f"mxkit's repairs are written for MXNet {RELEASE}: `mxkit install`"
    numbers = ".".join(map(str, release(version)))
    said = version if version == numbers else f"{version}, a build of its own of {numbers}"
    return (
        *_wheels(),
        judged("version", said, numbers == RELEASE, fix),
        Line("library", mxnet["library"]),
        Line("features", "\n".join(textwrap.wrap(" ".join(mxnet["features"]), 80)), data={"on": mxnet["features"]}),
        *_onednn(mxnet["features"], noise),
        *([openblas_line(**mxnet["openblas"], flags=processor_flags())] if "openblas" in mxnet else []),
    )


def openblas_line(kernels: str, error: float, flags: AbstractSet[str]) -> Line:
    """The kernels of `dot`, `batch_dot` and `linalg`, judged by what the processor can do and by a product (T288).

    Args:
        kernels: The processor for which OpenBLAS chose them.
        error: Relative difference of a product from one in double precision.
        flags: What this processor can do.

    >>> openblas_line("Prescott", 1e-7, {"avx2"}).status
    'warning'
    """
    data = {"kernels": kernels, "error": error}
    said = f"kernels for {kernels}; a product differs from one in double precision by {error:.0e}"
    if not error < 1e-5:
        return Line("OpenBLAS", said, "problem", f"{CORE}=Nehalem takes other kernels", data)
    slow = kernels in ("Prescott", "Nehalem") and "avx2" in flags
    fix = f"they are for old processors, a third as fast: unset {CORE}, or import mxkit before MXNet"
    return judged("OpenBLAS", said, not slow, fix, data)


def _wheels() -> Tuple[Line, ...]:
    spec = package_spec()
    package = Path(spec.origin).resolve().parent if spec and spec.origin else None
    wheels = installed_wheels()
    if package is None:
        return tuple(map(_wheel, wheels)) or (Line("distribution", "none"),)
    used = [wheel for wheel in wheels if wheel.folder == package.parent]
    if used:
        return tuple(map(_wheel, used))
    hidden = "".join(f"; it hides {wheel} in {wheel.folder}" for wheel in wheels)
    return (Line("distribution", f"none for {package}: built from source, or by another vendor{hidden}"),)


def _wheel(wheel: Wheel) -> Line:
    foreign = foreign_name(wheel.name)
    data = {"name": wheel.name, "version": wheel.version}
    return judged("distribution", f"{wheel} in {wheel.folder}", not foreign, foreign or "", data)


def _failure(mxnet: Mapping[str, Any], noise: str) -> Line:
    error, text = mxnet["error"], mxnet["text"]
    first, *rest = text.splitlines()
    if error == "MXNetImportError":
        return Line("import", first, "problem", "\n".join(rest) or "mxkit install")
    refused = [name for name, status in refused_variables(noise).items() if status == "problem"]
    if refused:
        fix = f"MXNet ends the process at a value that it cannot read: unset {' '.join(refused)}"
    elif re.search(r"Cannot find Engine|thread_pool\.h", text):
        first = next((line for line in rest if line.startswith("MXNetError")), first)
        fix = "unset MXNET_ENGINE_TYPE MXNET_CPU_WORKER_NTHREADS, or give them values that MXNet knows: NaiveEngine; 4"
    else:
        fix = wheel_problem() or f"python -m pip install --force-reinstall --no-deps mxnet=={RELEASE}"
    return Line("import", first if first.startswith(error) else f"{error}: {first}", "problem", fix)


def _onednn(features: List[str], noise: str) -> Tuple[Line, ...]:
    if "MKLDNN" not in features:
        return (Line("oneDNN", "not built in: convolutions on the CPU are slow"),)
    version = re.search(r"^dnnl_verbose,info,oneDNN v(\S+)", noise, re.M)
    isa = re.search(r"^dnnl_verbose,info,cpu,isa:(.+)$", noise, re.M)
    if not (version and isa):
        return (Line("oneDNN", "built in, but not used here (MXNET_MKLDNN_ENABLED=0 turns it off)"),)
    data = {"version": version[1], "isa": isa[1]}
    is_fast = "AVX2" in isa[1] or "AVX-512" in isa[1]
    fix = "without AVX2 it is several times slower; DNNL_MAX_CPU_ISA limits it, a virtual machine may hide it"
    return (judged("oneDNN", f"{version[1]}, {isa[1]}", is_fast, fix, data),)


class Package(NamedTuple):
    """A module, its use, its requirement for pip, and the status of the line if it is missing."""

    module: str
    use: str
    distribution: str
    status: str


# If a "problem" is missing, mxkit's command or MXNet does not start; if a "warning" is, a part of mxkit does not work.
_PACKAGES = (
    Package("lazy_loader", "mxkit itself", "lazy_loader", "problem"),
    Package("tqdm", "progress", "tqdm", "problem"),
    Package("rich", "tables in the terminal", "rich", "problem"),
    Package("requests", "MXNet itself", "requests", "problem"),
    Package("typer", "mxkit's command", "typer", "problem"),
    Package("pydantic", "recipes", "pydantic", "problem"),
    Package("yaml", "recipes", "pyyaml", "problem"),
    Package("jinja2", "reports", "jinja2", "warning"),
    Package("gluoncv", "models, data and metrics of computer vision", "gluoncv==0.10.5.post0", "warning"),
    Package("cv2", "image files and augmenters", "opencv-python", "warning"),
    Package("matplotlib", "plots", "matplotlib", "warning"),
    Package("PIL", "images", "pillow", "warning"),
    Package("graphviz", "plots of graphs", "graphviz", "ok"),
    Package("scipy", "what GluonCV imports of it", "scipy", "ok"),
    Package("pandas", "tables of layers, parameters and epochs", "pandas", "warning"),
    Package("onnx", "export to ONNX", "onnx", "ok"),
    Package("onnxruntime", "checking an exported ONNX file", "onnxruntime", "ok"),
    Package("safetensors", "export to safetensors", "safetensors", "ok"),
    Package("ml_dtypes", "bfloat16 outside of nets", "ml_dtypes", "ok"),
    Package("tensorboardX", "logging to TensorBoard", "tensorboardX", "ok"),
)


# gluoncv imports MXNet, so MXNet's process imports it.
WITH_MXNET = ("gluoncv",)


def modules() -> List[str]:
    """Installed packages for a probe to import, besides NumPy and those of MXNet's probe."""
    return [
        package.module for package in _PACKAGES if package.module not in WITH_MXNET and _is_installed(package.module)
    ]


def package_lines(answers: Mapping[str, Mapping[str, Any]]) -> Tuple[Line, ...]:
    """Lines about each package, from the answers of its probe."""
    return tuple(_line(package, answers) for package in _PACKAGES)


def _line(package: Package, answers: Mapping[str, Mapping[str, Any]]) -> Line:
    name, install = package.module, f"python -m pip install {package.distribution}"
    if not _is_installed(name):
        optional = Line(name, f"not installed ({package.use}): {install}")
        return optional if package.status == "ok" else Line(name, f"missing: {package.use}", package.status, install)
    answer = answers.get(name, {})
    distribution = package.distribution.split("=")[0]
    candidates = (distribution, distribution + "-headless")  # OpenCV's
    version = next(filter(None, map(version_of, candidates)), answer.get("version") or "there, of unknown version")
    if name in WITH_MXNET and answers["mxnet"]["error"]:
        return Line(name, f"{version}, not tried without MXNet")
    if not answer.get("error"):
        return Line(name, version)
    said = f"does not import: {answer['error']}: {answer['text'].splitlines()[0]}"
    status = "warning" if package.status == "ok" else package.status
    return Line(name, said, status, _repair(name, answer["text"], install))


def library_lines(version_of: Callable[[str], str], enabled: str) -> Tuple[Line, ...]:
    """Lines about the installed libraries of docs/libraries.md, and the versions of others that they need.

    Args:
        version_of: Returns the version of an installed distribution, or "".
        enabled: Packages that get what NumPy removed in every program, with commas between them.
    """
    lines = []
    for name in dict.fromkeys(library.name for library in LIBRARIES):
        version = version_of(name)
        if not version:
            continue
        library = library_of(name, version)
        unmet = unmet_needs(library, version_of)
        here = "; ".join(f"needs {need}, here {installed or 'missing'}" for need, installed in unmet.items())
        fix = f"python -m pip install {' '.join(map(shlex.quote, unmet))}"
        if not unmet and library.old_numpy and library.package not in enabled.split(","):
            here = f"run its programs with mxkit run --old-numpy={library.package}"
        lines.append(judged(name, f"{version}; {here}" if here else version, not unmet, fix))
    return tuple(lines)


def _repair(name: str, text: str, install: str) -> str:
    if name == "cv2" and any(library in text for library in ("libGL", "libgthread", "libglib", "libX")):
        return (
            "sudo apt-get install libgl1 libglib2.0-0\n"
            "or, without a screen, the same OpenCV that needs neither:\n"
            "python -m pip uninstall -y opencv-python\n"
            "python -m pip install opencv-python-headless"
        )
    return install.replace("install ", "install --force-reinstall ", 1)


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a half-imported module of that name
        return False


def version_of(distribution: str) -> str:
    """Return the version of an installed distribution, or ""."""
    with suppress(PackageNotFoundError):
        return version(distribution)
    return ""


# Environment variables that MXNet and its libraries read.
_PREFIXES = ("MXNET_", "MXKIT_", "OMP_", "KMP_", "GOMP_", "DNNL_", "MKLDNN_", "DMLC_", "PS_", "NVIDIA_", "CUDA_")


_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONNOUSERSITE", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def interpreter_lines(numpy: Mapping[str, Any]) -> Tuple[Line, ...]:
    """Lines about Python, its environment, the platform, and NumPy, from the answer of its probe."""
    is_tested = (3, 8) <= sys.version_info[:2] <= (3, 13)  # of `.ci/matrix`
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
    libraries = enabled_libraries()
    is_current = path.read_text(encoding="utf-8", errors="replace") == enabling_text(libraries)
    said = f"{path}: programs need no `import mxkit`" if is_current else f"{path} is damaged, or of another mxkit"
    if is_current and libraries:
        said += f"; {libraries} get what NumPy removed"
    return judged("enabled", said, is_current, "mxkit enable", {"on": True})


def variable_lines(noise: str) -> Tuple[Line, ...]:
    """Lines about the variables that are set, judged by the output of MXNet's probe.

    Args:
        noise: The output of MXNet's probe.
    """
    refused = refused_variables(noise)
    names = (name for name in sorted(os.environ) if name.startswith(_PREFIXES) or name in _NAMES)
    lines = tuple(_variable(name, os.environ[name], refused.get(name, "ok")) for name in names)
    return lines or (Line("variables", "none that MXNet reads"),)


def _variable(name: str, value: str, status: str) -> Line:
    if status == "problem":
        return Line(name, value, status, f"MXNet ends the process at it: unset {name}, or give it one whole number")
    if status == "warning":
        return Line(name, value, status, f"OpenMP cannot read it and ignores it: unset {name}, or mend its value")
    if name == "DMLC_ROLE" and value in ("server", "scheduler"):
        return Line(name, value, "warning", "`import mxnet` serves and never returns: unset DMLC_ROLE")
    return Line(name, value)


def cache_lines() -> Tuple[Line, ...]:
    """A line about the disk of the downloads; `mxkit cache` lists them."""
    home = Path(os.environ.get("MXNET_HOME") or Path.home() / ".mxnet").expanduser()
    existing = next(folder for folder in (home, *home.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(str(existing)).free
    fix = "export MXNET_HOME=DIR    puts new downloads on another disk; mxkit cache clean deletes"
    return (judged("free disk", f"{free / 1e9:,.1f} GB for {home}", free >= 1e9, fix, {"free": free}),)
