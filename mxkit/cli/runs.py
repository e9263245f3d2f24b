"""The commands of `mxkit` that read the folder of a run."""

import json
from pathlib import Path
from typing import Any, List, Optional

from mxkit.cli.completion import run_columns, run_folders
from mxkit.core.system import null_for_nan, show_table
from mxkit.errors import MxkitError
import typer

JSON = typer.Option(False, "--json", help="For programs: the fields of the Python objects.")


def print_json(value: Any) -> None:
    """Print a value as JSON: NamedTuples become mappings, paths become texts, NaN and infinity become null."""
    typer.echo(json.dumps(null_for_nan(value), indent=1))


RUN = typer.Argument(..., help="The folder of a run.", autocompletion=run_folders)
INVERT = typer.Option(False, "--invert", help="Swap dark and bright, as for black ink on white.")


def _which(value: Optional[str]) -> Optional[str]:
    if value not in ("last", "best", None):
        raise typer.BadParameter(f"expected last or best; received {value!r}")
    return value


WHICH = typer.Option(
    None,
    "--which",
    help="The checkpoint to take: last or best. Default: that of the final scores, evaluate.which of the recipe.",
    callback=_which,
    autocompletion=lambda: ["last", "best"],
)


def load_shown(run: Path, which: Optional[str]) -> Any:
    """Load the recipe and the net of a run, and print to standard error which checkpoint was taken."""
    from mxkit.recipe.run import open_run

    recipe, net, found = open_run(run, which)
    epoch = "" if found.epoch is None else f", epoch {found.epoch}"
    typer.echo(f"{which or recipe.evaluate.which} checkpoint {found.path.name}{epoch}", err=True)
    return recipe, net


def evaluate(
    run: Path = RUN,
    split: Optional[str] = typer.Option(
        None, help="Part of the data: train, valid or test. Default: that of the final scores."
    ),
    which: Optional[str] = WHICH,
    json: bool = JSON,
) -> None:
    """Compute loss and metrics of a RUN's checkpoint; without the RUN's data, show its final scores."""
    from mxkit.recipe.building import evaluate_split
    from mxkit.recipe.data_checks import load_data
    from mxkit.recipe.net_facts import warn_of_other_data

    recipe, net = load_shown(run, which)
    split = split or recipe.evaluate.split
    try:
        data = load_data(recipe)
    except MxkitError as error:
        _show_recorded(run, split, which in (None, recipe.evaluate.which), error, json)
        raise typer.Exit(1) from error
    warn_of_other_data(run, data, split)
    scores = evaluate_split(recipe, net, data, split)
    show_samples(data, split)
    _show_scores(split, scores, json)


def _show_scores(split: str, scores: Any, json: bool, prefix: str = "") -> None:
    from mxkit.recipe.folder import describe_scores

    if json:
        print_json({split: scores})
        return
    for line in describe_scores(split, scores):
        typer.echo(prefix + line)


def show_samples(data: Any, split: str) -> None:
    """Print the number of samples of a part of the data to standard error, if the data has a length."""
    from mxkit.recipe.building import count_samples

    count = count_samples(getattr(data, split))
    if count is not None:
        typer.echo(f"{split}: {count} sample{'s' * (count != 1)}", err=True)


def _show_recorded(run: Path, split: str, same_checkpoint: bool, error: Exception, json: bool) -> None:
    """Show the scores of scores.json, because the data is missing."""
    from mxkit.reports.run_files import read_run

    typer.echo(f"error: nothing was evaluated, because the data of {run} cannot be read: {error}", err=True)
    scores = read_run(run).scores.get(split) if same_checkpoint else None
    if not scores:
        typer.echo(f"{run / 'scores.json'} has no scores of {split} and this checkpoint either", err=True)
        return
    typer.echo(f"the scores in {run / 'scores.json'}, from the end of the training:", err=True)
    _show_scores(split, scores, json, "recorded ")


