"""The command `mxkit init`."""

from pathlib import Path
import re

import typer

_TEMPLATES = Path(__file__).with_name("project")


def init(name: Path = typer.Argument(..., metavar="NAME", help="The folder to make; it must be new or empty.")) -> None:
    """Write a small project that can be trained immediately: a recipe, a data module, a net, a test and a README."""
    called = name.resolve().name  # also of `.`, the current folder
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", called):
        raise typer.BadParameter(f"expected a name of letters, digits, '_', '-' and '.'; received {called!r}")
    if name.exists() and (not name.is_dir() or any(name.iterdir())):
        raise typer.BadParameter(f"{name} exists and is not an empty folder: choose another name")
    name.mkdir(parents=True, exist_ok=True)
    for template in sorted(_TEMPLATES.glob("*.template")):
        text = template.read_text(encoding="utf-8").format(name=called)
        (name / template.stem).write_text(text, encoding="utf-8")
        typer.echo(name / template.stem)
    typer.echo(f"train it: cd {name} && mxkit train recipe.yaml", err=True)
