"""Random layers with random arguments come back.

`MXKIT_EXAMPLES=2000 python -m pytest tests/descriptions/test_random_nets.py` draws others, and more of them.
"""

import os

from hypothesis import given, settings
from hypothesis import strategies as st
import mxnet as mx
from mxnet.gluon import nn, rnn
import pytest
from round_trip import assert_same, on
from sharing import examples

MORE = "MXKIT_EXAMPLES" in os.environ
EXAMPLES = int(os.environ.get("MXKIT_EXAMPLES", examples(40)))
SETTINGS = settings(max_examples=EXAMPLES, deadline=None, derandomize=not MORE, database=None)
FLAGS, ONES = st.booleans(), st.integers(1, 3)
SHARES = st.integers(0, 9).map(lambda tenth: tenth / 10)
SMALL = st.integers(1, 500).map(lambda part: part / 1000)
ACTIVATIONS = st.sampled_from(["relu", "sigmoid", "softrelu", "softsign", "tanh"])
OPERATORS = st.sampled_from(["tanh", "sigmoid", "relu", "softmax", "square"])
RANDOM = st.sampled_from(["uniform", "gaussian"])
INITIALIZERS = st.one_of(
    st.sampled_from([None, "zeros", "ones", "normal", "xavier", "orthogonal", mx.init.MSRAPrelu("in", 0.1)]),
    st.builds(mx.init.Normal, SMALL),
    st.builds(mx.init.Uniform, SMALL),
    st.builds(mx.init.Constant, st.integers(-3, 3)),
    st.builds(mx.init.Xavier, RANDOM, st.sampled_from(["avg", "in", "out"]), st.integers(1, 4)),
)


def optional(strategy):
    return st.one_of(st.none(), strategy)


def initializers(*names):
    return {f"{name}_initializer": INITIALIZERS for name in names}


def per_axis(draw, strategy, axes):
    """One value for all axes, or one for each."""
    return draw(strategy) if draw(FLAGS) else tuple(draw(strategy) for _ in range(axes))


@st.composite
def convolution(draw):
    axes, groups = draw(ONES), draw(st.integers(1, 2))
    transpose = draw(FLAGS)
    strides, channels = per_axis(draw, ONES, axes), 2 * groups
    arguments = {
        "channels": groups * draw(ONES),
        "kernel_size": per_axis(draw, ONES, axes),
        "strides": strides,
        "padding": per_axis(draw, st.integers(0, 1), axes),
        # MXNet's CPU transposes no dilated convolution of three axes
        "dilation": 1 if transpose else per_axis(draw, st.integers(1, 2), axes),
        "groups": groups,
        "use_bias": draw(FLAGS),
        "activation": draw(optional(ACTIVATIONS)),
        # MXNet makes no transposed convolution in groups that waits for its channels
        "in_channels": channels if transpose and groups > 1 else draw(st.sampled_from([0, channels])),
        **draw(st.fixed_dictionaries(initializers("weight", "bias"))),
    }
    if transpose:
        least = min(strides) if isinstance(strides, tuple) else strides
        arguments["output_padding"] = draw(st.integers(0, least - 1))
    kind = getattr(nn, f"Conv{axes}D{'Transpose' * transpose}")
    return kind(**arguments), on(2, channels, *(7, 6, 8)[:axes])


@st.composite
def norm(draw):
    kind = draw(st.sampled_from([nn.BatchNorm, nn.BatchNormReLU, nn.InstanceNorm, nn.LayerNorm, nn.GroupNorm]))
    arguments = {"epsilon": draw(SMALL), "center": draw(FLAGS), "scale": draw(FLAGS)}
    arguments.update(draw(st.fixed_dictionaries(initializers("beta", "gamma"))))
    if kind in (nn.BatchNorm, nn.BatchNormReLU):
        arguments.update(momentum=draw(SHARES), use_global_stats=draw(FLAGS))
        arguments.update(draw(st.fixed_dictionaries(initializers("running_mean", "running_variance"))))
    if kind is nn.GroupNorm:
        arguments["num_groups"] = draw(st.sampled_from([1, 2, 4]))
    elif kind in (nn.InstanceNorm, nn.LayerNorm):
        arguments["axis"] = draw(st.sampled_from((1, 2, -1)))
    if kind is not nn.GroupNorm:
        arguments["in_channels"] = draw(st.sampled_from([0, 4]))
    return kind(**arguments), on(2, 4, 4, 4)


@st.composite
def recurrent(draw):
    kind = draw(st.sampled_from([rnn.RNN, rnn.LSTM, rnn.GRU]))
    arguments = {
        "hidden_size": draw(ONES),
        "num_layers": draw(ONES),
        "layout": draw(st.sampled_from(["TNC", "NTC"])),
        "dropout": draw(SHARES),
        "bidirectional": draw(FLAGS),
        "input_size": draw(st.sampled_from([0, 4])),
        **draw(st.fixed_dictionaries(initializers("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias"))),
    }
    if kind is rnn.RNN:
        arguments["activation"] = draw(st.sampled_from(["relu", "tanh"]))
    if kind is rnn.LSTM and draw(FLAGS):
        arguments.update(state_clip_min=-draw(SMALL), state_clip_max=draw(SMALL), state_clip_nan=draw(FLAGS))
    return kind(**arguments), on(3, 2, 4)


LAYERS = {
    "convolution": convolution(),
    "norm": norm(),
    "recurrent": recurrent(),
}


@pytest.mark.parametrize("name", LAYERS)
def test_random_layers_come_back(name):
    @SETTINGS
    @given(LAYERS[name])
    def check(made):
        assert_same(*made)

    check()
