"""The command `mxkit sweep`."""

from pathlib import Path
import shlex
from typing import Any, List, Optional

from mxkit.cli.completion import settings as keys
from mxkit.cli.json_output import JSON, print_json
from mxkit.cli.profiler import RECIPE
from mxkit.core.system import show_table
from mxkit.recipe.reading import set_threads
import typer


def sweep(
    recipe: str = RECIPE,
    settings: List[str] = typer.Option(
        ...,
        "--set",
        metavar="A.B=RANGE",
        help="log:1e-4..1e-1, 0.1..0.5, 16..256, or sgd,adam; or one value, as for mxkit train. May be repeated.",
        autocompletion=keys,
    ),
    trials: int = typer.Option(20, min=1, help="Number of trials of the sweep, over all processes."),
    prune: bool = typer.Option(
        False, "--prune", help="End trials early that are worse than the median of earlier ones."
    ),
    name: Optional[str] = typer.Option(None, help="Name of the sweep's folder; sweep-RECIPE by default."),
    output: Path = typer.Option(Path("runs"), help="The folder in which the sweep's folder is made."),
    seed: int = typer.Option(0, min=0, help="Seed of the choices; the trainings have the recipe's."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress of the trainings."),
    json: bool = JSON,
) -> None:
    """Train RECIPE with values that Optuna chooses from ranges; print a table of the trials and draw a picture.

    Repeat the same command to continue a sweep after a kill, or with more --trials. Several processes that run the
    command at the same time share the trials.
    """
    set_threads(recipe, settings)
    from mxkit.recipe.sweeping import Sweep

    try:
        made = Sweep(recipe, settings, output=output, name=name, seed=seed, prune=prune)
    except ImportError as error:
        raise typer.BadParameter(str(error)) from error
    with made:
        try:
            made.run(trials, progress=not quiet, notify=lambda line: typer.echo(line, err=True))
        except KeyboardInterrupt:
            typer.echo(f"stopped; the same command continues {shlex.quote(str(made.folder))}", err=True)
            raise typer.Exit(130) from None
        listed = made.trials
        if json:
            print_json(listed)
        else:
            _show(made, listed)
        if any(one.value is not None for one in listed):
            typer.echo(f"picture {made.plot()}", err=json)
        if listed[0].state != "finished":
            typer.echo("error: no trial has finished; the table has the reasons", err=True)
            raise typer.Exit(1)
        typer.echo(f"best {made.folder / listed[0].name}", err=json)


def _show(made: Any, listed: List[Any]) -> None:
    rows = [["trial", "state", made.column, "epoch", *listed[0].chosen]]
    for one in listed:
        state = one.reason if one.reason.startswith(one.state) else f"{one.state}: {one.reason}".rstrip(": ")
        chosen = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in one.chosen.values()]
        value, epoch = ("" if number is None else f"{number:.5g}" for number in (one.value, one.epoch))
        rows.append([one.name, " ".join(state.split()), value, epoch, *chosen])
    show_table(rows, left=(0, 1), shrinkable=(1,))
