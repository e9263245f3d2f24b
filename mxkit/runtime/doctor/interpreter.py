"""The Python that runs, and the NumPy it finds."""

from importlib.util import find_spec
import platform
import sys
import sysconfig
from typing import Any, Mapping, Tuple

from mxkit.runtime.doctor.findings import Line

# What the matrix of Python x NumPy was run with.
_PYTHONS = ((3, 8), (3, 13))


def interpreter_lines(numpy: Mapping[str, Any]) -> Tuple[Line, ...]:
    """Lines about Python, its environment, the platform, and NumPy as a probe found it."""
    return (_version(), Line("executable", sys.executable or "unknown"), _installer(), _platform(), _numpy(numpy))


def _version() -> Line:
    version = platform.python_version()
    if _PYTHONS[0] <= sys.version_info[:2] <= _PYTHONS[1]:
        return Line("version", version)
    fix = "mxkit is tested on Python 3.8 to 3.13: make an environment with one of them"
    return Line("version", version, "warning", fix)


def _installer() -> Line:
    import shutil

    kind = "virtual environment" if sys.prefix != sys.base_prefix else "not in a virtual environment"
    if find_spec("pip"):
        return Line("packages", f"{sysconfig.get_path('purelib')} ({kind}, pip)")
    uv = "uv: `uv pip install --python " + sys.executable + "`" if shutil.which("uv") else "no pip"
    return Line("packages", f"{sysconfig.get_path('purelib')} ({kind}, {uv})")


def _platform() -> Line:
    system, machine = platform.system(), platform.machine()
    if (system, machine) == ("Linux", "x86_64"):
        return Line("platform", platform.platform())
    fix = "mxkit is tested on Linux with x86-64 processors only"
    return Line("platform", platform.platform(), "warning", fix)


def _numpy(numpy: Mapping[str, Any]) -> Line:
    if not numpy["error"]:
        return Line("numpy", numpy["version"])
    said = f"{numpy['error']}: {numpy['text'].splitlines()[0]}"
    return Line("numpy", said, "problem", "python -m pip install --force-reinstall numpy")
