"""Rows of layers: convolutions, normalization, activations, pooling."""

from functools import partial

from operator_rows import BCHW, S, above, below, distinct, raw, row


def weighted(name, make, shape, *parameters, layer=True, **more):
    """A layer, whose inputs after the first are parameters."""
    return row(name, make, shape, *parameters, parameters=(*range(1, len(parameters) + 1),), layer=layer, **more)


def convolution(name, operator, shape, weight, no_bias=False, **attrs):
    bias = [] if no_bias else [(attrs["num_filter"],)]
    make = partial(operator, no_bias=no_bias, **attrs)
    return weighted(f"{operator.__name__} {name}", make, shape, weight, *bias)


C, D = S.Convolution, S.Deconvolution
CONVOLUTIONS = [
    convolution("1d", C, ("B", 3, 9), (4, 3, 3), num_filter=4, kernel=(3,), stride=(2,), pad=(1,)),
    convolution("2d", C, ("B", 3, 9, 8), (4, 3, 3, 2), num_filter=4, kernel=(3, 2), stride=(2, 1), pad=(1, 0)),
    convolution("groups", C, ("B", 4, 6, 6), (6, 2, 3, 3), num_filter=6, kernel=(3, 3), num_group=2, no_bias=True),
    convolution("dilated", C, ("B", 3, 9, 9), (2, 3, 3, 3), num_filter=2, kernel=(3, 3), dilate=(2, 2), pad=(2, 2)),
    convolution("3d", C, ("B", 2, 5, 5, 5), (3, 2, 3, 3, 3), num_filter=3, kernel=(3, 3, 3), pad=(1, 1, 1)),
    convolution("1d", D, ("B", 3, 5), (3, 2, 3), num_filter=2, kernel=(3,), stride=(2,), adj=(1,)),
    convolution(
        "adj", D, ("B", 4, 5, 5), (4, 3, 4, 4), True, num_filter=3, kernel=(4, 4), stride=(2, 2), pad=(1, 1), adj=(1, 1)
    ),
    convolution(
        "groups", D, ("B", 4, 5, 5), (4, 1, 3, 3), True, num_filter=2, kernel=(3, 3), num_group=2, dilate=(2, 2)
    ),
    convolution(
        "target",
        D,
        ("B", 4, 5, 5),
        (4, 3, 3, 4),
        num_filter=3,
        kernel=(3, 4),
        stride=(2, 2),
        pad=(1, 2),
        target_shape=(10, 9),
    ),
    convolution("3d", D, ("B", 2, 3, 3, 3), (2, 3, 2, 2, 2), num_filter=3, kernel=(2, 2, 2), stride=(2, 2, 2)),
]

F = S.FullyConnected
DENSE = [
    row("im2col", lambda x: S.im2col(x, kernel=(3, 2), stride=(2, 1), dilate=(1, 2), pad=(1, 0)), BCHW),
    row("col2im", lambda x: S.col2im(x, output_size=(5, 6), kernel=(2, 3), stride=(1, 2), pad=(1, 1)), ("B", 24, 18)),
    weighted("FullyConnected flatten", lambda x, w, b: F(x, w, b, num_hidden=3), ("B", 4, 2), (3, 8), (3,)),
    weighted("FullyConnected flat", lambda x, w, b: F(x, w, b, num_hidden=3), ("B", 8), (3, 8), (3,)),
    weighted("FullyConnected last axis", partial(F, num_hidden=3, flatten=False, no_bias=True), ("B", 4, 2), (3, 2)),
    weighted(
        *("Embedding", partial(S.Embedding, input_dim=7, output_dim=3), ("B", 4), (7, 3)),
        draw={0: below(7)},
        still=(0,),
    ),
    row("one_hot", lambda x: S.one_hot(x, depth=4, on_value=3, off_value=-1), ("B", 3), draw=below(6), gradients=False),
    row("one_hot plain", lambda x: S.one_hot(x, depth=4, dtype="float64"), ("B", 3), draw=below(6), gradients=False),
]


def normed(name, operator, shape, axis=1, layer=True, training=False, **attrs):
    return weighted(
        *(name, partial(operator, **attrs), shape, *[(shape[axis],)] * 4),
        draw={4: above(0.5), 1: above(0.5)},
        gradients=training,
        layer=layer and not training,
        still=(3, 4),
    )


def batch_norm(name, shape, axis=1, **more):
    return normed(f"BatchNorm {name}", partial(S.BatchNorm, axis=axis), shape, axis, **more)


def scaled(name, operator, shape, size, layer=True, **attrs):
    return weighted(name, partial(operator, **attrs), shape, size, size, layer=layer)


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
    normed("BatchNormWithReLU", S.contrib.BatchNormWithReLU, BCHW, layer=False, fix_gamma=False),
    normed("SyncBatchNorm", S.contrib.SyncBatchNorm, BCHW, fix_gamma=False, ndev=1, key="key"),
    weighted(
        "Convolution_v1", partial(S.Convolution_v1, kernel=(2, 2), num_filter=3, no_bias=True), BCHW, (3, 4, 2, 2)
    ),
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


