"""The command `mxkit profile`."""

import json
from pathlib import Path
from typing import List

from mxkit.cli.completion import recipes
from mxkit.cli.completion import settings as keys
from mxkit.cli.json_output import JSON, print_json
import typer

RECIPE_HELP = "A YAML file, or the name of a recipe that ships with mxkit."
RECIPE = typer.Argument(..., help=RECIPE_HELP, autocompletion=recipes)
SETTINGS = typer.Option(
    [], "--set", metavar="A.B=C", help="Change a value of the recipe; may be repeated.", autocompletion=keys
)


def profile(
    recipe: str = RECIPE,
    settings: List[str] = SETTINGS,
    updates: int = typer.Option(50, min=1, help="Updates to time, in each of three passes."),
    out: Path = typer.Option(
        Path("profile"), "--out", metavar="DIR", help="Where picture, trace and figures are written."
    ),
    as_json: bool = JSON,
) -> None:
    """Show where an update of RECIPE's training spends its time, and what would make it faster."""
    from mxkit.profiling.measuring import profile as measure
    from mxkit.recipe.building import batches, fit_arguments
    from mxkit.recipe.reading import load_recipe
    from mxkit.recipe.run import prepare

    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"--out: expected a folder, {out} is a file")
    loaded = load_recipe(recipe, settings)
    data, net = prepare(loaded)
    out.mkdir(parents=True, exist_ok=True)
    with loaded.switches():
        measured = measure(
            net,
            batches(loaded, data, "train", training=True),
            loss=loaded.loss.spec,
            trainer=loaded.optimizer.spec,
            updates=updates,
            metrics=[one.spec for one in loaded.metrics],
            trace=out / "trace.json",
            **{name: value for name, value in fit_arguments(loaded).items() if name in _UPDATES_KEYS},
        )
    if as_json:
        print_json(measured.to_dict())
    else:
        typer.echo(str(measured))
    measured.plot(out / "profile.png")
    (out / "profile.json").write_text(json.dumps(measured.to_dict(), indent=1), encoding="utf-8")
    typer.echo(f"picture {out / 'profile.png'}, figures {out / 'profile.json'}", err=as_json)
    typer.echo(f"trace {out / 'trace.json'}, for chrome://tracing or https://ui.perfetto.dev", err=as_json)


# Keys of a recipe that are arguments of `updates`.
_UPDATES_KEYS = ("accumulate", "clip_norm", "clip_value", "amp", "seed")
