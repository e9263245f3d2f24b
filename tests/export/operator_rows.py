"""Operators of MXNet with attributes that matter, and inputs for them: rows of the comparison with PyTorch."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import json

import mxkit
import mxnet as mx
import numpy as np


class Row(NamedTuple):
    """An operator.

    Attributes:
        name: In the test's id.
        make: Builds the symbol from its input variables.
        shapes: Shapes of the inputs; "B" is the batch size, "2B" twice of it.
        parameters: Numbers of the inputs that are parameters.
        draw: Makes inputs other than normal ones, by the input's number.
        gradients: Whether to compare gradients.
        layer: Whether a module of torch.nn is expected.
        numpy: Whether it is an operator of mx.np.
        still: Numbers of the inputs that have no gradient in MXNet.
    """

    name: str
    make: Callable[..., Any]
    shapes: Tuple[Any, ...]
    parameters: Tuple[int, ...] = ()
    draw: Optional[Dict[int, Callable[..., Any]]] = None
    gradients: bool = True
    layer: bool = False
    still: Tuple[int, ...] = ()
    numpy: bool = False


def below(count, dtype="float32"):
    """Indices of 0 to count - 1."""
    return lambda random, shape: random.integers(0, count, shape).astype(dtype)


def above(low, high=2.0):
    """Numbers between low and high."""
    return lambda random, shape: random.uniform(low, high, shape).astype("float32")


def distinct(random, shape):
    """Numbers of which no two are alike."""
    return (random.permutation(int(np.prod(shape))).reshape(shape) / 7 - 1.5).astype("float32")


def boxes(random, shape):
    """Boxes that overlap, with labels and scores."""
    corner, size = random.uniform(0, 0.6, (*shape[:-1], 2)), random.uniform(0.1, 0.5, (*shape[:-1], 2))
    label = random.integers(0, 2, (*shape[:-1], 1))
    return np.concatenate([label, random.uniform(0, 1, (*shape[:-1], 1)), corner, corner + size], -1).astype("float32")


def shares(random, shape):
    """Probabilities of classes, dimension 1."""
    drawn = random.uniform(0, 1, shape)
    return (drawn / drawn.sum(axis=1, keepdims=True)).astype("float32")


def anchors(random, shape):
    """Boxes as (left, top, right, bottom)."""
    return boxes(random, shape)[..., 2:6]


def regions(random, shape):
    """Boxes of images 0 to 1 in pixels."""
    corner, size = random.uniform(0, 5, (shape[0], 2)), random.uniform(1, 6, (shape[0], 2))
    image = random.integers(0, 2, (shape[0], 1))
    return np.concatenate([image, corner, corner + size], 1).astype("float32")


def raw(operator, count, **attrs):
    """Make a symbol without Python's wrappers, which mxkit repairs; such ones stand in files of others."""

    def make(*inputs):
        nodes = [{"op": "null", "name": part.name, "inputs": []} for part in inputs]
        attrs_text = {name: str(value) for name, value in attrs.items()}
        nodes.append({"op": operator, "name": "raw0", "attrs": attrs_text, "inputs": [[n, 0, 0] for n in range(count)]})
        described = {"nodes": nodes, "arg_nodes": list(range(count)), "heads": [[count, 0, 0]]}
        return mx.sym.load_json(json.dumps({**described, "attrs": {"mxnet_version": ["int", 10901]}}))

    return make


S = mx.sym
BCHW = ("B", 4, 5, 6)


def row(name, make, *shapes, draw=None, **more):
    """A row, whose inputs are all drawn alike if `draw` is a function."""
    if callable(draw):
        draw = dict.fromkeys(range(len(shapes)), draw)
    return Row(name, make, shapes, draw=draw, **more)


def convolution(name, operator, shape, weight, no_bias=False, **attrs):
    filters = attrs["num_filter"]
    if no_bias:
        return row(
            f"{operator.__name__} {name}",
            lambda x, w: operator(x, w, no_bias=True, **attrs),
            shape,
            weight,
            parameters=(1,),
            layer=True,
        )
    return row(
        f"{operator.__name__} {name}",
        lambda x, w, b: operator(x, w, b, no_bias=False, **attrs),
        shape,
        weight,
        (filters,),
        parameters=(1, 2),
        layer=True,
    )


C, D = S.Convolution, S.Deconvolution
CONVOLUTIONS = [
    convolution("1d", C, ("B", 3, 9), (4, 3, 3), num_filter=4, kernel=(3,), stride=(2,), pad=(1,)),
    convolution("2d", C, ("B", 3, 9, 8), (4, 3, 3, 2), num_filter=4, kernel=(3, 2), stride=(2, 1), pad=(1, 0)),
    convolution("groups", C, ("B", 4, 6, 6), (6, 2, 3, 3), num_filter=6, kernel=(3, 3), num_group=2, no_bias=True),
    convolution("dilated", C, ("B", 3, 9, 9), (2, 3, 3, 3), num_filter=2, kernel=(3, 3), dilate=(2, 2), pad=(2, 2)),
    convolution("3d", C, ("B", 2, 5, 5, 5), (3, 2, 3, 3, 3), num_filter=3, kernel=(3, 3, 3), pad=(1, 1, 1)),
    convolution("1d", D, ("B", 3, 5), (3, 2, 3), num_filter=2, kernel=(3,), stride=(2,), adj=(1,)),
    convolution("adj", D, ("B", 4, 5, 5), (4, 3, 4, 4), True, num_filter=3, kernel=(4, 4), stride=(2, 2), pad=(1, 1), adj=(1, 1)),
    convolution("groups", D, ("B", 4, 5, 5), (4, 1, 3, 3), True, num_filter=2, kernel=(3, 3), num_group=2, dilate=(2, 2)),
    convolution("target", D, ("B", 4, 5, 5), (4, 3, 3, 4), num_filter=3, kernel=(3, 4), stride=(2, 2), pad=(1, 2), target_shape=(10, 9)),
    convolution("3d", D, ("B", 2, 3, 3, 3), (2, 3, 2, 2, 2), num_filter=3, kernel=(2, 2, 2), stride=(2, 2, 2)),
]

