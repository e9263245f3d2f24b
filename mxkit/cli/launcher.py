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


def note_run(folder: Path) -> None:
    """Note the folder of the run, for a start after a failure."""
    from mxkit.distributed import rank

    job = os.environ.get(LAUNCHED)
    if job and rank() == 0:
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
