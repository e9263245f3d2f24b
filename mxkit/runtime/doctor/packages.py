"""Lines about packages that mxkit needs or can use, and about packages that conflict with each other."""

from importlib.metadata import Distribution, PackageNotFoundError, distributions, version
from importlib.util import find_spec
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from mxkit.runtime.doctor.findings import Line


class Package(NamedTuple):
    """A module, its use, its requirement for pip, and the status of the line if it is missing."""

    module: str
    use: str
    distribution: str
    status: str


# If a "problem" is missing, mxkit's command or MXNet does not start; if a "warning" is, a part of mxkit does not work.
_PACKAGES = [
    Package(*row)
    for row in [
        ("lazy_loader", "mxkit itself", "lazy_loader", "problem"),
        ("tqdm", "progress", "tqdm", "problem"),
        ("rich", "tables in the terminal", "rich", "problem"),
        ("requests", "MXNet itself", "requests", "problem"),
        ("typer", "mxkit's command", "typer", "problem"),
        ("pydantic", "recipes", "pydantic", "problem"),
        ("yaml", "recipes", "pyyaml", "problem"),
        ("jinja2", "reports", "jinja2", "warning"),
        ("gluoncv", "models, data and metrics of computer vision", "gluoncv==0.10.5.post0", "warning"),
        ("cv2", "image files and augmenters", "opencv-python", "warning"),
        ("matplotlib", "plots", "matplotlib", "warning"),
        ("PIL", "images", "pillow", "warning"),
        ("graphviz", "plots of graphs", "graphviz", "ok"),
        ("scipy", "entropy calibration of int8 nets", "scipy", "ok"),
        ("pandas", "tables of layers, parameters and epochs", "pandas", "warning"),
        ("onnx", "export to ONNX", "onnx", "ok"),
        ("onnxruntime", "checking an exported ONNX file", "onnxruntime", "ok"),
        ("safetensors", "export to safetensors", "safetensors", "ok"),
        ("ml_dtypes", "bfloat16 outside of nets", "ml_dtypes", "ok"),
        ("tensorboardX", "logging to TensorBoard", "tensorboardX", "ok"),
    ]
]

# gluoncv imports MXNet, so MXNet's process imports it.
WITH_MXNET = ("gluoncv",)

_OPENCV = (
    "opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless",
)  # fmt: skip


def modules() -> List[str]:
    """Installed packages for a probe to import, besides NumPy and those of MXNet's probe."""
    return [
        package.module for package in _PACKAGES if package.module not in WITH_MXNET and _is_installed(package.module)
    ]


def package_lines(answers: Mapping[str, Mapping[str, Any]]) -> Tuple[Line, ...]:
    """Lines about each package, from the answers of its probe, and about packages that conflict."""
    return (*(_line(package, answers) for package in _PACKAGES), *conflict_lines(_installed()))


def conflict_lines(installed: Mapping[str, List[str]]) -> Tuple[Line, ...]:
    """Lines about packages that own the same files, are installed twice, or do not work together.

    Args:
        installed: Versions by distribution; several if pip left the record of an old one.

    >>> print(conflict_lines({"opencv-python": ["4.11"], "opencv-python-headless": ["4.11"]})[0].value)
    opencv-python 4.11 and opencv-python-headless 4.11 overwrite each other's files
    """
    lines: List[Line] = []
    both = [name for name in _OPENCV if name in installed]
    if len(both) > 1:
        said = " and ".join(f"{name} {installed[name][0]}" for name in both) + " overwrite each other's files"
        keep = "opencv-python-headless" if "opencv-python-headless" in both else both[0]
        fix = f"python -m pip uninstall -y {' '.join(both)}\npython -m pip install --no-deps {keep}"
        lines.append(Line("opencv", said, "warning", fix))
    for name in ("numpy", "gluoncv", "mxkit"):
        if len(installed.get(name, [])) > 1:
            said = f"records of {' and '.join(installed[name])}: files of one may lie among those of the other"
            lines.append(Line(name, said, "warning", f"python -m pip install --force-reinstall --no-deps {name}"))
    protobuf = installed.get("protobuf", ["0"])[0]
    if "mxboard" in installed and int(protobuf.split(".")[0]) > 3:
        fix = "python -m pip install tensorboardX    mxkit.callbacks.TensorBoardLog uses it instead of mxboard"
        lines.append(Line("mxboard", f"does not import with protobuf {protobuf}", "warning", fix))
    return tuple(lines)


def _line(package: Package, answers: Mapping[str, Mapping[str, Any]]) -> Line:
    name, install = package.module, f"python -m pip install {package.distribution}"
    if not _is_installed(name):
        optional = Line(name, f"not installed ({package.use}): {install}")
        return optional if package.status == "ok" else Line(name, f"missing: {package.use}", package.status, install)
    answer = answers.get(name, {})
    version = _version(package.distribution.split("=")[0], answer.get("version", ""))
    if name in WITH_MXNET and answers["mxnet"]["error"]:
        return Line(name, f"{version}, not tried without MXNet")
    if not answer.get("error"):
        return Line(name, version)
    said = f"does not import: {answer['error']}: {answer['text'].splitlines()[0]}"
    status = "warning" if package.status == "ok" else package.status
    return Line(name, said, status, _repair(name, answer["text"], install))


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


def _version(distribution: str, by_module: str) -> str:
    for candidate in (distribution, *(_OPENCV if distribution in _OPENCV else ())):
        try:
            return version(candidate)
        except PackageNotFoundError:
            continue
    return by_module or "there, of unknown version"


def _installed() -> Dict[str, List[str]]:
    versions: Dict[str, List[str]] = {}
    folders: Dict[str, str] = {}
    distribution: Distribution
    for distribution in distributions():
        name = (distribution.metadata["Name"] or "").lower().replace("_", "-")
        folder = str(distribution.locate_file(""))
        # The same package further down the path is hidden, and does no harm.
        if folders.setdefault(name, folder) == folder:
            versions.setdefault(name, []).append(distribution.version)
    return versions
