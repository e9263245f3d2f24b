"""Rows that only ONNX is compared with: operators without an equivalent in PyTorch, and what differs in ONNX."""

from functools import partial

from operator_rows import BCHW, S, above, below, boxes, row

N, C = S.np, S.contrib
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def whole(low, high, dtype="float32"):
    """Whole numbers, some of them outside of the table or below zero."""
    return lambda random, shape: random.integers(low, high, shape).astype(dtype)


def fused(mode, layers, both, name="", make=None):
    """A fused RNN of 4 channels and 3 units, whose parameters are one vector."""
    sides, units = 1 + both, 3
    widths = [4] + [units * sides] * (layers - 1)
    count = sum(sides * GATES[mode] * units * (width + units + 2) for width in widths)
    states = [] if make else [(layers * sides, "B", units)] * (2 if mode == "lstm" else 1)
    own = partial(S.RNN, mode=mode, num_layers=layers, state_size=units, bidirectional=both, state_outputs=not make)
    data = ("B", 5, 4) if "first" in name else (5, "B", 4)
    built = partial(make, own) if make else own
    return row(f"RNN {mode} {layers} {name}", built, data, (count,), *states, parameters=(1,))


def pooled(name, shape, **attrs):
    return row(f"Pooling {name}", partial(S.Pooling, **attrs), shape, draw=above(0.1))


def scores(kind, *inputs):
    operator = getattr(C, f"interleaved_matmul_{kind.replace('self', 'selfatt')}_qk")
    return S.softmax(operator(*inputs, heads=2))


FULL = {"pooling_convention": "full"}
TIME = ("B", 5, 6)
ONNX_ROWS = [
    *(fused(mode, layers, both) for mode in GATES for layers, both in ((1, False), (2, True))),
    fused("gru", 1, False, "of zeros", lambda own, x, w: own(x, w, S.zeros((1, 0, 3)))),
    fused("gru", 1, False, "batch first", lambda own, x, w: own(S.SwapAxis(x, dim1=0, dim2=1), w, S.zeros((1, 0, 3)))),
    row("self attention", lambda x: C.interleaved_matmul_selfatt_valatt(x, scores("self", x), heads=2), (5, "B", 24)),
    row(
        "attention",
        lambda x, y: C.interleaved_matmul_encdec_valatt(y, scores("encdec", x, y), heads=2),
        (5, "B", 8),
        (3, "B", 16),
    ),
    # integers
    row(
        "scalars of integers", lambda x: S.Group([x + 2, 2 - x, x * 3, x > 1, x == 1]), TIME, draw=whole(-9, 9, "int32")
    ),
    row("clip integers", lambda x: S.clip(x, -2, 3), TIME, draw=whole(-9, 9, "int32")),
    row("Cast bytes", lambda x: S.Cast(x, dtype="float32") / 255, BCHW, draw=whole(0, 256, "uint8")),
    row("amp_multicast", lambda x, y: S.amp_multicast(x, S.Cast(y, "float64"), num_outputs=2), TIME, TIME),
    # indices outside of the table
    row("Embedding outside", partial(S.Embedding, input_dim=7, output_dim=3), ("B", 4), (7, 3), draw={0: whole(-2, 9)}),
    row("take outside", lambda w, x: S.take(w, x), (7, 3), ("B", 4), draw={1: whole(-2, 9)}),
    row(
        "take wrap outside", lambda w, x: S.take(w, x, axis=1, mode="wrap"), (2, 7), ("B", 4), draw={1: whole(-20, 20)}
    ),
    row("one_hot outside", partial(S.one_hot, depth=4, on_value=2), ("B", 4), draw=whole(-2, 6)),
    # PyTorch's nets have an operator for the flattening
    row("FullyConnected flatten", partial(S.FullyConnected, num_hidden=3), ("B", 4, 2), (3, 8), (3,)),
    # slopes along axis 1 of other shapes than images
    *(
        row(f"PReLU {shape}", lambda x, g: S.LeakyReLU(x, g, act_type="prelu"), shape, (5,))
        for shape in (("B", 5), ("B", 5, 5, 5))
    ),
    # pooling
    pooled("full beyond", ("B", 3, 8, 9), kernel=(2, 2), stride=(3, 3), **FULL),
    pooled("3d full", ("B", 4, 5, 6, 7), kernel=(2, 2, 3), stride=(2, 1, 2), **FULL),
    # images and boxes
    row("BilinearResize2D to a line", partial(C.BilinearResize2D, height=1, width=5), BCHW),
    row("depth_to_space", lambda x: S.depth_to_space(x, block_size=2), ("B", 8, 2, 3)),
    row("space_to_depth", lambda x: S.space_to_depth(x, block_size=2), ("B", 2, 4, 6)),
    row("box_nms of one class", partial(C.box_nms, overlap_thresh=0.2, topk=7), ("B", 40, 6), draw=boxes),
    row(
        "box_nms twice",
        lambda x: C.box_nms(S.slice_axis(C.box_nms(x * 2), axis=1, begin=0, end=9) + 0.1),
        ("B", 40, 6),
        draw=boxes,
    ),
    row("box_nms of none", partial(C.box_nms, overlap_thresh=0.2, valid_thresh=5), ("B", 40, 6), draw=boxes),
    # constants
    row("np broadcast_to", lambda x, w: x + N.broadcast_to(w, (3, 4)), ("B", 3, 4), (1, 4), numpy=True),
    row("repeat a line", lambda x: S.repeat(x, 3), ("B",)),
    row("index below", lambda x, i: S.pick(x, i, axis=1), ("B", 5), ("B",), draw={1: below(5)}),
]
