"""The tutorials' code that fails or errs on MXNet 1.9.1, by its row of SEEDS.md, each beside the mxkit form.

First what Gluon does with the code as a tutorial has it, then, after a blank line, what to write. S0 to S4 are the
tutorials' numbers in SEEDS.md. A row is short here; what stands behind it is tested in depth where its module is.

This file: layers and losses of one's own (groups D and E). `test_seed_rows_data.py`: arrays, autograd, data,
augmentation, dtypes (A to C, F, G, T). The other rows are tested
where their modules are.
"""

import mxkit
from mxkit.errors import (
    ForwardError,
    TrapWarning,
)
import mxnet as mx
from mxnet import autograd, gluon, init, nd
from mxnet.gluon import nn
import numpy as np
import pytest
from seed_code import X, backward_of, leaf, stack, train


class Sigmoid(autograd.Function):
    """S4's own."""

    def forward(self, x):
        y = 1 / (1 + nd.exp(-x))
        self.save_for_backward(y)
        return y

    def backward(self, dy):
        (y,) = self.saved_tensors
        return dy * y * (1 - y)


OUR_SIGMOID = mxkit.gradients.custom_gradient(lambda x: 1 / (1 + nd.exp(-x)), lambda dy, x, y: dy * y * (1 - y))


class MyDense(nn.Block):
    """S0#10, S2#26: a layer of one's own as the tutorials write it."""

    def __init__(self, units, in_units, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(in_units, units))
            self.bias = self.params.get("bias", shape=(units,))

    def forward(self, x):
        return nd.relu(nd.dot(x, self.weight.data()) + self.bias.data())


