"""The commands `mxkit profile` and `mxkit sweep`, which train a recipe."""

import json
import os
from pathlib import Path
import shlex
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any, List, Optional, Sequence

from mxkit.cli.completion import recipes
from mxkit.cli.completion import settings as keys
from mxkit.cli.runs import JSON, print_json
from mxkit.core.system import show_table
from mxkit.errors import MxkitError
from mxkit.recipe.reading import set_threads
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
    threads: bool = typer.Option(True, help="Also time it with 1, 2, 4 ... threads, each in a process of its own."),
    as_json: bool = JSON,
) -> None:
    """Show where an update of RECIPE's training spends its time, and what would make it faster."""
    set_threads(recipe, settings)
    from mxkit.core.blocks import net_devices
    from mxkit.core.device import is_gpu
    from mxkit.profiling.measuring import profile as measure
    from mxkit.recipe.building import batches, fit_arguments
    from mxkit.recipe.reading import load_recipe
    from mxkit.recipe.run import prepare

    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"--out: expected a folder, {out} is a file")
    loaded = load_recipe(recipe, settings)
    data, net = prepare(loaded)
    out.mkdir(parents=True, exist_ok=True)
    on_cpu = threads and not any(map(is_gpu, net_devices(net)))
    with loaded.switches():
        measured = measure(
            net,
            batches(loaded, data, "train", training=True),
            loss=loaded.loss.made,
            trainer=loaded.optimizer.made,
            updates=updates,
            metrics=[one.made for one in loaded.metrics],
            trace=out / "trace.json",
            threads=_timed(recipe, settings, updates) if on_cpu else (),
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


def _timed(recipe: str, settings: Sequence[str], updates: int) -> Sequence[Any]:
    """Times of an update with 1, 2, 4 ... threads, by this command in other processes; none if a variable decides."""
    from mxkit.profiling.result import Threads
    from mxkit.runtime.engine_settings import choose, in_force
    from mxkit.runtime.machine import read_processors

    processors = read_processors()
    if choose(processors, os.environ).setting:
        return []
    numbers = {*(2**power for power in range(processors.threads.bit_length())), processors.threads}
    times = []
    for number in sorted(numbers - {in_force()}):
        changes = [f"--set={setting}" for setting in (*settings, f"threads={number}")]
        with TemporaryDirectory() as folder:
            options = ["--updates", str(updates), "--no-threads", "--json", "--out", folder, *changes]
            done = subprocess.run(
                [sys.executable, "-m", "mxkit", "profile", recipe, *options], capture_output=True, text=True
            )
        if done.returncode:
            raise MxkitError(f"profile with threads={number} failed: {done.stderr.strip()}")
        times.append(Threads(number, float(json.loads(done.stdout)["ms"])))
    return times


# Keys of a recipe that are arguments of `updates`.
_UPDATES_KEYS = ("accumulate", "clip_norm", "clip_value", "amp", "seed")


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
