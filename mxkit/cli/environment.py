"""The commands for a machine, an environment and a project: cache, doctor, install, enable, run, launch and init."""

from itertools import takewhile
import os
from pathlib import Path
import re
import sys
from typing import Any, List, Optional

from mxkit.cli.runs import JSON, print_json
from mxkit.core.system import console, show_table
import typer
from typer.core import TyperCommand

cache_app = typer.Typer(invoke_without_command=True)


@cache_app.callback()
def cache(context: typer.Context, json: bool = JSON) -> None:
    """List the cached datasets and pretrained nets in MXNet's and gluoncv's folders, with their sizes."""
    if context.invoked_subcommand is not None:
        return
    from mxkit.data.download import home, list_cache

    listed = list_cache()
    if json:
        print_json(listed)
        return
    rows = [[one.kind, one.name, _size(one.bytes), f"{one.files:,}", one.state, str(one.path.parent)] for one in listed]
    if listed:
        show_table([["kind", "name", "size", "files", "state", "folder"], *rows], left=(0, 1, 4, 5))
    typer.echo(f"{len(listed)} entries, {_size(sum(one.bytes for one in listed))}; new files go to {home()}")


@cache_app.command("clean")
def clean_files(
    name: Optional[str] = typer.Option(None, help="Delete this entry too."),
    older_than: Optional[float] = typer.Option(None, metavar="DAYS", help="Delete what was not written to for DAYS."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be deleted."),
    json: bool = JSON,
) -> None:
    """Delete the files of stopped downloads, and those that the options name."""
    from mxkit.data.download import clean_cache

    try:
        deleted = clean_cache(name=name, older_than=older_than, dry_run=dry_run)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if json:
        print_json(deleted)
        return
    for one in deleted:
        typer.echo(f"{'would delete' if dry_run else 'deleted'} {one.path}\t{_size(one.bytes)}")
    typer.echo(f"{len(deleted)} entries, {_size(sum(one.bytes for one in deleted))}")


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def doctor(json: bool = typer.Option(False, "--json", help="For programs; docs/doctor.md lists the keys.")) -> None:
    """Show what is installed, what MXNet can use here, and how to repair problems; exit code 1 on a problem."""
    from mxkit.runtime.doctor import report, rows, to_json

    checked = report()
    if json:
        typer.echo(to_json(checked))
    else:
        colours = {"title": "bold", "warning": "yellow", "problem": "bold red", "fix": "cyan"}
        for text, status in rows(checked):
            console().print(text, style=colours.get(status))
    if checked.problems:
        raise typer.Exit(1)


def install(
    name: Optional[str] = typer.Argument(None, help="mxnet or mxnet-cu112; default the one that fits this machine."),
    cpu: bool = typer.Option(False, "--cpu", help="MXNet for the CPU, whatever GPUs there are."),
    cuda: bool = typer.Option(False, "--cuda", help="MXNet for NVIDIA GPUs, with the CUDA libraries that it needs."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be run."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Run it without asking."),
) -> None:
    """Install the MXNet that fits this machine and Python; it shows the commands and asks before it runs them.

    Exit code 2: there is a command to run, but no terminal to ask (use --yes), or no pip.
    """
    from mxkit.runtime.installing import describe, has_pip, look, plan, run, verify, wheel_kind

    if cpu + cuda + bool(name) > 1:
        raise typer.BadParameter("pass a name, --cpu or --cuda, not several")
    chosen = plan(look(), wheel_kind(name) if name else "cpu" if cpu else "cuda" if cuda else None)
    typer.echo(describe(chosen))
    if not chosen.commands or dry_run:
        return
    if not has_pip():
        raise typer.Exit(2)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Run this?")):
        typer.echo("nothing was run; --yes runs it without asking", err=True)
        raise typer.Exit(2)
    run(chosen.commands)
    typer.echo(verify())


#: Settings of `run`: all following words belong to Python and the script.
FOR_PYTHON = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}


