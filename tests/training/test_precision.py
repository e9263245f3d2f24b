"""amp: 16-bit graphs over float32 parameters. float16's matrix products need a GPU; its loss scale does not."""

import warnings

from built_nets import hybrid_net, imported, ready, stack
import mxkit
from mxkit.errors import DeviceError, NonFiniteError, TrapWarning
from mxkit.training import precision
from mxkit.training.precision import MixedPrecision
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib.amp import lists
from mxnet.gluon import nn
import numpy as np
from oracle import SOFTMAX, array, fit, joined, make_batches, make_net, weights
import pytest
from sharing import Kind, needs_bfloat16


def batches():
    return make_batches([8, 8, 3])


class Scaled(gluon.HybridBlock):
    """Without a matrix product, so that float16 runs on the CPU; its gradients can be made as large as one likes."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(1, 4), init="ones")

    def hybrid_forward(self, F, x, weight):
        return (F.np.multiply if mx.util.is_np_array() else F.broadcast_mul)(x, weight).sum(axis=1)


def own_loss(output, y):
    return (output - y) ** 2 / 2


def scaled_net(devices="cpu"):
    return ready(Scaled(), initializer="ones", devices=devices)


def scaled_data(values):
    return [(np.full((2, 4), value, "float32"), np.zeros(2, "float32")) for value in values]


@needs_bfloat16
@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
@pytest.mark.parametrize("hybridize", [False, True])
def test_bfloat16_trains_close_to_float32_and_really_in_bfloat16(devices, hybridize):
    low, full = make_net(devices, hybridize=hybridize), make_net(devices, hybridize=hybridize)
    arguments = {"trainer": ("sgd", {"learning_rate": 0.3}), "epochs": 5, "valid": batches()[:1]}
    seen = []

    def look(state, update):
        seen.append(state.net._cached_graph[1].tojson(remove_amp_cast=False))

    watch = mxkit.callbacks.LambdaCallback(on_update=look)
    before = weights(low)
    half = fit(low, batches(), amp="bfloat16", callbacks=[watch], **arguments)
    whole = fit(full, batches(), **arguments)
    distance = np.abs(weights(low) - weights(full)).max()
    assert 0 < distance < 0.02 * np.abs(weights(full) - before).max()  # 8 bits of digits
    assert all("amp_cast" in graph and "bfloat16" in graph for graph in seen)
    np.testing.assert_allclose(half.column("valid_loss"), whole.column("valid_loss"), rtol=0.01)
    assert "loss_scale" not in half.columns


@needs_bfloat16
@pytest.mark.parametrize("hybridize", [False, True])
def test_the_net_is_its_own_again_afterwards(hybridize):
    before = lists.symbol_bf16.FP32_FUNCS, lists.symbol_bf16.WIDEST_TYPE_CASTS
    net, twin = make_net(hybridize=hybridize), make_net(hybridize=hybridize)
    x = batches()[0][0]
    expected = net(x).asnumpy()
    for leave in ("end", "break", "error"):
        stream = mxkit.updates(net, batches(), loss=SOFTMAX, trainer=("sgd", {"learning_rate": 1e-30}), amp="bfloat16")
        next(stream)
        assert np.abs(net(x).asnumpy() - expected).max() > 1e-5
        if leave == "error":
            with pytest.raises(KeyError):
                stream.throw(KeyError("mine"))
        (list if leave == "end" else type(stream).close)(stream)
        np.testing.assert_array_equal(net(x).asnumpy(), expected)
        assert net._active == twin._active
        assert "_get_graph" not in vars(net)
        assert lists.symbol_bf16.FP32_FUNCS is before[0]
        assert lists.symbol_bf16.WIDEST_TYPE_CASTS is before[1]
    assert all(np.dtype(parameter.dtype) == np.float32 for parameter in net.collect_params().values())


@needs_bfloat16
def test_operators_of_mx_np_compute_in_float32():
    """T168."""

    def forward(net, F, x):
        return F.np.exp(net.dense(x)), F.np.concatenate([net.dense(x), x], axis=1)

    x = np.array([[1.5], [0.5], [1.01]], "float32")
    with Kind(True).switches():
        net = ready(hybrid_net(forward, dense=nn.Dense(1, in_units=1, use_bias=False)), initializer="ones")
        with MixedPrecision("bfloat16").applied(net):
            exponential, both = net(array(x))
        rounded = both.asnumpy()[:, :1]
        assert rounded[2, 0] == 1.0078125 != x[2, 0]  # the layer computes in bfloat16
        np.testing.assert_allclose(exponential.asnumpy(), np.exp(rounded), rtol=1e-6)  # MXNet would give 4.5 for 4.4817
        np.testing.assert_array_equal(both.asnumpy()[:, 1:], x)


@needs_bfloat16
def test_an_exported_graph_and_nets_of_several_inputs_and_outputs():
    def forward(net, F, x, y):
        hidden = net.a(x)
        return hidden, net.b(F.concat(hidden, y, dim=1))  # of two precisions, which MXNet would refuse

    net = ready(hybrid_net(forward, a=nn.Dense(3), b=nn.Dense(2)))
    inputs, label = (mx.nd.ones((4, 5)), mx.nd.ones((4, 6))), mx.nd.zeros((4,))
    loss = lambda output, y: (output[0].mean(axis=1) - y) ** 2 + output[1].mean(axis=1) ** 2  # noqa: E731
    history = fit(net, [(inputs, label)], loss=loss, epochs=2, amp="bfloat16")
    assert history[1]["train_loss"] < history[0]["train_loss"]


class Positions(gluon.HybridBlock):
    """An index that is a Constant, and an input that is not read."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.places = self.params.get_constant("places", mx.nd.array([0, 1, 2, 1, 0]))
            self.rows = self.params.get("rows", shape=(3, 5), init=mx.init.Normal(1.0))
            self.dense = nn.Dense(3)

    def hybrid_forward(self, F, x, lengths, places, rows):  # noqa: N803
        return self.dense(F.broadcast_add(x, F.take(rows, places).sum(axis=0, keepdims=True)))


