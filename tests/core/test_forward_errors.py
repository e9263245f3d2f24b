"""Errors of a forward pass name the block, what it was built for and what it got; the net is left as it was."""

import as_on_a_gpu
from built_nets import stack
import mxkit
from mxkit.core.forward_errors import explain_forward_error, explained
from mxkit.errors import ForwardError, NotInitializedError
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn, rnn
import numpy as np
import pytest

modes = pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "hybridized"])


def ones(shape, **how):
    return (mx.np if mx.util.is_np_array() else mx.nd).ones(shape, **how)


def ready(net, hybridize=False):
    net.initialize()
    if hybridize:
        net.hybridize()
    return net


class Net(gluon.HybridBlock):
    """The layers stand two blocks deep, so that a path has several parts."""

    def __init__(self, *layers):
        super().__init__()
        with self.name_scope():
            self.features = stack(stack(*layers))

    def hybrid_forward(self, F, x):
        return self.features(x)


class Apply(gluon.HybridBlock):
    """A block that is a function of F and its inputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def hybrid_forward(self, F, *inputs):
        return self.function(F, *inputs)


class Residual(gluon.HybridBlock):
    def __init__(self, channels, join):
        super().__init__()
        self.join = join
        with self.name_scope():
            self.body = stack(nn.Conv2D(channels, 1), nn.Conv2D(channels, 1))

    def hybrid_forward(self, F, x):
        return self.join(F, x, self.body(x))


class Pair(gluon.HybridBlock):
    """A net of two inputs."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.left, self.right = nn.Dense(3, in_units=4), nn.Dense(3, in_units=2)

    def hybrid_forward(self, F, x, y):
        return self.left(x) + self.right(y)


def failure(net, *inputs, error=ForwardError):
    """What `explained` makes of a call of `net`, to its very end."""

    def call():
        net(*inputs)
        mx.nd.waitall()

    with pytest.raises(error) as e, explained(net, call):
        call()
    return e.value


def state_of(net):
    """All that a diagnosis might leave behind: attributes of the blocks, and of parameters."""
    blocks = []
    net.apply(blocks.append)
    return [dict(vars(one)) for one in [*blocks, *net.collect_params().values()]]


def built_for(built, what, got, argument):
    way = f"Give it {argument}={got}, or hand it {built}"
    return f"is built for {built} {what} and got shape SHAPE, which has {got}. {way}"


def axes(number, layout):
    return f"reads {number} axes ({layout}) and got shape SHAPE: reshape its input"


