"""Makes MXNet work in programs that do not import mxkit: in one program, or in all programs of an environment."""

import os
from pathlib import Path
import re
import subprocess
import sys
import sysconfig
from typing import Dict, List, Sequence

from mxkit.errors import MXNetImportError

_STARTUP = Path(__file__).resolve().parent
_WAITING = _STARTUP / "waiting.py"


def enabling_file() -> Path:
    """The `.pth` file of this environment that Python runs when it starts; it exists while mxkit is enabled."""
    return Path(sysconfig.get_path("purelib"), "mxkit-enabled.pth")


def enabling_text(old_numpy: str = "") -> str:
    """The content of `enabling_file`: one line, because Python runs the lines that begin with `import`."""
    code = _WAITING.read_text(encoding="utf-8") + "\nwait(old_numpy)\n"
    names = {"__name__": "mxkit.runtime.startup.waiting", "old_numpy": old_numpy}
    return f"import sys; exec({code!r}, {names!r})\n"


def enabled_libraries() -> str:
    """The libraries that get NumPy's old names in all programs of this environment, with commas between them."""
    path = enabling_file()
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r"'old_numpy': '([\w,]*)'", text)
    return found[1] if found else ""


def enable(system: bool = False, old_numpy: str = "") -> Path:
    """Let every program of this environment import MXNet as if it had imported mxkit before.

    Args:
        system: Allow a Python outside a virtual environment.
        old_numpy: As in `variables`.

    Returns:
        The new file.

    Raises:
        MXNetImportError: This Python is in no virtual environment.
    """
    path = enabling_file()
    if not (system or sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()):
        raise MXNetImportError(
            f"{sys.executable} is in no virtual environment: mxkit enable would change every program that it runs. "
            "Make an environment (python3 -m venv .venv) and use its mxkit, or run one program with mxkit run. In a "
            "container, --system enables it for this Python"
        )
    # Programs that start in the meantime must not read half a line.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(enabling_text(old_numpy), encoding="utf-8")
    unfinished.replace(path)
    return path


def disable() -> bool:
    """Remove the file of `enable`; return whether it existed."""
    try:
        enabling_file().unlink()
    except FileNotFoundError:
        return False
    return True


def python_command(arguments: Sequence[str]) -> List[str]:
    """The command line that runs this Python, with its own options, with more arguments.

    Args:
        arguments: Arguments of `python`: its options, then a script, `-m` or `-c`, then the arguments of these.
    """
    options: List[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *options, *arguments]


def variables(old_numpy: str = "") -> Dict[str, str]:
    """Environment variables with which this environment's Python, and each Python that it starts, gets mxkit.

    Args:
        old_numpy: Packages that get what NumPy and Python removed, with commas between them. "1" stands for the
            modules of the script and others that import MXNet.
    """
    before = os.environ.get("PYTHONPATH")
    entries = [entry for entry in before.split(os.pathsep) if entry != str(_STARTUP)] if before else []
    own = {"MXKIT_RUN": os.path.realpath(sys.prefix), "PYTHONPATH": os.pathsep.join([str(_STARTUP), *entries])}
    return {**own, "MXKIT_OLD_NUMPY": old_numpy} if old_numpy else own
