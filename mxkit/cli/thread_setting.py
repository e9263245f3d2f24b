"""Sets MXNet's number of threads before a command loads MXNet, which is the last moment for it (T187)."""

import json
import os
from pathlib import Path
from typing import Any, List, Optional, Sequence, Union

from mxkit.errors import RecipeError
from mxkit.recipe.files import read_layers, substitute
from mxkit.runtime.engine_threads import choose, in_force, threads
from mxkit.runtime.machine import read_processors


def set_threads(recipe: Union[str, Path], settings: Sequence[str] = (), run: Optional[Path] = None) -> None:
    """Set the `threads` of a recipe; a run that is resumed takes its earlier number, on which its bits depend (T67).

    Args:
        recipe: A YAML file, or the name of a recipe that ships with mxkit.
        settings: Changes of the recipe.
        run: Folder of the run that is resumed.
    """
    try:
        _, layers = read_layers(recipe, settings)
        variables = layers.content.get("variables") or {}
        number: Any = substitute(layers.content.get("threads"), "threads", lambda name, _: variables.get(name))
        number = number or _earlier(run)
        if number is not None:
            threads(number)
    except (RecipeError, ValueError, AttributeError):
        return  # the command reads the recipe again, and tells all its mistakes


def _earlier(run: Optional[Path]) -> Optional[int]:
    try:
        environments = json.loads((run / "environment.json").read_text(encoding="utf-8")) if run else []
        return int(environments[-1]["threads"]) if environments else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a folder without it, or a damaged file: one thread per core, and the resume compares


def other_numbers() -> List[int]:
    """Numbers of threads to compare with the one in force: 1, 2, 4 ... and one per core; none if a variable decides."""
    processors = read_processors()
    if choose(processors, os.environ).setting:
        return []
    powers = (2**power for power in range(processors.threads.bit_length()))
    return sorted({*(number for number in powers if number < processors.threads), processors.threads} - {in_force()})