F = S.FullyConnected
DENSE = [
    row("FullyConnected flatten", lambda x, w, b: F(x, w, b, num_hidden=3), ("B", 4, 2), (3, 8), (3,), parameters=(1, 2), layer=True),
    row("FullyConnected flat", lambda x, w, b: F(x, w, b, num_hidden=3), ("B", 8), (3, 8), (3,), parameters=(1, 2), layer=True),
    row(
        "FullyConnected last axis",
        lambda x, w: F(x, w, num_hidden=3, flatten=False, no_bias=True),
        ("B", 4, 2),
        (3, 2),
        parameters=(1,),
        layer=True,
    ),
    row("Embedding", lambda x, w: S.Embedding(x, w, input_dim=7, output_dim=3), ("B", 4), (7, 3), parameters=(1,), draw={0: below(7)}, layer=True, still=(0,)),
    row("one_hot", lambda x: S.one_hot(x, depth=4, on_value=3, off_value=-1), ("B", 3), draw=below(6), gradients=False),
    row("one_hot plain", lambda x: S.one_hot(x, depth=4, dtype="float64"), ("B", 3), draw=below(6), gradients=False),
]


def batch_norm(name, shape, axis=1, layer=True, training=False, **attrs):
    size = (shape[axis],)
    return row(
        f"BatchNorm {name}",
        lambda x, g, b, m, v: S.BatchNorm(x, g, b, m, v, axis=axis, **attrs),
        shape, size, size, size, size,
        parameters=(1, 2, 3, 4),
        draw={4: above(0.5), 1: above(0.5)},
        gradients=training,
        layer=layer and not training,
        still=(3, 4),
    )  # fmt: skip


def scaled(name, operator, shape, size, layer=True, **attrs):
    return row(
        name, lambda x, g, b: operator(x, g, b, **attrs), shape, size, size, parameters=(1, 2), layer=layer
    )


NORMS = [
    batch_norm("2d", BCHW),
    batch_norm("scale", BCHW, fix_gamma=False, eps=0.1, momentum=0.8),
    batch_norm("1d", ("B", 4, 3), fix_gamma=False),
    batch_norm("flat", ("B", 4), fix_gamma=False),
    batch_norm("3d", ("B", 4, 2, 2, 2), fix_gamma=False),
    batch_norm("last", BCHW, axis=3, layer=False, fix_gamma=False),
    batch_norm("training", BCHW, training=True, fix_gamma=False, eps=0.1),
    batch_norm("training last", BCHW, axis=3, training=True, fix_gamma=False),
    batch_norm("training global", BCHW, training=True, use_global_stats=True, fix_gamma=False),
    batch_norm("global", BCHW, layer=False, use_global_stats=True, fix_gamma=False),
    row(
        "BatchNormWithReLU",
        lambda x, g, b, m, v: S.contrib.BatchNormWithReLU(x, g, b, m, v, fix_gamma=False),
        BCHW, (4,), (4,), (4,), (4,), parameters=(1, 2, 3, 4), draw={4: above(0.5)}, gradients=False,
    ),
    row(
        "SyncBatchNorm",
        lambda x, g, b, m, v: S.contrib.SyncBatchNorm(x, g, b, m, v, fix_gamma=False, ndev=1, key="key"),
        BCHW, (4,), (4,), (4,), (4,), parameters=(1, 2, 3, 4), draw={4: above(0.5)}, gradients=False, layer=True,
    ),
    row("Convolution_v1", lambda x, w: S.Convolution_v1(x, w, kernel=(2, 2), num_filter=3, no_bias=True), BCHW, (3, 4, 2, 2), parameters=(1,), layer=True),
    row("Pooling_v1", lambda x: S.Pooling_v1(x, kernel=(2, 3), stride=(2, 2), pool_type="avg"), BCHW, layer=True),
    scaled("LayerNorm", S.LayerNorm, ("B", 3, 5), (5,), eps=0.1),
    scaled("LayerNorm axis", S.LayerNorm, ("B", 3, 5), (3,), layer=False, axis=1),
    scaled("GroupNorm", S.GroupNorm, ("B", 6, 3, 2), (3,), num_groups=3, eps=0.1),
    scaled("InstanceNorm", S.InstanceNorm, ("B", 4, 3, 5), (4,)),
    scaled("InstanceNorm 1d", S.InstanceNorm, ("B", 4, 7), (4,), eps=0.1),
    row("L2Normalization instance", lambda x: S.L2Normalization(x, eps=0.1), BCHW),
    row("L2Normalization channel", lambda x: S.L2Normalization(x, mode="channel"), BCHW),
    row("L2Normalization spatial", lambda x: S.L2Normalization(x, mode="spatial"), BCHW),
    row("LRN", lambda x: S.LRN(x, nsize=3, alpha=0.3, beta=0.6, knorm=1.5), BCHW),
    row("LRN defaults", lambda x: S.LRN(x, nsize=5), ("B", 7, 3, 3)),
]

ACTIVATIONS = [
    *(
        row(f"Activation {kind}", lambda x, kind=kind: S.Activation(x, act_type=kind), BCHW, layer=True)
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ),
    row("LeakyReLU default", lambda x: S.LeakyReLU(x), BCHW, layer=True),
    row("LeakyReLU slope", lambda x: S.LeakyReLU(x, slope=0.1), BCHW, layer=True),
    row("LeakyReLU elu", lambda x: S.LeakyReLU(x, act_type="elu", slope=0.7), BCHW, layer=True),
    row("LeakyReLU selu", raw("LeakyReLU", 1, act_type="selu"), BCHW, gradients=False, layer=True),
    row("LeakyReLU gelu", lambda x: S.LeakyReLU(x, act_type="gelu"), BCHW, layer=True),
    row("PReLU channels", lambda x, g: S.LeakyReLU(x, g, act_type="prelu"), BCHW, (4,), parameters=(1,), layer=True),
    row("PReLU shared", lambda x, g: S.LeakyReLU(x, g, act_type="prelu"), BCHW, (1,), parameters=(1,), layer=True),
    row("softmax", lambda x: S.softmax(x, axis=1), BCHW, layer=True),
    row("softmax temperature", lambda x: S.softmax(x, temperature=3.0), BCHW),
    row("softmax length", lambda x, n: S.softmax(x, n, use_length=True, axis=1), ("B", 5, 3), ("B", 3), draw={1: lambda r, s: r.integers(1, 5, s).astype("int32")}, gradients=False),
    row("softmin", lambda x: S.softmin(x, axis=-2), BCHW),
    row("log_softmax", lambda x: S.log_softmax(x, axis=1, temperature=2), BCHW),
    row("SoftmaxActivation", lambda x: S.SoftmaxActivation(x), ("B", 4)),
    row("SoftmaxActivation channel", lambda x: S.SoftmaxActivation(x, mode="channel"), BCHW),
    row("SoftmaxOutput", lambda x, y: S.SoftmaxOutput(x, y), ("B", 4), ("B",), gradients=False),
    row("SoftmaxOutput flat", lambda x, y: S.SoftmaxOutput(x, y), ("B", 4, 3), ("B", 4), gradients=False),
    row("SoftmaxOutput multi", lambda x, y: S.SoftmaxOutput(x, y, multi_output=True), BCHW, ("B", 5, 6), gradients=False),
    row("SoftmaxOutput preserve", lambda x, y: S.SoftmaxOutput(x, y, preserve_shape=True), ("B", 4, 3), ("B", 4), gradients=False),
    row("LogisticRegressionOutput", lambda x, y: S.LogisticRegressionOutput(x, y), ("B", 4), ("B", 4), gradients=False),
    row("MAERegressionOutput", lambda x, y: S.MAERegressionOutput(x, y), ("B", 4), ("B", 4), gradients=False),
    row("SVMOutput", lambda x, y: S.SVMOutput(x, y), ("B", 4), ("B",), gradients=False),
    row("MakeLoss", lambda x: S.MakeLoss(x), ("B", 4), gradients=False),
    row("LinearRegressionOutput", lambda x, y: S.LinearRegressionOutput(x, y), ("B", 4), ("B", 4), gradients=False),
    row("Dropout", lambda x: S.Dropout(x, p=0.3), BCHW, gradients=False, layer=True),
    row("Dropout axes", lambda x: S.Dropout(x, p=0.3, axes=(2, 3)), BCHW, gradients=False),
]


