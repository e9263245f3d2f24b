"""Rows that move, select or reduce elements."""

from functools import partial

import mxnet as mx
from operator_rows import BCHW, S, below, distinct, many, row

PADDED = {"pad_width": (0, 0, 0, 0, 1, 2, 3, 0), "constant_value": 2}
PARTS = {"lhs_begin": 1, "lhs_end": 2, "rhs_begin": 1, "rhs_end": 3}
RESHAPED = (
    "0,-1 -1,0 0,0,-1 -1 0,-1,6 -2 0,-3,0 -3,-3 0,0,-3 0,-2 -1,30 0,-4,2,2,-2 0,-4,-1,2,0,0 0,-4,2,-1,-3 -3,0,0 "
    "0,2,2,-1 -1,4,30 0,4,-2"
)
REVERSED = [(-1, 0), (-1, 1, 0, 0), (-3, 0, 0), (-1, 0, -3), (-2, 0), (0, 0, 0, 0)]
SHAPES = [
    *many(S, "reshape", BCHW, attrs=[{"shape": (*map(int, one.split(",")),)} for one in RESHAPED.split()]),
    *many(S, "reshape", BCHW, attrs=[{"shape": one, "reverse": True} for one in REVERSED]),
    row("Reshape target", lambda x: S.Reshape(x, target_shape=(0, 30)), BCHW),
    row("reshape_like", lambda x, y: S.reshape_like(x, y), ("B", 6), ("B", 2, 3)),
    row("reshape_like parts", partial(S.reshape_like, **PARTS), ("B", 6, 5), ("B", 2, 3, 7)),
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
    *many(S, "Pad", BCHW, attrs=[{**PADDED, "mode": mode} for mode in ("constant", "edge", "reflect")]),
    row("Pad 3d", lambda x: S.Pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 3, 0, 1, 1)), ("B", 2, 3, 4, 3)),
    row("broadcast_to", lambda x: S.broadcast_to(x, shape=(0, 3, 4)), ("B", 1, 4)),
    row("broadcast_axis", lambda x: S.broadcast_axis(x, axis=(1, 2), size=(3, 2)), ("B", 1, 1)),
    row("broadcast_like", lambda x, y: S.broadcast_like(x, y), ("B", 1, 4), ("B", 3, 4)),
    row("broadcast_like axes", partial(S.broadcast_like, lhs_axes=(1,), rhs_axes=(2,)), ("B", 1, 4), ("B", 3, 5)),
    row("zeros_like", lambda x: S.zeros_like(x), BCHW, gradients=False),
    row("ones_like", lambda x: S.ones_like(x), BCHW, gradients=False),
    row("arange_like", lambda x: S.contrib.arange_like(x, axis=1, start=2, step=0.5), BCHW, gradients=False),
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
    row("gather_nd", lambda x, i: S.gather_nd(x, i), (4, 5, 3), (2, "B"), draw={1: below(4)}),
    row("where", lambda c, x, y: S.where(c, x, y), ("B", 3), ("B", 3), ("B", 3), draw={0: below(3)}),
    row("where rows", lambda c, x, y: S.where(c, x, y), ("B",), ("B", 3), ("B", 3), draw={0: below(2)}),
    row("reverse", lambda x: S.reverse(x, axis=(1, 2)), BCHW),
    row("diag", lambda x: S.diag(x, k=1), (5, 6)),
    row("diag axes", lambda x: S.diag(x, axis1=1, axis2=2), ("B", 4, 5)),
    row("diag of a vector", lambda x: S.diag(x, k=-1), (5,)),
]


AXES = ({"axis": 1}, {"axis": (1, 2), "keepdims": True}, {"axis": 1, "exclude": True}, {})
UP = [{"is_ascend": False}, {"is_ascend": True}]  # MXNet keeps the order of equal numbers in rows of up to 16
REDUCTIONS = [
    *many(S, "sum mean prod max min nansum", ("B", 4, 5), attrs=AXES, draw=distinct),
    row("sum all kept", lambda x: S.sum(x, keepdims=True), ("B", 4)),
    row("norm", lambda x: S.norm(x, axis=1), ("B", 4, 5)),
    row("norm 1", lambda x: S.norm(x, ord=1, axis=(1, 2), keepdims=True), ("B", 4, 5)),
    row("norm all", lambda x: S.norm(x), ("B", 4, 5)),
    row("moments", lambda x: S.moments(x, axes=(1, 2)), ("B", 4, 5)),
    row("argmax", lambda x: S.argmax(x, axis=1), ("B", 4, 5), gradients=False),
    row("argmax kept", lambda x: S.argmax(x, axis=-1, keepdims=True), ("B", 4, 5), gradients=False),
    row("argmax all", lambda x: S.argmax(x), ("B", 4), gradients=False),
    row("argmin", lambda x: S.argmin(x, axis=2), ("B", 4, 5), gradients=False),
    *(
        row(f"topk {kind}", partial(S.topk, k=2, axis=1, ret_typ=kind), ("B", 5, 3), draw=distinct, gradients=False)
        for kind in ("indices", "value", "both")
    ),
    *many(S, "topk", ("B", 12), attrs=[{"k": 7, "ret_typ": "both", **up} for up in UP], draw=below(2), gradients=False),
    *many(S, "argsort", ("B", 12), attrs=UP, draw=below(2), gradients=False),  # an order of equal numbers
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
]

SHAPE_ROWS = [*SHAPES, *INDEXING, *REDUCTIONS]
