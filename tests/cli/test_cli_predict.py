"""`mxkit predict` on folders, as lines, as CSV and as JSON lines; an interrupt leaves whole lines."""

from contextlib import contextmanager, redirect_stdout, suppress
import csv
import io
import json
import os
from pathlib import Path
import signal
import sys
import time

from mxkit.cli import main
from mxkit.recipe.predictions import predict_files
import pytest
from sharing import command, draw_images, wait_until


@contextmanager
def changed(run, old, new):
    """The recipe of a run with another text, inside `with`."""
    file = run / "recipe.yaml"
    text = file.read_text()
    file.write_text(text.replace(old, new))
    yield
    file.write_text(text)


@pytest.fixture
def photos(tmp_path):
    """40 images in two folders, one of them broken, and files that are no images by their names."""
    paths = draw_images(tmp_path / "photos", 40, seed=1)
    Path(paths[7]).write_bytes(b"text")
    (tmp_path / "photos" / "day" / ".hidden.png").write_bytes(b"")
    (tmp_path / "photos" / "Thumbs.db").write_bytes(b"")
    return tmp_path / "photos", paths


def test_a_folder_is_the_same_lines_as_its_files(photo_run, photos):
    folder, paths = photos
    code, out, err = command("predict", photo_run, folder)
    assert code == 1
    assert [line.split("\t")[0] for line in out.splitlines()] == paths[:7] + paths[8:]
    _, first, last = err.splitlines()
    assert first.startswith(f"error: {paths[7]}: it is no image that OpenCV knows; it begins with b'text'")
    assert last == "error: 1 of 40 files were skipped"
    assert command("predict", photo_run, *paths) == (code, out, err)
    answers = [one.answer for one in predict_files(photo_run, folder) if not one.error]
    expected = [[one["class"], f"{one['probability']:.4f}"] for one in answers]
    assert [line.split("\t")[1:] for line in out.splitlines()] == expected


def test_tables_and_json_lines_hold_every_digit(photo_run, photos, tmp_path):
    folder, paths = photos
    table, lines = tmp_path / "answers.csv", tmp_path / "answers.jsonl"
    code, out, err = command("predict", photo_run, folder, "--csv", table, "--jsonl", lines)
    assert (code, out) == (1, f"39 images in {table}\n39 images in {lines}\n")
    assert paths[7] in err
    expected = [{"path": one.path, **one.answer} for one in predict_files(photo_run, folder) if not one.error]
    assert [json.loads(line) for line in lines.read_text().splitlines()] == expected
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [{**row, "probability": float(row["probability"])} for row in rows] == expected
    table.write_text("old\n" * 100)
    assert command("predict", photo_run, paths[0], "--csv", table)[0] == 0
    assert table.read_text().splitlines()[0] == "path,class,probability"
    assert len(table.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("loss", "columns"),
    [("sigmoid_bce", ["day", "night"]), ("hinge", ["day", "night"]), ("l2", ["value 0", "value 1"])],
)
def test_labels_scores_and_values_are_columns(photo_run, photos, tmp_path, loss, columns):
    table, lines = tmp_path / "answers.csv", tmp_path / "answers.jsonl"
    with changed(photo_run, "softmax_ce", loss):
        assert command("predict", photo_run, *photos[1][:3], "--csv", table, "--jsonl", lines)[0] == 0
    header, *rows = list(csv.reader(table.read_text().splitlines()))
    assert header == ["path", *columns]
    objects = [json.loads(line) for line in lines.read_text().splitlines()]
    key = {"sigmoid_bce": "probabilities", "hinge": "scores", "l2": "values"}[loss]
    for row, one in zip(rows, objects):
        assert list(one) == ["path", key]
        values = one[key] if loss == "l2" else [one[key][name] for name in columns]
        assert [row[0], *map(float, row[1:])] == [one["path"], *values]


def test_wrong_runs_and_folders_touch_no_file(photo_run, tmp_path):
    table = tmp_path / "answers.csv"
    table.write_text("kept")
    (tmp_path / "empty").mkdir()
    code, _, err = command("predict", photo_run, tmp_path / "empty", "--csv", table)
    assert (code, "this folder has no image" in err) == (1, True)
    with changed(photo_run, "size: 20", "size: 12"):
        code, _, err = command("predict", photo_run, *draw_images(tmp_path / "new", 3), "--csv", table)
    assert (code, "'2' (Conv2D) got" in err) == (1, True)
    assert table.read_text() == "kept"