FLAT, LAST, SECOND = "inputs per sample", "inputs on the last axis", "channels (NCHW)"
NHWC = "is built for 3 channels (NCHW) and got shape SHAPE, which has 32. The channels seem to be last: x.transpose"
OF_3 = built_for(3, SECOND, 4, "in_channels")
LAST_7, FLAT_7 = (built_for(4, where, 7, "in_units") for where in (LAST, FLAT))
NORM_3 = built_for(4, "channels on axis -1", 3, "in_channels")
CONV, TNC = nn.Conv2D, "features on the last axis (TNC)"
# the layer, an input that fits, one that does not, and the text after "'features.0.0' (Type) "
LAYERS = {
    "dense": (lambda: nn.Dense(5, in_units=4), (2, 4), (2, 7), FLAT_7),
    "dense of 3 axes": (lambda: nn.Dense(5, in_units=12), (2, 12), (2, 3, 7), built_for(12, FLAT, 21, "in_units")),
    "dense of the last axis": (lambda: nn.Dense(5, in_units=4, flatten=False), (2, 3, 4), (2, 3, 7), LAST_7),
    "deferred dense": (lambda: nn.Dense(5), (2, 4), (2, 7), FLAT_7),
    "conv of NHWC (T13)": (lambda: CONV(8, 3, in_channels=3), (2, 3, 32, 32), (2, 32, 32, 3), NHWC),
    "deferred conv": (lambda: CONV(8, 3), (2, 3, 9, 9), (2, 4, 9, 9), OF_3),
    "conv in groups": (lambda: CONV(8, 3, groups=2, in_channels=6), (2, 6, 9, 9), (2, 4, 9, 9), OF_3.replace("3", "6")),
    "transposed conv": (lambda: nn.Conv2DTranspose(8, 3, in_channels=3), (2, 3, 9, 9), (2, 4, 9, 9), OF_3),
    "conv of other axes": (lambda: CONV(8, 5, in_channels=1), (2, 1, 9, 9), (2, 28, 28), axes(4, "NCHW")),
    "large kernel": (lambda: CONV(8, 5), (2, 1, 9, 9), (2, 1, 4, 4), "got SHAPE float32: kernel size"),
    "large pool": (lambda: nn.MaxPool2D(5), (2, 1, 9, 9), (2, 1, 3, 3), "got SHAPE float32: kernel size (5"),
    "pool of other axes": (lambda: nn.GlobalAvgPool2D(), (2, 1, 9, 9), (2, 3), axes(4, "NCHW")),
    "batchnorm": (lambda: nn.BatchNorm(in_channels=4), (2, 4), (2,), "got SHAPE float32: Channel axis out of range: 1"),
    "layer norm": (lambda: nn.LayerNorm(in_channels=4), (2, 4), (2, 3), NORM_3),
    "late norm (T40)": (lambda: nn.InstanceNorm(in_channels=4), (2, 4, 5), (2, 3, 5), NORM_3.replace("-1", "1")),
    "late PReLU (T40)": (lambda: nn.PReLU(in_channels=4), (2, 4), (2, 3), "got SHAPE float32: "),
    "group norm": (lambda: nn.GroupNorm(3), (2, 3, 5), (2, 4, 5), "got SHAPE float32: # of channels must be divisible"),
    "lstm": (lambda: rnn.LSTM(5, input_size=4), (3, 2, 4), (3, 2, 7), built_for(4, TNC, 7, "input_size")),
    "rnn of other axes": (lambda: rnn.RNN(5, input_size=4), (3, 2, 4), (3, 4), axes(3, "TNC")),
}


@modes
@pytest.mark.parametrize(("make", "fits", "wrong", "text"), LAYERS.values(), ids=LAYERS.keys())
def test_a_layer_that_was_built_for_another_shape(make, fits, wrong, text, hybridize):
    layer = make()
    net = ready(Net(layer), hybridize)
    expected = net(ones(fits)).asnumpy()
    error = failure(net, ones(wrong))
    assert str(error).startswith(f"'features.0.0' ({type(layer).__name__}) {text.replace('SHAPE', str(wrong))}")
    assert (error.path, error.block) == ("features.0.0", layer)
    assert isinstance(error.__cause__, mx.MXNetError)
    np.testing.assert_array_equal(net(ones(fits)).asnumpy(), expected)  # it still works, and says the same


@modes
@pytest.mark.parametrize(
    ("join", "text"),
    [
        (lambda F, *x: F.broadcast_add(*x), "operands could not be broadcast together with shapes [2,3,5,5] [2,4"),
        (lambda F, *x: F.concat(*x, dim=2), "Incompatible input shape: expected [2,3,-1,5], got [2,4,5,5]"),
        (lambda F, *both: F.dot(*both), "dot shape error: [2,3,5,5] X [2,4,5,5]"),
    ],
)
def test_arrays_that_do_not_go_together_inside_a_block(join, text, hybridize):
    net = ready(Net(nn.Conv2D(3, 1), Residual(4, join)), hybridize)
    error = failure(net, ones((2, 1, 5, 5)))
    assert str(error).startswith(f"'features.0.1' (Residual) got (2, 3, 5, 5) float32: {text}")
    assert error.block is net.features[0][1]


@modes
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "float16"])
def test_another_dtype_is_not_told_the_wrong_way_round(dtype, hybridize):
    for layer, shape in ((nn.Dense(5, in_units=4), (2, 4)), (nn.Conv2D(5, 1, in_channels=4), (2, 4, 3, 3))):
        assert str(failure(ready(Net(layer), hybridize), ones(shape, dtype=dtype))) == (
            f"'features.0.0' ({type(layer).__name__}) computes in float32, as its parameters are, and got {shape} "
            f"{dtype}. Cast the input, x.astype('float32'), or the net, net.cast(...)"
        )


