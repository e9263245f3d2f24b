"""The commands `mxkit predict` and `mxkit benchmark`."""

from contextlib import ExitStack
from csv import writer as csv_writer
from functools import partial
from itertools import chain, repeat
from json import dumps as to_json
import os
from pathlib import Path
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence

from mxkit.cli.runs import INVERT, RUN, WHICH, load_shown
from mxkit.errors import MxkitError
import typer


def predict(
    run: Path = RUN,
    images: List[Path] = typer.Argument(..., metavar="IMAGE|FOLDER...", help="Image files, and folders of them."),
    csv: Optional[Path] = typer.Option(None, "--csv", metavar="FILE", help="Write a table instead of lines."),
    jsonl: Optional[Path] = typer.Option(None, "--jsonl", metavar="FILE", help="Write a JSON object per line instead."),
    coco: Optional[Path] = typer.Option(None, "--coco", metavar="FILE", help="COCO's results; AP needs --score 0."),
    draw: Optional[Path] = typer.Option(None, "--draw", metavar="FOLDER", help="Draw boxes, masks or points there."),
    masks: Optional[Path] = typer.Option(None, "--masks", metavar="FOLDER", help="Write masks of class numbers there."),
    score: float = typer.Option(0.5, "--score", min=0, max=1, help="Least score of a detector's boxes."),
    invert: bool = INVERT,
    which: Optional[str] = WHICH,
) -> None:
    """Predict IMAGES with a RUN's net: file, class and probability; or labels with probabilities, or values.

    Of a detector: class, score, left, top, right, bottom of each box in pixels of the file; of a segmentation net the
    share of each class; of a pose net x, y and score of each point.

    Folders are read recursively, in the order of names. Files that are not images are named and skipped, and the exit
    code is 1. FILE is replaced, and written line by line: after an interrupt it holds whole lines of the images before.
    """
    from mxkit.data.image_files import find_images
    from mxkit.recipe.marks import CocoResults
    from mxkit.recipe.net_facts import read_facts
    from mxkit.recipe.predictions import files_predicted
    from mxkit.runtime.machine import read_processors
    from mxkit.training.callbacks.progress import batches_bar
    from tqdm import tqdm

    files = find_images(images)
    _check_outputs([csv, jsonl, coco], run, files)
    recipe, net = load_shown(run, which)
    threads = read_processors().threads
    facts = read_facts(run)
    _check_pictures(recipe, draw, masks, run)
    predictions = files_predicted(recipe, net, facts, files, invert=invert, threads=threads, score=score)
    results = CocoResults(recipe, files, facts.classes) if coco else None
    pictures = _Pictures(recipe.loss.made.moves, facts.classes, files, draw, masks)
    predictions = chain([next(predictions)], predictions)  # an error of the net keeps the tables of before
    failed = empty = 0
    with ExitStack() as opened:
        writers: Dict[Any, Callable[..., Any]] = {
            csv: _csv_rows,
            jsonl: _json_rows,
            coco: partial(_coco_rows, results=results, opened=opened),
        }
        tables = [
            # line by line, so that a killed process leaves whole lines; names of files need not be UTF-8
            rows(opened.enter_context(path.open("w", 1, "utf-8", "surrogateescape", "")))
            for path, rows in writers.items()
            if path
        ]
        # on a terminal the lines show the progress
        bar = opened.enter_context(batches_bar("predict", len(files), None, bool(tables) or not sys.stdout.isatty()))
        for prediction in predictions:
            if prediction.error:
                tqdm.write(f"error: {prediction.error}", file=sys.stderr)
                failed += 1
            else:
                empty += prediction.answer.get("boxes") == []
                for write in tables or [_show]:
                    write(prediction)
                pictures.save(prediction)
            bar.update()
    for path in filter(None, (csv, jsonl, coco, draw, masks)):
        lone = f", and {empty} without a box, which have no row" if empty and path in (csv, coco) else ""
        typer.echo(f"{len(files) - failed - (empty if lone else 0)} images in {path}{lone}")
    if results:
        typer.echo(f"{coco}: {results.ids}")
    if failed:
        typer.echo(f"error: {failed} of {len(files)} files were skipped", err=True)
        raise typer.Exit(1)


