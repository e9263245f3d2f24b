"""What a description may name: MXNet's own blocks, registered ones, and models of the zoos.

`describe` knows the blocks of MXNet's nets. gluoncv has hundreds of classes of its own, so its nets are described by
name and arguments, which each net records.
"""

from concurrent.futures import ThreadPoolExecutor
import copy
import functools
from importlib import import_module
import inspect
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, TypeVar

from mxkit.core.blocks import blocks_by_path, layer_settings, own_parameters, parameters_by_path
from mxkit.core.replicas import drop_values, is_differentiable
from mxkit.errors import ArchitectureError, unknown_name
from mxkit.nets.architecture.arguments import argument, initializer, plain
from mxkit.nets.architecture.graph_blocks import GRAPH, SETTINGS, OptimizedNet, optimized_net, symbol_block
from mxkit.runtime.gluon_layers import LIBRARY_CALL, own_constructor, snapshot
from mxkit.runtime.libraries import PACKAGES
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import contrib, nn, rnn
from mxnet.gluon.model_zoo import vision
from mxnet.gluon.model_zoo.vision.mobilenet import RELU6, LinearBottleneck
import numpy as np

# Arguments of blocks that a description leaves out: names are new in each net.
_NAMES = ("prefix", "params")
# Attribute of an instance that holds the arguments of its constructor, and of a zoo's net its name and arguments.
CALL, MADE = "_mxkit_call", "_mxkit_made"
_ALWAYS_PRETRAINED = re.compile(r".*_int8|resnet\d+_v1b_(kinetics400|sthsthv2|custom|hmdb51|ucf101)")
# Arguments that load weights, most of them from the network.
_BASES = ("pretrained_base", "use_kinetics_pretrain")
ASKING = ("pretrained", "transfer", *_BASES)
# Arguments that do not change the architecture.
NUMBERS = (*ASKING, "root", "ctx", "weights")
_Class = TypeVar("_Class", bound=Type[Any])


class Stock(NamedTuple):
    """How instances of a class of MXNet are described and built.

    Attributes:
        arguments: Names of the constructor's arguments, which `read_argument` reads from an instance.
        parts: Names of children that an instance must have. The constructor takes them; it is not called if the class
            is `assembled`.
        assembled: True if the constructor makes children. It is not called then: the instance gets its children and
            arguments as attributes, because the children may have been changed since.
        make: Function to call in place of the constructor.
    """

    arguments: Tuple[str, ...] = ()
    parts: Tuple[str, ...] = ()
    assembled: bool = False
    make: Optional[Callable[..., Any]] = None


def constructed(kind: Type[Any]) -> Stock:
    """Return how a class is described by the named arguments of its constructor."""
    signature = inspect.signature(kind).parameters.values()
    names = [one.name for one in signature if one.kind is one.POSITIONAL_OR_KEYWORD and one.name not in _NAMES]
    names += ["use_sequence_length"] if kind in (rnn.RNN, rnn.LSTM, rnn.GRU) else []
    return Stock(tuple(name for name in names if name not in _CELLS), tuple(name for name in names if name in _CELLS))


def _public_blocks(module: Any) -> List[Type[Any]]:
    """Return the classes of blocks in a module of MXNet."""
    public = [value for name, value in vars(module).items() if name[0] != "_" and isinstance(value, type)]
    return [kind for kind in public if issubclass(kind, gluon.Block)]


# Arguments of cells that are cells
_CELLS = ("base_cell", "l_cell", "r_cell")
_TRUNKS = [vision.AlexNet, vision.DenseNet, vision.Inception3, vision.MobileNet, vision.MobileNetV2]
_TRUNKS += [vision.ResNetV1, vision.ResNetV2, vision.SqueezeNet, vision.VGG]

