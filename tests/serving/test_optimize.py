"""`mxkit.optimize`: what a net in another precision computes, its guards, and its files."""

import functools
import json
import subprocess
import sys
import tempfile

from built_nets import hybrid_net, stack
import mxkit
from mxkit.core.blocks import UnknownPathError
from mxkit.errors import ArchitectureError, CheckpointError, DataError, TrapWarning
from mxkit.nets import prediction_graphs
from mxkit.runtime.machine import processor_flags, processor_model
from mxkit.serving import optimizing
from mxkit.serving.optimizing import measured
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest

POSSIBLE = {"float32": True, "bfloat16": "avx512_bf16" in processor_flags()}
POSSIBLE["int8"] = bool(processor_flags().intersection(["avx512_vnni", "avx_vnni"]))
BFLOAT16 = pytest.mark.skipif(not POSSIBLE["bfloat16"], reason="this processor lacks AVX512_BF16")
INT8 = pytest.mark.skipif(not POSSIBLE["int8"], reason="this processor lacks VNNI")
PRECISIONS = ["float32", pytest.param("bfloat16", marks=BFLOAT16), pytest.param("int8", marks=INT8)]
HELD_OUT = 360


def small_net():
    nn = gluon.nn
    first = nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D()
    second = nn.Conv2D(32, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalAvgPool2D()
    return stack(*first, *second, nn.Dense(10))


@pytest.fixture(scope="module")
def digits():
    found = mxkit.data.digits()
    x, y = (np.concatenate([np.asarray(getattr(one, part)) for one in (found.train, found.test)]) for part in "xy")
    order = np.random.RandomState(0).permutation(len(x))
    return x[order].astype("f") / (255 if x.dtype == np.uint8 else 1), y[order].astype("i4")


@pytest.fixture(scope="module")
def trained(digits):
    mxkit.seed_all(0)
    net = small_net()
    mxkit.initialize(net, "xavier")
    x, y = digits
    net.hybridize(static_alloc=True, static_shape=True)
    train = mxkit.data.ArrayLoader(x[HELD_OUT:], y[HELD_OUT:], 32, shuffle=True, seed=0)
    mxkit.fit(net, train, loss="softmax_ce", trainer=("adam", {"learning_rate": 0.03}), epochs=6, progress=False)
    net.hybridize(False)
    return net


def made(net, precision, digits, **options):
    x = mx.nd.array(digits[0][:HELD_OUT])
    if precision == "int8":
        options = {"calibration": mxkit.data.ArrayLoader(digits[0][HELD_OUT:], digits[1][HELD_OUT:], 64), **options}
    return mxkit.optimize(net, x, precision=precision, **options)


def weights(net):
    return {path: parameter.data().asnumpy().tobytes() for path, parameter in net._collect_params_with_prefix().items()}


@pytest.fixture(scope="module")
def optimized(trained, digits):
    """Optimize the trained net for a precision, once; its weights stay."""

    @functools.lru_cache(maxsize=None)
    def once(precision):
        before = weights(trained)
        with pytest.MonkeyPatch.context() as patch:  # operators stay joined, however busy the machine is
            patch.setattr(optimizing, "measured", lambda *given: measured(*given)._replace(speed=2))
            fast = made(trained, precision, digits)
        assert weights(trained) == before
        return fast

    return once


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_agrees_with_the_net(trained, optimized, digits, precision):
    fast = optimized(precision)
    x = mx.nd.array(digits[0][:HELD_OUT])
    expected, actual = trained(x).asnumpy(), fast(x).asnumpy()
    assert actual.dtype == np.float32
    assert fast.report.agreement == np.mean(expected.argmax(1) == actual.argmax(1)) >= 0.98
    assert fast.report.measured.largest == pytest.approx(np.abs(expected - actual).max(), rel=1e-6)
    right = [np.mean(scores.argmax(1) == digits[1][:HELD_OUT]) for scores in (expected, actual)]
    assert right[0] > 0.9
    assert right[1] > right[0] - 0.01
    if precision == "float32":
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    else:
        assert not np.allclose(actual, expected, rtol=1e-5, atol=1e-6)  # it does compute in another precision


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_report_names_the_layers(optimized, precision):
    fast = optimized(precision)
    rows = fast.report.layers
    assert [row.path for row in rows] == ["0", "4", "8"]
    assert {row.computes for row in rows} == {precision}
    assert all(row.difference < (1e-5 if precision == "float32" else 0.2) for row in rows)
    assert "the same class for" in str(fast.report)
    assert f"x the speed of static float32, on {processor_model()}" in str(fast.report)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_shapes_than_the_samples(trained, optimized, digits, precision):
    fast = optimized(precision)
    tolerance = 1e-4 if precision == "float32" else 0.3
    for size in (*range(1, 20), 3):  # more than are kept
        x = mx.nd.array(digits[0][:size])
        np.testing.assert_allclose(fast(x).asnumpy(), trained(x).asnumpy(), atol=tolerance * 10)
    x = mx.nd.random.uniform(shape=(2, 1, 12, 12))
    assert fast(x).shape == (2, 10)
    whole, part = fast(mx.nd.array(digits[0][:8])).asnumpy(), fast(mx.nd.array(digits[0][:4])).asnumpy()
    np.testing.assert_allclose(whole[:4], part, rtol=1e-5, atol=1e-5)


READ = """
import sys, mxkit, numpy
for path in sys.argv[2:]:
    net = mxkit.load_net(path)
    print(net)
    numpy.save(f"{path}.npy", mxkit.predict(net, numpy.load(sys.argv[1])).asnumpy())
"""


def test_a_file_computes_the_same_bits_in_another_process(files_of_nets, optimized, digits, tmp_path):
    possible = [precision for precision in POSSIBLE if POSSIBLE[precision]]
    paths = [files_of_nets(precision) for precision in possible]
    np.save(tmp_path / "x.npy", digits[0][:16])
    command = [sys.executable, "-c", READ, tmp_path / "x.npy", *paths]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    for precision, path in zip(possible, paths):
        assert f"OptimizedNet({precision}, 0 layers kept in float32)" in done.stdout
        expected = optimized(precision)(mx.nd.array(digits[0][:16])).asnumpy()
        np.testing.assert_array_equal(np.load(f"{path}.npy"), expected)


@pytest.mark.filterwarnings("ignore:Cannot decide type")  # MXNet's own, of every SymbolBlock.imports
@pytest.mark.parametrize("precision", PRECISIONS)
def test_mxnet_alone_reads_the_exported_graph(optimized, digits, precision, tmp_path):
    fast = optimized(precision)
    files = mxkit.export(fast, tmp_path / "fast", format="symbol", input_shape=(1, 1, 8, 8)).files
    x = mx.nd.array(digits[0][:16])
    plain = gluon.SymbolBlock.imports(str(files["symbol"]), ["data"], str(files["parameters"]))
    plain.hybridize(static_alloc=True, static_shape=True)
    np.testing.assert_array_equal(plain(x).asnumpy(), fast(x).asnumpy())
    with pytest.raises(CheckpointError, match="holds operators that oneDNN joined.*SymbolBlock.imports reads it"):
        mxkit.load_exported(tmp_path / "fast")
    with pytest.raises(ValueError, match="format='safetensors' takes the float32 net"):
        mxkit.export(fast, tmp_path / "fast.safetensors", input_shape=(1, 1, 8, 8))


def saved_and_loaded(net):
    with tempfile.TemporaryDirectory() as folder:
        net.save_parameters(f"{folder}/own.params")
        mxkit.load_parameters(net, f"{folder}/own.params")


CHANGES = {
    "parameters": lambda net, one: saved_and_loaded(net),
    "set_data": lambda net, one: one.set_data(one.data() * 2),
    "in place": lambda net, one: one.data().__setitem__(slice(None), 0),
    "multiplied": lambda net, one: one.data().__imul__(2),
    "initialized": lambda net, one: net.initialize(force_reinit=True),
    "moved": lambda net, one: mxkit.to(net, mx.cpu(1)),
    "cast": lambda net, one: net.cast("float64"),
    "loaded": lambda net, one: net.load_parameters("any"),
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_is_refused(files_of_nets, digits, precision, change):
    net = mxkit.load_net(files_of_nets(precision))
    x = mx.nd.array(digits[0][:4])
    before = net(x).asnumpy()

    def changed():
        CHANGES[change](net, next(iter(net.collect_params().values())))
        net(x)

    with pytest.raises(ValueError, match="change the float32 net"):
        changed()
    if change not in ("initialized", "moved"):
        np.testing.assert_array_equal(net(x).asnumpy(), before)


@pytest.fixture(scope="module")
def files_of_nets(optimized, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nets")

    def file(precision):
        path = folder / f"{precision}.net"
        if not path.exists():
            mxkit.save_net(path, optimized(precision))
        return path

    return file


def recorded(net, x):
    with autograd.record():
        net(x)


def without_samples(net, x):
    with mx.util.np_shape():
        net(x[:0])


WRONG_CALLS = {
    "training": (recorded, ValueError, "no gradients: train the float32 net"),
    "device": (lambda net, x: net(x.as_in_context(mx.cpu(1))), ValueError, r"batches on cpu\(0\), .* cpu\(1\)"),
    "bytes": (lambda net, x: net(x.astype("uint8")), ValueError, "received uint8: convert it, scaled"),
    "no sample": (without_samples, ValueError, r"at least one sample, received shape \(0, "),
    "inputs": (lambda net, x: net(x, x), TypeError, r"of 1 inputs \(data\) was called with 2 NDArrays"),
    "NumPy": (lambda net, x: net(x.asnumpy()), TypeError, "mxkit.predict takes arrays of NumPy"),
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_wrong_calls_of_an_optimized_net(files_of_nets, digits, precision):
    net, x = mxkit.load_net(files_of_nets(precision)), mx.nd.array(digits[0][:4])
    for wrong, error, text in WRONG_CALLS.values():
        with pytest.raises(error, match=text):
            wrong(net, x)


@INT8
def test_kept_layers_compute_in_float32(trained, digits):
    fast = made(trained, "int8", digits, keep=["4*"])
    assert [row.computes for row in fast.report.layers] == ["int8", "float32", "int8"]
    assert fast.report.kept == ("4",)
    assert "in float32, by keep= or for a loss of at most 0.02: 4" in str(fast.report)


@INT8
def test_the_ranges_are_those_of_the_data(trained, digits):
    fast = made(trained, "int8", digits, calibration_samples=200)  # of whole batches of 64: 256
    x = digits[0][HELD_OUT : HELD_OUT + 256]
    assert fast.settings.thresholds["data"] == (x.min(), x.max())
    pooled = trained[:8](mx.nd.array(x)).asnumpy()
    found = [ends for name, ends in fast.settings.thresholds.items() if "conv" in name]
    assert any(ends[1] == pytest.approx(trained[:7](mx.nd.array(x)).asnumpy().max(), rel=1e-5) for ends in found)
    assert pooled.max() <= max(ends[1] for ends in found)


@INT8
def test_a_layer_that_loses_too_much_stays_float(digits):
    mxkit.seed_all(0)
    net = stack(gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(64, activation="relu"), gluon.nn.Dense(3))
    mxkit.initialize(net, "xavier")
    x = mx.nd.random.uniform(shape=(64, 20))
    net(x)
    weight = net[1].weight.data()
    weight[:, 0] *= 1e4  # one large column takes the scale
    weight[:, 0] *= (net[0](x).mean(axis=0)[0] * 0).asscalar()
    weight[0, 0] = 1e4
    net[0].weight.data()[0] = 0
    net[0].bias.data()[0] = -1  # whose input is 0
    fast = mxkit.optimize(net, x, precision="int8", calibration=[x], limit=0.04)
    assert fast.report.kept == ("1",)
    assert fast.report.agreement >= 0.96


def head_less(net):
    """Its output is no class, so that every difference counts."""
    return stack(net, gluon.nn.HybridLambda(lambda F, y: F.reshape(y, (-1, 2, 5))))


@INT8
def test_calibration_of_another_scale_is_told(trained, digits):
    x = digits[0]
    with pytest.warns(TrapWarning, match="reach 255 in magnitude, those of the sample 1: is one of them not scaled"):
        mxkit.optimize(trained, x[:64], precision="int8", calibration=[x[64:128] * 255], limit=0.9)


@pytest.mark.parametrize("speed", [0.5, 2])
def test_it_predicts_in_train_mode_too(monkeypatch, speed):
    monkeypatch.setattr(optimizing, "measured", lambda *given: measured(*given)._replace(speed=speed))
    net = mxkit.models.mlp(2, hidden=[8], dropout=0.5)
    mxkit.initialize(net, devices="cpu")
    x = mx.nd.random.uniform(shape=(4, 3))
    fast = mxkit.optimize(net, x)
    expected = fast(x).asnumpy()
    with mx.autograd.train_mode():
        np.testing.assert_array_equal(fast(x).asnumpy(), expected)


def of_float64():
    net = small_net()
    net.initialize()
    net.cast("float64")
    return net


def of_nan(x):
    net = gluon.nn.Dense(2)
    net.initialize(mx.init.Constant(np.nan))
    net(mx.nd.array(x))
    return net


def int8(**options):
    return {"precision": "int8", "limit": 0.9, **options}


NOISE = np.random.RandomState(0).normal(size=(400, 1, 8, 8)).astype("f")
# (net, inputs) -> arguments of `optimize`; the error; words of its text
REFUSED = {
    "precision": (lambda net, x: (net, x, {"precision": "int4"}), ValueError, "float32, bfloat16, int8; .*'int4'"),
    "calibration": (lambda net, x: (net, x, {"calibration": [1]}), ValueError, "float32 has no ranges to calibrate"),
    "keep": (lambda net, x: (net, x, {"keep": ["0"]}), ValueError, "all layers stay float32"),
    "limit": (lambda net, x: (net, x, {"limit": 1}), ValueError, "expected limit in"),
    "NaN": (lambda net, x: (net, x * np.nan, {}), DataError, "the sample holds NaN or infinity"),
    "bytes": (lambda net, x: (net, (x * 255).astype("uint8"), {}), DataError, "sample of float32.*received uint8"),
    "no sample": (lambda net, x: (net, x[:0], {}), DataError, "the axis of the batch, received shape"),
    "float64": (lambda net, x: (of_float64(), x, {}), ValueError, r"expected a float32 net.*net.cast\('float32'\)"),
    "net of NaN": (lambda net, x: (of_nan(x), x, {}), DataError, "output for the sample holds NaN or infinity"),
}
REFUSED_INT8 = {
    "none": (lambda net, x: (net, x, int8()), ValueError, "calibration: int8 needs batches of real inputs"),
    "NaN": (lambda net, x: (net, x, int8(calibration=[x * np.nan])), DataError, "NaN or infinity first at data"),
    "inputs": (lambda net, x: (net, x, int8(calibration=[((x, x), x)])), DataError, "has 1 inputs, a batch has 2"),
    "bytes": (lambda net, x: (net, x, int8(calibration=(x * 255).astype("u1"))), DataError, "received uint8: convert"),
    "shape": (lambda net, x: (net, x, int8(calibration=[(x, x), (x[:, 0], x)])), mx.MXNetError, "conv"),
    "keep all": (lambda net, x: (net, x, int8(calibration=x, keep=["*"])), ValueError, "none is left for int8"),
    "keep none": (lambda net, x: (net, x, int8(calibration=x, keep=["bn"])), UnknownPathError, "keep 'bn' matches no"),
    "loss": (
        lambda net, x: (head_less(net), NOISE, int8(calibration=[NOISE], limit=0)),
        ValueError,
        "int8 loses .* on the sample, expected at most 0; with 2 of 3 layers",
    ),
}


ROWS = [pytest.param(row, id=name) for name, row in REFUSED.items()]
ROWS += [pytest.param(row, id=f"int8 {name}", marks=INT8) for name, row in REFUSED_INT8.items()]


@pytest.mark.parametrize("row", ROWS)
def test_what_is_refused(trained, digits, row):
    call, error, text = row
    net, sample, options = call(trained, digits[0][:4])
    with pytest.raises(error, match=text):
        mxkit.optimize(net, sample, **options)


def test_an_optimized_net_is_not_optimized_again(trained, digits, files_of_nets):
    with pytest.raises(ValueError, match="optimized already: pass the float32 net"):
        mxkit.optimize(mxkit.load_net(files_of_nets("float32")), digits[0][:4])
    assert mxkit.optimize(trained, mx.nd.array(digits[0][:4], ctx=mx.cpu(1))).report.agreement == 1


def test_a_processor_that_cannot_is_named(trained, digits, monkeypatch, tmp_path):
    monkeypatch.setattr(prediction_graphs, "processor_flags", lambda: {"avx2"})
    for precision, flag in (("bfloat16", "avx512_bf16"), ("int8", "avx512_vnni or avx_vnni")):
        with pytest.raises(ValueError, match=f"{precision} needs a processor with {flag}, which .* lacks"):
            made(trained, precision, digits)


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_a_file_on_a_processor_that_cannot(files_of_nets, digits, monkeypatch, precision):
    net = mxkit.load_net(files_of_nets(precision))
    monkeypatch.setattr(prediction_graphs, "processor_flags", lambda: {"avx2"})
    with pytest.raises(ValueError, match=f"{precision} needs a processor with"):
        net(mx.nd.array(digits[0][:4]))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_block_that_is_called_twice(precision):
    branch = stack(gluon.nn.Conv2D(8, 3), gluon.nn.Flatten(), gluon.nn.Dense(6))
    net = hybrid_net(lambda net, F, a, b: F.square(net.branch(a) - net.branch(b)), branch=branch)
    net.initialize(mx.init.Xavier())
    a, b = mx.nd.random.uniform(shape=(16, 1, 8, 8)), mx.nd.random.uniform(low=-3, shape=(16, 1, 8, 8))
    expected = net(a, b).asnumpy()
    options = {"calibration": [((a, b), a)]} if precision == "int8" else {}
    fast = mxkit.optimize(net, (a, b), precision=precision, limit=0.3, **options)
    assert fast.report.layers == []  # the operators of both calls have one name
    np.testing.assert_allclose(fast(a, b).asnumpy(), expected, atol=1e-5 if precision == "float32" else 0.3)


def test_it_is_no_part_of_a_graph(files_of_nets, digits):
    both = stack(mxkit.load_net(files_of_nets("float32")), gluon.nn.HybridLambda("softmax"))
    x = mx.nd.array(digits[0][:4])
    expected = both(x).asnumpy()
    both.hybridize()
    with pytest.raises(ValueError, match="cannot be a part of another: do not hybridize the block around it"):
        both(x)
    both.hybridize(False)
    np.testing.assert_array_equal(both(x).asnumpy(), expected)


def test_a_net_without_layers_of_weights():
    net = stack(gluon.rnn.LSTM(4), gluon.nn.HybridLambda("tanh"))
    net.initialize()
    x = mx.nd.random.uniform(shape=(3, 2, 5))
    expected = net(x).asnumpy()
    fast = mxkit.optimize(net, x)
    assert fast.report.layers == []
    np.testing.assert_allclose(fast(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS[1:])
def test_a_net_without_a_layer_of_lower_precision_is_refused(precision):
    net, x = gluon.nn.HybridLambda("sin"), mx.nd.random.uniform(shape=(3, 2))
    options = {"calibration": x} if precision == "int8" else {}
    with pytest.raises(ValueError, match=f"MXNet computes no layer of this net in {precision}"):
        mxkit.optimize(net, x, precision=precision, **options)


@INT8
def test_quantities_are_no_classes(digits):
    mxkit.seed_all(0)
    net = gluon.nn.Dense(3)
    net.initialize(mx.init.Normal(1))
    x = mx.nd.random.uniform(shape=(64, 20))
    net(x)
    net.bias.set_data(mx.nd.array([1000, 0, 0]))  # the largest of all samples
    told = [mxkit.optimize(net, x, precision="int8", calibration=x, limit=0.5, classes=one).report for one in (1, 0)]
    assert [one.agreement for one in told] == [1, None]
    with pytest.raises(ValueError, match="int8 loses .* on the sample, expected at most 0; with 0 of 1 layers"):
        mxkit.optimize(net, x, precision="int8", calibration=x, limit=0, classes=False)


@INT8
def test_a_layer_that_mxnet_refuses_stays_float():
    """T223."""
    net = stack(gluon.nn.Conv2D(64, 3, padding=1), gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=(4, 3, 1, 1))
    expected = net(x).asnumpy()
    fast = mxkit.optimize(net, x, precision="int8", calibration=[x], limit=0.5)
    assert len(fast.report.kept) == 1
    for _ in range(3):
        np.testing.assert_allclose(fast(x).asnumpy(), expected, atol=0.1)


def with_lines(part, *after):
    """(batch, 8 lines of 9 numbers): what recurrent layers and 1-D convolutions take."""
    return stack(part, *after, gluon.nn.Dense(4)), (16, 8, 9)


def with_pooling(**options):
    """Images, of which each kind of pooling makes others."""
    pool = gluon.nn.HybridLambda(lambda F, y: F.Pooling(y, kernel=(2, 2), **options))
    return stack(gluon.nn.Conv2D(4, 3), pool, gluon.nn.Dense(4)), (16, 2, 8, 8)


@INT8
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: with_lines(gluon.rnn.LSTM(6, layout="NTC")), id="LSTM"),
        pytest.param(lambda: with_lines(gluon.rnn.GRU(6, layout="NTC", bidirectional=True)), id="GRU"),
        pytest.param(lambda: with_lines(gluon.rnn.RNN(6, 2, layout="NTC")), id="RNN"),
        pytest.param(lambda: with_lines(gluon.nn.Conv1D(6, 3), gluon.nn.MaxPool1D()), id="Conv1D"),
        pytest.param(lambda: with_pooling(pool_type="sum"), id="sum"),
        pytest.param(lambda: with_pooling(pool_type="lp", p_value=2), id="lp"),
    ],
)
def test_operators_that_mxnet_lacks_in_int8_stay_float(make):
    """T298: MXNet knows no GRU and no convolution over one axis in int8, and crashes for some kinds of pooling."""
    net, shape = make()
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=shape)
    expected = net(x).asnumpy()
    fast = mxkit.optimize(net, x, precision="int8", calibration=[x], limit=0.1, classes=False)
    assert fast.report.kept == ()
    assert fast.report.layers[-1].computes == "int8"
    np.testing.assert_allclose(fast(x).asnumpy(), expected, atol=0.04 * np.abs(expected).max())


@pytest.fixture
def shared():
    """T196: a layer that two operators read, of which oneDNN joins one and loses the other; a batch, its output."""
    net = stack(gluon.nn.Dense(6), gluon.nn.HybridLambda(lambda F, y: 0.01 * F.sin(y) + F.abs(y)))
    x = mx.nd.random.normal(shape=(32, 5))
    net.initialize(mx.init.Normal(1))
    return net, x, net(x).asnumpy()


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 0), pytest.param("bfloat16", 0.05, marks=BFLOAT16)])
def test_operators_that_would_be_joined_wrongly_are_not_joined(shared, monkeypatch, precision, tolerance):
    net, x, expected = shared
    monkeypatch.setattr(optimizing, "measured", lambda *given: measured(*given)._replace(speed=2))
    fast = mxkit.optimize(net, x, precision=precision, classes=False)
    assert "wrongly (T196)" in fast.report.not_joined
    np.testing.assert_allclose(fast(x).asnumpy(), expected, rtol=0, atol=tolerance)


