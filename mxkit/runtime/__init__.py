"""Makes MXNet 1.9.1 import and compute correctly on current Python and NumPy; docs/runtime.md lists how."""

from pathlib import Path
import sys

from mxkit.errors import MXNetImportError
from mxkit.runtime.import_hook import install_hook
from mxkit.runtime.wheels import wheel_problem

__all__ = ["install"]


def install() -> None:
    """Install the import hook; MXNet itself is not imported. A second call changes nothing.

    Raises:
        MXNetImportError: MXNet is missing, installed twice or damaged. mxkit's own commands start all the same:
            `mxkit doctor` explains the problem, and `mxkit.export` reads files without MXNet; there, `import mxnet`
            raises it.
    """
    install_hook()
    program = Path((getattr(sys, "argv", None) or [""])[0])
    # While `python -m` looks for the module, which imports mxkit's root, the program is called "-m".
    is_command = program.stem in ("mxkit", "-m") or program.parts[-2:] == ("mxkit", "__main__.py")
    problem = None if is_command else wheel_problem()
    if problem:
        raise MXNetImportError(problem, name="mxnet")