_SUPPORTED: Dict[Type[Any], Stock] = {
    **{kind: constructed(kind) for module in (nn, rnn, contrib.nn, contrib.rnn) for kind in _public_blocks(module)},
    RELU6: Stock(),
    **dict.fromkeys(_TRUNKS, Stock(parts=("features", "output"), assembled=True)),
    **dict.fromkeys([vision.BasicBlockV1, vision.BottleneckV1], Stock(parts=("body",), assembled=True)),
    vision.BasicBlockV2: Stock(parts=("bn1", "conv1", "bn2", "conv2"), assembled=True),
    vision.BottleneckV2: Stock(parts=("bn1", "conv1", "bn2", "conv2", "bn3", "conv3"), assembled=True),
    LinearBottleneck: Stock(("use_shortcut",), ("out",), assembled=True),
    nn.SymbolBlock: Stock(tuple(GRAPH), make=symbol_block),
    OptimizedNet: Stock((*GRAPH, *SETTINGS), make=optimized_net),
}
SUPPORTED: Dict[str, Tuple[Type[Any], Stock]] = {kind.__name__: (kind, stock) for kind, stock in _SUPPORTED.items()}


def read_argument(block: Any, name: str) -> Any:
    """Read an argument of a stock block's constructor from the block (T55).

    Raises:
        AttributeError, LookupError, TypeError: The block has no such argument, or was changed.
    """
    if name.endswith("_initializer"):
        parameter = name[: -len("_initializer")].replace("running_variance", "running_var")
        holder = getattr(block, f"l0_{parameter}", None) or getattr(block, parameter, None)
        return getattr(holder, "init", None)  # a missing parameter has none
    if name in _READERS:
        return _READERS[name](block)
    return _setting(block, name)


def _setting(block: Any, name: str) -> Any:
    settings, key = layer_settings(block), _KEYS.get(name, name)
    if key in settings:
        return settings[key]
    return getattr(block, f"_{name}" if hasattr(block, f"_{name}") else name)


def _first_size(*parameters: str, axis: int = 0) -> Callable[[Any], int]:
    """Reader of a size that may be inferred from the first batch; 0, and -1 in NumPy's mode, are unknown."""

    def read(block: Any) -> int:
        parameter = next(getattr(block, name) for name in parameters if hasattr(block, name))
        return max(0, int(parameter.shape[axis]))

    return read


def _activation(block: Any) -> Any:
    """Return the activation that the constructor made; another block in its place is described as a child."""
    if isinstance(block, rnn.RNN):
        return block._mode[len("rnn_") :]
    if isinstance(block, nn.Activation):
        return block._act_type
    if hasattr(block, "act"):
        return block.act._act_type if type(block.act) is nn.Activation else None
    return block._activation if isinstance(block._activation, str) else "tanh"


def _input_channels(block: Any) -> int:
    settings = layer_settings(block)
    if "num_group" not in settings:
        return _first_size("gamma", "alpha")(block)
    weight = block.weight.shape
    if "Transpose" in type(block).__name__:
        return max(0, int(weight[0]))
    return max(0, int(weight[settings["layout"].find("C")])) * int(settings["num_group"])


def _function(block: Any) -> Any:
    """Return an operator's name; for another function the function itself, which has no form in JSON."""
    if type(block) is nn.Lambda:
        name = getattr(block._func_impl, "__name__", "")
        return name if getattr(mx.nd, name, None) is block._func_impl else block._func_impl
    by_name = nn.HybridLambda("relu", prefix="")._func.__code__
    return block._func_name if getattr(block._func, "__code__", None) is by_name else block._func


