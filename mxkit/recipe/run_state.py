"""The state of a run: `state.json` in its folder, replaced whole when the run begins, ends an epoch, and ends."""

import datetime
import json
from pathlib import Path
from typing import Any, NamedTuple

from mxkit.core.files import write_atomically

FILE = "state.json"


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

    state: str
    reason: str = ""
    epoch: int = 0
    updates: int = 0
    started: str = ""
    changed: str = ""


def parse_state(content: Any) -> RunState:
    """The state that `state.json` holds.

    Args:
        content: Of the file, as Python's values.

    Raises:
        ValueError: It holds something else.
    """
    defaults = RunState("")._asdict()
    if not isinstance(content, dict) or set(content) < {"state"}:
        raise ValueError("expected a mapping with the key state")
    found = {**defaults, **{name: content[name] for name in content if name in defaults}}
    if any(type(found[name]) is not type(default) for name, default in defaults.items()):
        raise ValueError(f"expected texts and whole numbers; received {content}")
    if found["state"] not in ("running", "finished", "stopped", "failed"):
        raise ValueError(f"expected a state of running, finished, stopped or failed; received {found['state']!r}")
    return RunState(**found)


def write_state(folder: Path, state: str, reason: str = "", **reached: int) -> None:
    """Write what a run does now.

    Args:
        folder: Of the run.
        state: As in `RunState`.
        reason: As in `RunState`.
        reached: `epoch` and `updates`; what is left out stays as it was.
    """
    now, file = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S"), folder / FILE
    try:
        before = parse_state(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        # the log of a run that an earlier mxkit began says when
        before = RunState("running", started="" if (folder / "log.txt").exists() else now)
    except (OSError, ValueError):  # somebody damaged it
        before = RunState("running")
    found = before._replace(state=state, reason=reason, changed=now, **reached)
    write_atomically(file, json.dumps(found._asdict(), indent=1, ensure_ascii=False).encode("utf-8"))
