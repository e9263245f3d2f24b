"""Operators as ONNX compute what MXNet computes, at batch sizes that the net was not traced with."""

from onnx_graphs import (
    IMAGE,
    ROWS,
    TIME,
    TWO,
    WIDE,
    S,
    b,
    check,
    distinct_values,
    inside_one,
    positive,
    w,
    whole,
    words,
    x,
    y,
)
import pytest
from sharing import needs_onnx

pytestmark = needs_onnx

CASES = {
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
}


@pytest.mark.parametrize("name", CASES)
def test_an_operator(name):
    check(CASES[name])