def pooling(name, shape=("B", 3, 7, 8), layer=True, gradients=True, **attrs):
    return row(f"Pooling {name}", lambda x: S.Pooling(x, **attrs), shape, draw=distinct, layer=layer, gradients=gradients)


POOLING = [
    pooling("max", kernel=(3, 2), stride=(2, 1), pad=(1, 0)),
    pooling("max full", kernel=(3, 3), stride=(2, 2), pooling_convention="full"),
    pooling("max stride 1", kernel=(2, 2)),
    pooling("avg", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
    pooling("avg without padding", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False),
    # MXNet's gradient divides by the whole window, its forward pass by the part inside of the padding
    pooling("avg full", ("B", 3, 8, 8), gradients=False, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", pooling_convention="full"),
    pooling(
        "avg full without padding",
        ("B", 3, 8, 8), kernel=(3, 3), stride=(2, 2), pad=(1, 1),
        pool_type="avg", pooling_convention="full", count_include_pad=False,
    ),
    pooling("max full padded", ("B", 3, 8, 8), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pooling_convention="full"),
    pooling("max wide padding", kernel=(3, 3), stride=(1, 1), pad=(2, 2), layer=False),
    pooling("avg wide padding", kernel=(3, 3), stride=(1, 1), pad=(2, 2), pool_type="avg", layer=False),
    pooling("sum", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="sum", layer=False),
    pooling("lp", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="lp", p_value=2, layer=False, gradients=False),
    pooling("global avg", kernel=(1, 1), global_pool=True, pool_type="avg"),
    pooling("global max", kernel=(1, 1), global_pool=True, pool_type="max"),
    pooling("global sum", kernel=(1, 1), global_pool=True, pool_type="sum", layer=False),
    pooling("last", ("B", 7, 8, 3), False, kernel=(3, 2), stride=(2, 1), pad=(1, 0), layout="NHWC", gradients=False),
    pooling("global last", ("B", 7, 8, 3), False, kernel=(1, 1), global_pool=True, pool_type="avg", layout="NHWC", gradients=False),
    pooling("1d", ("B", 3, 8), kernel=(3,), stride=(2,), pooling_convention="full"),
    pooling("1d avg", ("B", 3, 8), kernel=(3,), stride=(2,), pad=(1,), pool_type="avg", count_include_pad=False),
    pooling("3d", ("B", 2, 5, 5, 5), kernel=(3, 3, 3), stride=(2, 2, 2), pad=(1, 1, 1)),
    pooling("3d avg", ("B", 2, 5, 5, 5), kernel=(2, 2, 2), stride=(2, 2, 2), pool_type="avg", pooling_convention="full"),
    pooling("3d global", ("B", 2, 5, 5, 5), kernel=(1, 1, 1), global_pool=True, pool_type="avg"),
    row("AdaptiveAvgPooling2D", lambda x: S.contrib.AdaptiveAvgPooling2D(x, output_size=(3, 4)), ("B", 3, 7, 9), layer=True),
    row("AdaptiveAvgPooling2D 1", lambda x: S.contrib.AdaptiveAvgPooling2D(x), ("B", 3, 7, 9), layer=True),
    row("UpSampling", lambda x: S.UpSampling(x, scale=3, sample_type="nearest"), BCHW),
    row("UpSampling two", lambda x, y: S.UpSampling(x, y, scale=2, sample_type="nearest", num_args=2), ("B", 2, 4, 6), ("B", 3, 2, 3)),
    row("UpSampling bilinear", lambda x, w: S.UpSampling(x, w, scale=2, sample_type="bilinear", num_filter=4), BCHW, (4, 1, 4, 4), parameters=(1,)),
    row("UpSampling bilinear 3", lambda x, w: S.UpSampling(x, w, scale=3, sample_type="bilinear", num_filter=4), BCHW, (4, 1, 5, 5), parameters=(1,)),
    row("BilinearResize2D", lambda x: S.contrib.BilinearResize2D(x, height=9, width=4), BCHW),
    row("BilinearResize2D half", lambda x: S.contrib.BilinearResize2D(x, height=9, width=4, align_corners=False), BCHW),
    row("BilinearResize2D scale", lambda x: S.contrib.BilinearResize2D(x, scale_height=2, scale_width=1.5, mode="odd_scale"), BCHW),
    row("BilinearResize2D like", lambda x, y: S.contrib.BilinearResize2D(x, y, mode="like"), BCHW, ("B", 1, 7, 9), gradients=False),
]


def reshape(shape, of=("B", 4, 5, 6), **attrs):
    return row(f"Reshape {shape} {attrs or ''}", lambda x: S.reshape(x, shape=shape, **attrs), of)


SHAPES = [
    *(
        reshape(shape)
        for shape in (
            (0, -1), (-1, 0), (0, 0, -1), (-1,), (0, -1, 6), (-2,), (0, -3, 0), (-3, -3), (0, 0, -3), (0, -2), (-1, 30),
            (0, -4, 2, 2, -2), (0, -4, -1, 2, 0, 0), (0, -4, 2, -1, -3), (-3, 0, 0), (0, 2, 2, -1), (-1, 4, 30), (0, 4, -2),
        )
    ),
    reshape((-1, 3, 2), reverse=True),
    reshape((0, -1, 0), ("B", 4, 6), reverse=True),
    reshape((-1, 0), ("B", 4, 6), reverse=True),
    reshape((0, -3), ("B", 4, 6), reverse=True),
    reshape((0, 2, 3, -4, 0), ("B", 6, 5), reverse=True),
    row("reshape_like", lambda x, y: S.reshape_like(x, y), ("B", 6), ("B", 2, 3)),
    row("reshape_like parts", lambda x, y: S.reshape_like(x, y, lhs_begin=1, lhs_end=2, rhs_begin=1, rhs_end=3), ("B", 6, 5), ("B", 2, 3, 7)),
    row("Flatten", lambda x: S.Flatten(x), BCHW, layer=True),
    row("transpose", lambda x: S.transpose(x, axes=(0, 2, 3, 1)), BCHW),
    row("transpose two", lambda x: S.transpose(x, axes=(0, 1, 3, 2)), BCHW),
    row("transpose all", lambda x: S.transpose(x), ("B", 3, 2)),
    row("SwapAxis", lambda x: S.SwapAxis(x, dim1=1, dim2=3), BCHW),
    row("expand_dims", lambda x: S.expand_dims(x, axis=-2), BCHW),
    row("squeeze", lambda x: S.squeeze(x, axis=(1, 3)), ("B", 1, 3, 1)),
    row("squeeze one", lambda x: S.squeeze(x, axis=1), ("B", 1, 3, 1)),
    row("SliceChannel", lambda x: S.SliceChannel(x, num_outputs=3, axis=1), ("B", 6, 2)),
    row("SliceChannel squeeze", lambda x: S.SliceChannel(x, num_outputs=3, axis=2, squeeze_axis=True), ("B", 2, 3)),
    row("SliceChannel one", lambda x: S.SliceChannel(x, num_outputs=1, axis=1, squeeze_axis=True), ("B", 1, 3)),
    row("split_v2", lambda x: S.split_v2(x, (2, 3), axis=1), ("B", 6, 2)),
    row("split_v2 sections", lambda x: S.split_v2(x, 3, axis=1), ("B", 6, 2)),
    row("Concat", lambda x, y: S.Concat(x, y, dim=2), ("B", 2, 3), ("B", 2, 1)),
    row("Concat default", lambda x, y: S.Concat(x, y), ("B", 2, 3), ("B", 1, 3)),
    row("stack", lambda x, y: S.stack(x, y, axis=1), ("B", 2), ("B", 2)),
    row("tile", lambda x: S.tile(x, reps=(1, 2, 3)), ("B", 2, 3)),
    row("tile short", lambda x: S.tile(x, reps=(2,)), ("B", 2, 3)),
    row("repeat", lambda x: S.repeat(x, repeats=2, axis=1), ("B", 2, 3)),
    row("repeat flat", lambda x: S.repeat(x, repeats=2), ("B", 2, 3)),
    *(
        row(f"Pad {mode}", lambda x, mode=mode: S.Pad(x, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=2), BCHW)
        for mode in ("constant", "edge", "reflect")
    ),
    row("Pad 3d", lambda x: S.Pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 3, 0, 1, 1)), ("B", 2, 3, 4, 3)),
    row("broadcast_to", lambda x: S.broadcast_to(x, shape=(0, 3, 4)), ("B", 1, 4)),
    row("broadcast_axis", lambda x: S.broadcast_axis(x, axis=(1, 2), size=(3, 2)), ("B", 1, 1)),
    row("broadcast_like", lambda x, y: S.broadcast_like(x, y), ("B", 1, 4), ("B", 3, 4)),
    row("broadcast_like axes", lambda x, y: S.broadcast_like(x, y, lhs_axes=(1,), rhs_axes=(2,)), ("B", 1, 4), ("B", 3, 5)),
    row("depth_to_space", lambda x: S.depth_to_space(x, block_size=2), ("B", 8, 2, 3)),
    row("space_to_depth", lambda x: S.space_to_depth(x, block_size=2), ("B", 2, 4, 6)),
    row("zeros_like", lambda x: S.zeros_like(x), BCHW, gradients=False),
    row("ones_like", lambda x: S.ones_like(x), BCHW, gradients=False),
    row("arange_like", lambda x: S.contrib.arange_like(x, axis=1, start=2, step=0.5), BCHW, gradients=False),
    row("arange_like all", lambda x: S.contrib.arange_like(x, repeat=2), ("B", 4), gradients=False),
    *(
        row(name, lambda x, make=make: mx.sym.Group([x * 2, make()]), ("B", 4), gradients=False)
        for name, make in {
            "zeros": lambda: S.zeros((2, 3), dtype="int32"),
            "ones": lambda: S.ones((3,), dtype="float64"),
            "full": lambda: S.full((2, 3), 1.5, dtype="float64"),
            "full of an int": lambda: S.full((2,), 3),
            "arange": lambda: S.arange(1, 5, 2, repeat=2, dtype="int32"),
            "arange to": lambda: S.arange(4),
        }.items()
    ),
    row("rnn_param_concat", lambda x, y: S._internal._rnn_param_concat(x, y, dim=0), (5,), (3,)),
    row("shape_array", lambda x: S.shape_array(x), BCHW, gradients=False),
    row("size_array", lambda x: S.size_array(x), BCHW, gradients=False),
]

