"""Images that reach the net as bytes: the same bits as when the loader casts them, whatever trains."""

from built_nets import hybrid_net, ready
import mxkit
from mxkit.core.arrays import Packed
from mxkit.data import ArrayLoader
from mxkit.errors import TrainingError
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
from oracle import SOFTMAX, STATIC, convolutions, fit, weights
import pytest
from sharing import needs_bfloat16, pairs, text_of

RANDOM = np.random.RandomState(0)
X = RANDOM.randint(0, 256, (44, 1, 12, 12), dtype=np.uint8)
Y = RANDOM.randint(0, 3, 44)


def loader(**options):
    return ArrayLoader(X, Y, 8, **options)


def dense(devices="cpu"):
    """Without statistics, which replicas have of their own, and without random numbers."""
    return static(nn.Dense(16, in_units=144, activation="tanh"), nn.Dense(3, in_units=16), devices=devices)


def static(*layers, devices="cpu"):
    mxkit.seed_all(5)
    net = ready(*layers, devices=devices)
    net.hybridize(**STATIC)
    return net


def train(net, data, **options):
    sgd = ("sgd", {"learning_rate": 0.05, "momentum": 0.9})
    history = fit(net, data, trainer=sgd, seed=3, **{"epochs": 3, "metrics": ["accuracy"], **options})
    rows = [(row["train_loss"], row.get("train_accuracy")) for row in history]
    return rows, weights(net)


def assert_same(one, other):
    assert one[0] == other[0]
    np.testing.assert_array_equal(one[1], other[1])


@pytest.fixture
def unpackings(monkeypatch):
    """Sizes of the batches whose bytes were cast one by one, and not in the net's graph."""
    seen = []
    unpacked = Packed.unpacked

    def watched(packed):
        seen.append(packed.shape[0])
        return unpacked(packed)

    monkeypatch.setattr(Packed, "unpacked", watched)
    return seen


@pytest.fixture
def as_on_gpus(monkeypatch):
    """Bytes are cast batch by batch too, as where they are copied to a GPU; virtual devices stand in for it."""
    for module in ("update", "passes"):
        monkeypatch.setattr(f"mxkit.training.{module}.worth_packing", lambda devices: True)


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize(("flags", "scale"), pairs([None, {}, STATIC], [1 / 255, 0.3, 0.017]))
def test_bits_equal_batches_that_the_loader_cast(flags, scale, unpackings):
    told = train(convolutions(flags), loader(scale=scale))
    casts = len(unpackings)
    assert_same(told, train(convolutions(flags), list(loader(scale=scale))))
    assert len(unpackings) == casts
    # the check of the first, then the first of its kind, the tail of another kind, and the rest in the net's graph
    assert unpackings == ([8, 8, 4] if flags is not None else [])


@pytest.mark.usefixtures("as_on_gpus")
def test_bits_equal_where_each_batch_is_cast_on_its_device(unpackings):
    told = train(convolutions(None), loader())
    assert unpackings == [8, *[8, 8, 8, 8, 8, 4] * 3]
    assert_same(told, train(convolutions(None), list(loader())))


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        ("cpu:2", {}),
        ("cpu", {"accumulate": 4}),
        ("cpu:3", {"accumulate": "20 samples", "clip_norm": 0.5}),
        pytest.param("cpu:2", {"amp": "bfloat16"}, marks=needs_bfloat16),
        ("cpu", {"epochs": "7 updates"}),
    ],
)
@pytest.mark.usefixtures("as_on_gpus")
def test_bits_equal_in_other_ways_to_train(devices, options, unpackings):
    told = train(dense(devices), loader(), **options)
    assert unpackings
    assert_same(told, train(dense(devices), list(loader()), **options))


@pytest.mark.parametrize("options", [pytest.param({"amp": "bfloat16"}, marks=needs_bfloat16), {"loss": SOFTMAX}])
def test_on_a_cpu_only_a_graph_casts(options, unpackings):
    train(dense(), loader(), **options)
    train(dense("cpu:2"), loader())
    assert not unpackings