@INT8
def test_int8_after_a_wrong_join_is_refused(shared):
    net, x, _ = shared
    with pytest.raises(ValueError, match="oneDNN joins operators of this net wrongly: the outputs differ by"):
        mxkit.optimize(net, x, precision="int8", calibration=[x], limit=0.9)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_convolution_added_to_itself_is_not_joined(norm, precision):
    """T196: oneDNN joins the convolution with the sum, whose second input is lost, and MXNet finds no shapes."""
    last = [gluon.nn.BatchNorm()] if norm else []
    net = stack(gluon.nn.Conv2D(8, 3, padding=1), *last, gluon.nn.HybridLambda(lambda F, y: y + y))
    net.initialize(mx.init.Xavier())
    x = mx.nd.random.uniform(shape=(9, 8, 6, 6))
    expected = net(x).asnumpy()
    if precision == "int8":
        with pytest.raises(ValueError, match="oneDNN joins operators of this net wrongly"):
            mxkit.optimize(net, x, precision="int8", calibration=[x], limit=0.9)
        return
    fast = mxkit.optimize(net, x, precision=precision)
    assert "wrongly (T196)" in fast.report.not_joined
    np.testing.assert_allclose(fast(x).asnumpy(), expected, rtol=0, atol=0 if precision == "float32" else 0.1)