INDEXING = [
    row("slice", lambda x: S.slice(x, begin=(None, 1, -4), end=(None, 3, -1)), BCHW),
    row("slice steps", lambda x: S.slice(x, begin=(None, 0, 4), end=(None, 4, 1), step=(None, 2, -1)), BCHW),
    row("slice reversed", lambda x: S.slice(x, begin=(None, None), end=(None, None), step=(None, -2)), BCHW),
    row("slice_axis", lambda x: S.slice_axis(x, axis=-1, begin=1, end=-1), BCHW),
    row("slice_axis end", lambda x: S.slice_axis(x, axis=1, begin=-2, end=None), BCHW),
    row("slice_like", lambda x, y: S.slice_like(x, y), ("B", 4, 5), ("B", 2, 3), gradients=False),
    row("slice_like axes", lambda x, y: S.slice_like(x, y, axes=(-1,)), ("B", 4, 5), ("B", 2, 3), gradients=False),
    row("take", lambda x, i: S.take(x, i), (7, 3), ("B", 2), parameters=(0,), draw={1: below(9)}),
    row("take wrap", lambda x, i: S.take(x, i, axis=1, mode="wrap"), ("B", 5, 3), (4, 2), draw={1: below(9)}),
    row("pick", lambda x, i: S.pick(x, i, axis=1), ("B", 5, 3), ("B", 3), draw={1: below(7)}),
    row("pick keepdims", lambda x, i: S.pick(x, i, keepdims=True, mode="wrap"), ("B", 5), ("B",), draw={1: below(7)}),
    row("batch_take", lambda x, i: S.batch_take(x, i), ("B", 5), ("B",), draw={1: below(5, "int32")}, gradients=False),
    row("gather_nd", lambda x, i: S.gather_nd(x, i), (4, 5, 3), (2, "B"), draw={1: below(4)}),
    row("where", lambda c, x, y: S.where(c, x, y), ("B", 3), ("B", 3), ("B", 3), draw={0: below(3)}),
    row("where rows", lambda c, x, y: S.where(c, x, y), ("B",), ("B", 3), ("B", 3), draw={0: below(2)}),
    row("reverse", lambda x: S.reverse(x, axis=(1, 2)), BCHW),
    row("diag", lambda x: S.diag(x, k=1), (5, 6)),
    row("diag axes", lambda x: S.diag(x, axis1=1, axis2=2), ("B", 4, 5)),
    row("diag of a vector", lambda x: S.diag(x, k=-1), (5,)),
    row("Crop", lambda x: S.Crop(x, h_w=(3, 4), offset=(1, 2)), BCHW, gradients=False),
    row("Crop centre", lambda x, y: S.Crop(x, y, center_crop=True, num_args=2), BCHW, ("B", 1, 2, 3), gradients=False),
]