def layers(
    run: Path = RUN,
    depth: Optional[int] = typer.Option(None, min=0, help="Show rows to this depth; all by default."),
    picture: Optional[Path] = typer.Option(
        None, "--picture", metavar="FILE", help="Draw the net, too: net.svg, net.png or net.pdf."
    ),
    json: bool = JSON,
) -> None:
    """Print the layers of a RUN's net: paths, output shapes, parameters, multiply-adds for one sample."""
    from mxkit.recipe.folder import RunFolder
    from mxkit.recipe.net_facts import layer_table, read_facts

    if picture and picture.suffix not in (".svg", ".png", ".pdf"):
        raise typer.BadParameter(f"--picture: expected a file like net.svg, received {picture}")
    recipe = RunFolder(run).recipe()
    facts = read_facts(run)
    table = layer_table(recipe, facts, depth)
    if picture:
        from mxkit.plots.net_drawing import graph
        from mxkit.recipe.net_facts import empty_net

        with recipe.switches():
            graph(empty_net(recipe, facts.sample()), *table.inputs, depth=depth, path=picture)
    if json:
        print_json({**{name: one for name, one in vars(table).items() if name[0] != "_"}, "layers": list(table)})
    else:
        typer.echo(str(table))


def features(
    run: Path = RUN,
    image: Path = typer.Argument(..., help="An image file."),
    layers: List[str] = typer.Option(["*"], "--layers", metavar="GLOB", help="Paths or globs; may be repeated."),
    out: Path = typer.Option(Path("features"), "--out", metavar="DIR", help="Where the pictures are written."),
    channels: int = typer.Option(64, min=1, help="Largest number of channels per picture; the strongest are drawn."),
    invert: bool = INVERT,
    which: Optional[str] = WHICH,
    json: bool = JSON,
) -> None:
    """Draw the outputs of layers of a RUN's net for IMAGE: one picture per layer, in DIR."""
    from mxkit.core.blocks import net_devices
    from mxkit.nets.features import Features
    from mxkit.plots.feature_plots import plot_features
    from mxkit.recipe.net_facts import image_reader, read_facts
    import mxnet as mx

    recipe, net = load_shown(run, which)
    pixels = image_reader(recipe, read_facts(run).images, invert=invert)(image)
    x = mx.nd.array(pixels[None], ctx=net_devices(net)[0])
    outputs = Features(net, layers)(x)
    plot_features(outputs, image=x, channels=channels, order="strength", path=out)
    if json:
        print_json({name: array.shape for name, array in outputs.items()})
        return
    for name, array in outputs.items():
        typer.echo(f"{name}\t{tuple(array.shape)}")
    typer.echo(f"pictures in {out}")