@modes
def test_a_wrong_number_of_inputs(hybridize):
    plain = stack(ready(Pair(), hybridize), kind=nn.Sequential)
    error = failure(plain, ones((2, 4)))
    assert str(error).startswith("'0' (Pair) got (2, 4) float32: ")
    assert "missing 1 required positional argument: 'y'" in str(error)
    assert isinstance(error.__cause__, TypeError)


@modes
def test_inputs_on_another_device_than_the_parameters(hybridize):
    text = "got its input on cpu(1), and its parameters live on cpu(0): x.as_in_context(mx.cpu(0))"
    net, pair = ready(Net(nn.Dense(5, in_units=4)), hybridize), ready(Pair(), hybridize)
    assert str(failure(net, ones((2, 4), ctx=mx.cpu(1)))) == f"'features.0.0' (Dense) {text}"
    assert str(failure(pair, ones((2, 4)), ones((2, 2), ctx=mx.cpu(1)))) == f"'right' (Dense) {text}"

    block = Apply(lambda F, x, y: F.broadcast_add(x, y))
    block.hybridize()
    error = failure(block, ones((2, 4)), ones((2, 4), ctx=mx.cpu(1)))
    assert str(error) == "the net (Apply) got arrays on several devices, cpu(0), cpu(1): x.as_in_context(mx.cpu(0))"
    if hybridize:  # T44: what workers of a loader hand over
        text = text.replace("cpu(1)", "cpu_shared(0)")
        assert str(failure(net, ones((2, 4)).as_in_context(mx.Context("cpu_shared", 0)))) == f"the net (Net) {text}"


def test_numpy_arrays(switched):
    takes = "arrays of mx.np: mx.np.array" if switched.numpy else "NDArrays: mx.nd.array"
    for net in (Net(nn.Dense(5, in_units=4)), Net(nn.Dense(5, in_units=4))):
        net.initialize()
        assert str(failure(net, np.ones((2, 4), "float32"))) == (
            f"the net (Net) got a NumPy array, and blocks take {takes}(x, dtype=x.dtype)"
        )
        net.hybridize()


def test_a_layer_without_values():
    net = Net(nn.Dense(5, in_units=4))
    net.initialize()
    net.features[0].add(nn.Dense(3, in_units=5))  # after initialize, as it happens
    error = failure(net, ones((2, 4)))
    assert str(error).startswith("'features.0.1' (Dense) got (2, 5) float32: Parameter '")
    assert "has not been initialized" in str(error)
    with pytest.raises(NotInitializedError, match=r"parameter 'features\.0\.1\.weight' has no value"):
        mxkit.predict(net, [ones((2, 4))])


# graphs


def symbol_net(**params):
    x = mx.sym.var("data", dtype="float32")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(x, num_hidden=4, name="fc1"), act_type="relu")
    return ready(gluon.SymbolBlock(mx.sym.FullyConnected(hidden, num_hidden=2, name="fc2"), mx.sym.var("data")))


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("around", [None, False, True], ids=["alone", "in_a_net", "in_a_hybridized_net"])
def test_a_symbol_block_names_its_operator(around):
    inner = symbol_net()
    inner(ones((2, 4)))
    net = inner if around is None else Net(nn.Flatten(), inner)
    if around:
        net.hybridize()
    error = failure(net, ones((2, 5)))
    assert str(error) == (
        f"{'the net' if around is None else repr('features.0.1')} (SymbolBlock): operator 'fc1' (FullyConnected) got "
        "(2, 5) float32: Shape inconsistent, Provided = [4,4], inferred shape=(4,5)"
    )
    assert error.block is inner


class NetWithAName(Net):
    """Its prefix is longer than those of the blocks inside."""