@pytest.mark.parametrize("backend", ["MKLDNN", "MKLDNN_QUANTIZE"])
def test_a_graph_that_cannot_be_computed_after_joining_loses_everything(backend):
    net = stack(gluon.nn.Conv2D(8, 3), gluon.nn.HybridLambda(lambda F, y: y + y))
    net.initialize()
    x = mx.nd.random.uniform(shape=(2, 8, 6, 6))
    net(x)
    with autograd.pause(train_mode=False):
        making = optimizing._Making(net, optimizing.graph_of(net, [x.shape]), [x], "float32", True)
        assert making._loss_of_joining(backend) == float("inf")


class Attention(gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.query, self.key = (gluon.nn.Dense(8, flatten=False, in_units=8) for _ in range(2))
            self.head = gluon.nn.Dense(3, in_units=40)

    def hybrid_forward(self, F, x):  # noqa: N803
        return self.head(F.batch_dot(F.softmax(F.batch_dot(self.query(x), self.key(x), transpose_b=True)), x))


@BFLOAT16
def test_dense_layers_of_attention_compute_in_bfloat16():
    """T297: MXNet lists `batch_dot` for bfloat16, and has no kernel."""
    net, x = Attention(), np.random.default_rng(0).normal(size=(40, 5, 8)).astype("float32")
    mxkit.initialize(net)
    report = mxkit.optimize(net, x, precision="bfloat16", limit=0.9).report
    assert {row.path: row.computes for row in report.layers} == dict.fromkeys(("query", "key", "head"), "bfloat16")
    assert report.kept == ()


@BFLOAT16
def test_bfloat16_loses_no_more_with_joined_operators(trained, digits, monkeypatch):
    """T198."""
    fast = made(trained, "bfloat16", digits)
    text = fast.prediction_graph().symbol.tojson(remove_amp_cast=False)
    assert "_sg_mkldnn_conv" in text
    assert "BatchNorm" not in text
    monkeypatch.setattr(optimizing._Making, "_loss_of_joining", lambda *_: 1.0)
    plain = made(trained, "bfloat16", digits)
    assert "_sg_mkldnn_conv" not in plain.prediction_graph().symbol.tojson(remove_amp_cast=False)
    assert fast.report.measured.relative < 1.3 * plain.report.measured.relative
    assert [row.path for row in plain.report.layers] == [row.path for row in fast.report.layers]
    for one, other in zip(fast.report.layers, plain.report.layers):
        assert one.difference < 1.3 * other.difference


def test_operators_are_not_joined_where_that_is_slower(trained, digits, monkeypatch):
    monkeypatch.setattr(optimizing, "measured", lambda *given: measured(*given)._replace(speed=0.5))
    fast = made(trained, "float32", digits)
    assert "operators are not joined: that is slower here" in str(fast.report)
    x = mx.nd.array(digits[0][:16])
    np.testing.assert_array_equal(fast(x).asnumpy(), trained(x).asnumpy())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_net_of_mx_np(digits, precision):
    with mxkit.core.arrays.switches(True):
        net = small_net()
        net.initialize(mx.init.Xavier())
        x = mx.np.array(digits[0][:32])
        expected = net(x)
        options = {"calibration": [x]} if precision == "int8" else {}
        fast = mxkit.optimize(net, x, precision=precision, limit=0.5, **options)
        actual = fast(x)
    assert isinstance(actual, mx.np.ndarray)
    np.testing.assert_allclose(actual.asnumpy(), expected.asnumpy(), atol=1e-5 if precision == "float32" else 0.05)


def test_two_inputs_and_two_outputs():
    dense = {"one": gluon.nn.Dense(4), "other": gluon.nn.Dense(4)}
    net = hybrid_net(lambda net, F, a, b: (F.relu(net.one(a)) + net.other(b), net.other(b)), **dense)
    net.initialize(mx.init.Xavier())
    a, b = mx.nd.random.uniform(shape=(5, 3)), mx.nd.random.uniform(shape=(5, 6))
    expected = net(a, b)
    fast = mxkit.optimize(net, (a, b))
    for one, other in zip(fast(a, b), expected):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)
    assert fast.report.agreement is None


def test_a_damaged_description(files_of_nets):
    described = mxkit.nets.describe(mxkit.load_net(files_of_nets("float32")))
    described["net"]["arguments"]["precision"] = "int4"
    with pytest.raises(ArchitectureError, match="precision: expected"):
        mxkit.nets.build(json.loads(json.dumps(described)))


@INT8
def test_a_file_without_a_range(files_of_nets, digits):
    described = mxkit.nets.describe(mxkit.load_net(files_of_nets("int8")))
    described["net"]["arguments"]["thresholds"].pop("data")
    net = mxkit.nets.build(described)
    source = mxkit.load_net(files_of_nets("int8"))
    for name, parameter in net.params.items():
        parameter.shape = source.params[name].shape
        parameter.initialize(init=mx.init.Zero())
    with pytest.raises(ValueError, match="no thresholds for data"):
        net(mx.nd.array(digits[0][:4]))