def head(name, *shapes, **attrs):
    """A loss head with its label."""
    return row(name, partial(getattr(S, name.split()[0]), **attrs), *shapes, gradients=False)


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
    row(
        "softmax length",
        lambda x, n: S.softmax(x, n, use_length=True, axis=1),
        ("B", 5, 3),
        ("B", 3),
        draw={1: lambda r, s: r.integers(1, 5, s).astype("int32")},
        gradients=False,
    ),
    row("softmin", lambda x: S.softmin(x, axis=-2), BCHW),
    row("log_softmax layer", lambda x: S.log_softmax(x, axis=1), BCHW, layer=True),
    row("log_softmax", lambda x: S.log_softmax(x, axis=1, temperature=2), BCHW),
    row("SoftmaxActivation", lambda x: S.SoftmaxActivation(x), ("B", 4)),
    row("SoftmaxActivation channel", lambda x: S.SoftmaxActivation(x, mode="channel"), BCHW),
    head("SoftmaxOutput", ("B", 4), ("B",)),
    head("SoftmaxOutput flat", ("B", 4, 3), ("B", 4)),
    head("SoftmaxOutput multi", BCHW, ("B", 5, 6), multi_output=True),
    head("SoftmaxOutput preserve", ("B", 4, 3), ("B", 4), preserve_shape=True),
    *(head(f"{kind}RegressionOutput", ("B", 4), ("B", 4)) for kind in ("Logistic", "MAE", "Linear")),
    head("SVMOutput", ("B", 4), ("B",)),
    row("MakeLoss", lambda x: S.MakeLoss(x), ("B", 4), gradients=False),
    row("Dropout", lambda x: S.Dropout(x, p=0.3), BCHW, gradients=False, layer=True),
    row("Dropout axes", lambda x: S.Dropout(x, p=0.3, axes=(2, 3)), BCHW, gradients=False),
]


def pooling(name, shape=("B", 3, 7, 8), layer=True, gradients=True, **attrs):
    return row(
        f"Pooling {name}", lambda x: S.Pooling(x, **attrs), shape, draw=distinct, layer=layer, gradients=gradients
    )


def resized(name, *shapes, parameters=(), gradients=True, **attrs):
    kind = name.split()[0]
    operator = getattr(S, kind, None) or getattr(S.contrib, kind)
    return row(name, partial(operator, **attrs), *shapes, parameters=parameters, gradients=gradients)


POOLING = [
    pooling("max", kernel=(3, 2), stride=(2, 1), pad=(1, 0)),
    pooling("max full", kernel=(3, 3), stride=(2, 2), pooling_convention="full"),
    pooling("max stride 1", kernel=(2, 2)),
    pooling("avg", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
    pooling("avg without padding", kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False),
    # MXNet's gradient divides by the whole window, its forward pass by the part inside of the padding
    pooling(
        "avg full",
        ("B", 3, 8, 8),
        gradients=False,
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="avg",
        pooling_convention="full",
    ),
    pooling(
        "avg full without padding",
        ("B", 3, 8, 8),
        kernel=(3, 3),
        stride=(2, 2),
        pad=(1, 1),
        pool_type="avg",
        pooling_convention="full",
        count_include_pad=False,
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
    pooling(
        "global last",
        ("B", 7, 8, 3),
        False,
        kernel=(1, 1),
        global_pool=True,
        pool_type="avg",
        layout="NHWC",
        gradients=False,
    ),
    pooling("1d", ("B", 3, 8), kernel=(3,), stride=(2,), pooling_convention="full"),
    pooling("1d avg", ("B", 3, 8), kernel=(3,), stride=(2,), pad=(1,), pool_type="avg", count_include_pad=False),
    pooling("3d", ("B", 2, 5, 5, 5), kernel=(3, 3, 3), stride=(2, 2, 2), pad=(1, 1, 1)),
    pooling(
        "3d avg", ("B", 2, 5, 5, 5), kernel=(2, 2, 2), stride=(2, 2, 2), pool_type="avg", pooling_convention="full"
    ),
    pooling("3d global", ("B", 2, 5, 5, 5), kernel=(1, 1, 1), global_pool=True, pool_type="avg"),
    *(
        row(name, partial(S.contrib.AdaptiveAvgPooling2D, **attrs), ("B", 3, 7, 9), layer=True)
        for name, attrs in (("AdaptiveAvgPooling2D", {"output_size": (3, 4)}), ("AdaptiveAvgPooling2D 1", {}))
    ),
    row("UpSampling", lambda x: S.UpSampling(x, scale=3, sample_type="nearest"), BCHW, layer=True),
    resized("UpSampling two", ("B", 2, 4, 6), ("B", 3, 2, 3), scale=2, sample_type="nearest", num_args=2),
    *(
        resized(name, BCHW, kernel, parameters=(1,), scale=scale, sample_type="bilinear", num_filter=4)
        for name, kernel, scale in (
            ("UpSampling bilinear", (4, 1, 4, 4), 2),
            ("UpSampling bilinear 3", (4, 1, 5, 5), 3),
        )
    ),
    resized("BilinearResize2D", BCHW, height=9, width=4),
    resized("BilinearResize2D half", BCHW, height=9, width=4, align_corners=False),
    resized("BilinearResize2D scale", BCHW, scale_height=2, scale_width=1.5, mode="odd_scale"),
    resized("BilinearResize2D like", BCHW, ("B", 1, 7, 9), gradients=False, mode="like"),
]

LAYER_ROWS = [*CONVOLUTIONS, *DENSE, *NORMS, *ACTIVATIONS, *POOLING]