def benchmark(
    run: Path = RUN,
    precision: str = typer.Option("float32,bfloat16,int8", help="What to compare with the net as trained."),
    batch: str = typer.Option("1,8,32", help="Samples per call."),
    seconds: float = typer.Option(2.0, help="Time of each measurement."),
    png: Optional[Path] = typer.Option(None, "--png", metavar="FILE", help="Draw a picture."),
    json: Optional[Path] = typer.Option(None, "--json", metavar="FILE", help="Write the figures for programs."),
    which: Optional[str] = WHICH,
) -> None:
    """Measure how fast a RUN's net predicts on the CPU: latency, samples a second, memory, agreement of answers.

    Each precision is compared with the trained net in float32. Precisions that the processor lacks are named. The
    column MB is the memory by which the process grew for that net, with this batch size and those before it.
    """
    from mxkit.serving.measuring_inference import InterruptedMeasurement, measure_inference

    _check_outputs([png, json], run)
    if png and png.suffix.lower() not in (".png", ".pdf", ".svg", ".jpg", ".jpeg"):
        raise typer.BadParameter(f"--png: expected a file like speed.png, received {png}")
    sizes = [int(size) if size.strip().isdigit() else size for size in batch.split(",")]
    options: Any = {"precisions": precision.split(","), "batch_sizes": sizes, "which": which, "seconds": seconds}
    try:
        measured = measure_inference(run, **options, progress=True)
    except InterruptedMeasurement as stopped:
        typer.echo(str(stopped.figures))
        raise
    except ValueError as error:
        if isinstance(error, MxkitError):
            raise
        raise typer.BadParameter(str(error)) from error
    typer.echo(str(measured))
    if json:
        json.write_text(to_json(measured.to_dict(), indent=1), encoding="utf-8")
    if png:
        measured.plot(png)
        typer.echo(f"picture {png}")


def _check_outputs(outputs: Sequence[Optional[Path]], run: Path, inputs: Sequence[Any] = ()) -> None:
    """Refuse files that cannot be written, or that are read or belong to the run, before anything is computed."""
    runs = [one for one in inputs if (Path(one) / "recipe.yaml").is_file()]
    if runs:
        raise typer.BadParameter(f"{runs[0]} is a run, and so is {run}: name one of them, and images")
    given = [path for path in outputs if path]
    for place, path in enumerate(given):
        if path.resolve() in [one.resolve() for one in given[:place]]:
            raise typer.BadParameter(f"{path} is given for two tables; each needs its own file")
        is_image = path.exists() and any(Path(one).exists() and path.samefile(one) for one in inputs)  # hard links too
        of_run = path.is_file() and (run / "recipe.yaml").is_file() and run.resolve() in path.resolve().parents
        if is_image or of_run:
            what = "one of the images" if is_image else "a file in the run's folder"
            raise typer.BadParameter(f"{path} is {what}, which would be replaced: name another one")
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"{path}: expected a file in a folder that exists")


def _check_pictures(recipe: Any, draw: Optional[Path], masks: Optional[Path], run: Path) -> None:
    """Refuse folders for pictures of a net that marks nothing, and folders of the run."""
    moves = recipe.loss.made.moves
    if draw and moves is None:
        raise typer.BadParameter(f"--draw: the net of {run} gives no boxes, masks or points")
    if masks and moves != "mask":
        raise typer.BadParameter(f"--masks: the net of {run} gives no masks")
    for folder in filter(None, (draw, masks)):
        if folder.is_file() or run.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise typer.BadParameter(f"{folder}: expected a folder for pictures, outside of the run")