# Settings of a layer's operator that have another name than the argument.
_KEYS = {"channels": "num_filter", "kernel_size": "kernel", "pool_size": "kernel", "strides": "stride"}
_KEYS.update(padding="pad", dilation="dilate", groups="num_group", output_padding="adj", epsilon="eps")
_KEYS.update(num_devices="ndev")
_READERS: Dict[str, Callable[[Any], Any]] = {
    **GRAPH,
    **SETTINGS,
    "activation": _activation,
    "use_bias": lambda block: block.bias is not None,
    "dtype": lambda block: block.weight.dtype if isinstance(block, nn.Dense) else _setting(block, "dtype"),
    "in_units": _first_size("weight", axis=1),
    "in_channels": _input_channels,
    "input_size": lambda block: (
        block._input_size
        if isinstance(block, nn.HybridSequential)
        else _first_size("l0_i2h_weight", "i2h_weight", axis=1)(block)
    ),
    "ceil_mode": lambda block: layer_settings(block)["pooling_convention"] == "full",
    "center": lambda block: (
        layer_settings(block)["center"] if "center" in layer_settings(block) else is_differentiable(block.beta)
    ),
    "scale": lambda block: (
        layer_settings(block)["scale"] if "scale" in layer_settings(block) else not layer_settings(block)["fix_gamma"]
    ),
    "bidirectional": lambda block: block._dir == 2,
    "state_clip_min": lambda block: block._lstm_state_clip_min,
    "state_clip_max": lambda block: block._lstm_state_clip_max,
    "state_clip_nan": lambda block: block._lstm_state_clip_nan,
    "factor": lambda block: block._factors if hasattr(block, "_factors") else block._factor,
    "function": _function,
}

REGISTERED: Dict[str, Type[Any]] = {}
# mxkit's own blocks are registered when their module is imported, which a process that loads a net need not have done.
_OWN_BLOCKS = {"SizedNet": "mxkit.models.sizes", "Siamese": "mxkit.models.networks"}


# Functions of mxkit's that make nets of blocks that are not known one by one; filled when their module is imported.
FUNCTIONS: Dict[str, Callable[..., Any]] = {}
_FUNCTIONS_OF = "mxkit.models.detectors"


def register_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Describe the nets that a function makes by its name and its arguments; a decorator."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        net = function(*args, **kwargs)
        vars(net)[MADE] = (function.__name__, snapshot(dict(signature.bind(*args, **kwargs).arguments)))
        return net

    FUNCTIONS[function.__name__] = recorded
    return recorded


def registered_block(name: str) -> Optional[Type[Any]]:
    """Return the registered block of a name, or None; of a library's class, the name is `module:class`."""
    if ":" in name:
        return _library_class(name)
    if name not in REGISTERED and name in _OWN_BLOCKS:
        import_module(_OWN_BLOCKS[name])
    return REGISTERED.get(name)


def class_name(kind: Type[Any]) -> str:
    """Return the name of a class of blocks in a description."""
    is_library = kind.__module__.partition(".")[0] in PACKAGES and REGISTERED.get(kind.__name__) is not kind
    return f"{kind.__module__}:{kind.__qualname__}" if is_library else kind.__name__


def _library_class(name: str) -> Type[Any]:
    """Import a class of blocks of a library that mxkit knows.

    Raises:
        ValueError: The name leads out of these libraries, or to no class of blocks, or the library is not installed.
    """
    package = name.partition(":")[0].partition(".")[0]
    if package not in PACKAGES:
        raise ValueError(f"{name!r:.200} is of none of the libraries {', '.join(sorted(PACKAGES))}: register its class")
    kind = _imported(name)
    if not issubclass(kind, gluon.Block):
        raise ValueError(f"{name!r:.200} is no class of blocks of {package}")
    return kind


def _imported(name: str) -> Type[Any]:
    """Import the class `module:class`, which must stand in that very module; the caller checks the package."""
    path, _, inside = name.partition(":")
    try:
        kind: Any = functools.reduce(getattr, inside.split("."), import_module(path))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r:.200} is not in the installed {path.partition('.')[0]}: {error}") from error
    if not (isinstance(kind, type) and kind.__module__ == path):
        raise ValueError(f"{name!r:.200} is no class of that module")
    return kind


# Arguments of gluonts' networks are objects that keep what they were made with, for the library's own files.
_DISTRIBUTIONS = "gluonts.mx.distribution."


def _distribution(content: Any, children: Mapping[str, Any]) -> Any:
    """Make a family of distributions of gluonts again."""
    name, arguments = content
    if not str(name).startswith(_DISTRIBUTIONS):
        raise ValueError(f"expected a class of {_DISTRIBUTIONS[:-1]}; received {name!r:.200}")
    kind, base = _imported(name), _imported(f"{_DISTRIBUTIONS}distribution_output:Output")
    if not issubclass(kind, base):
        raise ValueError(f"{name!r:.200} is no family of distributions")
    return kind(**{key: decode(one, children) for key, one in arguments.items()})