@needs_bfloat16
@pytest.mark.filterwarnings("ignore:The 1-th input to HybridBlock is not used")
def test_constants_that_are_indices_and_inputs_that_are_not_read():
    """T297."""
    losses = []
    for amp in (None, "bfloat16"):
        mxkit.seed_all(1)
        net = ready(Positions())
        data = [((x, mx.nd.ones(x.shape[:1])), y) for x, y in batches()]
        losses.append(fit(net, data, amp=amp, epochs=2, seed=3).column("train_loss")[-1])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.02)


@needs_bfloat16
def test_an_exported_net_gets_its_graph_back(tmp_path):
    dense = make_net(hybridize=True)
    dense(batches()[0][0])
    dense.export(str(tmp_path / "net"))
    exported = imported(tmp_path / "net")
    graph = exported._cached_graph
    fit(exported, batches(), amp="bfloat16")
    assert exported._cached_graph is graph
    assert exported(batches()[0][0]).shape == (8, 3)


@needs_bfloat16
@pytest.mark.usefixtures("switched")
def test_accumulated_bfloat16_equals_one_batch():
    # without the copy that `_convert` puts before each cast, the gradients of accumulated batches are 0
    """T49."""
    whole, parts = make_net(), make_net()
    arguments = {"loss": SOFTMAX, "trainer": ("sgd", {"learning_rate": 0.3}), "amp": "bfloat16"}
    before = weights(whole)
    list(mxkit.updates(whole, joined(batches()), **arguments))
    list(mxkit.updates(parts, batches(), accumulate=3, **arguments))
    moved = np.abs(weights(whole) - before).max()
    assert moved > 0.01
    np.testing.assert_allclose(weights(parts), weights(whole), atol=0.01 * moved)  # 8 bits of digits


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loss_scale_changes_no_bit_where_nothing_overflows(accumulate):
    # a power of two: scaled and divided again, float32 numbers are what they were
    scaled, plain = scaled_net(), scaled_net()
    values = [0.5, 1.0, 0.25, 0.75]
    arguments = {"loss": own_loss, "trainer": ("sgd", {"learning_rate": 0.01}), "epochs": 2, "clip_norm": 0.5}
    arguments.update(accumulate=accumulate, clip_value=0.2)
    history = fit(scaled, scaled_data(values), amp="float16", **arguments)
    fit(plain, scaled_data(values), **arguments)
    np.testing.assert_array_equal(weights(scaled), weights(plain))
    assert history.column("skipped_updates") == [0, 0]
    assert history.column("loss_scale") == [2.0**16] * 2


@pytest.mark.usefixtures("switched")
@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_an_overflow_skips_the_update_halves_the_scale_and_is_told(devices):
    net = scaled_net(devices)
    # the second batch's gradient is about 7e33: times 65536 more than float32 holds, times 32768 not
    data = scaled_data([0.5, 3e16, 0.5, 0.5])
    seen = []
    watch = mxkit.callbacks.LambdaCallback(
        on_update=lambda state, update: seen.append((update.skipped, update.grad_norm, state.precision.scale))
    )
    arguments = {"loss": own_loss, "trainer": ("sgd", {"learning_rate": 0.01}), "clip_norm": 1.0}
    history = fit(net, data, amp="float16", callbacks=[watch], check_finite=False, **arguments)
    assert [skipped for skipped, _, _ in seen] == [False, True, False, False]
    assert seen[1][1] is None
    assert seen[0][1] > 0
    assert [scale for _, _, scale in seen] == [2.0**16, 2.0**15, 2.0**15, 2.0**15]
    assert history[0]["skipped_updates"] == 1
    assert history[0]["loss_scale"] == 2.0**15
    assert history[0]["updates"] == 4
    expected = scaled_net(devices)
    fit(expected, [data[0], *data[2:]], **arguments)
    np.testing.assert_array_equal(weights(net), weights(expected))


