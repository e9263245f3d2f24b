"""MXNet's own blocks: the arguments of their constructors, and the attributes that hold them (T55).

`SUPPORTED` lists the blocks that can be described and built, `UNSUPPORTED` the reason for each other public block. A
test compares both with all classes of gluon.nn, gluon.rnn, gluon.contrib.nn and gluon.contrib.rnn.
"""

from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple, Type

from mxkit.core.blocks import layer_settings
from mxkit.core.replicas import is_differentiable
from mxkit.nets.architecture.optimized_net import (
    OptimizedNet,
    float_layers,
    joined,
    optimized_net,
    precision,
    report,
    thresholds,
)
from mxkit.nets.architecture.symbol_blocks import graph, inputs, outputs, symbol_block
import mxnet as mx
from mxnet.gluon import contrib, nn, rnn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.mobilenet import RELU6, LinearBottleneck

Reader = Callable[[Any], Any]


class Stock(NamedTuple):
    """How instances of a class are described and built.

    Attributes:
        arguments: The constructor's arguments, each with a function that reads it from an instance.
        children: Names of children that an instance may have; None allows any number of any name.
        parts: Names of children that the constructor takes.
        assembled: True if the constructor makes children. It is not called then: the instance gets its children and
            arguments as attributes, because the children may have been changed since.
        make: Function to call in place of the constructor.
    """

    arguments: Mapping[str, Reader] = {}
    children: Optional[Tuple[str, ...]] = ()
    parts: Tuple[str, ...] = ()
    assembled: bool = False
    make: Optional[Callable[..., Any]] = None


def _at(*names: str) -> Dict[str, Reader]:
    """Readers of arguments from attributes of the same name, with or without an underscore."""

    def reader(name: str) -> Reader:
        return lambda block: getattr(block, f"_{name}" if hasattr(block, f"_{name}") else name)

    return {name: reader(name) for name in names}


def _keyword(**names: str) -> Dict[str, Reader]:
    """Readers of arguments from the settings of the layer's operator, where they have another name."""

    def reader(key: str) -> Reader:
        return lambda block: layer_settings(block)[key]

    return {name: reader(key) for name, key in names.items()}


def _initializers(**parameters: str) -> Dict[str, Reader]:
    """Readers of initializers from parameters; a missing parameter has none."""

    def reader(parameter: str) -> Reader:
        return lambda block: getattr(getattr(block, parameter, None), "init", None)

    return {f"{name}_initializer": reader(parameter) for name, parameter in parameters.items()}


def _size(parameter: str, axis: int) -> Reader:
    """Reader of a size that may be inferred from the first batch; 0, and -1 in NumPy's mode, are unknown."""
    return lambda block: max(0, getattr(block, parameter).shape[axis])


def _activation(block: Any) -> Optional[str]:
    """Return the activation that the constructor made; another block in its place is described as a child."""
    return block.act._act_type if type(block.act) is nn.Activation else None


def _cell_activation(name: str) -> Reader:
    return lambda block: getattr(block, name) if isinstance(getattr(block, name), str) else "tanh"


def _use_bias(block: Any) -> bool:
    return block.bias is not None


def _input_channels(block: Any) -> int:
    weight, layout, groups = block.weight.shape, layer_settings(block)["layout"], layer_settings(block)["num_group"]
    if "Transpose" in type(block).__name__:
        return max(0, int(weight[0]))
    return max(0, int(weight[layout.find("C")])) * int(groups)


def _function(block: Any) -> Any:
    """Return an operator's name; for another function the function itself, which has no form in JSON."""
    if type(block) is nn.Lambda:
        name = getattr(block._func_impl, "__name__", "")
        return name if getattr(mx.nd, name, None) is block._func_impl else block._func_impl
    by_name = nn.HybridLambda("relu", prefix="")._func.__code__
    return block._func_name if getattr(block._func, "__code__", None) is by_name else block._func


