"""`predict_files`: any number of image files through a run's net, in order, equal to `mxkit.predict` on its batches."""

from pathlib import Path
import threading

import mxkit
from mxkit.data.image_bytes import decode
from mxkit.errors import DataError, ForwardError
from mxkit.recipe.predictions import predict_files
from mxkit.recipe.predictions import predictions as meanings
from mxkit.recipe.run import load_run
import mxnet as mx
import numpy as np
from PIL import Image
import pytest
from sharing import draw_images, image_run

AUGMENT = mxkit.data.Augment([("resize", {"size": 24}), ("center_crop", {"size": 20}), "to_tensor"])


def expected(run, paths, size):
    """The answers of `mxkit.predict` on batches of `size`."""
    recipe, net = load_run(run)
    x = np.stack([AUGMENT(decode(Path(path).read_bytes(), path)) for path in paths])
    scores = mxkit.predict(net, [mx.nd.array(x[start : start + size]) for start in range(0, len(x), size)])
    return meanings(recipe, ["day", "night"], scores)


@pytest.mark.parametrize(("size", "threads"), [(32, None), (5, 3), (1, 1)])
def test_answers_are_those_of_predict_on_the_same_batches_to_the_bit(photo_run, tmp_path, size, threads):
    paths = draw_images(tmp_path / "new", 71, seed=1)
    predictions = list(predict_files(photo_run, tmp_path / "new", batch_size=size, threads=threads))
    assert [one.path for one in predictions] == paths
    assert [one.answer for one in predictions] == expected(photo_run, paths, size)
    assert {one.error for one in predictions} == {""}


def test_broken_files_are_named_in_their_places_and_the_next_fill_the_batch(photo_run, tmp_path):
    paths = draw_images(tmp_path, 30, seed=2)
    broken = [paths[0], paths[9], paths[10], paths[29]]
    for path, content in zip(broken, (b"", b"text", Path(paths[9]).read_bytes()[:90], b"\xff\xd8")):
        Path(path).write_bytes(content)
    missing = str(tmp_path / "missing.png")
    predictions = list(predict_files(photo_run, [*paths, missing], batch_size=8))
    assert [one.path for one in predictions] == [*paths, missing]
    assert [one.path for one in predictions if one.error] == [*broken, missing]
    assert all(one.path in one.error for one in predictions if one.error)
    assert not any(one.answer for one in predictions if one.error)
    whole = [path for path in paths if path not in broken]
    assert [one.answer for one in predictions if not one.error] == expected(photo_run, whole, 8)
    assert [bool(one.error) for one in predict_files(photo_run, broken)] == [True] * 4


def test_only_few_files_are_read_ahead(photo_run, tmp_path):
    """Memory is bounded: what is far ahead has not been read when the first answer comes."""
    paths = draw_images(tmp_path, 120, seed=3)
    predictions = predict_files(photo_run, paths, batch_size=4, threads=2)
    first = next(predictions)
    # two batches of 4, four groups of 8 that are ready or being read, and what the first wait let in
    ahead = 64
    for path in paths[ahead:]:
        Path(path).unlink()
    rest = list(predictions)
    assert [bool(one.error) for one in (first, *rest)] == [False] * ahead + [True] * (120 - ahead)


def test_a_reader_that_is_left_leaves_no_thread_at_work(photo_run, tmp_path):
    predictions = predict_files(photo_run, draw_images(tmp_path, 60), batch_size=4)
    next(predictions)
    predictions.close()
    before = [one for one in threading.enumerate() if one.name.startswith("mxkit-data")]
    assert len(list(predict_files(photo_run, tmp_path))) == 60
    assert [one for one in threading.enumerate() if one.name.startswith("mxkit-data")] == before


def test_a_folder_is_read_by_the_run_s_best_checkpoint_and_inverted_if_asked(photo_run, tmp_path):
    (path,) = draw_images(tmp_path, 1)
    (inverted,) = predict_files(photo_run, path, invert=True)
    recipe, net = load_run(photo_run)
    x = AUGMENT(255 - decode(Path(path).read_bytes(), path))
    assert inverted.answer == meanings(recipe, ["day", "night"], net(mx.nd.array(x[None])))[0]


OWN = """
from mxkit import register
from mxnet import gluon


@register("model")
def pooled():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 3, in_channels=3), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(2, in_units=4))
    return net
"""


def test_images_of_other_sizes_begin_a_batch_and_a_net_that_refuses_them_is_named(tmp_path):
    (tmp_path / "own_net_of_files.py").write_text(OWN)
    data = {"name": "image_folder", "root": str(tmp_path / "photos"), "test": 0.3, "batch_size": 8}
    steps = {"augment": [{"name": "center_crop", "size": 20}, "to_tensor"], "eval_augment": ["to_tensor"]}
    own = {"imports": ["own_net_of_files"], "import_path": str(tmp_path), "model": "pooled"}
    run = image_run(tmp_path, data={**data, **steps, "eval_batch_size": 1}, updates=1, **own)
    paths = draw_images(tmp_path / "new", 14, seed=4)
    predictions = list(predict_files(run, paths, threads=4))
    _, net = load_run(run)
    x = [decode(Path(path).read_bytes(), path).transpose(2, 0, 1)[None] / np.float32(255) for path in paths]
    alone = [mxkit.predict(net, one).softmax(axis=1).asnumpy().max() for one in x]
    np.testing.assert_allclose([one.answer["probability"] for one in predictions], alone, rtol=1e-5)
    Image.new("RGB", (2, 2)).save(str(tmp_path / "tiny.png"))
    with pytest.raises(ForwardError, match=r"'0' \(Conv2D\)"):
        list(predict_files(run, tmp_path / "tiny.png"))


def test_wrong_arguments_and_runs_without_images_are_refused_at_once(photo_run, tmp_path):
    with pytest.raises(ValueError, match="predict_files: batch_size: expected a whole number, at least 1"):
        predict_files(photo_run, "a.png", batch_size=0)
    with pytest.raises(ValueError, match="predict_files: threads: expected a whole number, at least 1"):
        predict_files(photo_run, "a.png", threads=0)
    with pytest.raises(DataError, match=r"this folder has no image; images end with \.bmp"):
        predict_files(photo_run, tmp_path)