def test_tables_replace_neither_each_other_nor_an_image(photo_run, photos, tmp_path):
    folder, paths = photos
    image = Path(paths[0])
    content = image.read_bytes()
    table = tmp_path / "table"
    other_name = tmp_path / "other.csv"
    os.link(str(image), str(other_name))
    kept = photo_run / "history.csv"
    history = kept.read_bytes()
    for words, text in (
        (("--csv", table, "--jsonl", tmp_path / "." / "table"), "is given for two tables"),
        (("--csv", image), "is one of the images, which would be replaced"),
        (("--csv", other_name), "is one of the images, which would be replaced"),
        (("--jsonl", kept), "is a file in the run's folder, which would be replaced: name another one"),
    ):
        code, _, err = command("predict", photo_run, folder, *words)
        assert code == 2
        assert text in " ".join(err.replace("│", " ").split())
    code, _, err = command("benchmark", photo_run, "--json", photo_run / "net.json")
    assert (code, "is a file in the run's folder" in " ".join(err.replace("│", " ").split())) == (2, True)
    assert (image.read_bytes(), kept.read_bytes()) == (content, history)
    assert not table.exists()


def test_a_name_with_a_line_break_stays_on_its_line(photo_run, tmp_path):
    (path,) = draw_images(tmp_path, 1)
    odd = Path(path).with_name("a\tb\nc.png")
    Path(path).rename(odd)
    code, out, _ = command("predict", photo_run, odd)
    assert code == 0
    assert out.splitlines()[-1].split("\t")[0].endswith("a\\tb\\nc.png")


def test_names_that_are_no_utf8(photo_run, tmp_path):
    (path,) = draw_images(tmp_path, 1)
    odd = os.fsdecode(os.path.dirname(path).encode() + b"/\xff.png")  # noqa: PTH120 - bytes
    Path(path).rename(odd)
    table, lines = tmp_path / "answers.csv", tmp_path / "answers.jsonl"
    assert command("predict", photo_run, tmp_path / "day", "--csv", table, "--jsonl", lines)[0] == 0
    assert os.fsencode(odd) in table.read_bytes()
    assert json.loads(lines.read_text())["path"] == odd
    strict = io.TextIOWrapper(io.BytesIO(), "utf-8")  # as a terminal's
    with redirect_stdout(strict), suppress(SystemExit):
        main(["predict", str(photo_run), str(tmp_path / "day")])
    strict.flush()
    assert strict.buffer.getvalue().startswith(os.fsencode(path)[: -len("000.png")] + rb"\udcff.png" + b"\t")


def test_an_interrupt_leaves_whole_lines(photo_run, tmp_path, forks):
    """The file after which it is interrupted is a pipe into which nobody writes, so the rest is never read."""
    paths = draw_images(tmp_path / "photos", 100)
    pipe = str(tmp_path / "photos" / "zz.png")
    os.mkfifo(pipe)
    table = tmp_path / "answers.csv"
    table.touch()

    def interrupt(process):
        wait_until(lambda: table.read_bytes().count(b"\n") >= 33)
        assert table.read_bytes().count(b"\n") == 33  # the first batch, while the third one is read
        os.kill(process, signal.SIGINT)
        time.sleep(0.5)  # the signal comes first
        with open(pipe, "wb"):  # noqa: PTH123 - end the read of the pipe, for which the command waits
            pass

    words = ["predict", str(photo_run), *paths, pipe, "--csv", str(table)]
    done = forks.run("mxkit.cli:main", words, meanwhile=interrupt)
    assert done.returncode == 130, done.stderr
    text = table.read_text()
    assert text.endswith("\n")
    assert [row[0] for row in csv.reader(text.splitlines())] == ["path", *paths[:32]]


def test_a_bar_is_shown_on_a_terminal_only(photo_run, tmp_path, monkeypatch):
    paths = draw_images(tmp_path / "photos", 3)
    for name in ("LONG_SECONDS", "REFRESH_SECONDS"):
        monkeypatch.setattr(f"mxkit.training.callbacks.progress.{name}", 0.0)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = []
    for stream, words in ((Terminal(), ["--csv", str(tmp_path / "a.csv")]), (io.StringIO(), [])):
        monkeypatch.setattr(sys, "stderr", stream)
        with redirect_stdout(io.StringIO()), suppress(SystemExit):
            main(["predict", str(photo_run), *paths, *words])
        shown.append(stream.getvalue())
    assert "3/3" in shown[0]
    assert shown[1] == "last checkpoint step-00000006, epoch 2\n"
