"""The commands `mxkit run` and `mxkit enable`."""

import os
from typing import List

import typer

#: Settings of `run`: all following words belong to Python and the script.
FOR_PYTHON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


def run(
    arguments: List[str] = typer.Argument(
        None, metavar="SCRIPT | -m MODULE | -c CODE", help="The arguments of `python`, including its options."
    ),
    old_numpy: bool = typer.Option(
        False, "--old-numpy", help="The script and what imports MXNet get the names that NumPy removed, like np.float."
    ),
) -> None:
    """Run a script that imports MXNet without mxkit, as Python would: mxkit run SCRIPT ARGUMENTS.

    Processes that the script starts with the same Python get mxkit too. --old-numpy prints the names that were used.
    """
    from mxkit.runtime.enabling import python_command, refuse_other_patches, variables

    refuse_other_patches()
    command = python_command(arguments or [])
    os.execve(command[0], command, {**os.environ, **variables(old_numpy)})


def enable(
    off: bool = typer.Option(False, "--off", help="Remove the file again."),
    system: bool = typer.Option(False, "--system", help="Also outside a virtual environment, as in a container."),
) -> None:
    """Let every program of this virtual environment import MXNet without `import mxkit` in its code.

    It writes one .pth file, which imports mxkit when a program imports MXNet. Other programs run as before.
    """
    from mxkit.runtime.enabling import disable, enabling_file
    from mxkit.runtime.enabling import enable as write

    if off:
        typer.echo(f"removed {enabling_file()}" if disable() else "mxkit was not enabled here")
    else:
        typer.echo(f"wrote {write(system)}: `import mxnet` works in every program of this environment")
