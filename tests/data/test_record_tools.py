"""`mxkit rec`: `.rec` files are made, listed and checked; MXNet's own readers are the oracle."""

import json
import subprocess
import sys

import cv2
from mxkit.cli.commands import app
from mxkit.data import image_records
from mxkit.data.image_bytes import MAGIC, pack, write_record
from mxkit.data.records import Encoding, check, make, of_folder, of_list, records, split
from mxkit.errors import DataError
import mxnet as mx
import numpy as np
import pytest
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of two classes, 20 images each."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(40):
        folder = root / ("cats", "dogs")[number % 2]
        folder.mkdir(exist_ok=True)
        pixels = np.random.RandomState(number).randint(0, 256, (20 + number % 3, 30, 3), np.uint8)
        cv2.imwrite(str(folder / f"{number:02}.{('jpg', 'png')[number % 5 == 0]}"), pixels)
    return root


def call(*words):
    return CliRunner().invoke(app, ["rec", *map(str, words)])


def read_by_mxnet(path):
    reader = mx.recordio.MXIndexedRecordIO(str(path.with_suffix(".idx")), str(path), "r")
    return {key: mx.recordio.unpack(reader.read_idx(key)) for key in reader.keys}


def test_a_folder_becomes_a_file_that_mxnet_reads(photos, tmp_path):
    done = call("make", photos, tmp_path / "all", "--resize", 16, "--center-crop", "--train-ratio", 0.75)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[:2] == ["label 0: cats", "label 1: dogs"]
    found = {}
    for ending, count in (("_train", 30), ("_val", 10)):
        path = tmp_path / f"all{ending}.rec"
        records = read_by_mxnet(path)
        assert len(records) == count
        assert list(records) != sorted(records)  # shuffled
        found.update(records)
        lines = path.with_suffix(".lst").read_text().splitlines()
        assert [int(line.split("\t")[0]) for line in lines] == list(records)
    assert sorted(found) == list(range(40))
    for key, (header, content) in found.items():
        assert (header.id, header.label) == (key, float(key >= 20))
        assert cv2.imdecode(np.frombuffer(content, np.uint8), 1).shape == (16, 16, 3)
    batch = next(mx.io.ImageRecordIter(path_imgrec=str(path), data_shape=(3, 16, 16), batch_size=10))
    assert batch.data[0].shape == (10, 3, 16, 16)


def test_a_list_keeps_its_order_its_indices_and_all_labels(photos, tmp_path):
    names = ["dogs/01.jpg", "cats/00.png", "cats/02.jpg"]
    lines = [f"{9 - number}\t{number}\t0.5\t{name}\n" for number, name in enumerate(names)]
    (tmp_path / "some.lst").write_text("".join(lines))
    done = call("make", tmp_path / "some.lst", tmp_path / "some.rec", "--root", photos, "--pass-through")
    assert done.exit_code == 0, done.output
    records = read_by_mxnet(tmp_path / "some.rec")
    assert list(records) == [9, 8, 7]
    for number, (header, content) in enumerate(records.values()):
        assert header.label.tolist() == [number, 0.5]
        assert content == (photos / names[number]).read_bytes()
    listed = json.loads(call("list", tmp_path / "some.rec", "--json").stdout)
    assert [(row["id"], row["labels"], row["format"]) for row in listed] == [
        (9, [0, 0.5], ".jpg"), (8, [1, 0.5], ".png"), (7, [2, 0.5], ".jpg"),
    ]  # fmt: skip
    assert [row["width"] for row in listed] == [30] * 3
    assert "30 x 21" in call("list", tmp_path / "some.rec").stdout
    assert call("check", tmp_path / "some.rec").stdout.endswith("nothing is damaged\n")


def test_images_that_cannot_be_read_are_left_out_by_name(photos, tmp_path):
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    lines = [f"0\t1\t{photos}/dogs/01.jpg", "1\t1\tbad.jpg", "2\t1\tmissing.jpg"]
    (tmp_path / "a.lst").write_text("\n".join(lines))
    done = call("make", tmp_path / "a.lst", tmp_path / "a")
    assert done.exit_code == 1
    assert "left out: bad.jpg: its content: it is no image that OpenCV knows" in done.output
    assert "left out: missing.jpg: No such file" in done.output
    assert list(read_by_mxnet(tmp_path / "a.rec")) == [0]
    (tmp_path / "a.lst").write_text("\n".join(lines[1:]))
    with pytest.raises(DataError, match="none of 2 images could be read"):
        make(tmp_path, of_list(tmp_path / "a.lst"), tmp_path / "b.rec", Encoding())
    assert not list(tmp_path.glob("*b.*"))
    folder = tmp_path / "linked/dogs"
    folder.mkdir(parents=True)
    (folder / "0.jpg").symlink_to(photos / "dogs/01.jpg")
    (folder / "1.jpg").symlink_to("gone.jpg")
    done = call("make", tmp_path / "linked", tmp_path / "c")
    assert (done.exit_code, "left out: dogs/1.jpg: No such file" in done.output) == (1, True)


