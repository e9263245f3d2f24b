"""The state of a run: `state.json` in its folder, replaced whole when the run begins, ends an epoch, and ends."""

import datetime
import json
from pathlib import Path
from typing import Any, NamedTuple

from mxkit.core.files import write_atomically
from pydantic import TypeAdapter
from typing_extensions import Literal

FILE = "state.json"
State = Literal["running", "finished", "stopped", "failed"]


class RunState(NamedTuple):
    """What a run was doing when it last wrote its state.

    Attributes:
        state: "running", "finished", "stopped" or "failed".
        reason: What stopped it, or the error that it failed with; empty otherwise.
        epoch: Number of epochs that are complete.
        updates: Number of updates that are complete.
        started: Time at which its folder was made, like "2026-01-31 23:59:59"; empty where an earlier mxkit made it.
        changed: Time at which this was written.
    """

    state: State
    reason: str = ""
    epoch: int = 0
    updates: int = 0
    started: str = ""
    changed: str = ""


def parse_state(text: str) -> RunState:
    """Read the text of a `state.json`.

    Raises:
        ValueError: It holds something else.
    """
    return TypeAdapter(RunState).validate_json(text, strict=True)


def write_state(folder: Path, state: State, reason: str = "", **reached: Any) -> None:
    """Write what a run does now.

    Args:
        folder: Of the run.
        state: As in `RunState`.
        reason: As in `RunState`.
        reached: `epoch` and `updates`; what is left out stays as it was.
    """
    now, file = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"), folder / FILE
    try:
        before = parse_state(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        # the log of a run that an earlier mxkit began says when
        before = RunState("running", started="" if (folder / "log.txt").exists() else now)
    except (OSError, ValueError):  # somebody damaged it
        before = RunState("running")
    found = before._replace(state=state, reason=reason, changed=now, **reached)
    write_atomically(file, json.dumps(found._asdict(), indent=1, ensure_ascii=False).encode("utf-8"))