class _Pictures:
    """Writes pictures of predictions: marks drawn on the image, and masks."""

    def __init__(
        self, moves: str, classes: Sequence[str], files: Sequence[str], draw: Optional[Path], masks: Optional[Path]
    ) -> None:
        self._moves, self._classes, self._draw, self._masks = moves, classes, draw, masks
        stems = [str(Path(file).with_suffix("")) for file in files]
        self._ending = "{0.stem}.png" if len(set(stems)) == len(stems) else "{0.name}.png"  # x.jpg beside x.png
        self._root = os.path.commonpath([Path(file).absolute().parent for file in files])

    def save(self, prediction: Any) -> None:
        """Write the pictures of one image, below the folder as the image below the folder of all."""
        from PIL import Image

        for folder, picture in ((self._draw, self._drawn), (self._masks, self._mask)):
            if folder is not None:
                path = folder / Path(prediction.path).absolute().relative_to(self._root)
                path = path.with_name(self._ending.format(path))
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture(prediction)).save(path)

    def _drawn(self, prediction: Any) -> Any:
        from mxkit.data.image_bytes import decode
        from mxkit.plots.marks import draw_marks

        image = decode(Path(prediction.path).read_bytes(), prediction.path)
        scores = prediction.label[:, 5] if self._moves == "boxes" else None
        return draw_marks(image, prediction.label, moves=self._moves, classes=self._classes, scores=scores)

    def _mask(self, prediction: Any) -> Any:
        import numpy as np

        return np.where(prediction.label < 0, 255, prediction.label).astype(np.uint8)


def _show(prediction: Any) -> None:
    from mxkit.recipe.predictions import describe_prediction

    path = prediction.path.replace("\n", "\\n").replace("\t", "\\t")  # a name may hold them: a line remains a line
    line = "\t".join([path, *describe_prediction(prediction.answer)])
    try:
        typer.echo(line)
    except UnicodeEncodeError:  # a file's name need not be UTF-8
        typer.echo(line.encode("utf-8", "backslashreplace").decode())


_BOX_COLUMNS = ("class", "score", "left", "top", "right", "bottom")


def _csv_rows(file: Any) -> Callable[[Any], Any]:
    """A function that writes predictions as rows of CSV, the first one below the names of the columns."""
    rows = csv_writer(file, lineterminator="\n")
    names: List[str] = []

    def write(prediction: Any) -> None:
        if "boxes" in prediction.answer:  # a row for each
            boxes = [(one["class"], one["score"], *one["box"]) for one in prediction.answer["boxes"]]
            table = [dict(zip(_BOX_COLUMNS, one)) for one in boxes]
        else:
            table = [_columns(prediction.answer)]
        if not names:
            names.extend(["path", *(table[0] if table else _BOX_COLUMNS)])
            rows.writerow(names)
        rows.writerows([prediction.path, *cells.values()] for cells in table)

    return write


def _json_rows(file: Any) -> Callable[[Any], Any]:
    """A function that writes predictions as lines of JSON."""
    return lambda prediction: file.write(to_json({"path": prediction.path, **prediction.answer}) + "\n")


def _coco_rows(file: Any, results: Any, opened: ExitStack) -> Callable[[Any], Any]:
    """A function that writes predictions into the list of COCO's results, which ends with `opened`."""
    separators = chain([""], repeat(","))
    file.write("[")
    opened.callback(file.write, "\n]\n")

    def write(prediction: Any) -> None:
        for row in results.rows(prediction.path, prediction.answer):
            file.write(f"{next(separators)}\n{to_json(row)}")

    return write


def _columns(answer: Dict[str, Any]) -> Dict[str, Any]:
    """Cells of a table by column: the name of a label or a class, or the number of a value."""
    if "points" in answer:
        axes = ("x", "y", "score")
        return {f"{name} {axis}": value for name, row in answer["points"].items() for axis, value in zip(axes, row)}
    if "values" in answer:
        return {f"value {number}": value for number, value in enumerate(answer["values"])}
    return next((one for one in answer.values() if isinstance(one, dict)), answer)
