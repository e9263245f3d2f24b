"""What MXNet finds here, and what to type where something is wrong; `mxkit doctor` prints it.

Nothing here raises because of what it looks at: an MXNet that cannot be imported is a line of the report.
"""

from dataclasses import dataclass, field
import os
from pathlib import Path
import platform
import sys
from types import ModuleType
from typing import List, Optional, Tuple

from mxkit.errors import MXNetImportError
from mxkit.runtime.wheels import installed_wheels, package_spec, wheel_problem

# What the matrix of Python x NumPy was run with.
_PYTHONS = ((3, 8), (3, 13))
_MXNET = "1.9.1"

_ENVIRONMENT = ("MXNET_", "OMP_", "KMP_", "GOMP_", "DNNL_", "MKLDNN_", "DMLC_", "PS_", "NVIDIA_")
_ENVIRONMENT_NAMES = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")

# import name -> (what it is for, the distribution to install)
_OPTIONAL = {
    "gluoncv": ("models, data and metrics of computer vision", "gluoncv"),
    "sklearn": ("tables and metrics", "scikit-learn"),
    "matplotlib": ("plots", "matplotlib"),
    "scipy": ("entropy calibration of int8 nets", "scipy"),
    "cv2": ("image records and augmenters", "opencv-python-headless"),
    "PIL": ("images", "pillow"),
    "pandas": ("tables", "pandas"),
    "graphviz": ("plots of graphs", "graphviz"),
    "onnx": ("export to ONNX", "onnx"),
    "onnxruntime": ("checking an exported ONNX file", "onnxruntime"),
    "safetensors": ("export to safetensors", "safetensors"),
    "ml_dtypes": ("bfloat16 outside of nets", "ml_dtypes"),
    "tensorboardX": ("logging to TensorBoard", "tensorboardX"),
    "horovod": ("training on several machines", "horovod"),
}

_MARKS = {"ok": " ", "warning": "!", "problem": "X"}


@dataclass(frozen=True)
class Line:
    """One finding: `status` is "ok", "warning" or "problem", and `fix` says what to type where it is not "ok"."""

    name: str
    value: str
    status: str = "ok"
    fix: str = ""


@dataclass(frozen=True)
class Section:
    """A titled group of findings."""

    title: str
    lines: Tuple[Line, ...]


@dataclass(frozen=True)
class Report:
    """All findings, in the order in which they are shown."""

    sections: Tuple[Section, ...] = field(default_factory=tuple)

    @property
    def lines(self) -> Tuple[Line, ...]:
        """Every line of every section."""
        return tuple(line for section in self.sections for line in section.lines)

    @property
    def problems(self) -> Tuple[Line, ...]:
        """The lines without whose repair MXNet does not run."""
        return tuple(line for line in self.lines if line.status == "problem")


def report() -> Report:
    """Look at Python, NumPy, MXNet, the devices, the environment, optional packages and the caches.

    Imports MXNet, if that is possible.
    """
    # Before MXNet, which sets variables of its own (KMP_INIT_AT_FORK) while it is imported.
    environment = _environment()
    mxnet, failure = _import_mxnet()
    return Report(
        (
            Section("Python", (_python(), _executable(), Line("platform", platform.platform()), _numpy())),
            Section("MXNet", (*_wheels(), *_mxnet(mxnet, failure))),
            Section("Devices", (_processors(), *_gpus(mxnet))),
            Section("Environment", environment),
            Section("Optional packages", tuple(_package(name) for name in _OPTIONAL)),
            Section("Caches", _caches()),
        )
    )


def render(report: Report) -> str:
    """Lay a report out as plain text in aligned columns, the problems and their fixes at the end."""
    width = max((len(line.name) for line in report.lines), default=0)
    text: List[str] = []
    for section in report.sections:
        text.append(section.title)
        text += [_render_line(line, width) for line in section.lines]
        text.append("")
    marked = [line for line in report.lines if line.status != "ok"]
    for line in marked:
        text += [f"{line.status}: {line.name}: {line.value}", *_indented(line.fix)]
    text.append(f"{len(report.problems)} problem(s), {len(marked) - len(report.problems)} warning(s)")
    return "\n".join(text)


def _render_line(line: Line, width: int) -> str:
    first, *rest = line.value.splitlines() or [""]
    indent = " " * (width + 6)
    shown = [f"{_MARKS[line.status]}   {line.name:<{width}}  {first}".rstrip()]
    return "\n".join([*shown, *(indent + more for more in rest)])


def _indented(text: str) -> List[str]:
    return ["    " + line for line in text.splitlines()]