@pytest.mark.usefixtures("as_on_gpus")
@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_bits_equal_when_nothing_is_trained(devices, unpackings):
    net = convolutions(devices=devices)
    scores = [mxkit.evaluate(net, data, loss="softmax_ce", metrics=["accuracy"]) for data in (loader(), list(loader()))]
    assert scores[0] == scores[1]
    outputs = [mxkit.predict(net, data).asnumpy() for data in (loader(), list(loader()), X)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    np.testing.assert_allclose(outputs[2], outputs[0], rtol=1e-5, atol=1e-6)  # one batch of all: other kernels may sum
    assert sum(unpackings) == 3 * 44


def test_shuffled_and_resumed_inside_an_epoch(tmp_path):
    options = {"checkpoint": mxkit.Checkpoints(tmp_path, every="4 updates"), "resume": "auto"}
    train(dense(), loader(shuffle=True, seed=1), **options, epochs="9 updates")
    told = train(dense(), loader(shuffle=True, seed=1), **options)
    assert_same(told, train(dense(), loader(shuffle=True, seed=1)))


def test_one_of_two_inputs(unpackings):
    def net():
        layers = {"left": nn.Dense(3, in_units=144), "right": nn.Dense(3, in_units=2)}
        return static(hybrid_net(lambda net, F, image, numbers: net.left(image) + net.right(numbers), **layers))

    data = ArrayLoader((X, np.float32(RANDOM.rand(44, 2))), Y, 8)
    told = train(net(), data)
    assert unpackings == [8, 8, 4]
    assert_same(told, train(net(), list(data)))


def test_another_scale_from_the_second_epoch_on():
    class Batches(list):
        """Cast by the loader, as `iter` gives them."""

        def __init__(self):
            super().__init__(loader())
            self.halved = loader(scale=0.5 / 255)

        scale = property(None, lambda batches, _: batches.__setitem__(slice(None), list(batches.halved)))

    halve = mxkit.callbacks.LambdaCallback(on_epoch=lambda state, row: setattr(state.data, "scale", 0.5 / 255))
    options = {"callbacks": [halve], "metrics": []}
    told = train(convolutions(), loader(), **options)
    assert_same(told, train(convolutions(), Batches(), **options))
    assert told[0] != train(convolutions(), loader(), metrics=[])[0]


@pytest.mark.usefixtures("as_on_gpus")
def test_a_loader_of_the_users_own_is_read_by_its_iter():
    class Inverted(ArrayLoader):
        def __iter__(self):
            return ((1 - x, y) for x, y in super().__iter__())

    told = train(convolutions(), Inverted(X, Y, 8))
    assert_same(told, train(convolutions(), list(Inverted(X, Y, 8))))


@pytest.mark.usefixtures("as_on_gpus")
def test_who_counts_and_who_transforms_gets_floats():
    seen = []

    def count(inputs, labels):
        seen.append(type(inputs[0]))
        return 8.0

    def transform(x, y, rng):
        seen.append(type(x))
        return x, y

    train(convolutions(), loader(), loss=mxkit.losses.BatchLoss("softmax_ce", count=count), epochs="2 updates")
    mxkit.evaluate(convolutions(), loader(), loss=mxkit.losses.BatchLoss("softmax_ce", count=count))
    train(convolutions(), loader(transform=transform), epochs="2 updates")
    assert set(seen) == {mx.nd.NDArray, np.ndarray}


@pytest.mark.usefixtures("as_on_gpus")
def test_an_error_that_mxnet_tells_late_is_found_by_another_pass():
    told = []
    for data in (loader(), list(loader())):
        too_far = nn.HybridLambda(lambda F, x: F.take(F.ones((3,)), x * 255, mode="raise"))  # told when it is read
        told.append(text_of(TrainingError, train, ready(too_far, nn.Dense(3, in_units=144)), data))
    assert told[0] == told[1]
    assert "'0' (HybridLambda)" in told[0]


def test_a_packed_batch_is_cut_and_cast_like_an_array():
    x, _ = next(loader().packed())
    assert (type(x), x.shape, x.size, np.dtype(x.dtype).name) == (Packed, (8, 1, 12, 12), 1152, "float32")
    assert x.array.dtype == np.uint8
    np.testing.assert_array_equal(x[2:4].unpacked().asnumpy(), X[2:4] * np.float32(1 / 255))
    assert x.as_in_context(mx.cpu(0)) is x
    assert x.as_in_context(mx.cpu(1)).unpacked().context == mx.cpu(1)
    floats = ArrayLoader(X.astype("float32"), Y, 8)
    assert type(next(floats.packed())[0]) is mx.nd.NDArray


@pytest.mark.parametrize("shape", [(7,), (64, 784), (33, 3, 5, 7), (2, 3, 2, 5, 2, 3), (2, 1, 3, 2, 2, 2, 5)])
def test_the_graphs_way_to_cast_has_the_bits_of_the_product(shape):
    values = RANDOM.randint(0, 256, shape, dtype=np.uint8)
    array = mx.nd.array(values, dtype="uint8")
    operators = []
    for scale in (1 / 255, 1.0, 0.3, 0.017, 0.0, 1e-30, 1 / 601, -1.0):
        graph = Packed(array, scale).symbol(mx.sym.var("x"))
        operators.append("dequantize" in graph.tojson())
        found = graph.bind(mx.cpu(), {"x": array}, grad_req="null").forward(is_train=True)[0].asnumpy()
        expected = values * np.float32(scale)
        assert found.tobytes() == expected.tobytes(), scale
    # no range gives the bits of one scale in 500, or of a negative one; and oneDNN takes six axes
    assert operators == ([True] * 6 if len(shape) < 7 else [False] * 6) + [False] * 2
