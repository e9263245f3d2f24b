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

cache_app = typer.Typer(invoke_without_command=True)
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
) -> None:
    """Train as RECIPE says, or go on with a stopped run; ends with the scores over the test part."""
    from mxkit.recipe.run import describe_scores, resume_run, run_recipe

    if (recipe is None) == (resume is None):
        raise typer.BadParameter("pass a RECIPE, or --resume RUN")
    if resume is not None:
        run = resume_run(resume, overrides=settings, progress=not quiet)
    else:
        run = run_recipe(str(recipe), overrides=settings, output=output, progress=not quiet)
    typer.echo(f"run {run.folder}")
    for line in describe_scores("test", run.scores):
        typer.echo(line)


@app.command()
def evaluate(
    run: Path = RUN,
    split: str = typer.Option("test", help="Part of the data: train, valid or test."),
    which: str = WHICH,
) -> None:
    """Compute loss and metrics of a RUN's newest checkpoint."""
    from mxkit.recipe.run import describe_scores, evaluate_split, load_data, load_run

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
    from mxkit.recipe.images import read_images
    from mxkit.recipe.run import load_data, load_run
    from mxkit.training.evaluation import predict as predict_arrays

    recipe, net = load_run(run, which)
    data = load_data(recipe)
    scores = predict_arrays(net, read_images(images, data.train.x, invert=invert))
    probabilities = scores.softmax(axis=1).asnumpy()
    for image, row in zip(images, probabilities):
        typer.echo(f"{image}\t{data.classes[int(row.argmax())]}\t{row.max():.4f}")


@app.command()
def layers(
    run: Path = RUN,
    depth: Optional[int] = typer.Option(None, min=0, help="How deep the rows go; all by default."),
) -> None:
    """Print the layers of a RUN's net: paths, output shapes, parameters, multiply-adds for one sample."""
    from mxkit.layer_table import layers as layers_of
    from mxkit.recipe.folder import RunFolder
    from mxkit.recipe.run import build_net, load_data

    recipe = RunFolder(run).recipe()
    typer.echo(str(layers_of(build_net(recipe), (1, *load_data(recipe).train.x.shape[1:]), depth=depth)))


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
    from mxkit.recipe.images import read_images
    from mxkit.recipe.run import load_data, load_run
    import mxnet as mx

    recipe, net = load_run(run, which)
    x = mx.nd.array(read_images([image], load_data(recipe).train.x, invert=invert), ctx=net_devices(net)[0])
    found = Features(net, layers)(x)
    plot_features(found, image=x, channels=channels, order="strength", path=out)
    for name, array in found.items():
        typer.echo(f"{name}\t{tuple(array.shape)}")
    typer.echo(f"pictures in {out}")


@app.command()
def show(recipe: str = RECIPE, settings: List[str] = SETTINGS) -> None:
    """Print RECIPE with every default filled in."""
    from mxkit.recipe.reading import dump_recipe, load_recipe

    typer.echo(dump_recipe(load_recipe(recipe, settings)), nl=False)


@app.command()
def checkpoints(
    words: List[str] = typer.Argument(..., metavar="[verify|prune] RUN", help="The folder of a run."),
    keep_last: int = typer.Option(3, min=1, help="Newest ones that prune keeps."),
) -> None:
    """List the checkpoints of RUN; verify them (exit code 1 if one is broken), or prune old ones."""
    from mxkit.checkpoint.listing import checkpoints_of, list_checkpoints, prune_to
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
        scores = "  ".join(f"{name} {value:.4f}" for name, value in one.scores.items())
        epoch = "" if one.epoch is None else str(one.epoch)
        table.add_row(one.name, epoch, scores, f"{one.size / 1024:,.1f} KiB", one.problem or "whole")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if not found:
        typer.echo(f"no checkpoint in {directory}")
    if action == "verify" and any(one.problem for one in found):
        raise typer.Exit(1)


@cache_app.callback()
def cache(context: typer.Context) -> None:
    """List what datasets and pretrained nets take, in MXNet's and gluoncv's folders; move or clean them."""
    if context.invoked_subcommand is not None:
        return
    from mxkit.data.files.cache import home, list_cache
    from rich.console import Console
    from rich.table import Table

    found = list_cache()
    table = Table("kind", "name", "size", "files", "state", "folder", box=None, header_style="bold")
    for one in found:
        table.add_row(one.kind, one.name, _size(one.bytes), f"{one.files:,}", one.state, str(one.path.parent))
    if found:
        Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo(f"{len(found)} entries, {_size(sum(one.bytes for one in found))}; new files go to {home()}")


@cache_app.command("move")
def move_files(to: Path = typer.Argument(..., metavar="DIR", help="The new folder, on any disk.")) -> None:
    """Move the cache folder to DIR; tells what to set, so that MXNet, gluoncv and mxkit find it there."""
    from mxkit.data.files.cache import move_cache

    moved = move_cache(to)
    typer.echo(f"moved {moved.files:,} files, {_size(moved.bytes)}, to {moved.to}")
    typer.echo(moved.advice)


@cache_app.command("clean")
def clean_files(
    name: Optional[str] = typer.Option(None, help="Delete this entry too."),
    older_than: Optional[float] = typer.Option(None, metavar="DAYS", help="Delete what was not written to for DAYS."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only tell what would be deleted."),
) -> None:
    """Delete what stopped downloads left, and what the options name."""
    from mxkit.data.files.cache import clean_cache

    deleted = clean_cache(name=name, older_than=older_than, dry_run=dry_run)
    for one in deleted:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {one.path}\t{_size(one.bytes)}")
    typer.echo(f"{len(deleted)} entries, {_size(sum(one.bytes for one in deleted))}")


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


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
