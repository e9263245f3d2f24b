"""The command `mxkit init`."""

from pathlib import Path
import re

import typer

_TEMPLATES = Path(__file__).with_name("project")
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


def init(name: Path = typer.Argument(..., metavar="NAME", help="The folder to make; it must be new or empty.")) -> None:
    """Write a small project that trains at once: a recipe, a data module, a net, a test and a README."""
    called = name.resolve().name  # `.` is an empty folder that one stands in
    if not re.fullmatch(_NAME, called):
        raise typer.BadParameter(f"expected a name of letters, digits, '_', '-' and '.'; received {called!r}")
    if name.exists() and (not name.is_dir() or any(name.iterdir())):
        raise typer.BadParameter(f"{name} exists and is not an empty folder: choose another name")
    name.mkdir(parents=True, exist_ok=True)
    for template in sorted(_TEMPLATES.glob("*.template")):
        text = template.read_text(encoding="utf-8").format(name=called)
        (name / template.stem).write_text(text, encoding="utf-8")
        typer.echo(name / template.stem)
    typer.echo(f"train it: cd {name} && mxkit train recipe.yaml", err=True)
