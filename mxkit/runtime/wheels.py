"""Which wheels own the package `mxnet` here, and what to type if there is none, more than one, or a damaged one.

This module reads file names only: importing `importlib.metadata` would take longer than the rest of `import mxkit`.
"""

from importlib.machinery import ModuleSpec
import os
from pathlib import Path
import re
import sys
from types import ModuleType
from typing import List, NamedTuple, Optional, Sequence, Tuple

#: The MXNet that mxkit is written for.
RELEASE = "1.9.1"

# mxnet, mxnet-cu112, mxnet-cu102mkl, mxnet-mkl, mxnet-native; not mxnet-model-server.
_OWNER = re.compile(r"^(mxnet(?:[-_.](?:cu\d+(?:mkl)?|mkl|native))?)-(\d[^-]*)(?:-.*)?\.(?:dist|egg)-info$", re.I)

_NUMBERS = re.compile(r"^\d+(?:\.\d+)*")

#: NVIDIA's last container with an MXNet of its own, built for CUDA 12.
CONTAINER = "nvcr.io/nvidia/mxnet:24.06-py3"

_LIBRARIES = ("libmxnet.so", "libmxnet.dylib", "libmxnet.dll")


class Wheel(NamedTuple):
    """An installed distribution that contains the package `mxnet`."""

    name: str
    version: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def release(text: str) -> Tuple[int, ...]:
    """Read the leading numbers of a version.

    >>> release("2.5.0rc1"), release("1.26.4"), release("1.9.1.post0+local")
    ((2, 5, 0), (1, 26, 4), (1, 9, 1))
    """
    numbers = _NUMBERS.match(text)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


def installed_wheels() -> List[Wheel]:
    """List the distributions on `sys.path` that own the package `mxnet`, in the order of the path."""
    folders = dict.fromkeys(Path(entry or ".").resolve() for entry in sys.path)
    return [wheel for folder in folders for wheel in _wheels_in(folder)]


def _wheels_in(folder: Path) -> List[Wheel]:
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - pathlib makes an object of each of thousands of names
    except OSError:
        return []  # a zip, or an entry of sys.path that is not there
    found = (_OWNER.match(name) for name in names if name[:5].lower() == "mxnet")
    return [Wheel(match[1].lower().replace("_", "-"), match[2], folder) for match in found if match]


def spec_by_other_finders(
    fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
) -> Optional[ModuleSpec]:
    """Find a module without mxkit's own finder; the arguments are those of a finder's `find_spec`."""
    for finder in sys.meta_path:
        if not type(finder).__module__.startswith("mxkit.") and hasattr(finder, "find_spec"):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
    return None


def package_spec() -> Optional[ModuleSpec]:
    """Find where `import mxnet` loads from."""
    return spec_by_other_finders("mxnet")


def wheel_problem() -> Optional[str]:
    """Say why the installed MXNet cannot be imported, and what to type; None if nothing is wrong.

    An MXNet without metadata of a distribution, such as one built from source, is accepted.
    """
    if "mxnet" in sys.modules:
        return None
    spec = package_spec()
    if spec is None or spec.origin is None:
        wheels = installed_wheels()
        if wheels:
            return _damaged(wheels[0], f"its package folder {wheels[0].folder / 'mxnet'}")
        return f"MXNet is not installed for {sys.executable}. Type\n    mxkit install"
    if spec.submodule_search_locations is None:
        return (
            f"`import mxnet` would load {Path(spec.origin)}, which is a single file and not MXNet. "
            "Rename that file, or run from another folder."
        )
    package = Path(spec.origin).resolve().parent
    wheels = _wheels_in(package.parent)
    if len({wheel.name for wheel in wheels}) > 1:
        return _more_than_one(wheels)
    if wheels and not _has_library(package):
        return _damaged(wheels[0], f"its library {package / _LIBRARIES[0]}")
    return None


