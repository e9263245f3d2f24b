"""The commands `mxkit predict` and `mxkit benchmark`."""

from contextlib import ExitStack, contextmanager
from csv import writer as csv_writer
import io
from json import dumps as to_json
from pathlib import Path
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from mxkit.cli.runs import INVERT, RUN, WHICH
from mxkit.errors import MxkitError
import typer


def predict(
    run: Path = RUN,
    images: List[Path] = typer.Argument(..., metavar="IMAGE|FOLDER...", help="Image files, and folders of them."),
    csv: Optional[Path] = typer.Option(None, "--csv", metavar="FILE", help="Write a table instead of lines."),
    jsonl: Optional[Path] = typer.Option(None, "--jsonl", metavar="FILE", help="Write a JSON object per line instead."),
    invert: bool = INVERT,
    which: str = WHICH,
) -> None:
    """Predict IMAGES with a RUN's net: file, class and probability; or labels with probabilities, or values.

    A folder is read recursively, in the order of names. A file that is no image is named and skipped, and the exit code
    is 1. FILEs are written file by file: after an interrupt they hold whole lines, of the images up to there.
    """
    from mxkit.data.files.image_files import find_images
    from mxkit.recipe.file_predictions import predict_files
    from mxkit.training.callbacks.progress import batches_bar
    from tqdm import tqdm

    files = find_images(images)
    _check_outputs(csv, jsonl, files)
    predictions = predict_files(run, files, which=which, invert=invert)
    failed = 0
    with ExitStack() as opened:
        ways = [opened.enter_context(way(path)) for path, way in ((csv, _to_csv), (jsonl, _to_json)) if path]
        # lines on a terminal are the progress themselves
        bar = opened.enter_context(batches_bar("predict", files, None, bool(ways) or not sys.stdout.isatty()))
        for one in predictions:
            if one.error:
                tqdm.write(f"error: {one.error}", file=sys.stderr)
                failed += 1
            else:
                for write in ways or (_show,):
                    write(one)
            bar.update()
    for path in filter(None, (csv, jsonl)):
        typer.echo(f"{len(files) - failed} images in {path}")
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
    which: str = WHICH,
) -> None:
    """Measure how fast a RUN's net predicts on the CPU: latency, samples a second, memory, agreement of answers.

    Each precision is compared with the net as trained, in float32; one that the processor lacks is named.
    """
    from mxkit.export.inference.inference_figures import InterruptedMeasurement
    from mxkit.export.inference.measuring_inference import measure_inference

    _check_outputs(png, json)
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


def _check_outputs(one: Optional[Path], other: Optional[Path], inputs: Sequence[Any] = ()) -> None:
    """Refuse files that cannot be written, before anything is computed."""
    given = [path for path in (one, other) if path]
    if len({path.resolve() for path in given}) < len(given):
        raise typer.BadParameter(f"{one} is given for two tables; each needs a file of its own")
    read = {Path(path).resolve() for path in inputs}
    for path in given:
        if path.resolve() in read:
            raise typer.BadParameter(f"{path} is one of the images: the table would replace it")
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"{path}: expected a file in a folder that exists")


def _show(prediction: Any) -> None:
    from mxkit.recipe.answers import describe_prediction

    line = "\t".join([prediction.path, *describe_prediction(prediction.answer)])
    try:
        typer.echo(line)
    except UnicodeEncodeError:  # the name of a file may be no UTF-8
        typer.echo(line.encode("utf-8", "backslashreplace").decode())


@contextmanager
def _to_csv(path: Path) -> Iterator[Callable[[Any], None]]:
    names: List[str] = []
    with _lines(path) as write_line:

        def write(prediction: Any) -> None:
            cells, text = _columns(prediction.answer), io.StringIO()
            rows = csv_writer(text, lineterminator="\n")
            if not names:
                names.extend(["path", *cells])
                rows.writerow(names)
            rows.writerow([prediction.path, *cells.values()])
            write_line(text.getvalue())

        yield write


def _columns(answer: Dict[str, Any]) -> Dict[str, Any]:
    """An answer as cells of a table: a label's or a class's name is the column, a value's its number."""
    if "values" in answer:
        return {f"value {number}": value for number, value in enumerate(answer["values"])}
    return next((one for one in answer.values() if isinstance(one, dict)), answer)


@contextmanager
def _to_json(path: Path) -> Iterator[Callable[[Any], None]]:
    with _lines(path) as write_line:
        yield lambda one: write_line(to_json({"path": one.path, **one.answer}) + "\n")


@contextmanager
def _lines(path: Path) -> Iterator[Callable[[str], None]]:
    """A file of which each line is one call of the system, so that a process that is ended leaves whole lines."""
    with path.open("wb", buffering=0) as file:
        yield lambda text: _write_whole(file, text.encode("utf-8", "surrogateescape"))


def _write_whole(file: Any, content: bytes) -> None:
    while content:  # a full disk takes a part, and then raises
        content = content[file.write(content) :]
