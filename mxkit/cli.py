"""The `mxkit` command: thin, everything it does is a public call."""

from pathlib import Path
import sys
from typing import Any, List, Optional
import warnings

from mxkit.cli_machine import cache_app, doctor, install
from mxkit.cli_profile import profile
from mxkit.errors import MxkitError, RecipeError, UnknownNameError
from mxkit.version import __version__
import typer

app = typer.Typer(
    help="Train, evaluate and use Gluon nets from recipes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cache_app, name="cache")

RECIPE = typer.Argument(..., help="A YAML file, or the name of a recipe that ships with mxkit.")
RUN = typer.Argument(..., help="The folder of a run.")
WHICH = typer.Option("last", help="The checkpoint to take: last or best.")
INVERT = typer.Option(False, "--invert", help="Swap dark and bright, as for black ink on white.")
SETTINGS = typer.Option([], "--set", metavar="A.B=C", help="Change a value of the recipe; may be repeated.")


def _version(value: bool) -> None:
    if value:
        typer.echo(f"mxkit {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


@app.command()
def train(
    recipe: Optional[str] = typer.Argument(None, help="A YAML file, or the name of a recipe that ships with mxkit."),
    settings: List[str] = SETTINGS,
    output: Path = typer.Option(Path("runs"), help="Where the folder of the run is made."),
    resume: Optional[Path] = typer.Option(None, metavar="RUN", help="Go on with this stopped run, without RECIPE."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress, only the result."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Also layers, devices, data and each checkpoint."),
) -> None:
    """Train as RECIPE says, or go on with a stopped run; ends with the scores over the test part."""
    from mxkit.recipe.folder import RunFolder
    from mxkit.recipe.reading import load_recipe
    from mxkit.recipe.run import describe_scores, resume_run, run_recipe

    if (recipe is None) == (resume is None):
        raise typer.BadParameter("pass a RECIPE, or --resume RUN")
    if quiet and verbose:
        raise typer.BadParameter("pass --quiet or --verbose, not both")
    progress: Any = "verbose" if verbose else not quiet
    if verbose:
        loaded = load_recipe(str(recipe), settings) if resume is None else RunFolder(resume).recipe(settings)
        typer.echo(_layer_table(loaded), err=True)
    if resume is not None:
        run = resume_run(resume, overrides=settings, progress=progress)
    else:
        run = run_recipe(str(recipe), overrides=settings, output=output, progress=progress)
    typer.echo(f"run {run.folder}")
    for line in describe_scores(run.split, run.scores):
        typer.echo(line)


@app.command()
def evaluate(
    run: Path = RUN,
    split: str = typer.Option("test", help="Part of the data: train, valid or test."),
    which: str = WHICH,
) -> None:
    """Compute loss and metrics of a RUN's newest checkpoint."""
    from mxkit.recipe.batches import load_data
    from mxkit.recipe.run import describe_scores, evaluate_split, load_run

    recipe, net = load_run(run, which)
    for line in describe_scores(split, evaluate_split(recipe, net, load_data(recipe), split)):
        typer.echo(line)


@app.command()
def predict(
    run: Path = RUN,
    images: List[Path] = typer.Argument(..., metavar="IMAGE...", help="Image files."),
    invert: bool = INVERT,
    which: str = WHICH,
) -> None:
    """Classify IMAGES with a RUN's newest checkpoint: file, class, probability."""
    from mxkit.recipe.batches import load_data
    from mxkit.recipe.images import net_inputs
    from mxkit.recipe.run import load_run
    from mxkit.training.evaluation import predict as predict_arrays

    recipe, net = load_run(run, which)
    data = load_data(recipe)
    scores = predict_arrays(net, net_inputs(recipe, data, images, invert=invert))
    probabilities = scores.softmax(axis=1).asnumpy()
    for image, row in zip(images, probabilities):
        name = data.classes[int(row.argmax())] if data.classes else str(int(row.argmax()))
        typer.echo(f"{image}\t{name}\t{row.max():.4f}")


@app.command()
def layers(
    run: Path = RUN,
    depth: Optional[int] = typer.Option(None, min=0, help="How deep the rows go; all by default."),
) -> None:
    """Print the layers of a RUN's net: paths, output shapes, parameters, multiply-adds for one sample."""
    from mxkit.recipe.folder import RunFolder

    typer.echo(_layer_table(RunFolder(run).recipe(), depth))


def _layer_table(recipe: Any, depth: Optional[int] = None) -> str:
    from mxkit.layer_table import layers as layers_of
    from mxkit.recipe.batches import first_inputs, load_data
    from mxkit.recipe.nets import empty_net

    inputs = first_inputs(recipe, load_data(recipe))
    return str(layers_of(empty_net(recipe, inputs), *(one.shape for one in inputs), depth=depth))


@app.command()
def features(
    run: Path = RUN,
    image: Path = typer.Argument(..., help="An image file."),
    layers: List[str] = typer.Option(["*"], "--layers", metavar="GLOB", help="Paths or globs; may be repeated."),
    out: Path = typer.Option(Path("features"), "--out", metavar="DIR", help="Where the pictures are written."),
    channels: int = typer.Option(64, min=1, help="At most so many channels a picture, the strongest."),
    invert: bool = INVERT,
    which: str = WHICH,
) -> None:
    """Draw what layers of a RUN's net make of IMAGE: one picture a layer, in DIR."""
    from mxkit.blocks import net_devices
    from mxkit.feature_plots import plot_features
    from mxkit.features import Features
    from mxkit.recipe.batches import load_data
    from mxkit.recipe.images import net_inputs
    from mxkit.recipe.run import load_run
    import mxnet as mx

    recipe, net = load_run(run, which)
    x = mx.nd.array(net_inputs(recipe, load_data(recipe), [image], invert=invert), ctx=net_devices(net)[0])
    found = Features(net, layers)(x)
    plot_features(found, image=x, channels=channels, order="strength", path=out)
    for name, array in found.items():
        typer.echo(f"{name}\t{tuple(array.shape)}")
    typer.echo(f"pictures in {out}")


@app.command()
def show(
    recipe: str = RECIPE,
    other: Optional[str] = typer.Argument(None, help="With --diff: what RECIPE is compared with."),
    settings: List[str] = SETTINGS,
    diff: bool = typer.Option(False, "--diff", help="Print what RECIPE and OTHER say differently."),
    as_script: bool = typer.Option(False, "--as-script", help="Print the Python that does what RECIPE says."),
) -> None:
    """Print RECIPE with every default filled in, bases and variables worked in; --set changes RECIPE alone."""
    from mxkit.recipe.reading import differences, dump_recipe, load_recipe

    if diff != (other is not None) or (diff and as_script):
        raise typer.BadParameter("pass RECIPE, --as-script RECIPE, or --diff RECIPE OTHER")
    loaded = load_recipe(recipe, settings)
    if as_script:
        from mxkit.recipe.script import as_script as script_of

        typer.echo(script_of(loaded), nl=False)
    elif other is None:
        typer.echo(dump_recipe(loaded), nl=False)
    else:
        for line in differences(loaded, load_recipe(other)):
            typer.echo(line)


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors that complete and check YAML."""
    import json

    from mxkit.recipe.json_schema import recipe_schema

    typer.echo(json.dumps(recipe_schema(), indent=1))


@app.command()
def checkpoints(
    words: List[str] = typer.Argument(..., metavar="[verify|prune] RUN", help="The folder of a run."),
    keep_last: int = typer.Option(3, min=1, help="Newest ones that prune keeps."),
) -> None:
    """List the checkpoints of RUN; verify them (exit code 1 if one is broken), or prune old ones."""
    from mxkit.checkpoint.listing import checkpoints_of, list_checkpoints, prune_to
    from mxkit.training.history import fixed
    from rich.console import Console
    from rich.table import Table

    action, run = ("list", words[0]) if len(words) == 1 else (words[0], words[-1])
    if action not in ("list", "verify", "prune") or len(words) > 2:
        raise typer.BadParameter(f"expected verify, prune or nothing before RUN; received {' '.join(words)!r}")
    directory = checkpoints_of(run)
    if action == "prune":
        removed = prune_to(directory, keep_last)
        typer.echo(f"removed {len(removed)} checkpoints" + (f": updates {removed}" if removed else ""))
        return
    found = list_checkpoints(directory)
    table = Table("checkpoint", "epoch", "scores", "size", "state", box=None, header_style="bold")
    for one in found:
        scores = "  ".join(f"{name} {fixed(value)}" for name, value in one.scores.items())
        epoch = "" if one.epoch is None else str(one.epoch)
        table.add_row(one.name, epoch, scores, f"{one.size / 1024:,.1f} KiB", one.problem or "whole")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if not found:
        typer.echo(f"no checkpoint in {directory}")
    if action == "verify" and any(one.problem for one in found):
        raise typer.Exit(1)


@app.command()
def report(
    runs: List[Path] = typer.Argument(..., metavar="RUN...", help="The folder of a run; several are compared."),
    out: Optional[Path] = typer.Option(
        None, "--out", metavar="FILE", help="The page; RUN/report.html by default, for several runs ./report.html."
    ),
) -> None:
    """Write an HTML page of a RUN: scores, curves, confusion matrix, worst mistakes, layers; or compare several."""
    from mxkit.reporting.page import write_report

    typer.echo(f"page {write_report(runs, out)}")


@app.command()
def runs(
    directory: Path = typer.Argument(Path("runs"), metavar="[DIR]", help="Holds the folders of runs."),
    sort: str = typer.Option("started", metavar="COLUMN", help="Any column or metric; -COLUMN puts the highest first."),
    json: bool = typer.Option(False, "--json", help="For programs."),
) -> None:
    """List the runs in DIR: how each ended, its scores, its best validation, time and size."""
    from mxkit.reporting.run_list import list_runs, runs_table, to_json
    from rich.console import Console

    found = list_runs(directory, sort=sort)
    if json:
        typer.echo(to_json(found))
    elif found:
        Console(width=None if sys.stdout.isatty() else 200).print(runs_table(found))
    else:
        typer.echo(f"no run in {directory}")


app.command()(doctor)
app.command()(profile)
app.command()(install)


def main(arguments: Optional[List[str]] = None) -> None:
    """Run the command; errors that mxkit raises on purpose are told without a traceback.

    Exit codes: 0 done, 1 an error while working, 2 a command line or recipe that cannot be run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = _show_warning
        try:
            app(args=arguments, prog_name="mxkit")
        except MxkitError as error:
            typer.echo(f"error: {error}", err=True)
            sys.exit(2 if isinstance(error, (RecipeError, UnknownNameError)) else 1)


def _show_warning(message: object, *_: object, **__: object) -> None:
    typer.echo(f"warning: {message}", err=True)