@pytest.mark.parametrize("line", ["x\t1\ta.jpg", "1\ta.jpg", "1\tone\ta.jpg", "1 2 a.jpg", "1\t2\t"])
def test_a_line_that_is_none_of_im2recs_is_refused(line, tmp_path):
    (tmp_path / "a.lst").write_text(f"0\t1\tb.jpg\n{line}\n")
    with pytest.raises(DataError, match="a.lst, line 2: expected an index"):
        of_list(tmp_path / "a.lst")


def test_folders_and_ratios_that_give_no_file_are_refused(photos, tmp_path):
    with pytest.raises(DataError, match="one folder of images per class"):
        of_folder(tmp_path)
    entries, _ = of_folder(photos)
    with pytest.raises(DataError, match="leaves one of the two files empty"):
        split(entries, 0.01, True)
    for wrong in (["--encoding", ".gif"], ["--quality", "30", "--encoding", "png"], ["--pass-through", "--resize", 9]):
        assert call("make", photos, tmp_path / "a", *wrong).exit_code == 2


def test_what_is_written_is_what_mxnet_writes(tmp_path):
    contents = [MAGIC, MAGIC * 3, b"abcd" + MAGIC + b"xy", b"abc" + MAGIC, b"", bytes(range(101))]
    contents += [pack([1], number, content) for number, content in enumerate(contents)]
    with (tmp_path / "own.rec").open("wb") as file:
        for content in contents:
            write_record(file, content)
    writer = mx.recordio.MXRecordIO(str(tmp_path / "upstream.rec"), "w")
    for content in contents:
        writer.write(content)
    writer.close()
    assert (tmp_path / "own.rec").read_bytes() == (tmp_path / "upstream.rec").read_bytes()
    with (tmp_path / "own.rec").open("wb") as file:
        for content in contents[6:]:
            write_record(file, content)
    assert [record.content for _, record in records(tmp_path / "own.rec")] == contents[:6]
    for labels, number in (([1.5], 7), ([1, 2], 2**70)):
        header = mx.recordio.IRHeader(0, labels if len(labels) > 1 else labels[0], number % 2**64, number >> 64)
        assert pack(labels, number, b"x") == mx.recordio.pack(header, b"x")


def test_an_index_that_does_not_fit_is_named(photos, tmp_path):
    path, index = tmp_path / "all.rec", tmp_path / "all.idx"
    make(photos, of_folder(photos)[0][:20], path, Encoding())
    index.write_text(index.read_text().replace("3\t", "3\t1", 1) + "what\n7\t1²\n", encoding="utf-8")
    found = call("check", path)
    assert found.exit_code == 1
    assert "key 3: the index names it, but no record begins there" in found.stdout
    for line in (21, 22):
        assert f"all.idx, line {line}: expected a key, a tab and a byte" in found.stdout
    assert ": the index does not name it" in found.stdout


@pytest.mark.parametrize("way", ["every key twice", "every line twice", "two keys for a record"])
def test_an_index_that_repeats_keys_or_records_is_named(photos, tmp_path, way):
    path, index = tmp_path / "all.rec", tmp_path / "all.idx"
    make(photos, of_folder(photos)[0][:12], path, Encoding())
    lines = index.read_text().splitlines()
    places = [line.split("\t")[1] for line in lines]
    if way == "every key twice":
        lines = [f"{number % 6}\t{place}" for number, place in enumerate(places)]
    else:
        lines += lines if way == "every line twice" else [f"99\t{places[3]}"]
    index.write_text("\n".join(lines) + "\n")
    found = check(path)
    expected = {places[3]} if way == "two keys for a record" else set(places)
    assert {str(damage.byte) for damage in found.damages if "MXNet reads records twice" in damage.problem} == expected
    if way != "every key twice":
        with pytest.raises(DataError, match="all.idx: it names a record twice. Remove it"):
            image_records(path, valid=0, test=0)


def test_the_command_needs_no_mxnet(tmp_path, photos):
    code = """import sys; sys.modules["mxnet"] = None
from mxkit.cli.commands import app
for words in (["make", *sys.argv[1:]], ["list", f"{sys.argv[2]}.rec"], ["check", f"{sys.argv[2]}.rec"]):
    app(["rec", *words], standalone_mode=False)
"""
    command = [sys.executable, "-c", code, str(photos), str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line for line in ("label 0: cats", "40 records", "nothing is damaged") if line not in done.stdout] == []


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_folder_is_no_name_of_a_file(photos, out):
    done = CliRunner().invoke(app, ["rec", "make", str(photos), out])
    assert done.exit_code == 2
    assert "expected a name like data/train" in " ".join(done.output.replace("│", " ").split())