def test_the_scale_is_the_same_inside_a_window():
    scales = []
    precision = MixedPrecision("float16")
    net = scaled_net()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    with mxkit.Accumulator(trainer, every=3, precision=precision) as accumulator:
        for value in [0.5, 3e16, 0.5, 0.5, 0.5, 0.5]:
            with autograd.record():
                losses = own_loss(net(mx.nd.full((2, 4), value)), mx.nd.zeros(2))
            accumulator.backward(losses)
            scales.append(precision.scale)
            update = accumulator.step()
            if update is not None:
                assert update.skipped == (len(scales) == 3)
    assert scales == [2.0**16] * 3 + [2.0**15] * 3


@pytest.mark.parametrize(("gpu", "way"), [(False, "or use amp='bfloat16'$"), (True, "or leave amp out$")])
def test_gradients_that_no_scale_can_mend_are_an_error(gpu, way, monkeypatch):
    monkeypatch.setattr("mxkit.training.precision.is_gpu", lambda device: gpu)
    net = scaled_net()
    precision = MixedPrecision("float16")
    precision.load_state_dict({"scale": 1.0, "unskipped": 0})
    with pytest.raises(NonFiniteError, match=f"infinite or NaN even without a loss scale.*{way}"):
        list(mxkit.updates(net, scaled_data([1e30]), loss=own_loss, trainer="sgd", amp=precision, check_finite=False))


def test_the_scale_goes_on_after_a_resume():
    precision = MixedPrecision("float16")
    precision._scaler._unskipped = 1999
    other = MixedPrecision("float16")
    other.load_state_dict(precision.state_dict())
    net = scaled_net()
    list(mxkit.updates(net, scaled_data([0.5]), loss=own_loss, trainer="sgd", amp=other))
    assert other.scale == 2.0**17
    assert other.state_dict() == {"scale": 2.0**17, "unskipped": 0}
    assert MixedPrecision("bfloat16").state_dict() == {}


@pytest.mark.parametrize(("seconds", "text"), [([1e-3, 2.5e-3], "take 2.5 ms, in float32 1 ms"), ([1.0, 0.9], None)])
@needs_bfloat16
def test_bfloat16_on_a_cpu_says_what_it_costs(seconds, text, monkeypatch):
    """T284."""
    monkeypatch.setattr("mxkit.training.precision._pass_seconds", lambda *_: seconds)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(make_net("cpu"), batches(), amp="bfloat16", epochs=2)
    texts = [str(one.message) for one in caught if one.category is TrapWarning]
    assert len(texts) == (text is not None)
    assert not texts or text in texts[0]


def attention(F, joined):
    """As in gluonnlp's BERT: AMP has the shares in float32 and the values in 16 bits."""
    shares = F.exp(F.log_softmax(F.contrib.interleaved_matmul_selfatt_qk(joined, heads=2)))
    return F.reshape(F.contrib.interleaved_matmul_selfatt_valatt(joined, shares, heads=2), shape=(-1, 8))


@needs_bfloat16
@pytest.mark.parametrize("layer", ["reshape", "softmax", "concat", "LayerNorm", "PReLU", "attention", "batch_dot"])
def test_nets_whose_graph_is_changed_train_in_bfloat16(layer, monkeypatch):
    """mxkit runs other operators than these in graphs; the casts of AMP stay, and 16 bits hide what `fast` changes."""
    monkeypatch.setattr(precision, "_pass_seconds", lambda *_: [1.0, 1.0])
    layers = {
        "reshape": lambda: nn.HybridLambda(lambda F, x: F.reshape(x, shape=(-1, 8))),
        "softmax": lambda: nn.HybridLambda(lambda F, x: F.softmax(x)),
        "concat": lambda: nn.HybridLambda(lambda F, x: F.concat(x, x, dim=1)),
        "LayerNorm": nn.LayerNorm,
        "PReLU": nn.PReLU,
        "attention": lambda: stack(  # its operators are in no list of MXNet's
            nn.HybridLambda(lambda F, x: F.expand_dims(x, axis=1)),
            nn.Dense(24, flatten=False),
            nn.HybridLambda(attention),
        ),
        "batch_dot": lambda: stack(  # MXNet lists it, and has no kernel (T297)
            nn.HybridLambda(lambda F, x: F.expand_dims(x, axis=1)),
            nn.Dense(8, flatten=False),
            nn.HybridLambda(lambda F, x: F.batch_dot(x, x, transpose_a=True)),
        ),
    }
    losses = []
    for amp, fast in ((None, False), ("bfloat16", False), ("bfloat16", True)):
        mxkit.seed_all(1)
        net = stack(nn.Dense(8), layers[layer](), nn.Dense(3))
        mxkit.initialize(net, devices="cpu")
        mxkit.nets.hybridize(net, fast=fast)
        losses.append(fit(net, batches(), amp=amp, epochs=2, seed=3).column("train_loss")[-1])
    assert losses[0] != losses[1] == losses[2]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize("recurrent", [False, True])
