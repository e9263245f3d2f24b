"""The commands `mxkit run` and `mxkit enable`."""

import os
from typing import List

import typer

#: Of `run`: all that follows is Python's and the script's.
FOR_PYTHON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


def run(
    arguments: List[str] = typer.Argument(
        None, metavar="SCRIPT | -m MODULE | -c CODE", help="What would follow `python`, its own options too."
    ),
    old_numpy: bool = typer.Option(
        False, "--old-numpy", help="The script's own modules get the names that NumPy removed, like np.float."
    ),
) -> None:
    """Run a script that imports MXNet and knows nothing of mxkit, as Python would: mxkit run SCRIPT ARGUMENTS.

    Processes that it starts with the same Python get mxkit too. --old-numpy says at the end what it lent.
    """
    from mxkit.runtime.enabling import python_command, refuse_other_patches, variables

    refuse_other_patches()
    command = python_command(arguments or [])
    os.execve(command[0], command, {**os.environ, **variables(old_numpy)})


def enable(
    off: bool = typer.Option(False, "--off", help="Undo it."),
    system: bool = typer.Option(False, "--system", help="Also outside a virtual environment, as in a container."),
) -> None:
    """Let every program of this virtual environment import MXNet without mxkit in its code; programs run on as before.

    It writes one .pth file, which waits for `import mxnet`.
    """
    from mxkit.runtime.enabling import disable, enabling_file
    from mxkit.runtime.enabling import enable as write

    if off:
        typer.echo(f"removed {enabling_file()}" if disable() else "mxkit was not enabled here")
    else:
        typer.echo(f"wrote {write(system)}: `import mxnet` works in every program of this environment")
