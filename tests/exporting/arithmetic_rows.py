"""Rows of functions of each element."""

from functools import partial

from operator_rows import S, above, below, halves, many, row

ONE = ("B", 7)
SAME = (("B", 3), ("B", 3))
BROADCAST = (("B", 3, 4), ("B", 1, 4))
COMPARED = "equal not_equal greater greater_equal lesser lesser_equal logical_and logical_or logical_xor"
SCALARS = "plus minus rminus mul div rdiv mod rmod power rpower maximum minimum hypot"
each = partial(many, S)
steps = partial(each, gradients=False)
inner = partial(many, S._internal)


def joined(begin, names, end=""):
    """Names of operators with the same beginning and end."""
    return " ".join(f"{begin}{name}{end}" for name in names.split())


ARITHMETIC_ROWS = [
    *each("log log2 log10 log1p sqrt rsqrt cbrt rcbrt reciprocal gammaln", ONE, draw=above(0.3)),
    *each("arccosh", ONE, draw=above(1.1)),
    *each("arcsin arccos arctanh erfinv", ONE, draw=above(-0.9, 0.9)),
    *steps("sign floor ceil trunc fix make_loss", ONE, draw=above(-2.4, 2.3)),
    *steps("round rint", ONE, draw=halves),
    *steps("logical_not", ONE, draw=below(2)),
    *each("abs exp expm1 square sin cos tan arctan sinh cosh arcsinh erf sigmoid", ONE, draw=above(-2.4, 2.3)),
    *each("tanh negative relu softsign degrees radians identity", ONE, draw=above(-2.4, 2.3)),
    row("cbrt negative", lambda x: S.cbrt(x), ONE, draw=above(-2, -0.5)),
    *each("elemwise_add elemwise_sub elemwise_mul elemwise_div", *SAME, draw=above(0.5)),
    *each("broadcast_add broadcast_sub broadcast_mul broadcast_div broadcast_power", *BROADCAST, draw=above(0.5)),
    *each("broadcast_maximum broadcast_minimum broadcast_hypot", *BROADCAST, draw=above(-2, 2)),
    *steps("broadcast_mod", *BROADCAST, draw=above(-2, 2)),
    *inner("_power", *SAME, draw=above(0.5)),
    *inner("_mod", *SAME, draw=above(-2, 2), gradients=False),
    *steps(joined("broadcast_", COMPARED), *BROADCAST, draw=below(3)),
    *inner(joined("_", COMPARED), *SAME, draw=below(3), gradients=False),
    *inner("_maximum _minimum _hypot _grad_add", *SAME, draw=below(3), gradients=False),
    *(
        one
        for name in SCALARS.split()
        for one in inner(
            *(f"_{name}_scalar", ("B", 4)),
            attrs=[{"scalar": 1.25}, {"scalar": 2.0}],
            draw=above(0.5),
            gradients="mod" not in name,
        )
    ),
    *inner(
        *(joined("_", COMPARED, "_scalar"), ("B", 4)),
        attrs=[{"scalar": 1.0}, {"scalar": 0.0}],
        draw=below(3),
        gradients=False,
    ),
    row("div of ints", lambda x: S.Cast(x, "int32") / 2, ("B", 5), draw=above(-9, 9), gradients=False),
    row("nested", lambda x, y: (x - (y - 2)) * 3 / (x + 4) ** 2 - -y, ("B", 4), ("B", 4), draw=above(0.5)),
    row("add_n", lambda x, y, z: S.add_n(x, y, z), ("B", 3), ("B", 3), ("B", 3)),
    row("clip to 6", lambda x: S.clip(x, 0, 6), ("B", 9), draw=above(-9, 9), layer=True),
    row("clip", lambda x: S.clip(x, -0.5, 1), ("B", 9)),
    row("hard_sigmoid", lambda x: S.hard_sigmoid(x, alpha=0.3, beta=0.4), ("B", 9)),
    row("smooth_l1", lambda x: S.smooth_l1(x, scalar=2.0), ("B", 9)),
    row("div_sqrt_dim", lambda x: S.contrib.div_sqrt_dim(x), ("B", 9)),
    row("BlockGrad", lambda x: S.BlockGrad(x) * x, ("B", 9)),
    row("Cast", lambda x: S.Cast(S.Cast(x, "int32"), "float32"), ("B", 9), gradients=False),
    row("amp_cast", lambda x: S.amp_cast(x, dtype="float16"), ("B", 9), gradients=False),
]
