"""Rows of mx.np."""

from operator_rows import S, above, below, distinct, raw, row

N, X = S.np, S.npx


def numpy(name, make, *shapes, **more):
    return row(f"np {name}", make, *shapes, numpy=True, **more)


_NUMPY_FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "square", "reciprocal", "sin", "cos", "tan", "arcsin"),
    *("arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "absolute", "negative", "cbrt"),
    *("degrees", "radians"),
)
_NUMPY_STEPS = ("sign", "floor", "ceil", "trunc", "fix", "rint", "around", "isnan", "isinf", "isfinite", "logical_not")


def _numpy_domain(name):
    if name in ("sqrt", "reciprocal", "cbrt", "arccosh") or name.startswith("log") and name != "logical_not":
        return above(1.1)
    if name in ("rint", "around"):
        return lambda random, shape: (random.integers(-9, 9, shape) / 2).astype("float32")
    return below(2) if name == "logical_not" else above(-0.9, 0.9)


NUMPY_ROWS = [
    *(
        numpy(
            name,
            lambda x, name=name: getattr(N, name)(x),
            ("B", 7),
            draw=_numpy_domain(name),
            gradients=name in _NUMPY_FUNCTIONS,
        )
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
        numpy(
            f"{name}_scalar",
            lambda x, name=name: getattr(N._internal, f"{name}_scalar")(x, scalar=1.0),
            ("B", 5),
            draw=below(3),
            gradients=False,
        )
        for name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
    ),
    *(
        numpy(name, lambda x, name=name: getattr(N, name)(1 / x), ("B", 5), draw=below(2), gradients=False)
        for name in ("isposinf", "isneginf")
    ),
    numpy("copy", lambda x: N.copy(x), ("B", 4)),
    numpy("where of two scalars", lambda x: N.where(x, 2.0, 3.0), ("B", 3), draw=below(2), gradients=False),
    numpy(
        "where left", raw("_npi_where_lscalar", 2, scalar=2.5), ("B", 4), ("B", 4), draw={0: below(2)}, gradients=False
    ),
    numpy(
        "where right", raw("_npi_where_rscalar", 2, scalar=2.5), ("B", 4), ("B", 4), draw={0: below(2)}, gradients=False
    ),
    *(
        numpy(f"{name} operator", raw(f"_npi_{name}", 1, axis=(1,), ddof=1, keepdims=True), ("B", 4), gradients=False)
        for name in ("std", "var")
    ),
    numpy(
        "compare",
        lambda x: N.where(x > 1, x, x * 2) + N.where(x < 1, x, x * 0.5),
        ("B", 3),
        draw=below(3),
        gradients=False,
    ),
    numpy("where", lambda c, x, y: N.where(c, x, y), ("B", 3), ("B", 3), (3,), draw={0: below(2)}),
    numpy(
        "where scalars",
        lambda x: N.where(x, 2.0, 3.0) + N.where(x, x, 4.0) + N.where(x, 5.0, x),
        ("B", 3),
        draw=below(2),
        gradients=False,
    ),
    *(
        numpy(
            f"{name} {attrs}",
            lambda x, name=name, attrs=attrs: getattr(N, name)(x, **attrs),
            ("B", 4, 5),
            draw=distinct,
            gradients=name not in ("std", "var"),
        )
        for name in ("sum", "mean", "max", "min", "prod", "std", "var")
        for attrs in ({}, {"axis": 1}, {"axis": (-1, 1), "keepdims": True}, {"keepdims": True})
    ),
    numpy("around decimals", lambda x: N.around(x, 1), ("B", 4), gradients=False),
    numpy("std ddof", lambda x: N.std(x, axis=1, ddof=1), ("B", 4), gradients=False),
    numpy("argmax", lambda x: N.argmax(x, axis=1), ("B", 4, 5), gradients=False),
    numpy("argmin", lambda x: N.argmin(x, axis=-1), ("B", 4, 5), gradients=False),
    numpy("argmin all", lambda x: N.argmin(x), ("B", 4, 5), gradients=False),
    numpy("norm", lambda x: N.linalg.norm(x, ord=1, axis=1), ("B", 4, 5), gradients=False),
    numpy("norm of matrices", lambda x: N.linalg.norm(x, axis=(1, 2)), ("B", 4, 5), gradients=False),
    numpy("norm all", lambda x: N.linalg.norm(x, keepdims=True), ("B", 4, 5), gradients=False),
    numpy("any", lambda x: N.any(x, axis=1), ("B", 4), draw=below(2), gradients=False),
    numpy("all", lambda x: N.all(x), ("B", 4), draw=below(2), gradients=False),
    numpy("reshape", lambda x: N.reshape(x, (-1, 6)), ("B", 4, 6)),
    *(
        numpy(
            f"npx.reshape {shape} {reverse or ''}",
            lambda x, shape=shape, reverse=reverse: X.reshape(x, shape, reverse=reverse),
            ("B", 1, 6, 5),
        )
        for shape, reverse in (
            ((-2, -1), False),
            ((-2, -3, -5), False),
            ((-2, -4), False),
            ((-2, -2, -6, 2, -1, -2), False),
            ((-2, -2, -6, -1, 2, 5), False),
            ((-1, -2, 6, 5), True),
            ((-5, -2, -2), True),
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
    numpy(
        "fully_connected",
        lambda x, w: X.fully_connected(x, w, num_hidden=3, no_bias=True),
        ("B", 2, 2),
        (3, 4),
        parameters=(1,),
    ),
]
