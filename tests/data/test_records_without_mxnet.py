"""RecordIO files are read, checked and extracted without MXNet; MXNet's own writer and reader are the oracle."""

import csv
import re
import struct

from files_of_old_mxnet import run_without_mxnet
from made_images import picture, write_records
from mxkit.data import records as command
from mxkit.data.records import check, extract, rows, summarize
from mxkit.errors import DataError
import numpy as np
import pytest

MAGIC = (0xCED7230A).to_bytes(4, "little")


def files_of(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "labels.csv"]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def labels_of(folder):
    with (folder / "labels.csv").open(newline="") as table:
        return {row["file"]: row["labels"] for row in csv.DictReader(table)}


CONTENTS = [(0, 5, picture(1)), (2, 6, picture(2, "PNG")), (0.5, 2**70 + 3, picture(3, "BMP")), (2, 9, b"unknown")]
NAMES = ["0/5.jpg", "2/6.png", f"0.5/{2**70 + 3}.bmp", "2/9.bin"]
EXTRACTED = {name: content for name, (_, _, content) in zip(NAMES, CONTENTS)}


@pytest.mark.parametrize("index", [True, False])
def test_a_file_is_extracted_in_a_fresh_interpreter_without_mxnet(index, tmp_path):
    file = write_records(tmp_path / "a.rec", CONTENTS)
    if not index:
        file.with_suffix(".idx").unlink()
    done = run_without_mxnet(tmp_path, "mxkit.data.records", file, "--to", "out/images")
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "out/images") == EXTRACTED
    assert labels_of(tmp_path / "out/images") == dict(zip(EXTRACTED, ("0", "2", "0.5", "2")))
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["record", "byte", "id", "labels", "bytes", "image", "size"]
    assert lines[1].split() == ["0", "0", "5", "0", str(len(CONTENTS[0][2])), ".jpg", "40", "x", "30"]
    state = "its .idx file fits" if index else "no .idx file"
    assert f"{file}: 4 records (1 .jpg, 1 .png, 1 .bmp, 1 .bin); {state}" in lines
    assert lines[-1] == "wrote 4 images and labels.csv into out/images"


def test_several_labels_stand_in_the_table(tmp_path):
    boxes = np.array([4, 5, 0.1, 0.25], np.float32)
    file = write_records(tmp_path / "a.rec", [(boxes, 1, picture(1)), ([7], 2, picture(2)), ([], 3, picture(3))])
    found = summarize(file)
    assert not found.faces
    assert extract(file, tmp_path / "out", found) == 3  # an empty array of labels is a flag of 0: a label of 0
    assert labels_of(tmp_path / "out") == {"images/1.jpg": "4 5 0.100000001 0.25", "7/2.jpg": "7", "0/3.jpg": "0"}


def test_a_file_of_insightface(tmp_path, capsys):
    # record 0 has the ids of the first identity and after the last one; an identity has the ids of its images
    images = [(0, 1, picture(1)), (0, 2, picture(2)), ([1, 0], 3, picture(3))]
    ranges = [([4, 6], 0, b""), ([1, 3], 4, b""), ([3, 4], 5, b"")]
    for order, contents in (("first", [ranges[0], *images, *ranges[1:]]), ("last", [*images, *ranges[1:], ranges[0]])):
        file = write_records(tmp_path / f"{order}.rec", contents)
        command_line(file, "--to", tmp_path / order)
        printed = capsys.readouterr().out
        assert re.search(r": 6 records \(.*3 without an image", printed)
        assert "insightface's header: records without an image name ranges of ids" in printed
        expected = {"0/1.jpg": images[0][2], "0/2.jpg": images[1][2], "1/3.jpg": images[2][2]}
        assert files_of(tmp_path / order) == expected
        assert labels_of(tmp_path / order)["1/3.jpg"] == "1 0"
        assert check(file)[1:] == (6, 3, 6, [])
        assert sorted((row.id, row.format) for row in rows(file) if row.id in (0, 1)) == [(0, ""), (1, ".jpg")]


def test_ids_that_are_not_distinct(tmp_path):
    file = write_records(tmp_path / "a.rec", [(1, 0, picture(number)) for number in range(3)])
    extract(file, tmp_path / "out", summarize(file))
    assert sorted(files_of(tmp_path / "out")) == ["1/0-1.jpg", "1/0-2.jpg", "1/0.jpg"]


def command_line(*words):
    return command.main([str(word) for word in words])


@pytest.mark.parametrize("change", [lambda lines: lines[:-1], lambda lines: [*lines[:3], "6\t4\n"], lambda lines: "x"])
def test_an_index_that_does_not_fit_is_told_and_not_needed(tmp_path, change):
    file = write_records(tmp_path / "a.rec", CONTENTS)
    index = file.with_suffix(".idx")
    index.write_text("".join(change(index.read_text().splitlines(True))))
    found = summarize(file)
    assert found.index_state == "its .idx file does not fit"
    assert extract(file, tmp_path / "out", found) == 4


def part(kind, content):
    return MAGIC + struct.pack("<I", kind << 29 | len(content)) + content + bytes(-len(content) % 4)


WHOLE = part(0, struct.pack("<IfQQ", 0, 1, 2, 0) + b"image")


REFUSED = [
    (b"", "the file is empty"),
    (b"<html>", "no record begins at byte 0: it was cut off, or is no RecordIO file"),
    (WHOLE[:-1], "a record ends at byte 40, but the file has 39 bytes: it was cut off"),
    (WHOLE + WHOLE[:6], "no record begins at byte 40"),
    (part(3, b"end") + WHOLE, "no record begins at byte 0"),
    (part(5, b"kind") + WHOLE, "no record begins at byte 0"),
    (part(1, b"begin") + WHOLE, "no further part of a record begins at byte 16"),
    (part(1, b"begin") + part(2, b"on"), "no further part of a record begins at byte 28"),
    (WHOLE + part(0, b"short"), "record 1 at byte 40 is damaged: expected a header of 24 bytes, received 5 bytes"),
    (part(0, struct.pack("<IfQQ", 2**32 - 1, 1, 2, 0)), "expected 4294967295 labels .* received 0 bytes"),
]


@pytest.mark.parametrize(("data", "expected"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_refused(data, expected, tmp_path):
    file = tmp_path / "a.rec"
    file.write_bytes(data)
    with pytest.raises(DataError, match=rf"a\.rec: .*{expected}"):
        summarize(file)
    with pytest.raises(SystemExit, match=r"error: .*a\.rec: "):
        command_line(file, "--to", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_is_complete_or_absent(tmp_path):
    file = write_records(tmp_path / "a.rec", CONTENTS)
    found = summarize(file)
    with file.open("ab") as end:
        end.write(b"more")
    with pytest.raises(DataError, match="damaged: "):
        extract(file, tmp_path / "out", found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.idx", "a.rec"]
    (tmp_path / "empty").mkdir()
    assert extract(write_records(tmp_path / "b.rec", CONTENTS), tmp_path / "empty", found) == 4
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("")
    with pytest.raises(DataError, match="out is not empty: expected a new folder. Name another one, or remove it"):
        extract(file, tmp_path / "out", found)
    with pytest.raises(DataError, match="is not a file: expected a .rec file, received a folder or a device"):
        summarize(tmp_path)
