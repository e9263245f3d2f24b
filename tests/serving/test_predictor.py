"""`mxkit.Predictor`: what it answers, and requests that fail alone."""

from io import BytesIO

from asking_threads import LONGEST, at_once, images, lenet
from built_nets import hybrid_net, ready, stack
import mxkit
from mxkit.core.graphs import is_hybridized, traced_graph
from mxkit.errors import DataError, ForwardError
from mxkit.recipe.net_facts import image_reader, read_facts
from mxkit.recipe.predictions import describe_prediction, predictions
from mxkit.recipe.run import load_run
import mxnet as mx
from mxnet import gluon
import numpy as np
from PIL import Image
import pytest

# What is computed.


def test_answers_of_threads_are_those_of_the_padded_batches_alone():
    net, x, batches = lenet(), images(64), []
    with mxkit.Predictor(net, sample=x[0], max_batch=12) as predictor:
        compute = predictor._dispatcher._compute

        def noted(requests):
            batches.append([arrays[0] for arrays, _ in requests])
            return compute(requests)

        predictor._dispatcher._compute = noted
        found = at_once(16, lambda thread: [predictor(x[number]) for number in range(thread, 64, 16)])
        stats = predictor.stats()
    answered = {x[number].tobytes(): found[number % 16][number // 16] for number in range(64)}
    net.hybridize()
    for batch in batches:
        size = next(size for size in (1, 2, 4, 8, 12) if size >= len(batch))
        alone = net(mx.nd.array(np.stack([*batch, *[batch[-1]] * (size - len(batch))]))).asnumpy()
        for sample, row in zip(batch, alone):
            assert np.array_equal(answered[sample.tobytes()], row)
            assert answered[sample.tobytes()].base is None  # or it would hold the whole batch
    assert (stats["requests"], stats["batches"], stats["failed"], stats["queue"]) == (64, len(batches), 0, 0)
    assert stats["samples_per_batch"] == 64 / len(batches) > 1
    assert 0 < stats["p50_ms"] <= stats["p99_ms"]


def test_the_net_stays_as_it_is_and_changed_weights_count():
    net, x = lenet(), images(1)
    parameters = net.collect_params().values()
    with mxkit.Predictor(net, sample=x[0]) as predictor:
        assert "static graphs" in repr(predictor)
        assert not is_hybridized(net)
        assert not traced_graph(net)
        before = predictor(x[0])
        for change in (
            lambda: [one.set_data(one.data() * 0.5) for one in parameters],
            lambda: net.initialize(mx.init.Xavier(), force_reinit=True),
        ):
            change()
            after = predictor(x[0])
            assert not np.allclose(before, after)
            np.testing.assert_allclose(after, net(mx.nd.array(x)).asnumpy()[0], rtol=1e-5, atol=1e-6)
            before = after


@pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")  # NumPy 1.19 to 1.23
def test_several_inputs_and_outputs_integers_and_deferred_shapes_of_either_kind(switched):
    layers = {"table": gluon.nn.Embedding(5, 3), "dense": gluon.nn.Dense(2, flatten=False)}
    net = ready(hybrid_net(lambda net, F, tokens, x: (net.table(tokens), net.dense(x)), **layers))
    first = (np.array([1, 2], np.int32), np.ones((3, 4)))
    with mxkit.Predictor(net, max_batch=2) as predictor:
        assert "not started" in repr(predictor)
        found = predictor(first)  # brings the shapes
        expected = net(*switched.of([first[0][None], first[1][None]]))
        assert [one.shape for one in found] == [(2, 3), (3, 2)]
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other.asnumpy()[0], rtol=1e-6)
        with pytest.raises(DataError, match=r"expected a sample of \(2,\) int32, \(3, 4\) float32; received \(3, 4\)"):
            predictor(first[::-1])
        with pytest.raises(DataError, match=r"the sample holds a number from 1 to 4294967303 that int32 cannot hold"):
            predictor((np.array([1, 2**32 + 7]), first[1]))
        assert np.array_equal(predictor((np.array([1, 2], np.uint8), first[1]))[0], found[0])
        with pytest.raises(DataError, match="Predictor: "):
            predictor([[1, 2], [[3.0]]])  # no tuple: NumPy makes no array of it


class Own(gluon.HybridBlock):
    def forward(self, x):
        return x * 2


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (gluon.nn.HybridLambda(lambda F, x: x * (2 if F is mx.nd else 3)), "its graph computes something else than"),
        (Own(), "0 has a forward of its"),
    ],
)
def test_a_net_whose_graph_is_not_its_code_is_called_as_it_is(inner, why):
    with mxkit.Predictor(stack(inner), sample=np.ones(3)) as predictor:
        assert predictor(np.ones(3)).tolist() == [2, 2, 2]
        assert f"called as it is: {why}" in repr(predictor)


