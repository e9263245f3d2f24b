"""Rows of layers: convolutions, normalization, activations, pooling."""

from functools import partial

from operator_rows import BCHW, S, above, below, distinct, lengths, many, raw, row


def weighted(name, make, shape, *parameters, layer=True, **more):
    """A layer, whose inputs after the first are parameters."""
    return row(name, make, shape, *parameters, parameters=(*range(1, len(parameters) + 1),), layer=layer, **more)


def convolution(name, operator, shape, weight, no_bias=False, **attrs):
    bias = [] if no_bias else [(attrs["num_filter"],)]
    make = partial(operator, no_bias=no_bias, **attrs)
    return weighted(f"{operator.__name__} {name}", make, shape, weight, *bias)


C, D = S.Convolution, S.Deconvolution
SMALL, STEPS, TARGET = ("B", 4, 5, 5), {"stride": (2, 2)}, {"pad": (1, 2), "target_shape": (10, 9)}
CONVOLUTIONS = [
    convolution("1d", C, ("B", 3, 9), (4, 3, 3), num_filter=4, kernel=(3,), stride=(2,), pad=(1,)),
    convolution("2d", C, ("B", 3, 9, 8), (4, 3, 3, 2), num_filter=4, kernel=(3, 2), stride=(2, 1), pad=(1, 0)),
    convolution("groups", C, ("B", 4, 6, 6), (6, 2, 3, 3), num_filter=6, kernel=(3, 3), num_group=2, no_bias=True),
    convolution("dilated", C, ("B", 3, 9, 9), (2, 3, 3, 3), num_filter=2, kernel=(3, 3), dilate=(2, 2), pad=(2, 2)),
    convolution("3d", C, ("B", 2, 5, 5, 5), (3, 2, 3, 3, 3), num_filter=3, kernel=(3, 3, 3), pad=(1, 1, 1)),
    convolution("1d", D, ("B", 3, 5), (3, 2, 3), num_filter=2, kernel=(3,), stride=(2,), adj=(1,)),
    convolution("adj", D, SMALL, (4, 3, 4, 4), True, num_filter=3, kernel=(4, 4), **STEPS, pad=(1, 1), adj=(1, 1)),
    convolution("groups", D, SMALL, (4, 1, 3, 3), True, num_filter=2, kernel=(3, 3), num_group=2, dilate=(2, 2)),
    convolution(
        "target", D, SMALL, (4, 3, 3, 4), num_filter=3, kernel=(3, 4), **STEPS, pad=(1, 2), target_shape=(10, 9)
    ),
    convolution("3d", D, ("B", 2, 3, 3, 3), (2, 3, 2, 2, 2), num_filter=3, kernel=(2, 2, 2), stride=(2, 2, 2)),
]

F, TABLE = S.FullyConnected, partial(S.Embedding, input_dim=7, output_dim=3)
DENSE = [
    weighted("FullyConnected", lambda x, w, b: F(x, w, b, num_hidden=3), ("B", 8), (3, 8), (3,)),
    weighted("FullyConnected last axis", partial(F, num_hidden=3, flatten=False, no_bias=True), ("B", 4, 2), (3, 2)),
    weighted("Embedding", TABLE, ("B", 4), (7, 3), draw={0: below(7)}, still=(0,)),
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
    scaled("LayerNorm", S.LayerNorm, ("B", 3, 5), (5,), eps=0.1),
    scaled("LayerNorm axis", S.LayerNorm, ("B", 3, 5), (3,), layer=False, axis=1),
    scaled("GroupNorm", S.GroupNorm, ("B", 6, 3, 2), (6,), num_groups=6, eps=0.1),
    row("GroupNorm of groups", partial(S.GroupNorm, num_groups=3, eps=0.1), ("B", 6, 3, 2), (3,), (3,)),
    scaled("InstanceNorm", S.InstanceNorm, ("B", 4, 3, 5), (4,)),
    scaled("InstanceNorm 1d", S.InstanceNorm, ("B", 4, 7), (4,), eps=0.1),
    row("L2Normalization instance", lambda x: S.L2Normalization(x, eps=0.1), BCHW),
    row("L2Normalization channel", lambda x: S.L2Normalization(x, mode="channel"), BCHW),
    row("L2Normalization spatial", lambda x: S.L2Normalization(x, mode="spatial"), BCHW),
    row("LRN", lambda x: S.LRN(x, nsize=3, alpha=0.3, beta=0.6, knorm=1.5), BCHW),
    row("LRN defaults", lambda x: S.LRN(x, nsize=5), ("B", 7, 3, 3)),
]