@needs_bfloat16
def test_measuring_bfloat16_changes_no_bit(recurrent, monkeypatch):
    """T284: neither weights, running statistics nor random numbers. An LSTM has its parameters' sizes."""
    measured = []

    def spy(graphs, *given):
        assert ["amp_cast" in graph.tojson(remove_amp_cast=False) for graph in graphs] == [False, True]
        measured.append(pass_seconds(graphs, *given))
        return [1.0, 1.0]

    pass_seconds = precision._pass_seconds
    found = []
    for replacement in (spy, lambda *_: [1.0, 1.0]):
        monkeypatch.setattr(precision, "_pass_seconds", replacement)
        mxkit.seed_all(1)
        steps = [nn.HybridLambda(lambda F, x: F.expand_dims(x, axis=1)), gluon.rnn.LSTM(4, layout="NTC")]
        net = stack(*steps if recurrent else (), nn.Dense(8), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(3))
        mxkit.initialize(net, devices="cpu", sample=batches()[0][0])
        fit(net, batches(), amp="bfloat16", epochs=2, seed=3)
        found.append([one.data().asnumpy() for one in net.collect_params().values()])
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)
    assert np.shape(measured) == (1, 2)
    assert np.isfinite(measured).all()


@needs_bfloat16
def test_bfloat16_of_a_net_that_draws_numbers_is_not_measured():
    """T284: MXNet's generator has no state to restore."""
    net = stack(nn.Dense(3, in_units=5), nn.HybridLambda(lambda F, x: x + F.random.normal_like(x)))
    net.initialize()
    with pytest.warns(TrapWarning, match="was not measured: the net draws random numbers"):
        fit(net, batches(), amp="bfloat16", epochs=1)


def test_bfloat16_without_avx512_is_refused(monkeypatch):
    """T285."""
    monkeypatch.setattr("mxkit.training.precision.processor_flags", lambda: {"avx2", "fma"})
    net = make_net("cpu")
    before = weights(net)
    with pytest.raises(DeviceError, match=r"processors with AVX-512 only, which .+ lacks\. Leave amp out$"):
        fit(net, batches(), amp="bfloat16")
    np.testing.assert_array_equal(weights(net), before)
    monkeypatch.setattr("mxkit.training.precision.processor_flags", set)  # not an x86 processor
    MixedPrecision("bfloat16").check_devices([mx.cpu()])


REFUSED = r"^amp: MXNet computes 'bfloat16' on CPUs only; the net lives on \[cpu\(0\), cpu\(1\)\]. Pass amp='float16'"


def test_bfloat16_on_a_gpu_is_refused_before_anything_is_trained(monkeypatch, tmp_path):
    """T134."""
    monkeypatch.setattr("mxkit.training.precision.is_gpu", lambda device: device == mx.cpu(1))
    net = make_net("cpu:2")
    before = weights(net)
    arguments = {"loss": "softmax_ce", "trainer": "sgd"}
    with pytest.raises(DeviceError, match=REFUSED):  # and not CheckpointError: there is nothing to resume
        fit(net, batches(), amp="bfloat16", checkpoint=tmp_path / "none", resume=True)
    for amp in ("bfloat16", MixedPrecision("bfloat16")):
        with pytest.raises(DeviceError, match=REFUSED):
            mxkit.updates(net, batches(), amp=amp, **arguments)
    trainer = gluon.Trainer(net.collect_params(), "sgd")
    with pytest.raises(DeviceError, match=REFUSED):
        mxkit.Accumulator(trainer, precision=MixedPrecision("bfloat16"))
    np.testing.assert_array_equal(weights(net), before)
    pair, float16 = scaled_net("cpu:2"), {"loss": own_loss, "trainer": "sgd", "amp": "float16"}
    assert len(list(mxkit.updates(pair, scaled_data([0.5]), **float16))) == 1


def test_a_recipe_is_refused_before_it_has_a_folder(monkeypatch, tmp_path):
    """T134."""
    monkeypatch.setattr("mxkit.training.precision.is_gpu", lambda device: True)
    overrides = ["epochs=1", "amp=bfloat16", "devices=cpu"]
    with pytest.raises(DeviceError, match="^amp: MXNet computes 'bfloat16' on CPUs only"):
        mxkit.run_recipe("softmax_regression", overrides=overrides, output=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())