_DENSE = {
    **_at("units"),
    "activation": _activation,
    "use_bias": _use_bias,
    **_at("flatten"),
    "dtype": lambda block: block.weight.dtype,
    **_initializers(weight="weight", bias="bias"),
    "in_units": _size("weight", 1),
}
_EMBEDDING = {
    **_keyword(input_dim="input_dim", output_dim="output_dim", dtype="dtype"),
    **_initializers(weight="weight"),
}
_CONVOLUTION = {
    **_keyword(channels="num_filter", kernel_size="kernel", strides="stride", padding="pad", dilation="dilate"),
    **_keyword(groups="num_group", layout="layout"),
    "activation": _activation,
    "use_bias": _use_bias,
    **_initializers(weight="weight", bias="bias"),
    "in_channels": _input_channels,
}
_POOL = {
    **_keyword(pool_size="kernel", strides="stride", padding="pad", layout="layout"),
    "ceil_mode": lambda block: layer_settings(block)["pooling_convention"] == "full",
}
_STATISTICS = {
    **_keyword(momentum="momentum", epsilon="eps", use_global_stats="use_global_stats"),
    "center": lambda block: is_differentiable(block.beta),
    "scale": lambda block: not layer_settings(block)["fix_gamma"],
    **_initializers(beta="beta", gamma="gamma", running_mean="running_mean", running_variance="running_var"),
    "in_channels": _size("gamma", 0),
}
_GROUP_NORM = {**_keyword(epsilon="eps", center="center", scale="scale"), **_initializers(beta="beta", gamma="gamma")}
_NORM = {**_keyword(axis="axis"), **_GROUP_NORM, "in_channels": _size("gamma", 0)}
_GATES = {name: name for name in ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")}
_LAYER = {
    **_at("hidden_size", "num_layers", "layout", "dropout", "dtype", "use_sequence_length"),
    "bidirectional": lambda block: block._dir == 2,
    **_initializers(**{name: "l0_" + parameter for name, parameter in _GATES.items()}),
    "input_size": _size("l0_i2h_weight", 1),
}
_GRAPH = {"inputs": inputs, "outputs": outputs, "graph": graph}
_CELL = {**_at("hidden_size"), **_initializers(**_GATES), "input_size": _size("i2h_weight", 1)}
_CONVOLUTION_CELL = {
    **_at("input_shape", "hidden_channels", "i2h_kernel", "h2h_kernel", "i2h_pad", "i2h_dilate", "h2h_dilate"),
    **_initializers(**_GATES),
    **_at("conv_layout"),
    "activation": _cell_activation("_activation"),
}
_TRUNK = ("features", "output")

_SUPPORTED: Dict[Type[Any], Stock] = {
    **dict.fromkeys(
        [nn.Sequential, nn.HybridSequential, rnn.SequentialRNNCell, rnn.HybridSequentialRNNCell], Stock(children=None)
    ),
    nn.Dense: Stock(_DENSE, ("act",)),
    **dict.fromkeys([nn.Dropout, rnn.DropoutCell], Stock(_at("rate", "axes"))),
    nn.Embedding: Stock({**_EMBEDDING, **_keyword(sparse_grad="sparse_grad")}),
    **dict.fromkeys([nn.BatchNorm, nn.BatchNormReLU], Stock({**_keyword(axis="axis"), **_STATISTICS})),
    **dict.fromkeys([nn.InstanceNorm, nn.LayerNorm], Stock(_NORM)),
    nn.GroupNorm: Stock({**_keyword(num_groups="num_groups"), **_GROUP_NORM}),
    **dict.fromkeys([nn.Flatten, nn.SELU, nn.GELU, contrib.nn.Identity, RELU6], Stock()),
    **dict.fromkeys([nn.Lambda, nn.HybridLambda], Stock({"function": _function})),
    nn.Activation: Stock({"activation": lambda block: block._act_type}),
    **dict.fromkeys([nn.LeakyReLU, nn.ELU], Stock(_at("alpha"))),
    nn.PReLU: Stock({**_initializers(alpha="alpha"), "in_channels": _size("alpha", 0)}),
    nn.Swish: Stock(_at("beta")),
    **dict.fromkeys([nn.Conv1D, nn.Conv2D, nn.Conv3D], Stock(_CONVOLUTION, ("act",))),
    **dict.fromkeys(
        [nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose],
        Stock({**_CONVOLUTION, **_keyword(output_padding="adj")}, ("act",)),
    ),
    **dict.fromkeys([nn.MaxPool1D, nn.MaxPool2D, nn.MaxPool3D], Stock(_POOL)),
    **dict.fromkeys(
        [nn.AvgPool1D, nn.AvgPool2D, nn.AvgPool3D],
        Stock({**_POOL, **_keyword(count_include_pad="count_include_pad")}),
    ),
    **dict.fromkeys(
        [nn.GlobalMaxPool1D, nn.GlobalMaxPool2D, nn.GlobalMaxPool3D]
        + [nn.GlobalAvgPool1D, nn.GlobalAvgPool2D, nn.GlobalAvgPool3D],
        Stock(_keyword(layout="layout")),
    ),
    nn.ReflectionPad2D: Stock(_at("padding")),
    rnn.RNN: Stock({**_LAYER, "activation": lambda block: block._mode[len("rnn_") :]}),
    rnn.LSTM: Stock(
        {
            **_LAYER,
            **_at("projection_size"),
            **_initializers(h2r_weight="l0_h2r_weight"),
            "state_clip_min": lambda block: block._lstm_state_clip_min,
            "state_clip_max": lambda block: block._lstm_state_clip_max,
            "state_clip_nan": lambda block: block._lstm_state_clip_nan,
        }
    ),
    rnn.GRU: Stock(_LAYER),
    rnn.RNNCell: Stock({**_CELL, "activation": _cell_activation("_activation")}, ("_activation",)),
    rnn.LSTMCell: Stock({**_CELL, **_at("activation", "recurrent_activation")}),
    rnn.GRUCell: Stock(_CELL),
    rnn.ZoneoutCell: Stock(_at("zoneout_outputs", "zoneout_states"), ("base_cell",), ("base_cell",)),
    rnn.ResidualCell: Stock({}, ("base_cell",), ("base_cell",)),
    rnn.BidirectionalCell: Stock(_at("output_prefix"), ("l_cell", "r_cell"), ("l_cell", "r_cell")),
    contrib.rnn.VariationalDropoutCell: Stock(
        _at("drop_inputs", "drop_states", "drop_outputs"), ("base_cell",), ("base_cell",)
    ),
    contrib.rnn.LSTMPCell: Stock({**_CELL, **_at("projection_size"), **_initializers(h2r_weight="h2r_weight")}),
    **dict.fromkeys(
        [contrib.rnn.Conv1DRNNCell, contrib.rnn.Conv2DRNNCell, contrib.rnn.Conv3DRNNCell]
        + [contrib.rnn.Conv1DLSTMCell, contrib.rnn.Conv2DLSTMCell, contrib.rnn.Conv3DLSTMCell]
        + [contrib.rnn.Conv1DGRUCell, contrib.rnn.Conv2DGRUCell, contrib.rnn.Conv3DGRUCell],
        Stock(_CONVOLUTION_CELL, ("_activation",)),
    ),
    **dict.fromkeys([contrib.nn.Concurrent, contrib.nn.HybridConcurrent], Stock(_at("axis"), None)),
    contrib.nn.SparseEmbedding: Stock(_EMBEDDING),
    contrib.nn.SyncBatchNorm: Stock({**_STATISTICS, **_keyword(num_devices="ndev")}),
    contrib.nn.PixelShuffle1D: Stock(_at("factor")),
    **dict.fromkeys(
        [contrib.nn.PixelShuffle2D, contrib.nn.PixelShuffle3D], Stock({"factor": lambda block: block._factors})
    ),
    **dict.fromkeys(
        [vision.AlexNet, vision.DenseNet, vision.Inception3, vision.MobileNet, vision.MobileNetV2]
        + [vision.ResNetV1, vision.ResNetV2, vision.SqueezeNet, vision.VGG],
        Stock({}, _TRUNK, assembled=True),
    ),
    **dict.fromkeys([vision.BasicBlockV1, vision.BottleneckV1], Stock({}, ("body", "downsample"), assembled=True)),
    vision.BasicBlockV2: Stock({}, ("bn1", "conv1", "bn2", "conv2", "downsample"), assembled=True),
    vision.BottleneckV2: Stock({}, ("bn1", "conv1", "bn2", "conv2", "bn3", "conv3", "downsample"), assembled=True),
    LinearBottleneck: Stock(_at("use_shortcut"), ("out",), assembled=True),
    nn.SymbolBlock: Stock(_GRAPH, make=symbol_block),
    OptimizedNet: Stock(
        {
            **_GRAPH,
            "precision": precision,
            "float_layers": float_layers,
            "thresholds": thresholds,
            "joined": joined,
            "report": report,
        },
        make=optimized_net,
    ),
}
SUPPORTED: Dict[str, Tuple[Type[Any], Stock]] = {kind.__name__: (kind, stock) for kind, stock in _SUPPORTED.items()}
# Optional children of assembled classes.
OPTIONAL = ("downsample",)

UNSUPPORTED: Dict[Type[Any], str] = dict.fromkeys(
    [nn.Block, nn.HybridBlock, rnn.RecurrentCell, rnn.HybridRecurrentCell, rnn.ModifierCell],
    "it computes nothing by itself",
)
