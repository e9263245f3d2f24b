"""Makes MXNet 1.9.1 import and compute correctly on current Python and NumPy; docs/runtime.md lists how."""

from pathlib import Path
import sys
from typing import List

from mxkit.errors import MXNetImportError
from mxkit.runtime.import_hook import install_hook
from mxkit.runtime.wheels import wheel_problem

__all__ = ["install"]

# Of `python -m`: they start without MXNet.
_OWN_COMMANDS = (["mxkit"], ["mxkit.runtime.doctor"], ["mxkit.exporting.params"], ["mxkit.data.records"])


def install() -> None:
    """Install the import hook; MXNet itself is not imported. A second call changes nothing.

    Raises:
        MXNetImportError: MXNet is missing, installed twice or damaged. mxkit's own commands start all the same:
            `mxkit doctor` explains the problem, and `mxkit.export` reads files without MXNet; there, `import mxnet`
            raises it.
    """
    install_hook()
    problem = None if _is_own_command() else wheel_problem()
    if problem:
        raise MXNetImportError(problem, name="mxnet")


def _is_own_command() -> bool:
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program == "-m":  # its value while `python -m` looks for the module, which imports mxkit
        arguments = _command_line()
        return "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] in _OWN_COMMANDS
    path = Path(program)
    return path.stem == "mxkit" or (path.name == "__main__.py" and path.parent.name == "mxkit")


def _command_line() -> List[str]:
    if sys.version_info >= (3, 10):
        return sys.orig_argv
    try:
        return Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # not Linux: before Python 3.10 the command line is not known there
        return ["-m", "mxkit"]