@pytest.mark.parametrize("kind", [Net, NetWithAName])
def test_what_only_a_graph_refuses(kind):
    less_mean = Apply(lambda F, x: x + F.mean(x, axis=1, keepdims=True))
    net = ready(kind(nn.Dense(3, in_units=4), less_mean, nn.Flatten(prefix="")))
    eager = net(ones((2, 4))).asnumpy()  # `+` broadcasts here, and does not in a graph
    net.hybridize()
    error = failure(net, ones((2, 4)))
    assert str(error).startswith("'features.0.1' (Apply) raises only because it is hybridized: operator 'apply")
    assert "(elemwise_add) got " in str(error)
    assert str(error).endswith("In a graph + - * / do not broadcast: use F.broadcast_add and the like")
    assert error.block is net.features[0][1]
    net.hybridize(False)
    np.testing.assert_array_equal(net(ones((2, 4))).asnumpy(), eager)


def test_a_graph_that_is_out_of_date():
    net = ready(Net(nn.Dense(3, in_units=4)), hybridize=True)
    net(ones((2, 4)))
    net.features[0]._children["0"] = nn.Dense(3, in_units=7)
    net.initialize()
    error = failure(net, ones((2, 7)))
    assert "raises only because it is hybridized: operator " in str(error)
    assert "(FullyConnected) got (2, 7)" in str(error)
    assert "net.hybridize() again drops an outdated graph (T36)" in str(error)
    net.hybridize()
    assert net(ones((2, 7))).shape == (2, 3)


@pytest.mark.parametrize("inner", [False, True])
def test_what_a_symbol_does_not_have(inner):
    block = Apply(lambda F, x: x.reshape((x.shape[0], -1)))
    net = Net(nn.Flatten(), block) if inner else block
    net.hybridize()
    error = failure(net, ones((2, 3, 4)))
    place = "'features.0.1'" if inner else "the net"
    assert str(error) == (
        f"{place} (Apply) cannot be hybridized: AttributeError: 'Symbol' object has no attribute 'shape'. In a graph "
        "hybrid_forward gets Symbols, which have no shape and no values (T39). Write it with F's operators, or run "
        "without a graph: hybridize(False)"
    )
    assert isinstance(error.__cause__, AttributeError)


# what passes, and what is left behind


class Checks(gluon.Block):
    def forward(self, x):
        if x.shape[0] == 3:
            raise ValueError("three is not a number of samples: 'features.0'")
        return x


def test_the_words_of_a_user_are_kept():
    net = stack(nn.Dense(2, in_units=4), Checks(), kind=nn.Sequential)
    net.initialize()
    error = failure(net, ones((3, 4)))
    assert str(error) == "'1' (Checks): ValueError: three is not a number of samples: 'features.0'"
    assert type(error.__cause__) is ValueError


def test_what_no_block_of_the_net_raised_passes_as_it_is():
    net, other = Net(nn.Dense(5, in_units=4)), nn.Dense(5, in_units=4)
    net.initialize()
    other.initialize()
    for call, kind in (
        (lambda: {}["no such key"], KeyError),
        (lambda: other(ones((2, 7))), mx.MXNetError),
        (lambda: mx.nd.dot(net(ones((2, 4))), ones((2, 4))), mx.MXNetError),
        (lambda: mx.nd.random.normal(scale=-1, shape=(2,)).asnumpy(), mx.MXNetError),
    ):
        with pytest.raises(kind) as e, explained(net, call):
            call()
        assert e.value.__cause__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), mxkit.errors.DataError("told already")], ids=repr)
def test_interrupts_and_errors_of_mxkit_pass_as_they_are(error):
    def stop(F, x):
        raise error

    assert failure(Net(nn.Flatten(), Apply(stop)), ones((2, 4)), error=type(error)) is error


@modes
@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
def test_a_diagnosis_leaves_the_net_as_it_was(hybridize, late):
    last = nn.PReLU(in_channels=4) if late else nn.Dense(2, in_units=9)
    seen = []
    net = ready(Net(nn.Dense(3, in_units=4), nn.Dropout(0.5), last), hybridize)
    net.features[0][0].register_forward_hook(lambda *call: seen.append(call))
    net.register_forward_pre_hook(lambda *call: seen.append(call))
    with pytest.raises(mx.MXNetError) as e:
        net(ones((2, 4))).asnumpy()
    before, hooked = state_of(net), len(seen)
    assert explain_forward_error(net, e.value, lambda: net(ones((2, 4)))).path == "features.0.2"
    after = state_of(net)
    assert [list(one) for one in before] == [list(one) for one in after]
    assert all(one[name] is other[name] for one, other in zip(before, after) for name in one)
    assert len(seen) == hooked  # the user's hooks do not run again


