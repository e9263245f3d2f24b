"""gluoncv's detectors, segmentation and pose nets in other programs: the same answers for drawn images."""

from collections import Counter
import json
from pathlib import Path
import sys

from built_nets import hybrid_net, ready
import mxkit
from mxkit.data.augment_labels import Placed
from mxkit.data.augment_steps import Place
from mxkit.plots.marks import draw_marks
from mxkit.recipe.marks import marks_of
from mxkit.runtime.machine import processor_flags
from mxkit.serving.optimizing import difference_of
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
from oracle import fit
import pytest
from sharing import command, needs, needs_onnx

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes"))
SIZE, IMAGES = 64, 50
KINDS = {"pixel_ce": "mask", "pose": "points"}
NETS = {  # and the updates after which scores differ
    "small_ssd": ("ssd", 6),
    "small_yolo3": ("yolo3", 6),
    "small_centernet": ("centernet", 30),
    "small_faster_rcnn": ("faster_rcnn", 30),
    "small_fcn": ("pixel_ce", 3),
    "small_deeplab": ("pixel_ce", 3),
    "small_pose": ("pose", 3),
}


def drawn(loss, images=IMAGES):
    """Drawn pictures with marks for a loss, as a loader, and the classes."""
    from made_shapes import made_shapes

    data, size = made_shapes(KINDS.get(loss, "boxes"), images=images, size=SIZE), 1 if loss == "faster_rcnn" else 10
    return mxkit.data.DatasetLoader(data.train, size, seed=0, transform=mxkit.data.Augment(["to_tensor"])), data.classes


@pytest.fixture(scope="module")
def trained():
    """A net after some updates, and its images; each is made once."""
    made = {}

    def of(name):
        if name not in made:
            loss, updates = NETS[name]
            batches, classes = drawn(loss)
            own = {"points": len(classes)} if loss == "pose" else {"classes": len(classes), "size": SIZE}
            mxkit.seed_all(0)
            net = ready(mxkit.models.get_model(name, **own))
            fit(net, batches, loss=loss, trainer=("adam", {"learning_rate": 0.003}), epochs=f"{updates} updates")
            made[name] = net, np.concatenate([x.asnumpy() for x, _ in batches])
        return made[name]

    return of


def answers(net, x):
    with mx.autograd.pause():
        outputs = net(mx.nd.array(x))
    return [one.asnumpy() for one in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]


def check_same(expected, actual):
    """Compare outputs; of detections, classes and boxes where no other score is near enough to decide the order."""
    if len(expected) < 3:
        for one, other in zip(expected, actual):
            np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4 * np.abs(one).max())
        return
    (classes, scores, boxes), found = (one.reshape(*expected[2].shape[:2], -1) for one in expected), actual
    np.testing.assert_allclose(found[1].reshape(scores.shape), scores, atol=1e-5)
    gaps = np.pad(-np.diff(scores[..., 0]), ((0, 0), (1, 1)), constant_values=1)
    clear = (np.minimum(gaps[:, :-1], gaps[:, 1:]) > 1e-4) & (scores[..., 0] > 0)
    assert clear.sum() >= 5 * len(clear)
    assert (found[0].reshape(classes.shape)[clear] == classes[clear]).all()
    np.testing.assert_allclose(found[2][clear], boxes[clear], atol=1e-2)