def version_problem(version: str, package: Path) -> Optional[str]:
    """Say why an MXNet that calls itself by this version is refused; None for 1.9, with any suffix behind it.

    >>> version_problem("1.9.1+nv24.06", Path("mxnet")), version_problem("1.9.0.post1", Path("mxnet"))
    (None, None)
    """
    if release(version)[:2] == (1, 9):
        return None
    return (
        f"{package} calls itself MXNet {version}; expected 1.9. mxkit's repairs of MXNet are written for {RELEASE} and "
        f"were tried with 1.9 alone: with another one they could change results without an error. Type\n"
        f"    pip install --no-deps mxnet=={RELEASE}\n"
        "or use this MXNet without mxkit (where it is enabled: mxkit enable --off)"
    )


def foreign_name(name: str) -> Optional[str]:
    """Say why a distribution's name is none of Apache MXNet's; None if it is one.

    >>> foreign_name("mxnet-cu112") is foreign_name("mxnet") is None
    True
    """
    # Its last wheels were built for CUDA 11.7.
    if re.fullmatch(r"mxnet|mxnet-(mkl|native|cu(?!1[2-9])\d+(mkl)?)", name):
        return None
    return (
        f"{name} is no distribution of Apache MXNet, whose last release, {RELEASE}, has wheels for the CPU (mxnet) and "
        f"for CUDA 11 (mxnet-cu112): whoever uploaded that name may have put anything into it. For a newer GPU there "
        f"is NVIDIA's container {CONTAINER}, with an MXNet of NVIDIA's own for CUDA 12 (docs/containers.md)"
    )


def described(library: Path) -> str:
    """Name the distribution of a library of MXNet, or the library itself if it has none.

    Args:
        library: The path of libmxnet.so.
    """
    wheels = _wheels_in(library.parent.parent)
    return str(wheels[0]) if wheels else f"MXNet's library {library}"


def cpu_command(library: Path) -> str:
    """The command that replaces the distribution of a library by MXNet for the CPU."""
    remove = "".join(f"pip uninstall -y {wheel.name} && " for wheel in _wheels_in(library.parent.parent)[:1])
    return f"{remove}pip install --no-deps mxnet=={RELEASE}"


def load_problem(error: Exception, library: Path) -> str:
    """Say what to type when MXNet's library cannot be loaded.

    Args:
        error: The error of `ctypes.CDLL`, or of reading the library's headers.
        library: The path of libmxnet.so.
    """
    said = f"{described(library)} does not load: {error}"
    missing = re.match(r"(lib[^/: ]+?)\.so\.?(\d*)[^/: ]*: ", str(error))
    if missing:  # Debian names packages so: libgomp.so.1 is in libgomp1
        way_out = "Name its folder in LD_LIBRARY_PATH or, if it is the system's, type as root"
        return f"{said}\n{way_out}\n    apt-get install {missing[1]}{missing[2]}"
    driver = ". If it names a symbol like cuX, update the NVIDIA driver; if" if "symbol" in str(error) else "\nIf"
    return f"{said}{driver} the file is damaged, type\n    {_reinstall_command(library)}"


def _reinstall_command(library: Path) -> str:
    wheel = next(iter(_wheels_in(library.parent.parent)), Wheel("mxnet", RELEASE, library))
    return f"pip install --force-reinstall --no-deps {wheel.name}=={wheel.version}"


def _has_library(package: Path) -> bool:
    named = os.environ.get("MXNET_LIBRARY_PATH")
    candidates = [package / name for name in _LIBRARIES] + ([Path(named)] if named else [])
    # A full disk leaves an empty library.
    return any(path.is_file() and path.stat().st_size > 0 for path in candidates)


def _more_than_one(wheels: List[Wheel]) -> str:
    return (
        f"{' and '.join(map(str, wheels))} are both installed in {wheels[0].folder}. They overwrite each other's "
        "files, so the folder now holds a mixture. Type, to remove all of them and install the one that fits,\n"
        "    mxkit install"
    )


def _damaged(wheel: Wheel, lacks: str) -> str:
    return f"{wheel} is installed, but {lacks} is missing or empty. Type\n    mxkit install"