REDUCTIONS = [
    *(
        row(f"{name} {attrs}", lambda x, name=name, attrs=attrs: getattr(S, name)(x, **attrs), ("B", 4, 5), draw=distinct)
        for name in ("sum", "mean", "prod", "max", "min", "nansum", "nanprod")
        for attrs in ({"axis": 1}, {"axis": (1, 2), "keepdims": True}, {"axis": 1, "exclude": True}, {})
    ),
    row("sum all kept", lambda x: S.sum(x, keepdims=True), ("B", 4)),
    row("norm", lambda x: S.norm(x, axis=1), ("B", 4, 5)),
    row("norm 1", lambda x: S.norm(x, ord=1, axis=(1, 2), keepdims=True), ("B", 4, 5)),
    row("norm all", lambda x: S.norm(x), ("B", 4, 5)),
    row("moments", lambda x: S.moments(x, axes=(1, 2)), ("B", 4, 5)),
    row("argmax", lambda x: S.argmax(x, axis=1), ("B", 4, 5), gradients=False),
    row("argmax kept", lambda x: S.argmax(x, axis=-1, keepdims=True), ("B", 4, 5), gradients=False),
    row("argmax all", lambda x: S.argmax(x), ("B", 4), gradients=False),
    row("argmin", lambda x: S.argmin(x, axis=2), ("B", 4, 5), gradients=False),
    row("argmax_channel", lambda x: S.argmax_channel(x), ("B", 4), gradients=False),
    *(
        row(f"topk {kind}", lambda x, kind=kind: S.topk(x, k=2, axis=1, ret_typ=kind, is_ascend=kind == "mask"), ("B", 5, 3), draw=distinct, gradients=False)
        for kind in ("indices", "value", "both", "mask")
    ),
    row("topk all", lambda x: S.topk(x, k=0, ret_typ="value"), ("B", 5), draw=distinct, gradients=False),
    row("topk flat", lambda x: S.topk(x, k=3, axis=None, dtype="int32"), ("B", 5), draw=distinct, gradients=False),
    row("sort", lambda x: S.sort(x, axis=1), ("B", 5, 2), draw=distinct, gradients=False),
    row("sort descending", lambda x: S.sort(x, is_ascend=False), ("B", 5, 2), draw=distinct, gradients=False),
    row("argsort", lambda x: S.argsort(x, axis=1, is_ascend=False), ("B", 5, 2), draw=distinct, gradients=False),
    row("cumsum", lambda x: S.cumsum(x, axis=1), ("B", 5, 2)),
    row("cumsum flat", lambda x: S.cumsum(x), ("B", 5, 2)),
    row("dot", lambda x, y: S.dot(x, y), ("B", 3), (3, 4)),
    row("dot transposed", lambda x, y: S.dot(x, y, transpose_a=True, transpose_b=True), (3, "B"), (4, 3)),
    row("dot 3d", lambda x, y: S.dot(x, y), ("B", 2, 3), (3, 4, 2)),
    row("dot vectors", lambda x, y: S.dot(x, y), (3,), (3,)),
    row("batch_dot", lambda x, y: S.batch_dot(x, y, transpose_b=True), ("B", 2, 3), ("B", 4, 3)),
    row("batch_dot first", lambda x, y: S.batch_dot(x, y, transpose_a=True), ("B", 3, 2), ("B", 3, 4)),
    row("gemm2", lambda x, y: S.linalg.gemm2(x, y, alpha=0.5, transpose_b=True), ("B", 2, 3), ("B", 4, 3)),
    row("gemm", lambda x, y, z: S.linalg.gemm(x, y, z, alpha=0.5, beta=3.0), ("B", 2, 3), ("B", 3, 4), ("B", 2, 4)),
    row("syrk", lambda x: S.linalg.syrk(x, alpha=0.5, transpose=True), ("B", 2, 3)),
]

_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt", "rcbrt", "reciprocal", "arccosh", "gammaln")
_INSIDE = ("arcsin", "arccos", "arctanh", "erfinv")
_STEPS = ("sign", "floor", "ceil", "trunc", "fix", "round", "rint", "logical_not")
_UNARY = (
    *_POSITIVE, *_INSIDE, *_STEPS, "abs", "exp", "expm1", "square", "sin", "cos", "tan", "arctan", "sinh", "cosh", "arcsinh",
    "erf", "sigmoid", "tanh", "negative", "relu", "softsign", "degrees", "radians", "gamma", "identity", "make_loss",
)  # fmt: skip


