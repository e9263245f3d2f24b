"""The commands `mxkit rec make`, `list` and `check`."""

from pathlib import Path
from typing import Optional

from mxkit.cli.runs import JSON, print_json
import typer

rec_app = typer.Typer(no_args_is_help=True, help="Make, list and check `.rec` files of images, without MXNet.")
_FILE = typer.Argument(..., metavar="FILE", help="A .rec file.")


@rec_app.command("make")
def make_records(
    source: Path = typer.Argument(..., help="A folder with one folder per class, or im2rec's list (.lst)."),
    out: Path = typer.Argument(..., help="OUT.rec, OUT.idx and OUT.lst are written."),
    root: Optional[Path] = typer.Option(None, help="The folder of a list's paths; default the folder of the list."),
    resize: int = typer.Option(0, min=0, help="The shorter side in pixels; 0 keeps the size."),
    quality: Optional[int] = typer.Option(
        None, min=0, max=100, help="JPEG 1 to 100, default 95; PNG 0 to 9, default 3."
    ),
    center_crop: bool = typer.Option(False, "--center-crop", help="Cut the longer side to the shorter one."),
    pass_through: bool = typer.Option(False, "--pass-through", help="Store the files as they are."),
    encoding: str = typer.Option(".jpg", help=".jpg or .png"),
    train_ratio: float = typer.Option(1.0, help="Less than 1: OUT_train.rec and OUT_val.rec."),
    shuffle: Optional[bool] = typer.Option(
        None, "--shuffle/--no-shuffle", help="Default: a folder is shuffled, a list is not."
    ),
) -> None:
    """Make a .rec file from images; all labels of a list are stored. Exit code 1 if images were left out."""
    from mxkit.data.records import Encoding, make, of_folder, of_list, split

    encoding = "." + encoding.lower().lstrip(".").replace("jpeg", "jpg")
    if encoding not in (".jpg", ".png"):
        raise typer.BadParameter(f"--encoding {encoding}: expected .jpg or .png")
    usual, most = (3, 9) if encoding == ".png" else (95, 100)
    quality = usual if quality is None else quality
    if quality > most:
        raise typer.BadParameter(f"--quality {quality}: expected at most {most} for {encoding}")
    if pass_through and (resize or center_crop):
        raise typer.BadParameter("--pass-through stores the files as they are: leave out --resize and --center-crop")
    if source.is_dir():
        entries, classes = of_folder(source)
        for label, name in enumerate(classes):
            typer.echo(f"label {label}: {name}")
    else:
        entries = of_list(source)
    folder = root or (source if source.is_dir() else source.parent)
    if out.name in ("", ".."):
        raise typer.BadParameter(f"OUT: expected a name like data/train, for data/train.rec; received {str(out)!r}")
    out = out.with_suffix("") if out.suffix == ".rec" else out
    failed = 0
    stored = Encoding(resize, center_crop, quality, encoding, pass_through)
    for ending, part in split(entries, train_ratio, source.is_dir() if shuffle is None else shuffle).items():
        made = make(folder, part, out.with_name(f"{out.name}{ending}.rec"), stored)
        for one in made.left_out:
            typer.echo(f"left out: {one}", err=True)
        failed += len(made.left_out)
        typer.echo(f"{made.path}: {made.records} records")
    if failed:
        raise typer.Exit(1)


@rec_app.command("list")
def list_records(file: Path = _FILE, json: bool = JSON) -> None:
    """List the records: number, byte, id, labels, bytes, format, height and width. Damaged records are left out."""
    from mxkit.core.system import write_lines
    from mxkit.data.records import rows, table_of

    if json:
        print_json(list(rows(file)))
        return
    lines = table_of(rows(file))
    write_lines([*lines, f"{len(lines) - 1} records"])


@rec_app.command("check")
def check_records(file: Path = _FILE, json: bool = JSON) -> None:
    """Read every record, decode its image and compare the .idx file. Exit code 1 if something is damaged."""
    from mxkit.core.system import shown, write_lines
    from mxkit.data.records import check

    checked = check(file)
    if json:
        print_json(checked)
    else:
        lines = []
        for damage in checked.damages:
            record = "" if damage.number is None else f"record {damage.number}"
            place = "" if damage.byte is None else f"byte {damage.byte}"
            keys = f"key {', '.join(damage.keys)}" if damage.keys else ""
            where = ", ".join(filter(None, (record, place, keys)))
            lines.append(shown(": ".join(filter(None, (where, damage.problem)))))
        index = "no .idx file" if checked.indexed is None else f"{checked.indexed} entries in the .idx file"
        lines.append(f"{shown(str(file))}: {checked.records} records, {checked.images} images decoded, {index}")
        lines.append(f"{len(checked.damages)} problems" if checked.damages else "nothing is damaged")
        write_lines(lines)
    if checked.damages:
        raise typer.Exit(1)
