"""Rows of layers: convolutions, normalization, activations, pooling."""

from operator_rows import BCHW, S, above, below, distinct, raw, row


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
    row(
        "FullyConnected flatten",
        lambda x, w, b: F(x, w, b, num_hidden=3),
        ("B", 4, 2),
        (3, 8),
        (3,),
        parameters=(1, 2),
        layer=True,
    ),
    row(
        "FullyConnected flat",
        lambda x, w, b: F(x, w, b, num_hidden=3),
        ("B", 8),
        (3, 8),
        (3,),
        parameters=(1, 2),
        layer=True,
    ),
    row(
        "FullyConnected last axis",
        lambda x, w: F(x, w, num_hidden=3, flatten=False, no_bias=True),
        ("B", 4, 2),
        (3, 2),
        parameters=(1,),
        layer=True,
    ),
    row(
        "Embedding",
        lambda x, w: S.Embedding(x, w, input_dim=7, output_dim=3),
        ("B", 4),
        (7, 3),
        parameters=(1,),
        draw={0: below(7)},
        layer=True,
        still=(0,),
    ),
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
    return row(name, lambda x, g, b: operator(x, g, b, **attrs), shape, size, size, parameters=(1, 2), layer=layer)


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
        BCHW,
        (4,),
        (4,),
        (4,),
        (4,),
        parameters=(1, 2, 3, 4),
        draw={4: above(0.5)},
        gradients=False,
    ),
    row(
        "SyncBatchNorm",
        lambda x, g, b, m, v: S.contrib.SyncBatchNorm(x, g, b, m, v, fix_gamma=False, ndev=1, key="key"),
        BCHW,
        (4,),
        (4,),
        (4,),
        (4,),
        parameters=(1, 2, 3, 4),
        draw={4: above(0.5)},
        gradients=False,
        layer=True,
    ),
    row(
        "Convolution_v1",
        lambda x, w: S.Convolution_v1(x, w, kernel=(2, 2), num_filter=3, no_bias=True),
        BCHW,
        (3, 4, 2, 2),
        parameters=(1,),
        layer=True,
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
    row("SoftmaxOutput", lambda x, y: S.SoftmaxOutput(x, y), ("B", 4), ("B",), gradients=False),
    row("SoftmaxOutput flat", lambda x, y: S.SoftmaxOutput(x, y), ("B", 4, 3), ("B", 4), gradients=False),
    row(
        "SoftmaxOutput multi", lambda x, y: S.SoftmaxOutput(x, y, multi_output=True), BCHW, ("B", 5, 6), gradients=False
    ),
    row(
        "SoftmaxOutput preserve",
        lambda x, y: S.SoftmaxOutput(x, y, preserve_shape=True),
        ("B", 4, 3),
        ("B", 4),
        gradients=False,
    ),
    row("LogisticRegressionOutput", lambda x, y: S.LogisticRegressionOutput(x, y), ("B", 4), ("B", 4), gradients=False),
    row("MAERegressionOutput", lambda x, y: S.MAERegressionOutput(x, y), ("B", 4), ("B", 4), gradients=False),
    row("SVMOutput", lambda x, y: S.SVMOutput(x, y), ("B", 4), ("B",), gradients=False),
    row("MakeLoss", lambda x: S.MakeLoss(x), ("B", 4), gradients=False),
    row("LinearRegressionOutput", lambda x, y: S.LinearRegressionOutput(x, y), ("B", 4), ("B", 4), gradients=False),
    row("Dropout", lambda x: S.Dropout(x, p=0.3), BCHW, gradients=False, layer=True),
    row("Dropout axes", lambda x: S.Dropout(x, p=0.3, axes=(2, 3)), BCHW, gradients=False),
]


def pooling(name, shape=("B", 3, 7, 8), layer=True, gradients=True, **attrs):
    return row(
        f"Pooling {name}", lambda x: S.Pooling(x, **attrs), shape, draw=distinct, layer=layer, gradients=gradients
    )


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
    row(
        "AdaptiveAvgPooling2D",
        lambda x: S.contrib.AdaptiveAvgPooling2D(x, output_size=(3, 4)),
        ("B", 3, 7, 9),
        layer=True,
    ),
    row("AdaptiveAvgPooling2D 1", lambda x: S.contrib.AdaptiveAvgPooling2D(x), ("B", 3, 7, 9), layer=True),
    row("UpSampling", lambda x: S.UpSampling(x, scale=3, sample_type="nearest"), BCHW, layer=True),
    row(
        "UpSampling two",
        lambda x, y: S.UpSampling(x, y, scale=2, sample_type="nearest", num_args=2),
        ("B", 2, 4, 6),
        ("B", 3, 2, 3),
    ),
    row(
        "UpSampling bilinear",
        lambda x, w: S.UpSampling(x, w, scale=2, sample_type="bilinear", num_filter=4),
        BCHW,
        (4, 1, 4, 4),
        parameters=(1,),
    ),
    row(
        "UpSampling bilinear 3",
        lambda x, w: S.UpSampling(x, w, scale=3, sample_type="bilinear", num_filter=4),
        BCHW,
        (4, 1, 5, 5),
        parameters=(1,),
    ),
    row("BilinearResize2D", lambda x: S.contrib.BilinearResize2D(x, height=9, width=4), BCHW),
    row("BilinearResize2D half", lambda x: S.contrib.BilinearResize2D(x, height=9, width=4, align_corners=False), BCHW),
    row(
        "BilinearResize2D scale",
        lambda x: S.contrib.BilinearResize2D(x, scale_height=2, scale_width=1.5, mode="odd_scale"),
        BCHW,
    ),
    row(
        "BilinearResize2D like",
        lambda x, y: S.contrib.BilinearResize2D(x, y, mode="like"),
        BCHW,
        ("B", 1, 7, 9),
        gradients=False,
    ),
]

LAYER_ROWS = [*CONVOLUTIONS, *DENSE, *NORMS, *ACTIVATIONS, *POOLING]