def _domain(name):
    if name in _POSITIVE:
        return above(1.1 if name == "arccosh" else 0.3)
    if name in ("round", "rint"):
        return lambda random, shape: (random.integers(-9, 9, shape) / 2).astype("float32")
    if name == "logical_not":
        return below(2)
    return above(-0.9, 0.9) if name in _INSIDE else above(-2.4, 2.3)


def pair(name, draw=None, gradients=True, shapes=(("B", 3), ("B", 3))):
    operator = getattr(S, name, None) or getattr(S._internal, name)
    return row(name, lambda x, y: operator(x, y), *shapes, draw=draw, gradients=gradients)


BROADCAST = (("B", 3, 4), ("B", 1, 4))
ARITHMETIC = [
    *(row(name, lambda x, name=name: getattr(S, name)(x), ("B", 7), draw=_domain(name), gradients=name not in (*_STEPS, "make_loss")) for name in _UNARY),
    row("cbrt negative", lambda x: S.cbrt(x), ("B", 7), draw=above(-2, -0.5)),
    *(pair(f"{kind}_{name}", shapes=BROADCAST if kind == "broadcast" else (("B", 3), ("B", 3)), draw=above(0.5)) for kind in ("elemwise", "broadcast") for name in ("add", "sub", "mul", "div")),
    *(pair(f"broadcast_{name}", above(-2, 2), name in ("maximum", "minimum", "hypot"), BROADCAST) for name in ("maximum", "minimum", "hypot", "mod")),
    pair("broadcast_power", above(0.5), shapes=BROADCAST),
    pair("_power", above(0.5)),
    pair("_mod", above(-2, 2), False),
    *(pair(f"broadcast_{name}", below(3), False, BROADCAST) for name in ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor")),
    *(pair(f"_{name}", below(3), False) for name in ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "hypot")),
    *(
        row(f"{name}_scalar {scalar}", lambda x, name=name, scalar=scalar: getattr(S._internal, f"_{name}_scalar")(x, scalar=scalar), ("B", 4), draw=above(0.5), gradients="mod" not in name)
        for name in ("plus", "minus", "rminus", "mul", "div", "rdiv", "mod", "rmod", "power", "rpower", "maximum", "minimum", "hypot")
        for scalar in (1.25, 2.0)
    ),
    *(
        row(f"{name}_scalar {scalar}", lambda x, name=name, scalar=scalar: getattr(S._internal, f"_{name}_scalar")(x, scalar=scalar), ("B", 4), draw=below(3), gradients=False)
        for name in ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor")
        for scalar in (1.0, 0.0)
    ),
    row("div of ints", lambda x: S.Cast(x, "int32") / 2, ("B", 5), draw=above(-9, 9), gradients=False),
    row("nested", lambda x, y: (x - (y - 2)) * 3 / (x + 4) ** 2 - -y, ("B", 4), ("B", 4), draw=above(0.5)),
    row("add_n", lambda x, y, z: S.add_n(x, y, z), ("B", 3), ("B", 3), ("B", 3)),
    row("clip", lambda x: S.clip(x, -0.5, 1), ("B", 9)),
    row("hard_sigmoid", lambda x: S.hard_sigmoid(x, alpha=0.3, beta=0.4), ("B", 9)),
    row("smooth_l1", lambda x: S.smooth_l1(x, scalar=2.0), ("B", 9)),
    row("quadratic", lambda x: S.contrib.quadratic(x, a=2, b=-1, c=3), ("B", 9)),
    row("div_sqrt_dim", lambda x: S.contrib.div_sqrt_dim(x), ("B", 9)),
    row("BlockGrad", lambda x: S.BlockGrad(x) * x, ("B", 9)),
    row("Cast", lambda x: S.Cast(S.Cast(x, "int32"), "float32"), ("B", 9), gradients=False),
    row("amp_cast", lambda x: S.amp_cast(x, dtype="float16"), ("B", 9), gradients=False),
]

lengths = lambda random, shape: random.integers(1, 5, shape).astype("float32")  # noqa: E731


def attention(name, *shapes):
    operator = getattr(S.contrib, f"interleaved_matmul_{name}")
    return row(name, lambda *inputs: operator(*inputs, heads=2), *shapes)


