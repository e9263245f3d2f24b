"""The command `mxkit launch`, and what `mxkit train` does when it is started again by it."""

import os
from pathlib import Path
from typing import List, Optional

from mxkit.distributed.schedulers import LAUNCHED, RESTARTS
import typer

# In the folder of the job: the path of the run that the first worker made.
_NOTE = "run"


def launch(
    command: List[str] = typer.Argument(
        ..., metavar="-- COMMAND", help="The program of each worker, and its arguments."
    ),
    workers: Optional[int] = typer.Option(None, "-n", "--workers", min=1, help="Number of workers; of all slots."),
    servers: int = typer.Option(1, "-s", "--servers", min=1, help="Number of MXNet's parameter servers."),
    restarts: int = typer.Option(0, min=0, help="How often all start again after a failure."),
    hosts: Optional[Path] = typer.Option(
        None, metavar="FILE", exists=True, dir_okay=False, help="Hosts to reach over ssh; on each line HOST [SLOTS]."
    ),
    address: Optional[str] = typer.Option(
        None, metavar="HOST[:PORT]", help="An address of this machine that all hosts reach."
    ),
) -> None:
    """Run COMMAND in several workers, which train together: mxkit launch -n 2 -- mxkit train RECIPE.

    All workers run on this machine, or on the hosts of --hosts, where mxkit and the folder have the same paths. MXNet's
    scheduler and servers run on this machine. The output of workers 1, 2 ... has their rank before each line. When one
    process fails, all others end, and its exit code is this command's. No process outlives this one. Workers on one
    machine share its cores, unless OMP_NUM_THREADS is set. MXKIT_RESTARTS tells COMMAND how often all have restarted.
    """
    from mxkit.distributed.hosts import hosts_of
    from mxkit.distributed.launching import here
    from mxkit.distributed.launching import launch as run_workers

    if hosts is None and workers is None:
        raise typer.BadParameter("pass -n WORKERS, --hosts FILE, or both")
    places = here(workers or 1) if hosts is None else hosts_of(hosts, workers)
    raise typer.Exit(run_workers(command, places, servers, restarts=restarts, address=address))


def note_run(folder: Path) -> None:
    """Note the folder of the run, for a start after a failure."""
    from mxkit.distributed import rank

    job = os.environ.get(LAUNCHED)
    if job and rank() == 0:
        Path(job).mkdir(mode=0o700, exist_ok=True)  # the first worker may be on another machine than the launcher
        Path(job, _NOTE).write_text(str(folder.absolute()), encoding="utf-8")


def restarted_run() -> Optional[Path]:
    """The run that `mxkit launch` starts again; None for a new one."""
    from mxkit.distributed.group import current

    group, job = current(), os.environ.get(LAUNCHED)
    if not job or os.environ.get(RESTARTS, "0") == "0":
        return None
    note = Path(job, _NOTE)
    found = note.read_text(encoding="utf-8") if note.is_file() else ""
    if group is not None:  # the folder of the job is on the first worker's machine
        found = group.gather("the run to resume", found)[0]
    return Path(found) if found and (Path(found) / "recipe.yaml").is_file() else None
