"""The `mxkit` command; it only calls the other rooms."""

from contextlib import contextmanager, suppress
import math
import os
from pathlib import Path
import shlex
import signal
import sys
from traceback import walk_tb
from typing import Any, Iterator, List, Optional, Sequence
import warnings

from mxkit.cli.completion import recipes, run_folders
from mxkit.cli.environment import FOR_PYTHON, RunCommand, cache_app, doctor, enable, init, install, launch
from mxkit.cli.environment import run as run_script
from mxkit.cli.inference import benchmark, predict
from mxkit.cli.recipes import RECIPE, RECIPE_HELP, SETTINGS, profile, sweep
from mxkit.cli.record_files import rec_app
import mxkit.cli.runs as cli_runs
from mxkit.errors import MxkitError, RecipeError, UnknownNameError
from mxkit.recipe.reading import set_threads
from mxkit.runtime.engine_settings import EXACT
from mxkit.version import __version__
import typer

app = typer.Typer(
    help="Train, evaluate and use Gluon nets from recipes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(cache_app, name="cache")
app.add_typer(rec_app, name="rec")


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
    recipe: Optional[str] = typer.Argument(None, help=RECIPE_HELP, autocompletion=recipes),
    settings: List[str] = SETTINGS,
    output: Path = typer.Option(Path("runs"), help="The folder in which the run's folder is made."),
    resume: Optional[Path] = typer.Option(
        None, metavar="RUN", help="Resume this stopped run; no RECIPE.", autocompletion=run_folders
    ),
    exact: bool = typer.Option(False, "--exact", help="The same bits each time on a GPU, slower: MXKIT_EXACT=1."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress, only the result."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Also layers, devices and data."),
) -> None:
    """Train RECIPE, or resume a stopped run; print the scores over the test part at the end.

    Processes that mxkit launch, srun or mpirun starts train together. Ctrl-C stops at the next checkpoint, with exit
    code 130, and prints the command that resumes the run.
    """
    if exact:
        os.environ[EXACT] = "1"  # read when MXNet is loaded
    if (recipe is None) == (resume is None):
        raise typer.BadParameter("pass a RECIPE, or --resume RUN")
    set_threads(recipe or Path(str(resume)) / "recipe.yaml", settings, resume)
    from mxkit.distributed import initialize, rank
    from mxkit.distributed.group import note_run, restarted_run
    from mxkit.recipe.folder import describe_scores
    from mxkit.recipe.net_facts import facts_of, layer_table
    from mxkit.recipe.run import new_run, stopped_run, train_run, way_to_train_on

    progress: Any = "verbose" if verbose else not quiet
    with _stops() as stops:
        initialize()
        resume = resume or restarted_run()
        if resume is not None:
            prepared = stopped_run(resume, overrides=settings)
        else:
            prepared = new_run(str(recipe), overrides=settings, output=output)
        note_run(prepared.folder.path)
        stops.append(prepared.folder)
        if verbose and rank() == 0:
            # nobody reads it, or the training refuses the net with a better message
            with suppress(BrokenPipeError, MxkitError):
                typer.echo(str(layer_table(prepared.recipe, facts_of(prepared.recipe, prepared.data))), err=True)
        run = train_run(prepared, progress=progress, report=_write_report)
        stopped = run.history.stopped or ""
        if rank():
            raise typer.Exit(130 if stopped.startswith("KeyboardInterrupt") else 0)
        typer.echo(f"run {run.folder}")
        if run.had_ended and not stopped.startswith("KeyboardInterrupt"):
            way = way_to_train_on(run.folder, prepared.recipe, run.history.stopped)
            typer.echo(f"this run had ended: nothing was trained. {way}", err=True)
        if not quiet:
            cli_runs.show_samples(prepared.data, run.split)
        for line in describe_scores(run.split, run.scores):
            typer.echo(line)
        if stopped.startswith("KeyboardInterrupt"):
            raise KeyboardInterrupt
        if not all(math.isfinite(score) for score in run.scores.values() if isinstance(score, float)):
            typer.echo(f"error: the scores are not finite. {stopped}", err=True)
            raise typer.Exit(1)


def _write_report(runs: Sequence[Path]) -> None:
    from mxkit.reports import write_report

    write_report(runs)