SEQUENCES = [
    row("SequenceMask", lambda x, n: S.SequenceMask(x, n, use_sequence_length=True, value=-3), (5, "B", 2), ("B",), draw={1: lengths}, gradients=False),
    row("SequenceMask axis", lambda x, n: S.SequenceMask(x, n, use_sequence_length=True, axis=1), ("B", 5), ("B",), draw={1: lengths}, gradients=False),
    row("SequenceMask none", lambda x: S.SequenceMask(x, value=-3), (5, "B", 2), gradients=False),
    row("SequenceLast", lambda x, n: S.SequenceLast(x, n, use_sequence_length=True), (5, "B", 2), ("B",), draw={1: lengths}, gradients=False),
    row("SequenceLast axis", lambda x, n: S.SequenceLast(x, n, use_sequence_length=True, axis=1), ("B", 5, 2), ("B",), draw={1: lengths}, gradients=False),
    row("SequenceLast none", lambda x: S.SequenceLast(x, axis=1), ("B", 5, 2), gradients=False),
    row("SequenceReverse", lambda x, n: S.SequenceReverse(x, n, use_sequence_length=True), (5, "B", 2), ("B",), draw={1: lengths}, gradients=False),
    row("SequenceReverse none", lambda x: S.SequenceReverse(x), (5, "B", 2), gradients=False),
    attention("selfatt_qk", (5, "B", 24)),
    attention("selfatt_valatt", (5, "B", 24), ("2B", 5, 5)),
    attention("encdec_qk", (3, "B", 8), (5, "B", 16)),
    attention("encdec_valatt", (5, "B", 16), ("2B", 3, 5)),
    row("box_nms", lambda x: S.contrib.box_nms(x, overlap_thresh=0.2, id_index=0, valid_thresh=0.2), ("B", 12, 6), draw=boxes, gradients=False),
    row("box_nms topk", lambda x: S.contrib.box_nms(x, overlap_thresh=0.3, topk=5, force_suppress=True, id_index=0), ("B", 12, 6), draw=boxes, gradients=False),
    row("box_nms background", lambda x: S.contrib.box_nms(x, overlap_thresh=0.2, id_index=0, background_id=0), ("B", 12, 6), draw=boxes, gradients=False),
    row("box_nms 2d", lambda x: S.contrib.box_nms(x, overlap_thresh=0.2), (9, 6), draw=boxes, gradients=False),
    row("box_decode", lambda x, a: S.contrib.box_decode(x, a, std0=0.1, std1=0.2, std2=0.3, std3=0.4, clip=0.2), ("B", 5, 4), (1, 5, 4), draw=above(0.2), gradients=False),
    row("box_decode corner", lambda x, a: S.contrib.box_decode(x, a, format="corner"), ("B", 5, 4), (1, 5, 4), draw=above(0.2), gradients=False),
    row("MultiBoxPrior", lambda x: S.contrib.MultiBoxPrior(x, sizes=(0.5, 0.3), ratios=(1, 2, 0.5)), ("B", 3, 4, 6), gradients=False),
    row("MultiBoxPrior steps", lambda x: S.contrib.MultiBoxPrior(x, sizes=(0.5,), ratios=(2, 1), steps=(0.2, 0.3), offsets=(0.4, 0.6), clip=True), ("B", 3, 4, 6), gradients=False),
    row("ROIAlign", lambda x, b: S.contrib.ROIAlign(x, b, pooled_size=(3, 2), spatial_scale=0.7, sample_ratio=2), (2, 3, 9, 9), ("B", 5), draw={1: regions}, gradients=False),
    row("ROIAlign aligned", lambda x, b: S.contrib.ROIAlign(x, b, pooled_size=(2, 2), spatial_scale=0.7, sample_ratio=3, aligned=True), (2, 3, 9, 9), ("B", 5), draw={1: regions}, gradients=False),
    *(
        row(
            f"MultiBoxDetection {attrs}",
            lambda p, x, a, attrs=attrs: S.contrib.MultiBoxDetection(p, x, a, **attrs),
            ("B", 4, 12), ("B", 48), (1, 12, 4), draw={0: shares, 1: above(-0.5, 0.5), 2: anchors}, gradients=False,
        )
        for attrs in (
            {"nms_threshold": 0.1},
            {"nms_threshold": 0.1, "nms_topk": 5, "threshold": 0.4},
            {"nms_threshold": 0.2, "threshold": 0.45, "force_suppress": True, "clip": False, "variances": (0.2, 0.3, 0.4, 0.5)},
        )
    ),
    row("GridGenerator", lambda x: S.GridGenerator(x, transform_type="affine", target_shape=(3, 5)), ("B", 6)),
    row(
        "SpatialTransformer",
        lambda x, m: S.SpatialTransformer(x, m, transform_type="affine", sampler_type="bilinear", target_shape=(3, 4)),
        BCHW, ("B", 6), draw={1: above(-0.8, 0.8)}, gradients=False,
    ),
    row("BilinearSampler", lambda x, g: S.BilinearSampler(x, g), BCHW, ("B", 2, 3, 4), draw={1: above(-1.2, 1.2)}, gradients=False),
]

N, X, I = S.np, S.npx, S.np._internal


def numpy(name, make, *shapes, **more):
    return row(f"np {name}", make, *shapes, numpy=True, **more)


_NUMPY_FUNCTIONS = (
    *"exp expm1 log log1p log2 log10 sqrt square reciprocal sin cos tan arcsin arccos arctan sinh cosh tanh".split(),
    *"arcsinh arccosh arctanh absolute negative cbrt degrees radians".split(),
)
_NUMPY_STEPS = ("sign", "floor", "ceil", "trunc", "fix", "rint", "around", "isnan", "isinf", "isfinite", "logical_not")


def _numpy_domain(name):
    if name in ("sqrt", "reciprocal", "cbrt", "arccosh") or name.startswith("log") and name != "logical_not":
        return above(1.1)
    if name in ("rint", "around"):
        return _domain("round")
    return below(2) if name == "logical_not" else above(-0.9, 0.9)


