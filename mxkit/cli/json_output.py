"""Prints JSON instead of a table: the fields of the Python objects, and nothing else on standard output."""

import json
from pathlib import Path
from typing import Any

import typer

JSON = typer.Option(False, "--json", help="For programs: the fields of the Python objects.")


def print_json(value: Any) -> None:
    """Print a value as JSON: NamedTuples become mappings, paths become texts, NaN and infinity become null."""
    from mxkit.recipe.scores import null_for_nan

    typer.echo(json.dumps(null_for_nan(_plain(value)), indent=1))


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value  # a number of NumPy
