"""The `mxkit` command: thin, everything it does is a public call."""

from pathlib import Path
import sys
from typing import List, Optional
import warnings

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

RECIPE = typer.Argument(..., help="A YAML file, or the name of a recipe that ships with mxkit.")
RUN = typer.Argument(..., help="The folder of a run.")
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
    recipe: str = RECIPE,
    settings: List[str] = SETTINGS,
    output: Path = typer.Option(Path("runs"), help="Where the folder of the run is made."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress, only the result."),
) -> None:
    """Train as RECIPE says; ends with the scores over the test part."""
    from mxkit.recipe.run import describe_scores, run_recipe

    run = run_recipe(recipe, overrides=settings, output=output, progress=not quiet)
    typer.echo(f"run {run.folder}")
    for line in describe_scores("test", run.scores):
        typer.echo(line)


@app.command()
def evaluate(
    run: Path = RUN,
    split: str = typer.Option("test", help="Part of the data: train, valid or test."),
) -> None:
    """Compute loss and metrics of a RUN's newest checkpoint."""
    from mxkit.recipe.run import describe_scores, evaluate_split, load_data, load_run

    recipe, net = load_run(run)
    for line in describe_scores(split, evaluate_split(recipe, net, load_data(recipe), split)):
        typer.echo(line)


@app.command()
def predict(
    run: Path = RUN,
    images: List[Path] = typer.Argument(..., metavar="IMAGE...", help="Image files."),
    invert: bool = typer.Option(False, "--invert", help="Swap dark and bright, as for black ink on white."),
) -> None:
    """Classify IMAGES with a RUN's newest checkpoint: file, class, probability."""
    from mxkit.recipe.images import read_images
    from mxkit.recipe.run import load_data, load_run
    from mxkit.training.loop import predict as predict_arrays

    recipe, net = load_run(run)
    data = load_data(recipe)
    scores = predict_arrays(net, read_images(images, data.train.x, invert=invert))
    probabilities = scores.softmax(axis=1).asnumpy()
    for image, row in zip(images, probabilities):
        typer.echo(f"{image}\t{data.classes[int(row.argmax())]}\t{row.max():.4f}")


@app.command()
def show(recipe: str = RECIPE, settings: List[str] = SETTINGS) -> None:
    """Print RECIPE with every default filled in."""
    from mxkit.recipe.reading import dump_recipe, load_recipe

    typer.echo(dump_recipe(load_recipe(recipe, settings)), nl=False)


@app.command()
def doctor() -> None:
    """Tell what is installed, what MXNet can use here, and how to mend what is wrong."""
    from mxkit.runtime.doctor import render, report

    found = report()
    typer.echo(render(found))
    if found.problems:
        raise typer.Exit(1)


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
