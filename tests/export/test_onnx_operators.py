"""Every conversion to ONNX computes what MXNet computes, at batch sizes that the net was not traced with."""

from mxkit.export.net_graph import Graph
from mxkit.export.to_onnx.onnx_model import onnx_model
from mxkit.export.to_onnx.onnx_proof import compare_onnx
import mxnet as mx
import numpy as np
import onnxruntime
import pytest

S = mx.sym
BATCHES = (1, 4)


def graph_of_symbol(symbol, shapes, weights, numpy=False):
    """A graph of operators without a net; arrays of weights are drawn from a fixed seed."""
    outputs = symbol if isinstance(symbol, mx.sym.Symbol) else mx.sym.Group(symbol)
    random = np.random.RandomState(1)
    arrays = {}
    auxiliary = set(outputs.list_auxiliary_states())
    known = {
        **shapes,
        **{name: np.shape(value) if not isinstance(value, tuple) else value for name, value in weights.items()},
    }
    inferred = outputs.infer_shape(**known)
    every = {**dict(zip(outputs.list_arguments(), inferred[0])), **dict(zip(auxiliary, ()))}
    every.update(zip(outputs.list_auxiliary_states(), inferred[2]))
    for name, shape in every.items():
        if name not in shapes:
            value = weights.get(name)
            drawn = random.uniform(0.2, 1, shape) if value is None or isinstance(value, tuple) else np.asarray(value)
            arrays[f"{'aux' if name in auxiliary else 'arg'}:{name}"] = mx.nd.array(drawn, dtype="float32")
    return Graph(outputs, arrays, list(shapes), {}, numpy)


def compared(symbol, shapes, weights=None, dtypes=None, values=None, batch_axes=None):
    graph = graph_of_symbol(symbol, shapes, weights or {})
    types = [(dtypes or {}).get(name, "float32") for name in shapes]
    model = onnx_model(graph, list(shapes.values()), types, {}).SerializeToString()
    random = np.random.RandomState(0)
    batches = []
    for batch in BATCHES:
        given = {}
        for name, shape, dtype in zip(shapes, shapes.values(), types):
            axis = (batch_axes or {}).get(name, 0)
            full = (*shape[:axis], batch, *shape[axis + 1 :])
            drawn = (values or {}).get(name, lambda size: random.uniform(-2, 2, size))(full)
            given[name] = np.asarray(drawn).astype(dtype)
        batches.append(given)
    made = compare_onnx(graph, model, batches)
    assert [name for name in made.not_compared if not name.startswith("LeakyReLU")] == []  # rrelu's random slopes
    assert made.rows
    return made.rows


def words(text):
    return text.split()


def positive(shape):
    return np.random.RandomState(2).uniform(0.1, 2, shape)


def inside_one(shape):
    return np.random.RandomState(2).uniform(-0.9, 0.9, shape)


def whole(high, low=0):
    return lambda shape: np.random.RandomState(3).randint(low, high, shape)


def distinct_values(shape):
    return np.random.RandomState(4).permutation(int(np.prod(shape))).reshape(shape) / 7


def regions(shape):
    """Rows of an image's number and two corners."""
    low = np.random.RandomState(5).randint(0, 9, (shape[0], 2))
    corners = np.concatenate([low, low + [4, 6]], axis=1)  # MXNet ends the process at an empty region
    return np.concatenate([whole(2)((shape[0], 1)), corners], axis=1)


def boxes(shape):
    """Rows of a class, a score and two corners."""
    random = np.random.RandomState(6)
    low = random.uniform(0, 1, (*shape[:2], 2))
    scores = random.permutation(shape[0] * shape[1]).reshape(*shape[:2], 1) / (shape[0] * shape[1])
    return np.concatenate(
        [random.randint(0, 3, (*shape[:2], 1)), scores, low, low + random.uniform(0, 1, low.shape)], 2
    )


x, y, w, b = (S.var(name) for name in "xywb")
IMAGE = {"x": (2, 4, 7, 9)}
VOLUME = {"x": (2, 4, 5, 6, 7)}
LINE = {"x": (2, 4, 9)}
ROWS = {"x": (2, 6)}
TIME = {"x": (2, 5, 6)}
TWO = {"x": (2, 3, 4), "y": (2, 3, 4)}
WIDE = {"x": (2, 3, 4), "y": (2, 1, 4)}

