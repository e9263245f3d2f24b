"""The command `mxkit launch`."""

from pathlib import Path
from typing import List, Optional

import typer


def launch(
    command: List[str] = typer.Argument(
        ..., metavar="-- COMMAND", help="The program of each worker, and its arguments."
    ),
    workers: Optional[int] = typer.Option(None, "-n", "--workers", min=1, help="Number of workers; default all slots."),
    servers: str = typer.Option(
        "1", "-s", "--servers", metavar="NUMBER", help="Number of MXNet's servers; 'each' for one beside each worker."
    ),
    restarts: int = typer.Option(0, min=0, help="Number of restarts of all workers after failures."),
    hosts: Optional[Path] = typer.Option(
        None, metavar="FILE", exists=True, dir_okay=False, help="Hosts to reach over ssh; HOST [SLOTS] on each line."
    ),
    address: Optional[str] = typer.Option(
        None, metavar="HOST[:PORT]", help="An address of this machine that all hosts reach."
    ),
) -> None:
    """Run COMMAND in several workers, which train together: mxkit launch -n 2 -- mxkit train RECIPE.

    All workers run on this machine, or on the hosts of --hosts, where mxkit and the folder have the same paths. MXNet's
    scheduler and servers run on this machine; with -s each, the servers run beside the workers. Each line of output of
    workers 1, 2 and so on begins with the rank. When one process fails, all others end, and its exit code is that of
    this command. No process outlives this command. The workers of a machine share its cores, unless OMP_NUM_THREADS is
    set. COMMAND finds the number of restarts in MXKIT_RESTARTS.
    """
    from mxkit.distributed.hosts import hosts_of
    from mxkit.distributed.launching import launch as run_workers

    if hosts is None and workers is None:
        raise typer.BadParameter("pass -n WORKERS, --hosts FILE, or both")
    places = ["localhost"] * (workers or 1) if hosts is None else hosts_of(hosts, workers)
    raise typer.Exit(run_workers(command, places, servers, restarts=restarts, address=address))