def _import_mxnet() -> Tuple[Optional[ModuleType], Optional[Exception]]:
    try:
        import mxnet
    except Exception as error:  # whatever a damaged library raises is what the report is about
        return None, error
    return mxnet, None


def _python() -> Line:
    version = platform.python_version()
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return Line("version", version)
    fix = "mxkit is tested on Python 3.8 to 3.13: make an environment with one of them"
    return Line("version", version, "warning", fix)


def _executable() -> Line:
    return Line("executable", sys.executable or "unknown")


def _numpy() -> Line:
    try:
        import numpy
    except Exception as error:
        return Line("numpy", _first_line(error), "problem", "pip install --force-reinstall numpy")
    return Line("numpy", str(numpy.__version__))


def _wheels() -> Tuple[Line, ...]:
    wheels = installed_wheels()
    if not wheels:
        return (Line("distribution", "none: built from source" if package_spec() else "none"),)
    return tuple(Line("distribution", f"{wheel} in {wheel.folder}") for wheel in wheels)


def _mxnet(mxnet: Optional[ModuleType], failure: Optional[Exception]) -> Tuple[Line, ...]:
    if mxnet is None:
        return (_import_failure(failure),)
    from mxnet import libinfo, runtime

    version = str(mxnet.__version__)
    fix = f"mxkit's repairs are written for MXNet {_MXNET}: pip install --no-deps mxnet=={_MXNET}"
    enabled = [name for name, feature in runtime.Features().items() if feature.enabled]
    return (
        Line("version", version) if version == _MXNET else Line("version", version, "warning", fix),
        Line("library", libinfo.find_lib_path()[0]),
        Line("features", _wrapped(enabled)),
    )


def _import_failure(failure: Optional[Exception]) -> Line:
    if isinstance(failure, MXNetImportError):
        return Line("import", "refused by mxkit", "problem", str(failure))
    fix = wheel_problem() or (
        "A library that it names must be installed, or found through LD_LIBRARY_PATH. If it names none:\n"
        f"pip install --force-reinstall --no-deps mxnet=={_MXNET}"
    )
    return Line("import", _first_line(failure), "problem", fix)


def _processors() -> Line:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS")
    # T96: MXNet presumes two threads a core.
    chosen = f"OMP_NUM_THREADS={threads}" if threads else "OMP_NUM_THREADS not set: MXNet takes half of what it sees"
    return Line("processors", f"{usable} usable of {os.cpu_count()}; {chosen}")


def _gpus(mxnet: Optional[ModuleType]) -> Tuple[Line, ...]:
    if mxnet is None:
        return ()
    try:
        count = mxnet.context.num_gpus()
    except mxnet.base.MXNetError as error:
        return (Line("gpus", _first_line(error), "warning", "see that `nvidia-smi` lists the GPUs"),)
    return (Line("gpus", str(count)),)


def _environment() -> Tuple[Line, ...]:
    names = (name for name in sorted(os.environ) if name.startswith(_ENVIRONMENT) or name in _ENVIRONMENT_NAMES)
    return tuple(Line(name, os.environ[name]) for name in names) or (Line("variables", "none that MXNet reads"),)


def _package(name: str) -> Line:
    from importlib.util import find_spec

    use, distribution = _OPTIONAL[name]
    if find_spec(name) is None:
        return Line(name, f"missing ({use}): pip install {distribution}")
    return Line(name, _distribution_version(name, distribution))


def _distribution_version(name: str, distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    opencv = ("opencv-python", "opencv-contrib-python", "opencv-contrib-python-headless") if name == "cv2" else ()
    for candidate in (distribution, *opencv):
        try:
            return version(candidate)
        except PackageNotFoundError:
            continue
    return "there, of unknown version"


def _caches() -> Tuple[Line, ...]:
    # Both read MXNET_HOME differently: MXNet once, at import; GluonCV never (T57).
    default = Path.home() / ".mxnet"
    home = Path(os.environ.get("MXNET_HOME") or default)
    folders = {"mxnet models": home / "models", "mxnet datasets": home / "datasets"}
    if home != default:
        folders["gluoncv models"] = default / "models"
        folders["gluoncv datasets"] = default / "datasets"
    return tuple(Line(name, f"{folder} ({_size(folder)})") for name, folder in folders.items())


def _size(folder: Path) -> str:
    if not folder.is_dir():
        return "not there yet"
    files = [path for path in folder.rglob("*") if path.is_file()]
    return f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB"


def _first_line(error: Optional[BaseException]) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def _wrapped(words: List[str], width: int = 80) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(" ".join(words), width))