def test_nets_that_mix_samples_are_refused():
    recurrent = ready(stack(gluon.rnn.LSTM(4, layout="TNC")))
    mean = gluon.nn.HybridLambda(lambda F, x: F.broadcast_sub(x, F.mean(x, axis=0, keepdims=True)))
    for net, sample in ((mean, np.ones(3)), (recurrent, np.ones((5, 3)))):
        with pytest.raises(DataError, match="depends on the other samples of its batch"):
            mxkit.Predictor(net, sample=sample)
    with pytest.raises(DataError, match=r"a batch of 2 gives an output of shape \(1,\): expected one row per sample"):
        mxkit.Predictor(gluon.nn.HybridLambda("sum"), sample=np.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_lengths_stay_inside_of_the_sample(dtype):
    """MXNet writes in front of the array at a negative length (T295): the net notes the lengths that it gets."""
    seen = []

    class Mean(gluon.Block):
        def forward(self, x, lengths):
            seen.extend(lengths.asnumpy().tolist())
            return mx.nd.SequenceMask(x, use_sequence_length=True, sequence_length=lengths, axis=1).sum(axis=1)

    with mxkit.Predictor(Mean(), sample=(np.ones((5, 3)), np.array(4, dtype)), max_batch=4) as predictor:
        assert predictor((np.ones((5, 3)), np.array(3, dtype))).tolist() == [3, 3, 3]
    assert min(seen) >= 1
    assert len(set(seen)) > 2  # neighbours had other ones


def test_all_sizes_are_computed_before_traffic_and_in_one_thread(gate):
    net, predictor = gate
    warm = set(net.sizes)
    assert warm == {1, 2, 4}  # T201
    net.sizes.clear()
    assert [one.tolist() for one in at_once(5, lambda number: predictor([number]))] == [[2 * n] for n in range(5)]
    assert set(net.sizes) <= warm
    assert net.threads == {"mxkit-predictor"}  # T200


# Requests that fail.

WRONG = [
    (images(1), r"expected a sample of \(1, 28, 28\) float32; received \(1, 1, 28, 28\) float32. One call takes one"),
    (np.ones((28, 28)), r"received \(28, 28\) float32$"),
    (np.full((1, 28, 28), 1j), r"received \(1, 28, 28\) complex128"),
    (np.full((1, 28, 28), np.nan), r"holds NaN or infinity"),
    (np.full((1, 28, 28), 1e300), r"holds NaN or infinity"),
    ((images(1)[0], images(1)[0]), r"received \(1, 28, 28\) float32, \(1, 28, 28\) float32"),
    (bytearray(b"\xff\xd8"), r"received bytes, and \w+ was not read from a run that was trained on images"),
    (object(), r"expected an array of numbers, or a tuple of them; received object$"),
    (np.ones((1, 28, 28), np.uint8), r"received \(1, 28, 28\) uint8, .* float32: convert pixels as the training's"),
]


def test_wrong_samples_are_refused_alone():
    x = images(8)
    with mxkit.Predictor(lenet(), sample=x[0]) as predictor:
        alone = predictor(x[0])
        found = at_once(2 * len(WRONG), lambda number: predictor(x[0] if number % 2 else WRONG[number // 2][0]))
        for number, (_, text) in enumerate(WRONG):
            with pytest.raises(DataError, match=text):
                raise found[2 * number]
            np.testing.assert_allclose(found[2 * number + 1], alone, atol=1e-6)
        assert predictor.stats()["requests"] == 1 + len(WRONG)
        for timeout in ("1", float("nan"), -1):
            with pytest.raises(ValueError, match="Predictor: timeout: expected a finite number, at least 0; received"):
                predictor(x[0], timeout=timeout)


@pytest.mark.parametrize("dtype", [">f4", "float16", "int64", "bool", ">i4"])
def test_numbers_of_any_dtype_of_mxnet_arrive(dtype):
    x = np.array([0, 1, 2]).astype(dtype)
    net = gluon.nn.HybridLambda(lambda F, x: F.cast(x, "float32") + 1)
    with mxkit.Predictor(net, sample=x, max_batch=2) as predictor:
        assert predictor(x).tolist() == (x.astype("f4") + 1).tolist()
    with pytest.raises(DataError, match="Predictor: MXNet has no arrays of uint16: expected one of"):
        mxkit.Predictor(gluon.nn.Dense(2), sample=np.ones(3, np.uint16))


def test_a_first_request_that_fails_fixes_no_shape():
    with mxkit.Predictor(lenet()) as predictor:
        with pytest.raises(ForwardError, match=r"Conv2D.* got shape \(1, 7\)"):
            predictor(np.ones(7))
        assert predictor(images(1)[0]).shape == (10,)


def test_a_sample_that_fails_leaves_its_neighbours_their_answers(gate):
    net, predictor = gate
    held = net.shut(predictor)
    futures = [predictor.submit([number]) for number in (1, 66, 3)]
    net.open.set()
    assert [one.result(LONGEST).tolist() for one in (held, futures[0], futures[2])] == [[-2], [2], [6]]
    with pytest.raises(ForwardError, match="the net .Gate.: ValueError: 66 is not computed"):
        futures[1].result(LONGEST)
    assert predictor.stats()["failed"] == 1


class Fragile(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        assert not (in_data[0].asnumpy() == 66).any()
        self.assign(out_data[0], req[0], in_data[0] * 2)


@mx.operator.register("predictor_fragile")
class FragileProp(mx.operator.CustomOpProp):
    def create_operator(self, *arguments):
        return Fragile()


def test_a_static_graph_computes_on_after_an_error_of_the_engine():
    net = gluon.nn.HybridLambda(lambda F, x: F.Custom(x, op_type="predictor_fragile") + 1)
    with mxkit.Predictor(net, sample=np.ones(2), max_batch=4) as predictor:
        assert "static graphs" in repr(predictor)
        for _ in range(3):
            found = at_once(4, lambda number: predictor([number, 66 if number == 2 else 0]))
            assert isinstance(found.pop(2), Exception)
            assert [one.tolist() for one in found] == [[1, 1], [3, 1], [7, 1]]


# Runs.


def test_a_run_takes_image_files_and_says_class_and_probability(digits_run, tmp_path):
    files = []
    for number, suffix in enumerate(["png", "jpg", "png", "jpg"]):
        files.append(tmp_path / f"{number}.{suffix}")
        pixels = np.zeros((50, 40), np.uint8)
        pixels[10 + number : 40, 15 : 20 + 4 * number] = 255
        Image.fromarray(pixels).save(str(files[-1]))
    recipe, net = load_run(digits_run)
    facts = read_facts(digits_run)
    batch = np.stack([*map(image_reader(recipe, facts.images), files)])
    expected = [describe_prediction(one) for one in predictions(recipe, facts.classes, mxkit.predict(net, batch))]
    damaged = files[1].read_bytes()[:-20]
    with mxkit.Predictor(digits_run) as predictor:
        pixels = np.asarray(Image.open(str(files[2])))[:, :, None]
        asked = [files[0], files[1].read_bytes(), pixels, batch[3], damaged, str(files[0]), b"no image", batch[0, 0]]
        found = at_once(8, lambda number: predictor(asked[number]))
        assert predictor.stats()["requests"] == 5
        gray, other = (Image.open(str(file)) for file in files[:3:2])
        more = [gray, other.convert("RGB"), bytearray(files[0].read_bytes()), memoryview(files[2].read_bytes())]
        same = [predictor(image) for image in more]
        for wrong, text in (
            (gray.convert("RGBA"), r"the image of Pillow has the mode RGBA: convert it: image.convert\('L'\)"),
            (np.zeros((0, 28, 1), np.uint8), r"expected an image with pixels, received shape \(0, 28, 1\)"),
            (np.zeros((9, 9, 3), np.uint8), r"expected pixels of shape \(height, width, 1\), received \(9, 9, 3\)"),
        ):
            with pytest.raises(DataError, match=text):
                predictor(wrong)
    for one, other in zip([*found[:4], found[5], *same], [*expected, *expected[:1], *expected[:3:2] * 2]):
        assert set(one) == {"class", "probability"}
        assert [one["class"], f"{one['probability']:.4f}"] == other
    for error, text in [(found[4], "ends before its end"), (found[6], "no image that OpenCV knows"), (found[7], "exp")]:
        with pytest.raises(DataError, match=text):
            raise error


def test_a_picture_in_its_transparency_is_refused(digits_run):
    """T243."""
    pixels = np.zeros((28, 28, 4), np.uint8)
    contents = {}
    for name, alpha in (("drawn", slice(5, 20)), ("opaque", slice(None))):
        pixels[:, alpha, 3] = 255
        file = BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        contents[name] = file.getvalue()
    with mxkit.Predictor(digits_run) as predictor:
        with pytest.raises(DataError, match=r"the image: all pixels have one colour, and the picture is in their tran"):
            predictor(contents["drawn"])
        assert set(predictor(contents["opaque"])) == {"class", "probability"}


def test_a_run_without_images_takes_arrays(tmp_path):
    run = mxkit.run_recipe("linear_regression", overrides=["epochs=1"], output=tmp_path, progress=False)
    x = np.array([1.0, 2.0], np.float32)
    with mxkit.Predictor(run.folder, which="last") as predictor:
        (value,) = predictor(x)["values"]
        with pytest.raises(DataError, match="received str, and .* was not read from a run that was trained on images"):
            predictor("photo.jpg")
    assert value == pytest.approx(float(mxkit.predict(run.net, x[None]).asnumpy().item()), rel=1e-6)