@contextmanager
def _stops() -> Iterator[List[Any]]:
    """Print the command that resumes the run after Ctrl-C and other signals, and its folder after an error.

    Yields a list, to which the caller adds the folder of the run. The signal then ends the process as usual.
    """
    from mxkit.distributed import rank
    from mxkit.training.signals import ctrl_c_in_imports

    folders: List[Any] = []

    def stopped(reason: str) -> None:
        way = " before the run had a folder"
        if folders:
            if rank() == 0:
                folders[0].mark_stopped(reason)
            way = f" before the first checkpoint; the files are in {folders[0].path}"
            if list(folders[0].checkpoints.glob("step-*")):
                way = f"; resume it with: mxkit train --resume {shlex.quote(str(folders[0].path))}"
        typer.echo(f"stopped{way}", err=True)

    def terminated(number: int, _: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            stopped(signal.Signals(number).name)
        finally:
            os.kill(os.getpid(), number)

    ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, terminated)
        with ctrl_c_in_imports():
            yield folders
    except KeyboardInterrupt:
        stopped("KeyboardInterrupt")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # nobody reads the scores of a run that is whole
        raise
    except Exception as error:
        code = _show_error(error)
        if code is None:
            raise
        if folders:
            typer.echo(f"the files of the run are in {folders[0].path}", err=True)
        raise typer.Exit(code) from error
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@app.command()
def show(
    recipe: str = RECIPE,
    other: Optional[str] = typer.Argument(None, help="With --diff: the other recipe.", autocompletion=recipes),
    settings: List[str] = SETTINGS,
    diff: bool = typer.Option(False, "--diff", help="Print the differences of RECIPE and OTHER."),
    as_script: bool = typer.Option(False, "--as-script", help="Print RECIPE as a Python script."),
) -> None:
    """Print RECIPE with every default, merged with its bases and variables; --set changes RECIPE only."""
    from mxkit.recipe.reading import dump_recipe, load_recipe
    from mxkit.recipe.schema import differences

    if diff != (other is not None) or (diff and as_script):
        raise typer.BadParameter("pass RECIPE, --as-script RECIPE, or --diff RECIPE OTHER")
    loaded = load_recipe(recipe, settings)
    if as_script:
        from mxkit.recipe.run import as_script as script_of

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

    from mxkit.recipe.schema import recipe_schema

    typer.echo(json.dumps(recipe_schema(), indent=1))


for _command in (
    sweep,
    cli_runs.evaluate,
    predict,
    cli_runs.layers,
    cli_runs.features,
    cli_runs.export,
    cli_runs.checkpoints,
    cli_runs.report,
    cli_runs.runs,
    doctor,
    profile,
    benchmark,
    launch,
    install,
    enable,
    init,
):
    app.command()(_command)
app.command("run", cls=RunCommand, context_settings=FOR_PYTHON)(run_script)


def main(arguments: Optional[List[str]] = None) -> None:
    """Run the command, and print errors of mxkit without a traceback.

    Exit codes: 0 success, 1 an error while the command runs, 2 a wrong command line or recipe, 130 Ctrl-C.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # pyparsing's are both; matplotlib 3.9 has some
        warnings.showwarning = _show_warning
        try:
            app(args=arguments, prog_name="mxkit")
        except KeyboardInterrupt:  # before typer runs the command
            sys.exit(130)
        except Exception as error:
            code = _show_error(error)
            if code is None:
                raise
            sys.exit(code)


def _show_error(error: Exception) -> Optional[int]:
    """Print an error that needs no traceback, and return the exit code; None for other errors."""
    if isinstance(error, (MxkitError, OSError)):  # OSError: a file that cannot be written, a full disk
        typer.echo(f"error: {error}", err=True)
        return 2 if isinstance(error, (RecipeError, UnknownNameError)) else 1
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if type(error) is ValueError and str(frames[-1].f_globals.get("__name__")).startswith("mxkit."):
        typer.echo(f"error: {error}", err=True)  # refused by mxkit, with the way out
        return 1
    if type(error).__name__ == "MXNetError":  # `isinstance` would have to import MXNet
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith(("Traceback", "  "))]
        typer.echo(f"error: MXNet: {' '.join(lines)}", err=True)
        return 1
    return None


def _show_warning(message: object, *_: object, **__: object) -> None:
    with suppress(OSError):  # a closed pipe or terminal must not end a training
        typer.echo(f"warning: {message}", err=True)
