"""The commands `mxkit cache`, `doctor` and `install`."""

import sys
from typing import Optional

from mxkit.cli.json_output import JSON, print_json
from mxkit.core.system import console, show_table
import typer

cache_app = typer.Typer(invoke_without_command=True)


@cache_app.callback()
def cache(context: typer.Context, json: bool = JSON) -> None:
    """List the cached datasets and pretrained nets in MXNet's and gluoncv's folders, with their sizes."""
    if context.invoked_subcommand is not None:
        return
    from mxkit.data.files.cache import home, list_cache

    listed = list_cache()
    if json:
        print_json(listed)
        return
    rows = [[one.kind, one.name, _size(one.bytes), f"{one.files:,}", one.state, str(one.path.parent)] for one in listed]
    if listed:
        names = ["kind", "name", "size", "files", "state", "folder"]
        show_table([names, *rows], left=(0, 1, 4, 5))
    typer.echo(f"{len(listed)} entries, {_size(sum(one.bytes for one in listed))}; new files go to {home()}")


@cache_app.command("clean")
def clean_files(
    name: Optional[str] = typer.Option(None, help="Delete this entry too."),
    older_than: Optional[float] = typer.Option(None, metavar="DAYS", help="Delete what was not written to for DAYS."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only show what would be deleted."),
    json: bool = JSON,
) -> None:
    """Delete the files of stopped downloads, and those that the options name."""
    from mxkit.data.files.cache import clean_cache

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
    from mxkit.runtime.installing import describe, has_pip, kind_of, look, plan, run, verify

    if cpu + cuda + bool(name) > 1:
        raise typer.BadParameter("pass a name, --cpu or --cuda, not several")
    chosen = plan(look(), kind_of(name) if name else "cpu" if cpu else "cuda" if cuda else None)
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
