"""Rows of functions of each element."""

from operator_rows import S, above, below, row

_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt", "rcbrt", "reciprocal", "arccosh", "gammaln")
_INSIDE = ("arcsin", "arccos", "arctanh", "erfinv")
_STEPS = ("sign", "floor", "ceil", "trunc", "fix", "round", "rint", "logical_not")
_OTHERS = (
    *("abs", "exp", "expm1", "square", "sin", "cos", "tan", "arctan", "sinh", "cosh", "arcsinh", "erf", "sigmoid"),
    *("tanh", "negative", "relu", "softsign", "degrees", "radians", "gamma", "identity", "make_loss"),
)
_UNARY = (*_POSITIVE, *_INSIDE, *_STEPS, *_OTHERS)


def _domain(name):
    if name in _POSITIVE:
        return above(1.1 if name == "arccosh" else 0.3)
    if name in ("round", "rint"):
        return lambda random, shape: (random.integers(-9, 9, shape) / 2).astype("float32")
    if name == "logical_not":
        return below(2)
    return above(-0.9, 0.9) if name in _INSIDE else above(-2.4, 2.3)


SAME = (("B", 3), ("B", 3))
BROADCAST = (("B", 3, 4), ("B", 1, 4))
_ORDERED = ("equal", "not_equal", "greater", "greater_equal", "lesser", "lesser_equal")
SCALARS = (
    "plus",
    "minus",
    "rminus",
    "mul",
    "div",
    "rdiv",
    "mod",
    "rmod",
    "power",
    "rpower",
    "maximum",
    "minimum",
    "hypot",
)
COMPARED = (*_ORDERED, "logical_and", "logical_or", "logical_xor")


def pair(name, draw=None, gradients=True, shapes=SAME):
    operator = getattr(S, name, None) or getattr(S._internal, name)
    return row(name, lambda x, y: operator(x, y), *shapes, draw=draw, gradients=gradients)


def scalar(name, value, draw, gradients):
    operator = getattr(S._internal, f"_{name}_scalar")
    return row(f"{name}_scalar {value}", lambda x: operator(x, scalar=value), ("B", 4), draw=draw, gradients=gradients)


ARITHMETIC_ROWS = [
    *(
        row(
            name,
            lambda x, name=name: getattr(S, name)(x),
            ("B", 7),
            draw=_domain(name),
            gradients=name not in (*_STEPS, "make_loss"),
        )
        for name in _UNARY
    ),
    row("cbrt negative", lambda x: S.cbrt(x), ("B", 7), draw=above(-2, -0.5)),
    *(
        pair(f"{kind}_{name}", shapes=BROADCAST if kind == "broadcast" else SAME, draw=above(0.5))
        for kind in ("elemwise", "broadcast")
        for name in ("add", "sub", "mul", "div")
    ),
    *(
        pair(f"broadcast_{name}", above(-2, 2), name in ("maximum", "minimum", "hypot"), BROADCAST)
        for name in ("maximum", "minimum", "hypot", "mod")
    ),
    pair("broadcast_power", above(0.5), shapes=BROADCAST),
    pair("_power", above(0.5)),
    pair("_mod", above(-2, 2), False),
    *(
        pair(f"{kind}{name}", below(3), False, shapes)
        for kind, shapes in (("broadcast_", BROADCAST), ("_", SAME))
        for name in COMPARED
    ),
    *(pair(f"_{name}", below(3), False) for name in ("maximum", "minimum", "hypot")),
    *(scalar(name, value, above(0.5), "mod" not in name) for name in SCALARS for value in (1.25, 2.0)),
    *(scalar(name, value, below(3), False) for name in COMPARED for value in (1.0, 0.0)),
    row("div of ints", lambda x: S.Cast(x, "int32") / 2, ("B", 5), draw=above(-9, 9), gradients=False),
    row("nested", lambda x, y: (x - (y - 2)) * 3 / (x + 4) ** 2 - -y, ("B", 4), ("B", 4), draw=above(0.5)),
    row("add_n", lambda x, y, z: S.add_n(x, y, z), ("B", 3), ("B", 3), ("B", 3)),
    row("clip to 6", lambda x: S.clip(x, 0, 6), ("B", 9), draw=above(-9, 9), layer=True),
    row("clip", lambda x: S.clip(x, -0.5, 1), ("B", 9)),
    row("hard_sigmoid", lambda x: S.hard_sigmoid(x, alpha=0.3, beta=0.4), ("B", 9)),
    row("smooth_l1", lambda x: S.smooth_l1(x, scalar=2.0), ("B", 9)),
    row("quadratic", lambda x: S.contrib.quadratic(x, a=2, b=-1, c=3), ("B", 9)),
    row("div_sqrt_dim", lambda x: S.contrib.div_sqrt_dim(x), ("B", 9)),
    row("BlockGrad", lambda x: S.BlockGrad(x) * x, ("B", 9)),
    row("Cast", lambda x: S.Cast(S.Cast(x, "int32"), "float32"), ("B", 9), gradients=False),
    row("amp_cast", lambda x: S.amp_cast(x, dtype="float16"), ("B", 9), gradients=False),
]