CASES = {
    # convolutions
    "conv": (S.Convolution(x, kernel=(3, 3), num_filter=6, pad=(1, 1), name="o"), IMAGE),
    "conv_plain": (S.Convolution(x, kernel=(3, 2), num_filter=6, name="o"), IMAGE),
    "conv_group_dilate": (
        S.Convolution(
            x, kernel=(3, 3), num_filter=8, num_group=4, dilate=(2, 1), stride=(1, 2), no_bias=True, name="o"
        ),
        IMAGE,
    ),
    "conv1d": (S.Convolution(x, kernel=(3,), num_filter=6, pad=(2,), stride=(2,), name="o"), LINE),
    "conv3d": (S.Convolution(x, kernel=(3, 2, 3), num_filter=2, pad=(1, 0, 1), name="o"), VOLUME),
    "deconv": (S.Deconvolution(x, kernel=(4, 4), num_filter=3, stride=(2, 2), pad=(1, 1), name="o"), IMAGE),
    "deconv_adj": (
        S.Deconvolution(
            x, kernel=(3, 3), num_filter=4, num_group=2, stride=(2, 3), pad=(1, 0), adj=(1, 2), no_bias=False, name="o"
        ),
        IMAGE,
    ),
    # oneDNN computes a target_shape only where it is the shape without padding
    "deconv_target": (
        S.Deconvolution(x, kernel=(2, 2), num_filter=3, stride=(2, 2), target_shape=(14, 18), name="o"),
        IMAGE,
    ),
    "deconv_dilate": (S.Deconvolution(x, kernel=(3, 3), num_filter=3, dilate=(2, 2), name="o"), IMAGE),
    "deconv1d": (S.Deconvolution(x, kernel=(3,), num_filter=3, stride=(2,), name="o"), LINE),
    # dense layers
    "fc": (S.FullyConnected(x, num_hidden=3, name="o"), IMAGE),
    "fc_no_bias": (S.FullyConnected(x, num_hidden=3, no_bias=True, name="o"), ROWS),
    "fc_last_axis": (S.FullyConnected(x, num_hidden=3, flatten=False, name="o"), TIME),
    "fc_last_axis_no_bias": (S.FullyConnected(x, num_hidden=3, flatten=False, no_bias=True, name="o"), TIME),
    # normalizations
    "bn": (S.BatchNorm(x, fix_gamma=False, eps=1e-5, name="o"), IMAGE),
    "bn_defaults": (S.BatchNorm(x, name="o"), IMAGE),
    "bn_last_axis": (S.BatchNorm(x, axis=-1, fix_gamma=False, name="o"), IMAGE),
    "bn_rows": (S.BatchNorm(x, fix_gamma=False, use_global_stats=True, name="o"), ROWS),
    "bn_sync": (S.contrib.SyncBatchNorm(x, fix_gamma=False, key="k", name="o"), IMAGE),
    "layer_norm": (S.LayerNorm(x, eps=1e-3, name="o"), TIME),
    "layer_norm_axis": (S.LayerNorm(x, axis=1, name="o"), IMAGE),
    "group_norm": (S.GroupNorm(x, num_groups=2, eps=1e-3, name="o"), IMAGE, {"o_gamma": (2,), "o_beta": (2,)}),
    "instance_norm": (S.InstanceNorm(x, name="o"), IMAGE),
    **{f"l2_{mode}": (S.L2Normalization(x, mode=mode), IMAGE) for mode in ("instance", "channel", "spatial")},
    "lrn": (S.LRN(x, nsize=3), IMAGE),
    "lrn_all": (S.LRN(x, nsize=5, alpha=0.5, beta=0.6, knorm=1.5), IMAGE),
    # activations
    **{f"act_{kind}": (S.Activation(x, act_type=kind), TIME) for kind in words("relu sigmoid tanh softrelu softsign")},
    **{f"leaky_{kind}": (S.LeakyReLU(x, act_type=kind)[0], TIME) for kind in words("leaky elu selu gelu rrelu")},
    "leaky_slope": (S.LeakyReLU(x, act_type="leaky", slope=0.1), TIME),
    "prelu": (S.LeakyReLU(x, act_type="prelu", name="o"), IMAGE),
    "prelu_one": (S.LeakyReLU(x, w, act_type="prelu"), IMAGE, {"w": (1,)}),
    "prelu_rows": (S.LeakyReLU(x, act_type="prelu", name="o"), ROWS),
    "prelu_square": (S.LeakyReLU(x, act_type="prelu", name="o"), {"x": (2, 5, 5, 5)}),
    "hard_sigmoid": (S.hard_sigmoid(x, alpha=0.3, beta=0.4), TIME),
    "softmax": (S.softmax(x), TIME),
    "softmax_axis": (S.softmax(x, axis=1, temperature=2.5), TIME),
    "softmax_length": (
        S.softmax(x, y, axis=1, use_length=True),
        {"x": (2, 5, 6), "y": (2, 6)},
        {},
        {"y": "int32"},
        {"y": whole(6, 1)},
    ),
    "log_softmax": (S.log_softmax(x, axis=1), TIME),
    "softmin": (S.softmin(x, axis=1), TIME),
    "softmax_activation": (S.SoftmaxActivation(x), IMAGE),
    "softmax_activation_channel": (S.SoftmaxActivation(x, mode="channel"), IMAGE),
    "dropout": (S.Dropout(x), ROWS),
    # elementwise
    **{
        kind: (getattr(S, kind)(x), TIME)
        for kind in words(
            "negative abs exp floor ceil sin cos tan arctan sinh cosh tanh arcsinh erf sigmoid relu sign "
            "reciprocal softsign square cbrt expm1 degrees radians rint round trunc fix identity BlockGrad "
            "logical_not zeros_like ones_like smooth_l1"
        )
    },
    **{
        kind: (getattr(S, kind)(x), TIME, {}, {}, {"x": positive})
        for kind in words("sqrt log rsqrt rcbrt log10 log2 log1p")
    },
    **{kind: (getattr(S, kind)(x), TIME, {}, {}, {"x": inside_one}) for kind in words("arcsin arccos arctanh")},
    "rint_halves": (S.Group([S.rint(x), S.round(x), S.trunc(x)]), ROWS, {}, {}, {"x": lambda s: whole(9, -9)(s) / 2}),
    **{f"elemwise_{kind}": (getattr(S, f"elemwise_{kind}")(x, y), TWO) for kind in words("add sub mul div")},
    **{
        f"broadcast_{kind}": (getattr(S, f"broadcast_{kind}")(x, y), WIDE)
        for kind in words(
            "add sub mul div mod maximum minimum hypot equal not_equal greater greater_equal "
            "lesser lesser_equal logical_and logical_or logical_xor"
        )
    },
    "broadcast_power": (S.broadcast_power(x, y), WIDE, {}, {}, {"x": positive}),
    "equal_whole": (
        S.Group([S.broadcast_equal(x, y), S.broadcast_greater_equal(x, y), S.broadcast_not_equal(x, y)]),
        WIDE,
        {},
        {},
        {"x": whole(3), "y": whole(3)},
    ),
    "add_n": (S.add_n(x, y, x), TWO),
    "scalars": (
        S.Group([x + 1.5, x - 1.5, 1.5 - x, x * 1.5, x / 1.5, 1.5 / x, S.maximum(x, 0.3), S.minimum(x, 0.3)]),
        TIME,
    ),
    "scalars_mod": (S.Group([x % 0.7, S.broadcast_mod(x, S.ones_like(x) * -0.7)]), TIME),
    "scalars_power": (S.Group([x**2.5, 2.5**x]), TIME, {}, {}, {"x": positive}),
    "scalars_compared": (S.Group([x > 1, x >= 1, x < 1, x <= 1, x == 1, x != 1]), TIME, {}, {}, {"x": whole(3)}),
    "scalars_of_integers": (
        S.Group([x + 2, x - 2, 2 - x, x * 3, x > 1, x == 1, S.Cast(x, dtype="float32") * 0.5]),
        TIME,
        {},
        {"x": "int32"},
        {"x": whole(9, -9)},
    ),
    "clip": (S.clip(x, -0.5, 1), TIME),
    "clip_whole": (S.clip(x, -2, 3), TIME, {}, {"x": "int32"}, {"x": whole(9, -9)}),
    "cast": (S.Group([S.Cast(x, dtype="int32"), S.Cast(x, dtype="float64")]), TIME),
    "cast_bytes": (S.Cast(x, dtype="float32") / 255, IMAGE, {}, {"x": "uint8"}, {"x": whole(256)}),
    "where": (S.where(x > 0, x, y), TWO),
    "where_rows": (
        S.where(S.slice(x, begin=(None, 0, 0), end=(None, 1, 1)).reshape((-1,)), x, y),
        TWO,
        {},
        {},
        {"x": whole(2)},
    ),
    # pooling
    **{
        f"pool_{kind}_{convention}": (
            S.Pooling(x, kernel=(3, 2), stride=(2, 2), pad=(1, 0), pool_type=kind, pooling_convention=convention),
            {"x": (2, 3, 8, 9)},
        )
        for kind in ("max", "avg", "sum")
        for convention in ("valid", "full")
    },
    "pool_avg_inside": (
        S.Pooling(x, kernel=(3, 3), stride=(1, 1), pad=(1, 1), pool_type="avg", count_include_pad=False),
        IMAGE,
    ),
    "pool_avg_full_inside": (
        S.Pooling(
            x,
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
            pool_type="avg",
            count_include_pad=False,
            pooling_convention="full",
        ),
        {"x": (2, 3, 8, 10)},
    ),
    "pool_full_beyond": (
        S.Pooling(x, kernel=(2, 2), stride=(3, 3), pool_type="max", pooling_convention="full"),
        {"x": (2, 3, 8, 9)},
    ),
    "pool_full_padded": (
        S.Pooling(x, kernel=(2, 2), stride=(2, 2), pad=(1, 1), pool_type="max", pooling_convention="full"),
        {"x": (2, 3, 7, 9)},
    ),
    **{
        f"pool_lp{order}": (S.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=order), IMAGE, {}, {}, {"x": positive})
        for order in (1, 2, 3)
    },
    **{
        f"pool_global_{kind}": (S.Pooling(x, kernel=(1, 1), global_pool=True, pool_type=kind), IMAGE)
        for kind in ("max", "avg", "sum")
    },
    "pool_1d": (S.Pooling(x, kernel=(3,), stride=(2,), pad=(1,), pool_type="avg"), LINE),
    "pool_3d": (S.Pooling(x, kernel=(2, 2, 3), stride=(2, 1, 2), pool_type="max", pooling_convention="full"), VOLUME),
    **{f"adaptive_{size}": (S.contrib.AdaptiveAvgPooling2D(x, output_size=size), IMAGE) for size in (1, (3, 4), 6)},
    # resizing and padding
    "upsampling": (S.UpSampling(x, scale=2, sample_type="nearest"), IMAGE),
    "upsampling_two": (
        S.UpSampling(x, y, scale=2, sample_type="nearest", num_args=2),
        {"x": (2, 3, 4, 6), "y": (2, 2, 2, 3)},
    ),
    "upsampling_bilinear": (
        S.UpSampling(x, w, scale=3, sample_type="bilinear", num_filter=4, num_args=2),
        IMAGE,
        {"w": (4, 1, 5, 5)},
    ),
    **{
        f"resize_{height}_{width}_{corners}": (
            S.contrib.BilinearResize2D(x, height=height, width=width, align_corners=corners),
            IMAGE,
        )
        for height, width, corners in [(14, 13, True), (14, 13, False), (3, 4, True), (3, 4, False), (1, 5, True)]
    },
    "resize_scale": (S.contrib.BilinearResize2D(x, scale_height=2, scale_width=1.5, mode="odd_scale"), IMAGE),
    "resize_like": (
        S.contrib.BilinearResize2D(x, y, mode="like", align_corners=False),
        {"x": (2, 3, 4, 6), "y": (2, 2, 9, 5)},
    ),
    **{
        f"pad_{mode}": (S.Pad(x, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 3, 0), constant_value=0.5), IMAGE)
        for mode in ("constant", "edge", "reflect")
    },
    # shapes
    **{
        f"reshape_{number}": (S.Reshape(x, shape=shape, reverse=reverse), {"x": (2, 6, 4, 5)})
        for number, (shape, reverse) in enumerate(
            [
                ((0, -1), False),
                ((-1, 0), True),
                ((0, 0, -3), False),
                ((0, -4, 2, 3, -2), False),
                ((0, -4, -1, 3, 0, 0), False),
                ((-1, 4, 5), False),
                ((-3, -2), False),
                ((0, 0, -1), True),
            ]
        )
    },
    "flatten": (S.Flatten(x), IMAGE),
    "expand_squeeze": (S.squeeze(S.expand_dims(x, axis=-2), axis=2), TIME),
    "reshape_like": (S.reshape_like(x, y), {"x": (2, 6, 4), "y": (2, 3, 8)}),
    "transpose": (S.Group([S.transpose(x), S.transpose(x, axes=(1, 0, 2))]), TIME),
    "swap_axis": (S.SwapAxis(x, dim1=0, dim2=2), TIME),
    "slice": (S.slice(x, begin=(None, 1, None), end=(None, None, 4), step=(None, 2, None)), TIME),
    "slice_back": (S.slice(x, begin=(None, None, -1), end=(None, None, 1), step=(1, -1, -2)), TIME),
    "slice_axis": (
        S.Group([S.slice_axis(x, axis=1, begin=1, end=None), S.slice_axis(x, axis=-1, begin=-3, end=-1)]),
        TIME,
    ),
    "slice_like": (S.slice_like(x, y, axes=(1, 2)), {"x": (2, 5, 6), "y": (2, 3, 4)}),
    "slice_like_all": (S.slice_like(x, y), {"x": (2, 5, 6), "y": (2, 3, 4)}),
    "split": (S.SliceChannel(x, num_outputs=3, axis=2), TIME),
    "split_squeezed": (S.SliceChannel(x, num_outputs=5, axis=1, squeeze_axis=True), TIME),
    "split_v2": (S.split_v2(x, (1, 3), axis=1), TIME),
    "concat": (S.concat(x, y, x, dim=2), TWO),
    "stack": (S.stack(x, y, axis=-1), TWO),
    "crop": (S.Crop(x, h_w=(3, 4), offset=(2, 1), num_args=1), IMAGE),
    "crop_like": (S.Crop(x, y, center_crop=True, num_args=2), {"x": (2, 4, 7, 9), "y": (2, 1, 4, 5)}),
    "broadcast_axis": (S.broadcast_axis(S.expand_dims(x, axis=1), axis=1, size=3), TIME),
    "broadcast_to": (S.broadcast_to(S.expand_dims(x, axis=1), shape=(0, 3, 0, 0)), TIME),
    "broadcast_like": (S.broadcast_like(y, x), WIDE),
    "tile": (S.Group([S.tile(x, reps=(2, 1, 3)), S.tile(x, reps=(2,))]), TIME),
    "repeat": (S.Group([S.repeat(x, repeats=2, axis=1), S.repeat(x, repeats=3)]), TIME),
    "reverse": (S.Group([S.reverse(x, axis=1), S.flip(x, axis=(0, 2))]), TIME),
    "depth": (
        S.Group([S.depth_to_space(x, block_size=2), S.space_to_depth(y, block_size=2)]),
        {"x": (2, 8, 2, 3), "y": (2, 3, 4, 6)},
    ),
    "arange_like": (
        S.Group(
            [S.contrib.arange_like(x, axis=1), S.broadcast_add(x, S.contrib.arange_like(x, axis=2, start=2, step=3))]
        ),
        TIME,
    ),
    "constants": (S.Group([S.broadcast_add(x, S.arange(*ends)) for ends in [(1, 7, 1), (6,), (0, 3, 0.5)]]), TIME),
    "zeros": (S.broadcast_add(x, S.zeros((1, 5, 6)) + S.ones((1, 5, 6)) + S.full((1, 5, 6), 2.5)), TIME),
    "shape_array": (S.shape_array(x), TIME),
    # reductions
    **{
        f"{kind}_{number}": (getattr(S, kind)(x, **given), TIME)
        for kind in ("sum", "mean", "max", "min", "prod")
        for number, given in enumerate(
            [{"axis": 1}, {"axis": (1, 2), "keepdims": True}, {"axis": 1, "exclude": True}, {}]
        )
    },
    "norm": (S.Group([S.norm(x, axis=1), S.norm(x, ord=1, axis=(1, 2), keepdims=True), S.norm(x)]), TIME),
    "argmax": (
        S.Group([S.argmax(x, axis=1), S.argmin(x, axis=-1, keepdims=True), S.argmax(y, axis=1)]),
        {**TIME, "y": (2, 5)},
    ),
    "topk": (
        S.Group([S.topk(x, k=2), S.topk(x, k=3, ret_typ="value", axis=1, is_ascend=True)]),
        TIME,
        {},
        {},
        {"x": distinct_values},
    ),
    "topk_both": (S.Group(list(S.topk(x, k=2, ret_typ="both"))), TIME, {}, {}, {"x": distinct_values}),
    "sort": (
        S.Group([S.sort(x, axis=-1), S.argsort(x, axis=1, is_ascend=False)]),
        TIME,
        {},
        {},
        {"x": distinct_values},
    ),
    "cumsum": (S.cumsum(x, axis=1), TIME),
    # indices
    "embedding": (S.Embedding(x, input_dim=7, output_dim=3, name="o"), ROWS, {}, {}, {"x": whole(9, -2)}),
    "take": (S.take(w, x), ROWS, {"w": (7, 3)}, {}, {"x": whole(9, -2)}),
    "take_wrap": (S.take(w, x, mode="wrap", axis=1), ROWS, {"w": (2, 7)}, {}, {"x": whole(20, -20)}),
    "pick": (S.pick(x, y, axis=1), {"x": (2, 5), "y": (2,)}, {}, {}, {"y": whole(5)}),
    "pick_kept": (S.pick(x, y, axis=-1, keepdims=True), {"x": (2, 5, 6), "y": (2, 5)}, {}, {}, {"y": whole(6)}),
    "gather_nd": (S.gather_nd(w, S.transpose(x)), {"x": (2, 2)}, {"w": (4, 5, 3)}, {}, {"x": whole(4)}),
    "scatter_nd": (S.broadcast_add(x, S.scatter_nd(w, b, shape=(6,))), ROWS, {"w": (3,), "b": [[0, 2, 5]]}),
    "one_hot": (S.one_hot(x, depth=4, on_value=2, off_value=-1), ROWS, {}, {}, {"x": whole(6, -2)}),
    # products
    "dot": (S.dot(x, w), ROWS, {"w": (6, 3)}),
    "dot_transposed": (S.dot(x, w, transpose_b=True), ROWS, {"w": (3, 6)}),
    "dot_more": (S.dot(x, w), TIME, {"w": (6, 3, 2)}),
    **{
        f"batch_dot_{a}{c}": (
            S.batch_dot(x, y, transpose_a=bool(a), transpose_b=bool(c)),
            {"x": (2, 4, 3) if a else (2, 3, 4), "y": (2, 5, 4) if c else (2, 4, 5)},
        )
        for a in (0, 1)
        for c in (0, 1)
    },
    "gemm2": (S.linalg.gemm2(x, y, transpose_b=True, alpha=0.3), {"x": (2, 3, 4), "y": (2, 5, 4)}),
    "div_sqrt_dim": (S.contrib.div_sqrt_dim(x), TIME),
    # sequences
    **{
        f"mask_{axis}": (
            S.SequenceMask(x, y, use_sequence_length=True, value=-3, axis=axis),
            {"x": (2, 5, 6) if axis else (5, 2, 6), "y": (2,)},
            {},
            {},
            {"y": whole(6, 1)},
            {"x": 1 - axis},
        )
        for axis in (0, 1)
    },
    **{
        f"last_{axis}": (
            S.SequenceLast(x, y, use_sequence_length=True, axis=axis),
            {"x": (2, 5, 6) if axis else (5, 2, 6), "y": (2,)},
            {},
            {},
            {"y": whole(6, 1)},
            {"x": 1 - axis},
        )
        for axis in (0, 1)
    },
    "reverse_sequence": (
        S.SequenceReverse(x, y, use_sequence_length=True),
        {"x": (5, 2, 6), "y": (2,)},
        {},
        {},
        {"y": whole(6, 1)},
        {"x": 1},
    ),
    "sequences_alone": (S.Group([S.SequenceMask(x), S.SequenceLast(x, axis=1), S.SequenceReverse(x)]), TIME),
    # attention
    "self_attention": (
        S.contrib.interleaved_matmul_selfatt_valatt(
            x, S.softmax(S.contrib.interleaved_matmul_selfatt_qk(x, heads=2)), heads=2
        ),
        {"x": (5, 2, 24)},
        {},
        {},
        {},
        {"x": 1},
    ),
    "attention": (
        S.contrib.interleaved_matmul_encdec_valatt(
            y, S.softmax(S.contrib.interleaved_matmul_encdec_qk(x, y, heads=2)), heads=2
        ),
        {"x": (5, 2, 8), "y": (3, 2, 16)},
        {},
        {},
        {},
        {"x": 1, "y": 1},
    ),
    # recurrent layers
    **{
        f"{mode}_{layers}_{both}": (
            S.RNN(
                x,
                w,
                y,
                *([b] if mode == "lstm" else []),
                mode=mode,
                num_layers=layers,
                state_size=3,
                bidirectional=both,
                state_outputs=True,
            ),
            {"x": (5, 2, 4), **dict.fromkeys("yb" if mode == "lstm" else "y", (layers * (1 + both), 2, 3))},
            {},
            {},
            {},
            {"x": 1, "y": 1, "b": 1},
        )
        for mode in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        for layers, both in ((1, False), (2, True))
    },
    "rnn_zeros": (
        S.RNN(x, w, S.zeros((1, 0, 3)), mode="gru", num_layers=1, state_size=3),
        {"x": (5, 2, 4)},
        {},
        {},
        {},
        {"x": 1},
    ),
    "rnn_batch_first": (
        S.RNN(S.SwapAxis(x, dim1=0, dim2=1), w, S.zeros((1, 0, 3)), mode="gru", num_layers=1, state_size=3),
        {"x": (2, 5, 4)},
    ),
    # regions and boxes
    "roi_align": (
        S.contrib.ROIAlign(w, x, pooled_size=(3, 2), spatial_scale=0.5, sample_ratio=2),
        {"x": (2, 5)},
        {"w": (2, 3, 8, 9)},
        {},
        {"x": regions},
    ),
    "roi_align_adaptive": (
        S.contrib.ROIAlign(w, x, pooled_size=(3, 2), spatial_scale=0.5, aligned=True),
        {"x": (2, 5)},
        {"w": (2, 3, 8, 9)},
        {},
        {"x": regions},
    ),
    "roi_pooling": (
        S.ROIPooling(w, x, pooled_size=(3, 2), spatial_scale=0.5),
        {"x": (2, 5)},
        {"w": (2, 3, 8, 9)},
        {},
        {"x": regions},
    ),
    **{
        f"box_decode_{kind}": (
            S.contrib.box_decode(x, w, std0=0.1, std1=0.2, std2=0.3, std3=0.4, clip=limit, format=kind),
            {"x": (2, 6, 4)},
            {"w": np.sort(positive((1, 6, 4)))},
        )
        for kind, limit in (("center", -1), ("corner", 0.5))
    },
    **{
        f"box_nms_{number}": (S.contrib.box_nms(x, **given), {"x": (2, 40, 6)}, {}, {}, {"x": boxes})
        for number, given in enumerate(
            [
                {"overlap_thresh": 0.3, "valid_thresh": 0.1, "id_index": 0},
                {"overlap_thresh": 0.3, "valid_thresh": 0.1, "id_index": 0, "topk": 11, "background_id": 1},
                {"overlap_thresh": 0.2, "id_index": 0, "force_suppress": True},
                {"overlap_thresh": 0.2, "topk": 7},
                {"overlap_thresh": 0.2, "valid_thresh": 5},
            ]
        )
    },
    "anchors": (S.contrib.MultiBoxPrior(x, sizes=(0.5, 0.25), ratios=(1, 2, 0.5), steps=(0.1, 0.2)), IMAGE),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator(name):
    symbol, shapes, *more = CASES[name]
    rows = compared(symbol, shapes, *more)
    worst = max(rows, key=lambda row: row.relative)
    assert worst.relative <= 1e-5, worst


@pytest.mark.parametrize("target", [(13, 17), (14, 18), (15, 20), (16, 19)])
def test_target_shape_of_a_deconvolution(target):
    # MXNet computes it in float64, where oneDNN takes no part
    symbol = S.Deconvolution(x, kernel=(4, 4), num_filter=3, stride=(2, 2), target_shape=target, name="o")
    graph = graph_of_symbol(symbol, {"x": (2, 4, 7, 9)}, {})
    model = onnx_model(graph, [(2, 4, 7, 9)], ["float32"], {})
    data = np.random.RandomState(0).uniform(-1, 1, (3, 4, 7, 9))
    weight = graph.arrays["arg:o_weight"].astype("float64")
    expected = mx.nd.Deconvolution(
        mx.nd.array(data, dtype="float64"), weight, kernel=(4, 4), num_filter=3, stride=(2, 2), target_shape=target
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    actual = session.run(None, {"x": data.astype("float32")})[0]
    np.testing.assert_allclose(actual, expected.asnumpy(), rtol=1e-5, atol=1e-5)