def run(
    arguments: List[str] = typer.Argument(
        None, metavar="SCRIPT | -m MODULE | -c CODE", help="The arguments of `python`, including its options."
    ),
    old_numpy: bool = typer.Option(
        False,
        "--old-numpy",
        help="The script and what imports MXNet get the names that NumPy removed, like np.float; with =NAMES, such as "
        "--old-numpy=dgl,mxboard, these libraries do.",
    ),
    libraries: str = typer.Option("", "--old-numpy-of", hidden=True),  # what OldNumpyOption makes of the second form
) -> None:
    """Run a script that imports MXNet without mxkit, as Python would: mxkit run SCRIPT ARGUMENTS.

    Processes that the script starts with the same Python get mxkit too. --old-numpy prints the names that were used.
    """
    from mxkit.runtime.libraries import packages_of
    from mxkit.runtime.startup import python_command, variables

    command = python_command(arguments or [])
    names = ",".join(["1"] * old_numpy + packages_of(libraries))
    os.execve(command[0], command, {**os.environ, **variables(names)})


class RunCommand(TyperCommand):
    """The command `run`, whose option --old-numpy stands alone or before `=` and names."""

    def parse_args(self, ctx: Any, args: List[str]) -> List[str]:
        """Give the second form its own option; what follows the first word without a dash belongs to the script."""
        own = list(takewhile(lambda word: word.startswith("-"), args))
        args[: len(own)] = [word.replace("--old-numpy=", "--old-numpy-of=", 1) for word in own]
        return super().parse_args(ctx, args)


def enable(
    off: bool = typer.Option(False, "--off", help="Remove the file again."),
    system: bool = typer.Option(False, "--system", help="Also outside a virtual environment, as in a container."),
    old_numpy: str = typer.Option("", metavar="NAMES", help="These libraries get what NumPy removed: dgl,mxboard."),
) -> None:
    """Let every program of this virtual environment import MXNet without `import mxkit` in its code.

    It writes one .pth file, which imports mxkit when a program imports MXNet. Other programs run as before.
    """
    from mxkit.runtime.libraries import packages_of
    from mxkit.runtime.startup import disable, enabling_file
    from mxkit.runtime.startup import enable as write

    if off:
        typer.echo(f"removed {enabling_file()}" if disable() else "mxkit was not enabled here")
    else:
        written = write(system, ",".join(packages_of(old_numpy)))
        typer.echo(f"wrote {written}: `import mxnet` works in every program of this environment")


def launch(
    command: List[str] = typer.Argument(
        ..., metavar="-- COMMAND", help="The program of each worker, and its arguments."
    ),
    workers: Optional[int] = typer.Option(None, "-n", "--workers", min=1, help="Number of workers; default all slots."),
    servers: str = typer.Option(
        "1", "-s", "--servers", metavar="NUMBER", help="Number of MXNet's servers; 'each' for one beside each worker."
    ),
    restarts: int = typer.Option(0, min=0, help="Number of restarts of all workers after failures."),
    hosts: Optional[Path] = typer.Option(
        None, metavar="FILE", exists=True, dir_okay=False, help="Hosts to reach over ssh; HOST [SLOTS] on each line."
    ),
    address: Optional[str] = typer.Option(
        None, metavar="HOST[:PORT]", help="An address of this machine that all hosts reach."
    ),
) -> None:
    """Run COMMAND in several workers, which train together: mxkit launch -n 2 -- mxkit train RECIPE.

    All workers run on this machine, or on the hosts of --hosts, where mxkit and the folder have the same paths. MXNet's
    scheduler and servers run on this machine; with -s each, the servers run beside the workers. Each line of output of
    workers 1, 2 and so on begins with the rank. When one process fails, all others end, and its exit code is that of
    this command. No process outlives this command. The workers of a machine share its cores, unless OMP_NUM_THREADS is
    set. COMMAND finds the number of restarts in MXKIT_RESTARTS.
    """
    from mxkit.distributed.launching import launch as run_workers
    from mxkit.distributed.schedulers import hosts_of

    if hosts is None and workers is None:
        raise typer.BadParameter("pass -n WORKERS, --hosts FILE, or both")
    places = ["localhost"] * (workers or 1) if hosts is None else hosts_of(hosts, workers)
    raise typer.Exit(run_workers(command, places, servers, restarts=restarts, address=address))


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
        (name / template.stem).write_text(template.read_text(encoding="utf-8").format(name=called), encoding="utf-8")
        typer.echo(name / template.stem)
    typer.echo(f"train it: cd {name} && mxkit train recipe.yaml", err=True)