FORMATS = [pytest.param("onnx", marks=needs_onnx), pytest.param("torch", marks=[pytest.mark.torch, needs("torch")])]
FIXED = "the net does not take every batch size: the file takes {} only"
QUICK = "small_pose"
NAMES = [QUICK, *(pytest.param(one, marks=pytest.mark.long) for one in NETS if one != QUICK)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_fifty_drawn_images_have_the_nets_answers(trained, tmp_path, name, format):
    net, x = trained(name)
    exported = mxkit.export(net, tmp_path / "net", format=format, inputs=x[:2])
    assert exported.proof.worst.relative < 1e-4
    fixed = FIXED.format(1)
    assert (fixed in exported.notes) == (name == "small_faster_rcnn")
    # two batches at least: both images of a net that takes one at a time
    assert min(Counter(row.name for row in exported.proof.rows).values()) == 2
    other = mxkit.load_exported(exported.files["onnx" if format == "onnx" else "code"])
    for size in (1,) if fixed in exported.notes else (1, 10):
        for first in range(0, IMAGES, size):
            batch = x[first : first + size]
            check_same(answers(net, batch), answers(other, batch))
    moves = KINDS.get(NETS[name][0], "boxes")
    one, same = (picture(x[0], answers(any_net, x[:1]), moves) for any_net in (net, other))
    assert one.std() > 20
    assert (one != same).any(axis=-1).mean() < 0.002  # the edge of a mask may move by a pixel


def picture(image, outputs, moves):
    """An image with what a net says of it."""
    place = Placed(Place(), image.shape[1:], image.shape[1:])
    ((_, label),) = marks_of(moves, outputs, [place], ["a", "b", "c"], 0.2)
    pixels = (image.transpose(1, 2, 0) * 255).astype(np.uint8)
    scores = label[:, 5] if moves == "boxes" else None
    return np.asarray(draw_marks(pixels, label, moves=moves, classes=["a", "b", "c"], scores=scores))


@pytest.mark.parametrize("format", ["symbol", *FORMATS])
def test_boxes_may_be_shares_of_the_sides(trained, tmp_path, format):
    net, _ = trained("small_ssd")
    x = mx.nd.random.uniform(shape=(2, 3, 48, 80)).asnumpy()
    options = {"format": format, "inputs": x}
    shares = mxkit.export(net, tmp_path / "shares", boxes="normalized", **options)
    mxkit.export(net, tmp_path / "sides", **options)
    ending = {"symbol": "", "onnx": ".onnx", "torch": ".py"}[format]
    files = (tmp_path / f"{name}{ending}" for name in ("shares", "sides"))
    found, expected = (answers(mxkit.load_exported(file), x) for file in files)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[2] * [80, 48, 80, 48], expected[2], atol=1e-4)
    if format == "onnx":
        import onnx

        stated = {one.key: one.value for one in onnx.load(str(shares.files["onnx"])).metadata_props}
        assert json.loads(stated["marks"])["unit"] == "shares of the input's width and height"


def test_shares_need_a_detector_and_its_size(trained, tmp_path):
    net, _ = trained("small_ssd")
    mlp = ready(mxkit.models.mlp(3, hidden=[4]), sample=mx.nd.ones((1, 3, 8, 8)))
    refusals = [
        (net, {}, "is for a detector"),
        (net, {"input_shape": (1, 3, 64, 64), "format": "safetensors"}, "that computes"),
        (net, {"input_shape": (1, 3, 64, 64), "boxes": "shares"}, "boxes='shares'"),
        (mlp, {"input_shape": (1, 3, 8, 8)}, "is for a detector"),
    ]
    for one, options, words in refusals:
        with pytest.raises(ValueError, match=words):
            mxkit.export(one, tmp_path / "net", **{"boxes": "normalized", **options})