def test_a_diagnosis_initializes_nothing():
    net = ready(Net(nn.Dense(3), nn.Dense(2, in_units=9)), hybridize=True)
    error = failure(net, ones((2, 4)))
    assert str(error).startswith("'features.0.1' (Dense) is built for 9 inputs per sample and got shape (2, 3)")
    first = net.features[0][0].weight
    assert first.shape == (3, 0)
    assert first._deferred_init
    assert first._data is None


@pytest.mark.parametrize("train", [False, True])
def test_a_diagnosis_runs_in_the_mode_of_the_call_and_records_nothing(train):
    modes = []

    class Looks(gluon.Block):
        def forward(self, x):
            modes.append((autograd.is_training(), autograd.is_recording()))
            return x

    net = stack(Looks(), nn.PReLU(in_channels=4), kind=nn.Sequential)
    net.initialize()
    with pytest.raises(ForwardError), autograd.record(train_mode=train), explained(net, lambda: net(ones((2, 3)))):
        net(ones((2, 3))).asnumpy()
    assert modes == [(train, True), (train, False)]


def test_a_call_that_goes_well_is_not_run_again():
    calls = []
    net = Net(Apply(lambda F, x: calls.append(1) or x))
    with explained(net, lambda: net(ones((2, 4)))):
        net(ones((2, 4)))
    assert calls == [1]


def test_a_late_error_at_a_wait_inside_the_net_is_sought_from_the_outermost_call():
    class Reads(gluon.Block):
        def forward(self, x):
            x.wait_to_read()
            return x

    net = stack(nn.PReLU(in_channels=4), Reads(), kind=nn.Sequential)
    net.initialize()
    with pytest.raises(ForwardError, match=r"^'0' \(PReLU\) got"), explained(net):
        net(ones((2, 3)))


@modes
@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
def test_evaluate_and_predict_name_the_layer(late, hybridize):
    net = ready(Net(nn.Dense(3, in_units=4), nn.PReLU(in_channels=4) if late else nn.Dense(3, in_units=6)), hybridize)
    data = [(np.ones((2, 4), "float32"), np.zeros(2))]
    text = rf"'features.0.1' {'.PReLU. got' if late else '.Dense. is built for 6 inputs per sample and got shape'}"
    mean = lambda output, label: output.mean(axis=1)  # noqa: E731
    for call in (lambda: mxkit.evaluate(net, data, loss=mean), lambda: mxkit.predict(net, data)):
        with pytest.raises(ForwardError, match=text) as e:
            call()
        assert isinstance(e.value.__cause__, mx.MXNetError)


def test_an_error_of_the_loss_is_no_error_of_the_net():
    net = ready(Net(nn.Dense(3, in_units=4)))
    known = gluon.loss.SoftmaxCrossEntropyLoss()

    def loss(output, labels):  # a user's own, whose labels are not checked
        return known(output, labels)

    with pytest.raises(mx.MXNetError):
        mxkit.evaluate(net, [(np.ones((2, 4), "float32"), np.zeros((2, 9)))], loss=loss)


def test_running_again_to_find_the_block_leaves_the_running_statistics():
    net = stack(as_on_a_gpu.BatchNorm(in_channels=3), nn.Dense(2, in_units=4))
    net.initialize()
    net.hybridize()
    with autograd.train_mode(), pytest.raises(ForwardError, match="'1'"), explained(net):
        net(mx.nd.ones((2, 3)))
    assert net[0].running_mean.data().asnumpy().tolist() == [0, 0, 0]
    assert net[0].running_var.data().asnumpy().tolist() == [1, 1, 1]