def library_call(block: Any) -> Optional[Dict[str, Any]]:
    """Return the arguments with which a library's block was made; None for others, and if they have no names."""
    if LIBRARY_CALL not in vars(block) or "<locals>" in type(block).__qualname__:
        return None
    args, kwargs = vars(block)[LIBRARY_CALL]
    signature = inspect.signature(type(block).__init__)
    named = [one for one in signature.parameters.values() if one.kind is not one.VAR_POSITIONAL]
    if len(named) < len(signature.parameters) and len(args) >= sum(
        one.kind is one.POSITIONAL_OR_KEYWORD for one in named
    ):  # with `self`
        return None
    return constructor_arguments(signature.replace(parameters=named), block, args, kwargs, _is_plain)


def register_block(kind: _Class) -> _Class:
    """Register a block of your own for `describe` and `build`; a decorator for its class.

    Instances made from now on record the arguments of their constructor, defaults included, which describe them. So
    the constructor must do the same whenever it gets the same arguments. Arguments may be plain values, tuples, lists
    and dicts of them, dtypes, initializers, known classes of blocks, and blocks that become the instance's children.
    `prefix` and `params` are not recorded.

    `build` calls the constructors of registered classes with any plain values that a description holds: do not
    register a class that opens files or runs commands if you load descriptions from strangers.

    Args:
        kind: A subclass of gluon.Block; other packages' classes too: `register_block(gluoncv.nn.block.Consensus)`.
            A class of the same module and name replaces an earlier one, as when a notebook's cell runs twice.

    Returns:
        The class, whose `__init__` is wrapped.

    Raises:
        ArchitectureError: `kind` is not a block, another known block has its name, or its constructor takes arguments
            that have no names (`*args`, or before a `/`).

    >>> @register_block
    ... class Doubled(mx.gluon.HybridBlock):
    ...     def __init__(self, units, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.dense = mx.gluon.nn.Dense(units)
    ...     def hybrid_forward(self, F, x):
    ...         return 2 * self.dense(x)
    >>> mxkit.nets.describe(Doubled(3))["net"]
    {'class': 'Doubled', 'arguments': {'units': 3}}
    """
    if not (isinstance(kind, type) and issubclass(kind, gluon.Block)):
        raise ArchitectureError(f"register_block: expected a subclass of gluon.Block, received {kind!r:.200}")
    name = kind.__name__
    other = known_class(name) or kind
    if name in SUPPORTED or (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ArchitectureError(f"register_block: two blocks are called {name!r}, {other!r} and {kind!r}: rename one")
    signature = inspect.signature(kind.__init__)
    nameless = [one for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL)]
    if nameless:
        raise ArchitectureError(
            f"register_block: {name} takes {', '.join(map(str, nameless))} without a name, which is not recorded; "
            "give it one argument that is a list"
        )
    if other is not kind or name not in REGISTERED:
        kind.__init__ = _recording(kind, own_constructor(kind), signature)
        REGISTERED[name] = kind
    return kind


def _recording(kind: Type[Any], init: Callable[..., None], signature: inspect.Signature) -> Callable[..., None]:
    @functools.wraps(init)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        # a subclass that is not registered has another forward pass; a registered one records its own call
        if type(self) is kind:
            call = constructor_arguments(signature, self, args, kwargs, _is_plain)
            vars(self)[CALL] = {name: snapshot(value) for name, value in call.items()}
        init(self, *args, **kwargs)

    return recorded


