"""The run that the workers resume when `mxkit launch` starts them again."""

import os
from pathlib import Path
from typing import Optional

from mxkit.distributed.group import current, rank
from mxkit.distributed.schedulers import LAUNCHED, RESTARTS

# File in the folder of the job, with the path of the run that the first worker made.
_NOTE = "run"


def note_run(folder: Path) -> None:
    """Write down the folder of the run, for a restart."""
    job = os.environ.get(LAUNCHED)
    if job and rank() == 0:
        Path(job).mkdir(mode=0o700, exist_ok=True)  # the first worker may be on another machine than the launcher
        Path(job, _NOTE).write_text(str(folder.absolute()), encoding="utf-8")


def restarted_run() -> Optional[Path]:
    """The run to resume after a restart by `mxkit launch`; None for a new run."""
    group, job = current(), os.environ.get(LAUNCHED)
    if not job or os.environ.get(RESTARTS, "0") == "0":
        return None
    note = Path(job, _NOTE)
    run = note.read_text(encoding="utf-8") if note.is_file() else ""
    if group is not None:  # the folder of the job is on the first worker's machine
        run = group.gather("the run to resume", run)[0]
    return Path(run) if run and Path(run, "recipe.yaml").is_file() else None