class OurDense(mxkit.nets.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.parameter("weight", (units, 0))
        self.parameter("bias", (units,))

    def hybrid_forward(self, F, x, weight, bias):
        return F.relu(F.FullyConnected(x, weight, bias, num_hidden=self.bias.shape[0]))


# D: custom gradients and layers


def test_row_19_a_function_used_once():
    theirs, ours = leaf(-200, 0, 200), leaf(-200, 0, 200)
    backward_of(Sigmoid(), theirs)
    backward_of(OUR_SIGMOID, ours)
    np.testing.assert_array_equal(ours.grad.asnumpy(), theirs.grad.asnumpy())


def test_row_20_a_function_kept_in_a_layer():
    class MyLayer(nn.Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.func = Sigmoid()

        def forward(self, x):
            return self.func(x)

    layer = MyLayer()
    layer(X)
    with pytest.raises(AssertionError, match="Each Function instance can only be called once"):
        layer(X)

    ours = mxkit.gradients.CustomGradient(lambda x: 1 / (1 + nd.exp(-x)), lambda dy, x, y: dy * y * (1 - y))
    for _ in range(3):
        np.testing.assert_allclose(ours(X).asnumpy(), X.sigmoid().asnumpy(), rtol=1e-6)


def test_row_21_a_backward_that_is_never_called():
    class Mine(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * x

        def backward(self, dy):
            return dy * 100

    x = leaf(3)
    backward_of(Mine(), x)
    assert x.grad.asscalar() == 6

    with pytest.warns(TrapWarning, match=r"'1' \(Mine\) defines backward, which Gluon never calls.*custom_gradient"):
        train(stack(nn.Dense(3), Mine()))
    backward_of(mxkit.gradients.custom_gradient(lambda x: x * x, lambda dy, x, y: dy * 100), x)
    assert x.grad.asscalar() == 100


def test_row_22_a_gradient_of_ones_own_in_a_graph():
    layer = mxkit.gradients.CustomGradient(lambda x: 1 / (1 + nd.exp(-x)), lambda dy, x, y: dy * y * (1 - y))
    layer.hybridize()
    x = leaf(0.5, 2)
    backward_of(layer, x)
    np.testing.assert_allclose(x.grad.asnumpy(), [0.235, 0.105], atol=5e-4)


def test_row_23_a_function_in_a_hybridized_block():
    class Theirs(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return Sigmoid()(x)

    class Ours(nn.HybridBlock):
        def hybrid_forward(self, F, x):
            return OUR_SIGMOID(x)

    theirs, ours = Theirs(), Ours()
    for net in (theirs, ours):
        net.hybridize()
    with pytest.raises(AssertionError, match="must have NDArray type, but got <Symbol"):
        theirs(X)
    with pytest.raises(ValueError, match="Children of HybridBlock must also be HybridBlock"):
        nn.HybridSequential().add(nn.Lambda(lambda x: Sigmoid()(x)))

    np.testing.assert_allclose(ours(X).asnumpy(), X.sigmoid().asnumpy(), rtol=1e-6)


def test_row_24_several_inputs_and_summed_gradients():
    class Mul(autograd.Function):
        def forward(self, a, b):
            self.save_for_backward(a, b)
            return a * b

        def backward(self, dy):
            a, b = self.saved_tensors
            return dy * b, dy * a

    ours = mxkit.gradients.custom_gradient(lambda a, b: a * b, lambda dy, a, b, y: (dy * b, dy * a))
    data, weight, summed = nd.array([7]), leaf(3), leaf(3, request="add")
    for function, expected in ((lambda *two: Mul()(*two), 0), (ours, 7)):
        backward_of(function, data, weight)
        assert weight.grad.asscalar() == expected
        for _ in range(2):
            backward_of(function, leaf(7), summed)
        assert summed.grad.asscalar() == 2 * expected


def test_row_25_a_dense_layer_of_ones_own():
    with pytest.raises(ValueError, match=r"invalid shape: \(0, 5\)"):
        MyDense(5, in_units=0).initialize()
    assert repr(MyDense(5, 2)).split() == ["MyDense(", ")"]
    theirs = MyDense(1, in_units=2)
    theirs.initialize(init.One(), ctx=mxkit.devices("cpu:2"))
    theirs.weight.data(mx.cpu(1))[:] = 7
    x = nd.ones((1, 2), ctx=mx.cpu(1))
    assert theirs(x).asscalar() < 4  # of cpu(0)'s ones, plus a bias

    ours = OurDense(1)
    mxkit.initialize(ours, "ones", devices="cpu:2", sample=(1, 2))
    ours.weight.data(mx.cpu(1))[:] = 7
    assert ours(x).asscalar() == 14
    assert repr(ours) == "OurDense(units=1)"


def test_row_25_xavier_on_a_vector_is_told_before_anything_is_initialized():
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(2, in_units=2))
    outer = nn.Sequential()
    outer.add(net, MyDense(3, in_units=2))
    with pytest.raises(ValueError, match="Xavier initializer cannot be applied to vector"):
        MyDense(3, in_units=2).initialize(init.Xavier())

    with pytest.raises(ValueError, match=r"initialize: 1.bias has shape \(3,\), and Xavier needs two.*init='zeros'"):
        mxkit.initialize(outer, devices="cpu")
    assert net[0].weight._data is None
    stack(OurDense(3))


def test_row_26_a_centered_layer_that_mixes_samples():
    theirs = nn.HybridLambda(lambda F, x: x - x.mean())
    ours = nn.HybridLambda(lambda F, x: F.broadcast_sub(x, F.mean(x, axis=0, exclude=True, keepdims=True)))
    batch, alone = nd.array([[1, 3], [10, 30]]), nd.array([[1, 3]])
    assert theirs(batch)[0].asnumpy().tolist() == [-10, -8]
    assert theirs(alone)[0].asnumpy().tolist() == [-1, 1]

    assert ours(batch)[0].asnumpy().tolist() == ours(alone)[0].asnumpy().tolist() == [-1, 1]


def test_row_27_a_sequential_of_ones_own():
    class MySequential(nn.Block):
        def add(self, block):
            self._children.append(block)

    with pytest.raises(AttributeError, match="has no attribute 'append'"):
        MySequential().add(nn.Dense(2))

    class Ours(nn.HybridBlock):
        def add(self, block):
            self.register_child(block)

        def hybrid_forward(self, F, x):
            for block in self._children.values():
                x = block(x)
            return x

    net = Ours()
    net.add(nn.Dense(4))
    net.add(nn.Dense(2))
    mxkit.initialize(net, devices="cpu", sample=X)
    assert list(mxkit.parameters(net)) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert mxkit.nets.try_hybridize(net, X)


def test_row_28_a_constant_that_is_a_plain_array(tmp_path):
    class FancyMLP(nn.Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.dense = nn.Dense(256)
                self.weight = nd.random_uniform(shape=(256, 20))

        def forward(self, x):
            x = nd.relu(self.dense(x))
            x = nd.relu(nd.dot(x, self.weight) + 1)
            return nd.relu(self.dense(x))

    class Ours(mxkit.nets.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense = nn.Dense(256)
            self.constant("table", nd.random.uniform(shape=(256, 20)))

        def hybrid_forward(self, F, x, table):
            x = F.relu(self.dense(x))
            x = F.relu(F.dot(x, table) + 1)
            return F.relu(self.dense(x))

    theirs, twin, ours, our_twin = FancyMLP(), FancyMLP(), Ours(), Ours()
    for net in (theirs, twin, ours, our_twin):
        mxkit.initialize(net, devices="cpu", sample=(2, 20))
    x = nd.ones((2, 20))
    for net, other, same in ((theirs, twin, False), (ours, our_twin, True)):
        net.save_parameters(str(tmp_path / "net.params"))
        other.load_parameters(str(tmp_path / "net.params"))
        assert np.array_equal(net(x).asnumpy(), other(x).asnumpy()) == same
    with pytest.warns(TrapWarning, match="keeps a plain NDArray 'weight' .*Make it a constant"):
        mxkit.to(theirs, mx.cpu(1))
    assert mxkit.to(ours, mx.cpu(1)).table.list_ctx() == [mx.cpu(1)]
    with pytest.raises(mx.MXNetError, match=r"Provided = \[256,20\], inferred shape=\(256,30\)"):
        theirs(nd.ones((2, 30), ctx=mx.cpu(1)))
    with pytest.raises(ForwardError, match=r"'dense' \(Dense\) is built for 20 inputs .* got shape \(2, 30\)"):
        mxkit.predict(ours, nd.ones((2, 30)))


def test_rows_29_to_32_names_of_parameters():
    class RecMLP(nn.Block):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.net = nn.Sequential()
            with self.name_scope():
                self.net.add(nn.Dense(256, activation="relu"))
                self.dense = nn.Dense(64)

        def forward(self, x):
            return nd.relu(self.dense(self.net(x)))

    glued = gluon.ParameterDict(prefix="custom_layer_name")
    glued.get("custom_layer_param1", shape=(3, 3))
    assert list(glued) == ["custom_layer_namecustom_layer_param1"]

    net = stack(RecMLP(), nn.Dense(10), kind=nn.Sequential)
    assert list(mxkit.parameters(net))[:4] == ["0.net.0.weight", "0.net.0.bias", "0.dense.weight", "0.dense.bias"]
    assert mxkit.parameters(net)["1.bias"].data().shape == (10,)


# E: siamese nets


def my_softmax_loss(l_o, r_o, y):
    """S4#5; it is the contrastive loss."""
    margin = 1.0
    d = nd.norm(l_o - r_o, axis=1)
    dd = nd.relu(margin - d)
    return y * d * d + (1 - y) * dd * dd


def test_row_33_the_contrastive_loss_of_an_identical_pair():
    ours = mxkit.losses.ContrastiveLoss()
    for function, finite in ((my_softmax_loss, False), (lambda a, b, y: ours([a, b], y), True)):
        a, b = leaf([1, 2], [1, 2]), leaf([1, 2], [1, 2])
        value = backward_of(function, a, b, nd.array([1, 0]))
        np.testing.assert_allclose(value.asnumpy(), [0, 1], atol=1e-5)
        assert np.isfinite(a.grad.asnumpy()).all() == finite
    assert my_softmax_loss(a, b, nd.ones((2, 1))).shape == (2, 2)
    with pytest.raises(mx.MXNetError, match="expected int32, got float32"):
        my_softmax_loss(a, b, nd.ones(2, dtype="int32"))

    assert ours([a, b], nd.ones((2, 1), dtype="int32")).shape == (2,)
    point = nd.ones((2, 3))
    with pytest.raises(ArithmeticError, match="autograd says nan"):
        mxkit.gradients.check_gradient(my_softmax_loss, point, point, nd.array([1, 0]), wrt=(0, 1))
    mxkit.gradients.check_gradient(lambda a, b: ours([a, b], nd.array([1, 1])), point, point)


def test_row_34_a_siamese_net_with_a_hash():
    class Branch(nn.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.dense, self.func = nn.Dense(4), Sigmoid()

        def hybrid_forward(self, F, x):
            return self.func(self.dense(x))

    theirs = Branch()
    theirs.initialize()
    with pytest.raises(AssertionError, match="can only be called once"):
        [theirs(one) for one in (X, X)]

    net = mxkit.models.Siamese(stack(nn.Dense(4), nn.HybridLambda(lambda F, x: mxkit.gradients.sign_ste(x))))
    history = mxkit.fit(net, [((X, -X), np.array([1]))], loss="contrastive", trainer="sgd", epochs=2, progress=False)
    assert history[-1]["train_loss"] == 16  # four bits of two each, squared
    with mxkit.gradients.mode(record=True):
        mxkit.losses.ContrastiveLoss(9)(net(X, -X), nd.array([1])).backward()
    assert net.branch[0].weight.grad().asnumpy().all()