def constructor_arguments(
    signature: inspect.Signature,
    block: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    keep_default: Callable[[Any], bool] = lambda value: True,
) -> Dict[str, Any]:
    """Return the arguments of a constructor's call by name, without `prefix` and `params`.

    Args:
        signature: Of the constructor.
        block: The new instance.
        args: The positional arguments.
        kwargs: The named arguments.
        keep_default: Returns True for a default that belongs to the result.
    """
    try:
        bound = signature.bind(block, *args, **kwargs)
    except TypeError:
        return {}  # the constructor raises it too; or `copy` makes an instance without arguments
    passed = set(bound.arguments)
    bound.apply_defaults()
    arguments: Dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        elif name in passed or keep_default(value):
            arguments[name] = value
    return {name: value for name, value in arguments.items() if name not in _NAMES}


def _is_plain(value: Any) -> bool:
    """Return True if a default has a form in JSON."""

    def refuse(block: Any) -> str:
        raise TypeError

    try:
        encode(value, refuse)
    except TypeError:
        return False
    return True


def encode(value: Any, child: Callable[[Any], str]) -> Any:
    """Return a constructor's argument as JSON values; a type that JSON lacks is a dict whose one key begins with $.

    Args:
        value: The argument.
        child: Returns the name that a block among the arguments has as a child, or raises TypeError.

    Raises:
        TypeError: The argument has no such form.

    >>> encode({"sizes": (3, 1), "init": mx.init.Zero()}, str)
    {'sizes': {'$tuple': [3, 1]}, 'init': {'$initializer': ['zero', {}]}}
    """
    if type(value) is dict and all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: encode(one, child) for name, one in value.items()}
    if type(value) is list:
        return [encode(one, child) for one in value]
    if type(value) is tuple:
        return {"$tuple": [encode(one, child) for one in value]}
    if isinstance(value, gluon.Block):
        return {"$child": child(value)}
    if isinstance(value, mx.init.Initializer):
        return {"$initializer": plain(value)}
    if isinstance(value, type) and issubclass(value, gluon.Block):
        name = class_name(value)
        if known_class(name) is not value:
            raise TypeError(f"the class {name} is not known: decorate it with @mxkit.nets.register_block")
        return {"$class": name}
    if type(value).__module__.startswith(_DISTRIBUTIONS) and hasattr(value, "__init_args__"):
        arguments = {key: encode(one, child) for key, one in value.__init_args__.items()}
        return {"$distribution": [f"{type(value).__module__}:{type(value).__qualname__}", arguments]}
    if isinstance(value, (np.dtype, type)):
        return {"$dtype": plain(value)}
    if isinstance(value, (dict, list, tuple)):
        raise TypeError(
            f"{value!r:.100} of type {type(value).__name__} is not a plain list, tuple, or dict with text for keys "
            "that do not begin with $"
        )
    return plain(value)


def known_class(name: str) -> Optional[Type[Any]]:
    """Return the stock or registered class of a name, or None."""
    return SUPPORTED[name][0] if name in SUPPORTED else registered_block(name)


def decode(value: Any, children: Mapping[str, Any]) -> Any:
    """Return the argument that `encode` encoded.

    Args:
        value: The result of `encode`, or a value of a stranger's description.
        children: Finished blocks by name.

    Raises:
        LookupError, TypeError, ValueError: The value is not a result of `encode`.
    """
    if isinstance(value, list):
        return [decode(one, children) for one in value]
    if not isinstance(value, dict):
        return plain(value)
    if not any(name.startswith("$") for name in value):
        return {name: decode(one, children) for name, one in value.items()}
    ((name, content),) = value.items()
    if name == "$tuple":
        return tuple(decode(one, children) for one in content)
    if name == "$child":
        return children[content]
    if name == "$initializer":
        return initializer(content)
    if name == "$class" and known_class(content):
        return known_class(content)
    if name == "$distribution":
        return _distribution(content, children)
    if name == "$dtype":
        return np.dtype(argument("dtype", content)).type
    raise ValueError(
        "expected $tuple, $child, $initializer, $class, $distribution or $dtype of something known; "
        f"received {value!r:.100}"
    )