def test_a_graph_transposes_the_reshaped_output_of_a_convolution(tmp_path):
    """T275."""
    x = mx.nd.random.uniform(shape=(2, 8, 4, 4))
    # the end of YOLOV3's layers, with as many channels as oneDNN puts into blocks
    end = hybrid_net(lambda net, F, x: net.conv(x).reshape((0, 24, -1)).transpose((0, 2, 1)), conv=nn.Conv2D(24, 1))
    net = ready(end, sample=x)
    expected = net(x).asnumpy()
    mxkit.export(net, tmp_path / "net", input_shape=x.shape)
    np.testing.assert_allclose(mxkit.load_exported(tmp_path / "net")(x).asnumpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(mxkit.optimize(net, x)(x).asnumpy(), expected, rtol=1e-5)
    with mxkit.Predictor(net, max_batch=2) as predictor:
        np.testing.assert_allclose(predictor(x[1].asnumpy()), expected[1], rtol=1e-5)
        assert "static graphs" in repr(predictor)


@needs_onnx
def test_equal_scores_may_be_chosen_in_another_order(tmp_path):
    """A detector's topk fills its hundred rows with places of score 0, among which MXNet has no order."""

    def best(net, F, x):
        scores, places = F.relu(x).topk(k=40, ret_typ="both")
        return scores, F.cast(places, "int32") * 0

    x = np.random.RandomState(0).uniform(-9, 1, (2, 300)).astype("float32")
    proof = mxkit.export(hybrid_net(best), tmp_path / "net", format="onnx", inputs=x).proof
    assert any(row.operator == "topk" and row.name.endswith("[1]") for row in proof.rows)


@needs_onnx
@pytest.mark.long
@pytest.mark.parametrize("name", ["small_ssd", "small_yolo3"])
def test_suppression_is_in_the_file(trained, tmp_path, name):
    import onnx

    net, x = trained(name)
    path = mxkit.export(net, tmp_path / "net", format="onnx", inputs=x[:2], verify=False).files["onnx"]
    assert "Scan" in {node.op_type for node in onnx.load(str(path)).graph.node}


@needs_onnx
@pytest.mark.long
def test_a_runs_file_says_what_its_boxes_are(tmp_path):
    import onnx

    quick = ["updates=2", "data.images=10", "data.batch_size=4", "model.size=64"]
    sized = "data.eval_augment=[{name: resize, size: [64, 64]}, to_tensor]"
    done = mxkit.run_recipe("ssd_shapes", overrides=[*quick, sized], output=tmp_path, progress=False)
    status, _, errors = command("export", done.folder, tmp_path / "net", "--format", "onnx")
    assert status == 0, errors
    stated = {one.key: one.value for one in onnx.load(str(tmp_path / "net.onnx")).metadata_props}
    marks = json.loads(stated["marks"])
    assert json.loads(stated["classes"]) == ["square", "circle", "triangle"]
    assert (marks["kind"], marks["unit"], marks["input"]) == ("boxes", "pixels of the input", [64, 64])
    assert json.loads(stated["preprocessing"])["augment"][0] == {"name": "resize", "size": [64, 64]}
    net, x = mxkit.recipe.load_run(done.folder)[1], np.concatenate([x.asnumpy() for x, _ in drawn("ssd", 10)[0]])
    expected, actual = answers(net, x), answers(mxkit.load_exported(tmp_path / "net.onnx"), x)
    for one, other in zip(expected[1:2], actual[1:2]):
        np.testing.assert_allclose(other, one, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_predictor_and_a_fused_net_answer_like_the_net(trained, name):
    net, x = trained(name)
    single = name == "small_faster_rcnn"  # its graph computes one image
    with mxkit.Predictor(net, max_batch=4, sample=x[0]) as predictor:
        found = [predictor(one) for one in x[:6]]
        assert ("called as it is: it cannot be traced" if single else "static graphs") in repr(predictor)
    outputs = zip(*found) if isinstance(found[0], tuple) else [found]
    check_same(answers(net, x[:6]), [np.stack(one) for one in outputs])
    fused = mxkit.optimize(net, mx.nd.array(x[: 1 if single else 4]))
    for batch in x[:10, None] if single else (x[:10],):
        check_same(answers(net, batch), answers(fused, batch))


@pytest.mark.parametrize("format", ["symbol", *FORMATS])
@pytest.mark.parametrize(("size", "given"), [(4, 4), (1, 3)])
def test_a_net_of_one_batch_size_is_written_for_it(tmp_path, size, given, format):
    net = hybrid_net(lambda net, F, x: F.concat(F.ones((size, 2)), net.dense(x), dim=1), dense=nn.Dense(5, in_units=3))
    ready(net, sample=mx.nd.ones((size, 3)))
    x = np.random.RandomState(0).uniform(size=(given, 3)).astype("float32")
    exported = mxkit.export(net, tmp_path / "net", format=format, inputs=x)
    assert exported.inputs == (f"data ({size}, 3) float32",)
    assert exported.notes == (FIXED.format(size),)
    assert {row.batch for row in exported.proof.rows if row.operator != "parameter"} == {size}
    ending = {"symbol": "", "onnx": ".onnx", "torch": ".py"}[format]
    other = mxkit.load_exported(tmp_path / f"net{ending}")
    np.testing.assert_allclose(answers(other, x[:size])[0], answers(net, x[:size])[0], rtol=1e-5)
    if format == "onnx":
        import onnx

        shape = onnx.load(str(exported.files["onnx"])).graph.input[0].type.tensor_type.shape
        assert [one.dim_value for one in shape.dim] == [size, 3]


def test_detections_that_change_places_lose_nothing():
    random = np.random.RandomState(0)
    outputs = [mx.nd.array(random.uniform(size=(2, 9, width))) for width in (1, 1, 4)]
    turned = [one[:, ::-1] for one in outputs]
    assert difference_of(outputs, turned) == 0
    assert difference_of(outputs, [*turned[:2], turned[2] + 1]) > 1


@pytest.mark.skipif(not {"avx512_vnni", "avx_vnni"} & set(processor_flags()), reason="this processor lacks VNNI")
@pytest.mark.long
def test_an_ssd_in_int8_finds_nearly_the_same(trained):
    net, x = trained("small_ssd")
    fast = mxkit.optimize(net, mx.nd.array(x[:10]), precision="int8", calibration=mx.nd.array(x[10:]))
    assert {row.computes for row in fast.report.layers} >= {"int8"}
    assert abs(answers(fast, x)[1] - answers(net, x)[1]).max() < 0.02
