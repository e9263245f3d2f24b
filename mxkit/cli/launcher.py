"""The command `mxkit launch`."""

from typing import List

import typer


def launch(
    command: List[str] = typer.Argument(
        ..., metavar="-- COMMAND", help="The program of each worker, and its arguments."
    ),
    workers: int = typer.Option(..., "-n", "--workers", min=1, help="Number of workers."),
    servers: int = typer.Option(1, "-s", "--servers", min=1, help="Number of MXNet's parameter servers."),
    restarts: int = typer.Option(0, min=0, help="How often all start again after a failure."),
) -> None:
    """Run COMMAND in several workers on this machine, which train together: mxkit launch -n 2 -- mxkit train RECIPE.

    The output of workers 1, 2 ... has their rank before each line. When one process fails, all others end, and its
    exit code is this command's. No process outlives this one.
    """
    from mxkit.distributed.launching import launch as run_workers

    raise typer.Exit(run_workers(command, workers, servers, restarts=restarts))
