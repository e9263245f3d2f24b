"""Rows of mx.np."""

from functools import partial

from operator_rows import S, above, below, distinct, halves, many, raw, row

N, X = S.np, S.npx
numpy = partial(row, numpy=True)
each = partial(many, N, numpy=True)
steps = partial(each, gradients=False)
AXES = ({}, {"axis": 1}, {"axis": (-1, 1), "keepdims": True}, {"keepdims": True})
RESHAPED = ((-2, -1), (-2, -3, -5), (-2, -4), (-2, -2, -6, 2, -1, -2), (-2, -2, -6, -1, 2, 5))
COMPARED = "equal not_equal greater greater_equal less less_equal"
NUMPY_ROWS = [
    *each("exp expm1 square sin cos tan arcsin arccos arctan sinh cosh tanh", ("B", 7), draw=above(-0.9, 0.9)),
    *each("arcsinh arctanh absolute negative degrees radians", ("B", 7), draw=above(-0.9, 0.9)),
    *each("log log1p log2 log10 sqrt reciprocal cbrt arccosh", ("B", 7), draw=above(1.1)),
    *steps("sign floor ceil trunc fix isnan isinf isfinite", ("B", 7), draw=above(-0.9, 0.9)),
    *steps("rint around", ("B", 7), draw=halves),
    *steps("logical_not", ("B", 7), draw=below(2)),
    *each("add subtract multiply true_divide power maximum minimum hypot arctan2", ("B", 3), ("B", 1), draw=above(0.5)),
    *steps("mod", ("B", 3), ("B", 3), draw=above(-2, 2)),
    *steps(COMPARED, ("B", 3), (3,), draw=below(3)),
    numpy("np scalars", lambda x: 3 / (2 - x) + (x + 1.5) ** 2 * 0.5 - (x - 1) / 4, ("B", 3), draw=above(0.2, 0.9)),
    numpy("np power of a scalar", lambda x: 2.5**x % 3, ("B", 3), gradients=False),
    numpy("np mod of a scalar", lambda x: 7 % x, ("B", 3), draw=above(0.5), gradients=False),
    *many(
        *(N._internal, " ".join(f"{name}_scalar" for name in COMPARED.split()), ("B", 5)),
        attrs=[{"scalar": 1.0}],
        draw=below(3),
        gradients=False,
        numpy=True,
    ),
    numpy("np isposinf", lambda x: N.isposinf(1 / x), ("B", 5), draw=below(2), gradients=False),
    numpy("np isneginf", lambda x: N.isneginf(1 / x), ("B", 5), draw=below(2), gradients=False),
    *each("copy", ("B", 4)),
    *(
        numpy(name, raw(name, 2, scalar=2.5), ("B", 4), ("B", 4), draw={0: below(2)}, gradients=False)
        for name in ("_npi_where_lscalar", "_npi_where_rscalar")
    ),
    *(
        numpy(name, raw(name, 1, axis=(1,), ddof=1, keepdims=True), ("B", 4), gradients=False)
        for name in ("_npi_std", "_npi_var")
    ),
    numpy(
        *("np compare", lambda x: N.where(x > 1, x, x * 2) + N.where(x < 1, x, x * 0.5), ("B", 3)),
        draw=below(3),
        gradients=False,
    ),
    numpy("np where", lambda c, x, y: N.where(c, x, y), ("B", 3), ("B", 3), (3,), draw={0: below(2)}),
    numpy(
        *("np where scalars", lambda x: N.where(x, 2.0, 3.0) + N.where(x, x, 4.0) + N.where(x, 5.0, x), ("B", 3)),
        draw=below(2),
        gradients=False,
    ),
    *each("sum mean max min prod", ("B", 4, 5), attrs=AXES, draw=distinct),
    *steps("std var", ("B", 4, 5), attrs=AXES, draw=distinct),
    *steps("around", ("B", 4), attrs=[{"decimals": 1}]),
    *steps("std", ("B", 4), attrs=[{"axis": 1, "ddof": 1}]),
    *steps("argmax argmin", ("B", 4, 5), attrs=[{"axis": 1}, {"axis": -1}]),
    *steps("argmin", ("B", 4, 5)),
    numpy("np norm", lambda x: N.linalg.norm(x, ord=1, axis=1), ("B", 4, 5), gradients=False),
    numpy("np norm of matrices", lambda x: N.linalg.norm(x, axis=(1, 2)), ("B", 4, 5), gradients=False),
    numpy("np norm all", lambda x: N.linalg.norm(x, keepdims=True), ("B", 4, 5), gradients=False),
    *steps("any", ("B", 4), attrs=[{"axis": 1}], draw=below(2)),
    *steps("all", ("B", 4), draw=below(2)),
    numpy("np reshape", lambda x: N.reshape(x, (-1, 6)), ("B", 4, 6)),
    *(numpy(f"npx.reshape {one}", partial(X.reshape, newshape=one), ("B", 1, 6, 5)) for one in RESHAPED),
    *each("transpose", ("B", 4, 5), attrs=[{"axes": (0, 2, 1)}, {}]),
    *each("squeeze", ("B", 1, 3, 1), attrs=[{"axis": (1, 3)}]),
    *each("moveaxis", ("B", 4, 5, 2), attrs=[{"source": 1, "destination": -1}]),
    numpy("np swapaxes", lambda x: N.swapaxes(x, 1, 2), ("B", 4, 5)),
    *each("expand_dims", ("B", 4), attrs=[{"axis": -1}]),
    *each("roll", ("B", 4), attrs=[{"shift": 2, "axis": 1}]),
    numpy("np flip", lambda x: N.flip(x, 1), ("B", 4)),
    numpy("np concatenate", lambda x, y: N.concatenate([x, y], axis=-1), ("B", 4), ("B", 2)),
    numpy("np concatenate flat", lambda x, y: N.concatenate([x, y], axis=None), ("B", 4), ("B", 2)),
    numpy("np stack", lambda x, y: N.stack([x, y], axis=1), ("B", 4), ("B", 4)),
    numpy("np vstack", lambda x, y: N.vstack([x, y]), ("B", 4), ("B", 4)),
    numpy("np split", lambda x: N.split(x, 2, axis=1), ("B", 4)),
    numpy("np split at", lambda x: N.split(x, [1, 3], axis=1), ("B", 4)),
    numpy("np index", lambda x: x[:, 1:3], ("B", 4)),
    *each("dot", ("B", 4), (4, 3)),
    numpy("np dot 3d", lambda x, y: N.dot(x, y), ("B", 2, 4), (4,)),
    *each("matmul", ("B", 2, 4), ("B", 4, 3)),
    *each("tensordot", ("B", 4), (4, 3), attrs=[{"axes": ([1], [0])}, {"axes": 1}]),
    numpy("np einsum", lambda x, y: N.einsum("bij,bkj->bik", x, y), ("B", 2, 4), ("B", 3, 4)),
    *each("broadcast_to", (3, 1), attrs=[{"shape": (2, 3, 4)}]),
    *each("tril", (4, 5), attrs=[{"k": 1}]),
    numpy("np clip", lambda x: N.clip(x, -0.5, 0.5), ("B", 4)),
    *each("cumsum", ("B", 4), attrs=[{"axis": 1}]),
    *steps("full_like", ("B", 4), attrs=[{"fill_value": 2.5}]),
    numpy("np zeros", lambda x: [x * 2, N.zeros((2, 3), dtype="int32")], ("B", 4), gradients=False),
    numpy("np ones", lambda x: [x * 2, N.ones((3,), dtype="float64")], ("B", 4), gradients=False),
    numpy("np arange", lambda x: [x * 2, N.arange(1, 9, 2, dtype="int32")], ("B", 4), gradients=False),
    numpy("np arange to", lambda x: [x * 2, N.arange(2.5)], ("B", 4), gradients=False),
    *many(X, "relu sigmoid", ("B", 4), numpy=True),
    *many(X, "softmax", ("B", 4), attrs=[{"axis": 1}], numpy=True),
    *many(X, "topk", ("B", 4), attrs=[{"k": 2, "ret_typ": "both"}], draw=distinct, gradients=False, numpy=True),
    *many(X, "leaky_relu", ("B", 4), attrs=[{"act_type": "gelu"}], numpy=True),
    numpy(
        *("np fully_connected", partial(X.fully_connected, num_hidden=3, no_bias=True), ("B", 4), (3, 4)),
        parameters=(1,),
    ),
]