NUMPY = [
    *(
        numpy(name, lambda x, name=name: getattr(N, name)(x), ("B", 7), draw=_numpy_domain(name), gradients=name in _NUMPY_FUNCTIONS)
        for name in (*_NUMPY_FUNCTIONS, *_NUMPY_STEPS)
    ),
    *(
        numpy(name, lambda x, y, name=name: getattr(N, name)(x, y), ("B", 3), ("B", 1), draw=above(0.5))
        for name in ("add", "subtract", "multiply", "true_divide", "power", "maximum", "minimum", "hypot", "arctan2")
    ),
    numpy("mod", lambda x, y: N.mod(x, y), ("B", 3), ("B", 3), draw=above(-2, 2), gradients=False),
    *(
        numpy(name, lambda x, y, name=name: getattr(N, name)(x, y), ("B", 3), (3,), draw=below(3), gradients=False)
        for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    ),
    numpy("scalars", lambda x: 3 / (2 - x) + (x + 1.5) ** 2 * 0.5 - (x - 1) / 4, ("B", 3), draw=above(0.2, 0.9)),
    numpy("power of a scalar", lambda x: 2.5**x % 3, ("B", 3), gradients=False),
    numpy("mod of a scalar", lambda x: 7 % x, ("B", 3), draw=above(0.5), gradients=False),
    *(
        numpy(f"{name}_scalar", lambda x, name=name: getattr(I, f"{name}_scalar")(x, scalar=1.0), ("B", 5), draw=below(3), gradients=False)
        for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    ),
    *(numpy(name, lambda x, name=name: getattr(N, name)(1 / x), ("B", 5), draw=below(2), gradients=False) for name in ("isposinf", "isneginf")),
    numpy("copy", lambda x: N.copy(x), ("B", 4)),
    numpy("where left", raw("_npi_where_lscalar", 2, scalar=2.5), ("B", 4), ("B", 4), draw={0: below(2)}, gradients=False),
    numpy("where right", raw("_npi_where_rscalar", 2, scalar=2.5), ("B", 4), ("B", 4), draw={0: below(2)}, gradients=False),
    *(numpy(f"{name} operator", raw(f"_npi_{name}", 1, axis=(1,), ddof=1, keepdims=True), ("B", 4), gradients=False) for name in ("std", "var")),
    numpy("compare", lambda x: N.where(x > 1, x, x * 2) + N.where(x < 1, x, x * 0.5), ("B", 3), draw=below(3), gradients=False),
    numpy("where", lambda c, x, y: N.where(c, x, y), ("B", 3), ("B", 3), (3,), draw={0: below(2)}),
    numpy("where scalars", lambda x: N.where(x, 2.0, 3.0) + N.where(x, x, 4.0) + N.where(x, 5.0, x), ("B", 3), draw=below(2), gradients=False),
    *(
        numpy(f"{name} {attrs}", lambda x, name=name, attrs=attrs: getattr(N, name)(x, **attrs), ("B", 4, 5), draw=distinct, gradients=gradients)
        for name, gradients in (("sum", True), ("mean", True), ("max", True), ("min", True), ("prod", True), ("std", False), ("var", False))
        for attrs in ({}, {"axis": 1}, {"axis": (-1, 1), "keepdims": True}, {"keepdims": True})
    ),
    numpy("around decimals", lambda x: N.around(x, 1), ("B", 4), gradients=False),
    numpy("std ddof", lambda x: N.std(x, axis=1, ddof=1), ("B", 4), gradients=False),
    numpy("argmax", lambda x: N.argmax(x, axis=1), ("B", 4, 5), gradients=False),
    numpy("argmin", lambda x: N.argmin(x, axis=-1), ("B", 4, 5), gradients=False),
    numpy("argmin all", lambda x: N.argmin(x), ("B", 4, 5), gradients=False),
    numpy("norm", lambda x: N.linalg.norm(x, ord=1, axis=1), ("B", 4, 5), gradients=False),
    numpy("norm all", lambda x: N.linalg.norm(x, keepdims=True), ("B", 4, 5), gradients=False),
    numpy("any", lambda x: N.any(x, axis=1), ("B", 4), draw=below(2), gradients=False),
    numpy("all", lambda x: N.all(x), ("B", 4), draw=below(2), gradients=False),
    numpy("reshape", lambda x: N.reshape(x, (-1, 6)), ("B", 4, 6)),
    *(
        numpy(f"npx.reshape {shape} {reverse or ''}", lambda x, shape=shape, reverse=reverse: X.reshape(x, shape, reverse=reverse), ("B", 1, 6, 5))
        for shape, reverse in (
            ((-2, -1), False), ((-2, -3, -5), False), ((-2, -4), False), ((-2, -2, -6, 2, -1, -2), False),
            ((-2, -2, -6, -1, 2, 5), False), ((-1, -2, 6, 5), True), ((-2, -3, -5), True) if False else ((-5, -2, -2), True),
            ((-2, -2, 3, 2, -6, -2), True),
        )
    ),
    numpy("transpose", lambda x: N.transpose(x, (0, 2, 1)), ("B", 4, 5)),
    numpy("transpose all", lambda x: N.transpose(x), ("B", 4, 5)),
    numpy("squeeze", lambda x: N.squeeze(x, (1, 3)), ("B", 1, 3, 1)),
    numpy("moveaxis", lambda x: N.moveaxis(x, 1, -1), ("B", 4, 5, 2)),
    numpy("swapaxes", lambda x: N.swapaxes(x, 1, 2), ("B", 4, 5)),
    numpy("expand_dims", lambda x: N.expand_dims(x, -1), ("B", 4)),
    numpy("roll", lambda x: N.roll(x, 2, axis=1), ("B", 4)),
    numpy("flip", lambda x: N.flip(x, 1), ("B", 4)),
    numpy("concatenate", lambda x, y: N.concatenate([x, y], axis=-1), ("B", 4), ("B", 2)),
    numpy("concatenate flat", lambda x, y: N.concatenate([x, y], axis=None), ("B", 4), ("B", 2)),
    numpy("stack", lambda x, y: N.stack([x, y], axis=1), ("B", 4), ("B", 4)),
    numpy("vstack", lambda x, y: N.vstack([x, y]), ("B", 4), ("B", 4)),
    numpy("split", lambda x: N.split(x, 2, axis=1), ("B", 4)),
    numpy("split at", lambda x: N.split(x, [1, 3], axis=1), ("B", 4)),
    numpy("index", lambda x: x[:, 1:3], ("B", 4)),
    numpy("dot", lambda x, y: N.dot(x, y), ("B", 4), (4, 3)),
    numpy("dot 3d", lambda x, y: N.dot(x, y), ("B", 2, 4), (4,)),
    numpy("matmul", lambda x, y: N.matmul(x, y), ("B", 2, 4), ("B", 4, 3)),
    numpy("tensordot", lambda x, y: N.tensordot(x, y, axes=([1], [0])), ("B", 4), (4, 3)),
    numpy("tensordot int", lambda x, y: N.tensordot(x, y, axes=1), ("B", 4), (4, 3)),
    numpy("einsum", lambda x, y: N.einsum("bij,bkj->bik", x, y), ("B", 2, 4), ("B", 3, 4)),
    numpy("broadcast_to", lambda x: N.broadcast_to(x, (2, 3, 4)), (3, 1)),
    numpy("tril", lambda x: N.tril(x, 1), (4, 5)),
    numpy("clip", lambda x: N.clip(x, -0.5, 0.5), ("B", 4)),
    numpy("cumsum", lambda x: N.cumsum(x, axis=1), ("B", 4)),
    numpy("full_like", lambda x: N.full_like(x, 2.5), ("B", 4), gradients=False),
    *(
        numpy(name, lambda x, make=make: [x * 2, make()], ("B", 4), gradients=False)
        for name, make in {
            "zeros": lambda: N.zeros((2, 3), dtype="int32"),
            "ones": lambda: N.ones((3,), dtype="float64"),
            "arange": lambda: N.arange(1, 9, 2, dtype="int32"),
            "arange to": lambda: N.arange(2.5),
        }.items()
    ),
    numpy("relu", lambda x: X.relu(x), ("B", 4)),
    numpy("sigmoid", lambda x: X.sigmoid(x), ("B", 4)),
    numpy("softmax", lambda x: X.softmax(x, axis=1), ("B", 4)),
    numpy("topk", lambda x: X.topk(x, k=2, ret_typ="both"), ("B", 4), draw=distinct, gradients=False),
    numpy("gelu", lambda x: X.leaky_relu(x, act_type="gelu"), ("B", 4)),
    numpy("fully_connected", lambda x, w: X.fully_connected(x, w, num_hidden=3, no_bias=True), ("B", 2, 2), (3, 4), parameters=(1,)),
]

ROWS: List[Row] = [
    *CONVOLUTIONS, *DENSE, *NORMS, *ACTIVATIONS, *POOLING, *SHAPES, *INDEXING, *REDUCTIONS, *ARITHMETIC, *SEQUENCES, *NUMPY,
]  # fmt: skip