KINDS = ("relu", "sigmoid", "tanh", "softrelu", "softsign")
LENGTHS = partial(S.softmax, use_length=True, axis=1)
ACTIVATIONS = [
    *many(S, "Activation", BCHW, attrs=[{"act_type": one} for one in KINDS], layer=True),
    row("LeakyReLU default", lambda x: S.LeakyReLU(x), BCHW, layer=True),
    row("LeakyReLU slope", lambda x: S.LeakyReLU(x, slope=0.1), BCHW, layer=True),
    row("LeakyReLU elu", lambda x: S.LeakyReLU(x, act_type="elu", slope=0.7), BCHW, layer=True),
    row("LeakyReLU selu", raw("LeakyReLU", 1, act_type="selu"), BCHW, gradients=False, layer=True),
    row("LeakyReLU gelu", lambda x: S.LeakyReLU(x, act_type="gelu"), BCHW, layer=True),
    row("PReLU channels", lambda x, g: S.LeakyReLU(x, g, act_type="prelu"), BCHW, (4,), parameters=(1,), layer=True),
    row("PReLU shared", lambda x, g: S.LeakyReLU(x, g, act_type="prelu"), BCHW, (1,), parameters=(1,), layer=True),
    row("softmax", lambda x: S.softmax(x, axis=1), BCHW, layer=True),
    row("softmax temperature", lambda x: S.softmax(x, temperature=3.0), BCHW),
    row("softmax length", LENGTHS, ("B", 5, 3), ("B", 3), draw={1: lengths("int32")}, gradients=False),
    row("softmin", lambda x: S.softmin(x, axis=-2), BCHW),
    row("log_softmax layer", lambda x: S.log_softmax(x, axis=1), BCHW, layer=True),
    row("log_softmax", lambda x: S.log_softmax(x, axis=1, temperature=2), BCHW),
    row("SoftmaxActivation", lambda x: S.SoftmaxActivation(x), ("B", 4)),
    row("SoftmaxActivation of more axes", lambda x: S.SoftmaxActivation(x), ("B", 4, 3), gradients=False),
    row("SoftmaxActivation channel", lambda x: S.SoftmaxActivation(x, mode="channel"), BCHW),
    row("MakeLoss", lambda x: S.MakeLoss(x), ("B", 4), gradients=False),
    row("Dropout", lambda x: S.Dropout(x, p=0.3), BCHW, gradients=False, layer=True),
    row("Dropout axes", lambda x: S.Dropout(x, p=0.3, axes=(2, 3)), BCHW, gradients=False),
]


def pooling(name, shape=("B", 3, 7, 8), kernel=3, stride=None, pad=None, layer=True, gradients=True, **attrs):
    """A pooling layer; numbers stand for all dimensions."""
    sizes = {key: one for key, one in (("kernel", kernel), ("stride", stride), ("pad", pad)) if one}
    sizes = {key: (one,) * (len(shape) - 2) if isinstance(one, int) else one for key, one in sizes.items()}
    make = partial(S.Pooling, **sizes, **attrs)
    return row(f"Pooling {name}", make, shape, draw=distinct, layer=layer, gradients=gradients)


def resized(name, *shapes, parameters=(), gradients=True, **attrs):
    kind = name.split()[0]
    operator = getattr(S, kind, None) or getattr(S.contrib, kind)
    return row(name, partial(operator, **attrs), *shapes, parameters=parameters, gradients=gradients)


AVG, WHOLE, FULL = {"pool_type": "avg"}, {"kernel": 1, "global_pool": True}, {"pooling_convention": "full"}
EVEN, CUBE = ("B", 3, 8, 8), ("B", 2, 5, 5, 5)
POOLING = [
    pooling("max", kernel=(3, 2), stride=(2, 1), pad=(1, 0)),
    pooling("max full", stride=2, **FULL),
    pooling("max stride 1", kernel=2),
    pooling("avg", stride=2, pad=1, **AVG),
    pooling("avg without padding", stride=2, pad=1, **AVG, count_include_pad=False),
    # MXNet's gradient divides by the whole window, its forward pass by the part inside of the padding
    pooling("avg full", EVEN, stride=2, pad=1, **AVG, **FULL, gradients=False),
    pooling("avg full without padding", EVEN, stride=2, pad=1, **AVG, **FULL, count_include_pad=False),
    pooling("max full padded", EVEN, stride=2, pad=1, **FULL),
    pooling("max wide padding", stride=1, pad=2, layer=False),
    pooling("avg wide padding", stride=1, pad=2, **AVG, layer=False),
    pooling("global avg", **WHOLE, **AVG),
    pooling("global max", **WHOLE, pool_type="max"),
    pooling("1d", ("B", 3, 8), stride=2, **FULL),
    pooling("1d avg", ("B", 3, 8), stride=2, pad=1, **AVG, count_include_pad=False),
    pooling("3d", CUBE, stride=2, pad=1),
    pooling("3d avg", CUBE, 2, 2, **AVG, **FULL),
    pooling("3d global", CUBE, **WHOLE, **AVG),
    *many(S.contrib, "AdaptiveAvgPooling2D", ("B", 3, 7, 9), attrs=[{"output_size": (3, 4)}, {}], layer=True),
    row("UpSampling", lambda x: S.UpSampling(x, scale=3, sample_type="nearest"), BCHW, layer=True),
    resized("BilinearResize2D", BCHW, height=9, width=4),
    resized("BilinearResize2D half", BCHW, height=9, width=4, align_corners=False),
    resized("BilinearResize2D scale", BCHW, scale_height=2, scale_width=1.5),
    resized("BilinearResize2D like", BCHW, ("B", 1, 7, 9), gradients=False, mode="like"),
]

LAYER_ROWS = [*CONVOLUTIONS, *DENSE, *NORMS, *ACTIVATIONS, *POOLING]