def export(
    source: str = typer.Argument(
        ...,
        metavar="RUN",
        help="The folder of a run; or a file of save_net, files of a graph, a model.tar.gz.",
        autocompletion=run_folders,
    ),
    path: Path = typer.Argument(..., help="models/net becomes models/net.onnx, or what the format has."),
    format: Optional[str] = typer.Option(
        None, "--format", help="symbol, onnx, torch (code and weights), or safetensors; by PATH's ending, else symbol."
    ),
    which: Optional[str] = WHICH,
    shape: Optional[List[str]] = typer.Option(
        None, "--shape", help="Shape of an input, like 1,3,224,224; once for each. Not needed for a run."
    ),
    params: Optional[Path] = typer.Option(
        None, "--params", metavar="FILE", help="The parameters of a graph RUN, as net-symbol.json, of another name."
    ),
    outputs: Optional[List[str]] = typer.Option(
        None, "--outputs", metavar="NAME", help="Internal output of a graph, up to which it is written; once for each."
    ),
    boxes: str = typer.Option("pixels", "--boxes", help="A detector's boxes: pixels of its input, or normalized."),
    tolerance: float = typer.Option(1e-4, "--tolerance", min=0.0, help="Largest relative difference from MXNet."),
    verify: bool = typer.Option(True, help="Compare with MXNet operator by operator before writing."),
    training: bool = typer.Option(False, "--training", help="Write the training, as a folder PATH with train.py."),
    partial: bool = typer.Option(False, "--partial", help="Write a training without the parts that have no code."),
    table: bool = typer.Option(False, "--table", help="Show the difference of every layer."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace existing files."),
    json: bool = JSON,
) -> None:
    """Write a RUN's net as MXNet's symbol, ONNX, PyTorch code or safetensors, compared with MXNet."""
    from mxkit.exporting.writing import export as export_net

    shapes = [_shape(text) for text in shape or []] or None
    options: Any = {"which": which, "input_shape": shapes, "outputs": outputs or None, "boxes": boxes}
    options.update(verify=verify, tolerance=tolerance, overwrite=overwrite, training=training, partial=partial)
    files = source if params is None else (source, params)
    try:
        exported = export_net(files, path, format=format, **options)
    except (ValueError, TypeError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error
    if json:
        print_json(exported)
        return
    if table and exported.proof is not None:
        typer.echo(str(exported.proof))
    typer.echo(str(exported))


def _shape(text: str) -> List[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--shape: expected sizes like 1,3,224,224; received {text!r}") from None


def checkpoints(
    words: List[str] = typer.Argument(
        ..., metavar="[verify|prune] RUN [CHECKPOINT...]", help="The folder of a run.", autocompletion=run_folders
    ),
    keep_last: int = typer.Option(3, min=1, help="Number of newest checkpoints that prune keeps."),
    json: bool = JSON,
) -> None:
    """List the checkpoints of RUN; verify them (exit code 1 if one is broken), or prune old ones.

    prune keeps the newest, the best one and those of keep_every. With names like step-00000120 it removes only those.
    """
    from mxkit.storage.directory import Pruned, checkpoints_of, list_checkpoints, prune_to, remove_checkpoints
    from mxkit.training.history import fixed

    action, run, names = ("list", words[0], []) if len(words) == 1 else (words[0], words[1], words[2:])
    if action not in ("list", "verify", "prune") or (names and action != "prune"):
        raise typer.BadParameter(f"expected verify, prune or nothing before RUN; received {' '.join(words)!r}")
    directory = checkpoints_of(run)
    if action == "prune":
        pruned = Pruned(remove_checkpoints(directory, names), {}) if names else prune_to(directory, keep_last)
        if json:
            print_json(pruned)
            return
        counted = "".join(f" {name}" for name in pruned.removed)
        typer.echo(f"removed {', '.join(names)}" if names else f"removed {len(pruned.removed)} checkpoints{counted}")
        for name, why in pruned.kept.items():
            typer.echo(f"kept {name}\t{why}")
        return
    listed = list_checkpoints(directory)
    rows = [["checkpoint", "epoch", "scores", "size", "state"]]
    for one in listed:
        scores = "  ".join(f"{name} {fixed(value)}" for name, value in one.scores.items())
        epoch = "" if one.epoch is None else str(one.epoch)
        rows.append([one.name, epoch, scores, f"{one.size / 1024:,.1f} KiB", one.problem or "whole"])
    if json:
        print_json(listed)
    else:
        show_table(rows, left=(0, 2, 4))
        if not listed:
            typer.echo(f"no checkpoint in {directory}")
    if action == "verify" and any(one.problem for one in listed):
        raise typer.Exit(1)


def report(
    runs: List[Path] = typer.Argument(
        ..., metavar="RUN...", help="The folder of a run; several are compared.", autocompletion=run_folders
    ),
    out: Optional[Path] = typer.Option(
        None, "--out", metavar="FILE", help="The page; RUN/report.html by default, for several runs ./report.html."
    ),
) -> None:
    """Write an HTML page of a RUN: scores, curves, confusion matrix, worst mistakes, layers; or compare several."""
    from mxkit.reports.page import write_report

    typer.echo(f"page {write_report(runs, out)}")


def runs(
    directory: Path = typer.Argument(Path("runs"), metavar="[DIR]", help="The folder with the folders of runs."),
    sort: str = typer.Option(
        "started",
        metavar="COLUMN",
        help="Any column or metric; -COLUMN puts the highest first.",
        autocompletion=run_columns,
    ),
    json: bool = JSON,
) -> None:
    """List the runs in DIR: state, scores, best validation, time and size."""
    from mxkit.reports.run_files import list_runs, table_of_runs, to_json

    listed = list_runs(directory, sort=sort)
    if json:
        typer.echo(to_json(listed))
    elif listed:
        show_table(table_of_runs(listed), left=(0, 1, 2), shrinkable=(2,))
    else:
        typer.echo(f"no run in {directory}")
