"""Predictions of detectors, segmentation and pose nets: in pixels of the files, drawn, and as tables."""

import csv
import json

import mxkit
from mxkit.data import Augment
from mxkit.data.augment_labels import Moved
from mxkit.data.image_bytes import decode
from mxkit.errors import DataError
from mxkit.recipe.marks import marks_of
from mxkit.recipe.predictions import predict_files
import numpy as np
from PIL import Image
import pytest
from typer.testing import CliRunner

STEPS = {
    "resize": [("resize", {"size": (40, 80)})],
    "letterbox": [("letterbox", {"size": (64, 64)})],
    "crop": [("resize", {"size": 48}), ("center_crop", {"size": 40})],
}


def placed(steps, height=30, width=50):
    return Augment([*steps, "to_tensor"]).with_place(np.zeros((height, width, 3), np.uint8))


@pytest.mark.parametrize("name", STEPS)
def test_boxes_and_points_go_back_to_pixels_of_the_file(name):
    image, place = placed(STEPS[name])
    truth = np.array([[12, 8, 33, 22, 1, 0], [20, 10, 30, 20, 0, 0]], np.float32)
    augment = Augment(STEPS[name])
    _, there = augment.with_label(np.zeros((30, 50, 3), np.uint8), truth, moves="boxes")
    outputs = [there[None, :, 4:5], np.array([[[0.4], [0.9]]]), there[None, :, :4]]
    ((answer, label),) = marks_of("boxes", outputs, [place], ["cat", "dog"], 0.3)
    assert [one["class"] for one in answer["boxes"]] == ["cat", "dog"]  # sorted by score
    inside = name != "crop"
    np.testing.assert_allclose(label[:, :4], truth[::-1, :4], atol=1e-4 if inside else 3)
    assert len(marks_of("boxes", outputs, [place], [], 0.5)[0][0]["boxes"]) == 1
    heat = np.zeros((1, 1, image.shape[1] // 4, image.shape[2] // 4), np.float32)
    heat[0, 0, 3, 5] = 1
    _, points = marks_of("points", [heat], [place], ["nose"], 0)[0]
    moved = Moved(points.astype(np.float32), "points")
    moved.follow(place.place, place.shape)
    np.testing.assert_allclose(moved.label(place.shape)[0, :2], [5 * 4, 3 * 4], atol=1e-3)


def test_masks_go_back_to_the_size_of_the_file():
    mask = np.zeros((30, 50), np.int32)
    mask[5:20, 10:40] = 1
    _, place = placed([("resize", {"size": (100, 60)})])
    there = Moved(mask, "mask")
    there.follow(place.place, place.shape)
    scores = np.eye(2, dtype=np.float32)[there.label(place.shape)].transpose(2, 0, 1)[None]
    ((answer, label),) = marks_of("mask", [scores], [place], ["ground", "cat"], 0)
    np.testing.assert_array_equal(label, mask)
    assert answer["areas"]["cat"] == pytest.approx(mask.mean())
    image, place = placed([("center_crop", {"size": 20})])
    ((_, label),) = marks_of("mask", [np.zeros((1, 2, 10, 10))], [place], [], 0)
    assert (label >= 0).sum() == 400  # the net sees no more
    assert image.shape == (3, 20, 20)


def test_other_outputs_are_refused():
    with pytest.raises(DataError, match=r"expected \(classes, scores, boxes\)"):
        marks_of("boxes", [np.zeros((1, 2))], [], [], 0)


SIZES = {"ssd_shapes": 96, "fcn_shapes": 64, "pose_stick": 96}


@pytest.fixture(scope="module", params=SIZES)
def run(request, tmp_path_factory):
    """A run of two updates, and a folder of two images, one of them in a folder of its own."""
    folder = tmp_path_factory.mktemp(request.param)
    quick = ["updates=2", "data.images=10", "data.batch_size=4", "optimizer.learning_rate=0.0001"]
    done = mxkit.run_recipe(request.param, overrides=quick, output=folder, progress=False)
    for name, size in (("a.png", (80, 60)), ("inner/b.png", (50, 70))):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (90, 30, 200)).save(path)
    return request.param, done, folder


def test_predict_writes_pictures_and_tables(run):
    from mxkit.cli.commands import app

    recipe, done, folder = run
    found = list(predict_files(done.folder, folder / "images", score=0.0))
    assert [one.path.rpartition("/")[2] for one in found] == ["a.png", "b.png"]
    arguments = ["predict", str(done.folder), str(folder / "images"), "--draw", str(folder / "drawn"), "--score", "0"]
    arguments += ["--csv", str(folder / "t.csv"), "--jsonl", str(folder / "t.jsonl")]
    arguments += ["--masks", str(folder / "masks")] if recipe == "fcn_shapes" else []
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for name in ("a.png", "inner/b.png"):
        assert decode((folder / "drawn" / name).read_bytes(), name).shape[1] >= 100  # small ones are enlarged
    lines = [json.loads(line) for line in (folder / "t.jsonl").read_text("utf-8").splitlines()]
    assert [line["path"] for line in lines] == [one.path for one in found]
    with (folder / "t.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if recipe == "ssd_shapes":
        assert len(rows) == sum(len(line["boxes"]) for line in lines) > 0
        for line, (width, height) in zip(lines, ((80, 60), (50, 70))):
            sides = np.array([box["box"] for box in line["boxes"]])
            assert (sides >= 0).all()
            assert (sides <= [width, height, width, height]).all()
    elif recipe == "fcn_shapes":
        assert set(rows[0]) == {"path", "ground", "square", "circle", "triangle"}
        assert sum(lines[0]["areas"].values()) == pytest.approx(1)
        assert decode((folder / "masks/inner/b.png").read_bytes(), "b.png").shape[:2] == (70, 50)
    else:
        assert list(lines[0]["points"])[:4] == ["head", "neck", "hip", "left hand"]
        assert "left hand x" in rows[0]


def test_a_server_answers_in_pixels_of_the_file(run):
    _, done, folder = run
    found = list(predict_files(done.folder, folder / "images", score=0.0, batch_size=1))
    with mxkit.Predictor(done.folder, max_batch=2, score=0.0) as predictor:
        answers = [predictor(one.path) for one in found]
        assert answers == [one.answer for one in found]
        assert predictor(np.asarray(Image.open(found[1].path))) == answers[1]
        prepared = np.zeros((3, *found[0].placed.shape), np.float32)  # as the net takes it
        assert list(predictor(prepared)) == list(answers[0])


def test_coco_results_are_read_by_pycocotools(run):
    """Without annotation files the ids are stated; images without a box have no row, and are counted."""
    from mxkit.cli.commands import app

    recipe, done, folder = run
    file, table = folder / "results.json", folder / "boxes.csv"
    arguments = ["predict", str(done.folder), str(folder / "images"), "--coco", str(file), "--csv", str(table)]
    result = CliRunner().invoke(app, [*arguments, "--score", "1"])
    if recipe == "fcn_shapes":
        assert result.exit_code == 1
        return
    rows = json.loads(file.read_text("utf-8"))
    if recipe == "ssd_shapes":
        assert rows == []
        assert f"0 images in {table}, and 2 without a box, which have no row\n" in result.output
        assert CliRunner().invoke(app, [*arguments, "--score", "0"]).exit_code == 0
        rows = json.loads(file.read_text("utf-8"))
    assert "an image's id is its place from 1, a category's its class number plus 1" in result.output
    assert {row["image_id"] for row in rows} == {1, 2}
    coco = pytest.importorskip("pycocotools.coco").COCO()
    coco.dataset = {"images": [{"id": 1}, {"id": 2}], "categories": [{"id": one} for one in (1, 2, 3)]}
    coco.createIndex()
    assert len(coco.loadRes(str(file)).anns) == len(rows) > 0


def test_a_net_without_marks_draws_nothing(run):
    from mxkit.cli.commands import app

    recipe, done, folder = run
    if recipe != "fcn_shapes":
        arguments = ["predict", str(done.folder), str(folder / "images"), "--masks", str(folder / "no")]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert not (folder / "no").exists()


def test_the_report_has_figures_of_each_class_and_the_worst_images(run):
    from mxkit.reports.page import write_report

    recipe, done, folder = run
    page = write_report([done.folder], folder / "page.html").read_text("utf-8")
    words = {
        "ssd_shapes": ["average precision", "Precision over recall", "nothing there", "small, below 32 x 32"],
        "fcn_shapes": ["intersection over union", "pixels are right"],
        "pose_stick": ["mean distance", "PCK at 0.1"],
    }
    assert all(word in page for word in words[recipe])
    assert "No confusion matrix" not in page
    assert "Worst images" in page
    assert page.count('alt="answer for image') > 0


@pytest.mark.parametrize("run", ["ssd_shapes"], indirect=True)
def test_a_part_without_objects_has_figures(run):
    from mxkit.recipe.data_checks import load_data
    from mxkit.recipe.run import load_run
    from mxkit.reports.marks import marked_part

    recipe, net = load_run(run[1].folder)
    data = load_data(recipe)
    data.test.labels = [np.zeros((0, 6), np.float32)] * len(data.test)
    by_class, by_size = marked_part(recipe, net, data).tables
    assert by_class.rows == []
    assert [row[1:] for row in by_size.rows] == [(0, 0, 0)] * 3