def split_name(name: str) -> Tuple[str, str]:
    """Separate `gluoncv:resnet18_v1b` into the zoo and the net's name there.

    Raises:
        UnknownNameError: No zoo has such a net; the text lists the known names and the nearest.
    """
    source, _, short = name.partition(":")
    known = zoo_names(source)
    if short.lower() not in known:
        raise unknown_name("model", name, [f"{source}:{one}" for one in known])
    return source, short.lower()


def make_model(name: str, arguments: Dict[str, Any], make: Optional[Callable[[], Any]] = None) -> Any:
    """Build a net of a zoo, or of a function of `FUNCTIONS`, without weights, or by calling `make`.

    Raises:
        UnknownNameError: No zoo has such a net.
        ValueError: gluoncv makes the net with weights only.
        TypeError: The net does not take an argument; the text names it.
    """
    if ":" not in name and import_module(_FUNCTIONS_OF) and name in FUNCTIONS:
        return FUNCTIONS[name](**arguments)
    source, short = split_name(name)
    name = f"{source}:{short}"
    architecture = {key: value for key, value in arguments.items() if key not in NUMBERS}
    if make is None and source == "gluoncv" and _ALWAYS_PRETRAINED.fullmatch(short):
        raise ValueError(f"model {name!r}: gluoncv makes it with weights from the network only; pass pretrained=True")
    try:
        if make is not None:
            net = make()
        elif source == "zoo":
            net = vision.get_model(short, **architecture)
        else:
            net = _without_weights(short, architecture)
    except TypeError as error:
        raise TypeError(f"model {name!r} refuses its arguments {arguments}: {error}") from error
    vars(net)[MADE] = (name, copy.deepcopy(architecture))
    return net


def zoo_names(source: str) -> List[str]:
    """Return the names of the nets in MXNet's zoo, `"zoo"`, or in `"gluoncv"`.

    Raises:
        UnknownNameError: `source` is neither.
    """
    if source == "zoo":
        # only the error for a wrong name lists the local table of get_model
        try:
            vision.get_model("")
        except ValueError as error:
            return sorted(line.strip() for line in str(error).splitlines()[1:] if line.strip())
    if source == "gluoncv":
        from gluoncv.model_zoo import get_model_list  # gluoncv costs seconds to import

        return sorted(get_model_list())
    raise unknown_name("source of models", source, ["zoo", "gluoncv"])


def gluoncv_model(name: str, arguments: Dict[str, Any]) -> Any:
    """Call gluoncv's function for a net; importing gluoncv takes seconds."""
    from gluoncv.model_zoo import get_model as get_gluoncv_model

    return get_gluoncv_model(name, **arguments)


def _without_weights(name: str, arguments: Dict[str, Any]) -> Any:
    options = {**_without_bases(name), **arguments, "pretrained": False}
    net = gluoncv_model(name, options)
    graphs = _graphs(net)
    if graphs:
        # Paths into a graph contain Gluon's counters (T37), which start at 0 in each thread, as in a new process.
        with ThreadPoolExecutor(1) as thread:
            other_net = thread.submit(gluoncv_model, name, options).result()
        for graph, other in zip(graphs, _graphs(other_net)):
            parameters = own_parameters(graph)
            renamed = dict(zip(own_parameters(other), parameters.values()))
            parameters.clear()
            parameters.update(renamed)
    for parameter in parameters_by_path(net).values():
        drop_values(parameter)  # gluoncv initializes heads of masks itself (T274)
    return net


def _graphs(net: Any) -> List[Any]:
    return [block for _, block in blocks_by_path(net) if isinstance(block, gluon.SymbolBlock)]


def _without_bases(name: str) -> Dict[str, bool]:
    """Return arguments with which a detection, segmentation or video net does not load its base's weights."""
    from gluoncv.model_zoo.model_zoo import _models

    function = _models[name]
    callees = [function]
    if any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()):
        # it passes them on to a function or a class of its module
        others = vars(inspect.getmodule(function)).values()
        callees += [one for one in others if callable(one) and getattr(one, "__module__", "") == function.__module__]
    accepted = {name for callee in callees for name in inspect.signature(callee).parameters}
    return {base: False for base in _BASES if base in accepted}
