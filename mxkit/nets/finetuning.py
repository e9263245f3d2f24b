"""Fine-tuning of trained nets for other classes, replaced blocks, and the preprocessing for published weights."""

from copy import deepcopy
import re
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union
import warnings

from mxkit.core.arguments import class_names
from mxkit.core.arrays import is_numpy, legacy, of_kind, switches, to_host
from mxkit.core.blocks import (
    blocks_by_path,
    check_net,
    child_blocks,
    is_numpy_net,
    join_path,
    match_parameters,
    net_devices,
    own_parameters,
    parameters_by_path,
    unknown_path,
)
from mxkit.core.graphs import copyable, drop_graph, hybridize_like
from mxkit.core.replicas import copy_parameter, trainer_of, values_of
from mxkit.core.tracing import trace
from mxkit.core.trainers import trainer_parameters
from mxkit.data.augment import CIFAR10_MEAN, CIFAR10_STD, IMAGENET_MEAN, IMAGENET_STD
from mxkit.errors import DataError, NotInitializedError, TrapWarning, nearest, unknown_name
from mxkit.nets.architecture.catalog import zoo_names
from mxkit.nets.architecture.description import build, describe
from mxkit.nets.initializers import InitializerSpec, initialize
from mxkit.nets.settings import freeze_all, set_multipliers
import mxnet as mx
from mxnet import gluon
import numpy as np

# A path, the block above, the child's name there, and all blocks on the way down to it.
_Place = Tuple[str, Any, str, Tuple[Any, ...]]


def replace(net: Any, path: str, block: Any) -> Any:
    """Replace a block of a net; the next call of the net computes with the new block.

    In Gluon, `net.output = block` refuses a block of another type, and after `register_child` a hybridized net still
    computes with the old block, without an error (T36).

    Args:
        net: The outermost block, because the cached graphs of all blocks around `path` are dropped.
        path: Names as `print(net)` nests them: "output", "features.3.body.0". A block that stands under several paths
            is replaced under all of them.
        block: The new block; its values are not changed. Initialize it with `mxkit.initialize(block, devices=...)`
            on the devices of the net. It may contain the old block, as a wrapper does.

    Returns:
        The old block, with its parameters.

    Raises:
        UnknownPathError: No block stands at `path`; the text names the nearest path.
        TypeError: `block` is not a Block.
        ValueError: `path` is the net itself; `block` is not a HybridBlock and the block above is; it contains a block
            that it would be part of; or the block above holds the old block in a list, tuple or dict. Nothing has
            changed then.

    Warns:
        TrapWarning: A Trainer exists over parameters of the net. It would not train those of `block` (T19), and still
            expects gradients for the removed ones.

    Side effects:
        Graphs cached above `path` are dropped, and the next call traces the net again. `block` is hybridized if the
        old block was.

    >>> net = mxkit.models.mlp(hidden=[8]); mxkit.initialize(net); net.hybridize()
    >>> new = mx.gluon.nn.Dense(3); mxkit.initialize(new)
    >>> old = replace(net, "2", new); net(mx.nd.ones((1, 4))).shape
    (1, 3)
    """
    check_net(net)
    if not isinstance(block, gluon.Block):
        raise TypeError(f"replace: {path!r}: expected a gluon Block; received {block!r:.100}")
    places = _find(net, path)
    old = child_blocks(places[0][1])[places[0][2]]
    for reason in _refusals(net, places, old, block):
        raise ValueError(f"replace: {reason}. Nothing was changed")
    _warn_of_trainers(net, old, block)
    hybridize_like(block, old)
    for _, parent, name, above in places:
        child_blocks(parent)[name] = block
        for attribute, value in list(vars(parent).items()):
            if value is old:
                object.__setattr__(parent, attribute, block)  # Block's own refuses another type
        for one in above:
            drop_graph(one)  # Gluon clears the nearest only (T36)
    return old


def _walk(block: Any, path: str = "", above: Tuple[Any, ...] = ()) -> Iterator[_Place]:
    above = (*above, block)
    for name, child in child_blocks(block).items():
        inner = join_path(path, name)
        yield inner, block, name, above
        yield from _walk(child, inner, above)


def _find(net: Any, path: str) -> List[_Place]:
    """Return every place of the block that stands at `path`."""
    if path == "":
        raise ValueError("replace: '' is the net itself, with nothing above it to hold another. Use the other one")
    places = list(_walk(net))
    for known, parent, name, _ in places:
        if known == path:
            return [one for one in places if child_blocks(one[1])[one[2]] is child_blocks(parent)[name]]
    paths = [place[0] for place in places]
    raise unknown_path(f"replace: no block stands at {path!r}", nearest(str(path), paths), paths)


def _refusals(net: Any, places: List[_Place], old: Any, block: Any) -> Iterator[str]:
    inside = {id(one) for _, one in blocks_by_path(block)}
    for path, parent, _, above in places:
        kind = type(parent).__name__
        if isinstance(parent, gluon.HybridBlock) and not isinstance(block, gluon.HybridBlock):
            yield f"{path!r} is part of a {kind}, which takes HybridBlocks only; received a {type(block).__name__}"
        if inside.intersection(map(id, above)):
            yield f"the new block holds a block that {path!r} is part of: the net would never end"
        for attribute, value in vars(parent).items():  # its forward may read the old block from there
            held = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
            if attribute != "_children" and any(one is old for one in held):
                yield (
                    f"the {kind} above {path!r} keeps it in its {type(value).__name__} {attribute!r} too. Change both "
                    "there, then call net.hybridize() to drop cached graphs"
                )


def _warn_of_trainers(net: Any, old: Any, block: Any) -> None:
    trainers = {id(one): one for one in map(trainer_of, parameters_by_path(net).values()) if one}
    known = {id(parameter) for trainer in trainers.values() for parameter in trainer_parameters(trainer)}
    new = parameters_by_path(block)
    untrained = [path for path, one in new.items() if one.grad_req != "null" and id(one) not in known]
    gone = known - {id(parameter) for parameter in new.values()}
    stale = [path for path, one in parameters_by_path(old).items() if one.grad_req != "null" and id(one) in gone]
    if trainers and (untrained or stale):
        warnings.warn(
            "replace: a Trainer exists over parameters of the net. Of the new block it does not train "
            f"{', '.join(untrained) or 'nothing'}, of the old one it still holds {', '.join(stale) or 'nothing'} "
            "(T19). Make a new Trainer over net.collect_params() before the next step",
            TrapWarning,
            stacklevel=3,
        )


# Names of the last layer: in MXNet's zoo and most nets of gluoncv, and in gluoncv's resnet_v1b and similar nets.
_HEADS = ("output", "fc")
# Blocks of gluoncv's other nets whose last layers give the classes, as patterns of paths; and the outputs that stand
# before those of the classes, for each anchor: the background's, or a box with its objectness.
_CLASS_BLOCKS = {
    "SSD": (r"class_predictors\.\d+", 1),
    "YOLOV3": (r"yolo_outputs\.\d+", 5),
    "CenterNet": (r"heads\.0", 0),
    "SimplePoseResNet": (r"final_layer", 0),
    "FastSCNN": (r"classifier|auxlayer", 0),
    "ICNet": (r"head(\.cff_\d+)?", 0),
    "DANet": (r"head\.conv\d", 0),
    **dict.fromkeys(
        ["FCN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "DeepLabWV3Plus", "SmallSegmentation"], (r"head|auxlayer", 0)
    ),
}
_UNITS = {gluon.nn.Dense: "units", gluon.nn.Conv1D: "channels", gluon.nn.Conv2D: "channels"}


def finetune(
    base: Any,
    classes: Union[int, Sequence[str]],
    *,
    freeze: Optional[str] = "features",
    head_multiplier: float = 10.0,
    head: Optional[str] = None,
    initializer: InitializerSpec = "xavier",
    copy: bool = True,
) -> Any:
    """Copy a trained net with new last layers for other classes.

    It knows the layers of classifiers, and of gluoncv's SSD, YOLO3, CenterNet, SimplePose and nets of masks, with their
    auxiliary outputs. SSD keeps the weights of its background, YOLO3 those of boxes and objectness; gluoncv's own
    `reset_class` replaces them by random ones (T273).

    Args:
        base: An initialized net, of a zoo or any other. It may be hybridized, and live on several devices.
        classes: Number of outputs of the new layer: of classes, for a net of masks with the background, or of points.
            Or the names of the classes: those that `base.classes` has too keep their weights.
        freeze: "features" freezes all parameters but the new layers'; a glob over structural paths, as for
            `mxkit.freeze`, freezes those that fit; None freezes nothing. `mxkit.callbacks.Freeze(until="2 epochs")`
            resumes their training later, `mxkit.unfreeze` at once.
        head_multiplier: Multiplier of the new layers' learning rate, at least 0.
        head: Path of the last layer or of a block that contains it, like "output" or "features.8". None means
            "output", as in the zoos, or "fc" where the forward pass does not use "output", or what gluoncv's other
            nets have. The last Dense or convolution in it that the forward pass uses is replaced by one of the same
            arguments.
        initializer: Initializer of the new layers.
        copy: False changes and returns `base` itself.

    Returns:
        The net, on the devices of `base`, hybridized if `base` is. It shares nothing with `base`, which does not
        change; hooks are not copied. `classes` of a net that has this attribute are the new names, or numbers.

    Raises:
        NotInitializedError: Parameters of `base` have no values yet.
        UnknownNameError: No block stands at `head`, or no parameter fits `freeze`.
        ValueError: `head` is None and the net has neither "output" nor "fc"; the forward pass does not use `head`;
            `base` is a SymbolBlock; or an argument is wrong.
        TypeError: `head` contains neither a Dense layer nor a convolution.

    Side effects:
        A BatchNorm whose gamma and beta are frozen uses its running statistics in training too (use_global_stats),
        those of the first device. Otherwise frozen features would change with each batch, and would differ in
        prediction. The setting remains when the BatchNorm is unfrozen.

    >>> base = mxkit.models.get_model("zoo:mobilenet0.25"); mxkit.initialize(base, devices="cpu")
    >>> _ = base(mx.nd.ones((1, 3, 32, 32)))
    >>> net = finetune(base, 2)
    >>> net.output, [path for path, one in mxkit.parameters(net).items() if one.grad_req != "null"]
    (Dense(256 -> 2, linear), ['output.weight', 'output.bias'])
    """
    names = class_names(classes, "finetune: classes")
    layers, before = _last_layers(base, head)
    for path, parameter in parameters_by_path(base).items():
        if values_of(parameter) is None:
            raise NotInitializedError(
                f"finetune: parameter {path!r} of the base has no value yet: load its weights, or train it, first"
            )
    if freeze is not None and freeze != "features":
        match_parameters(base, freeze)
    net = copy_net(base) if copy else base
    blocks, known = dict(blocks_by_path(net)), _set_classes(net, names)
    own: Set[int] = set()
    for path in layers:
        old = blocks[path]
        outputs = old.weight.shape[0]
        kept = known if before or len(known) == outputs else [""] * outputs
        kept = kept if isinstance(classes, (list, tuple)) else [""] * len(kept)  # numbers say nothing of classes
        with switches(is_numpy_net(net)):
            new = _like(old, _rows(outputs, before, kept, names), initializer, net_devices(net))
        set_multipliers(new, {"*": {"lr": head_multiplier}})
        replace(net, path, new)
        own.update(map(id, new.collect_params().values()))
    if freeze == "features":
        freeze_all(net, {path: one for path, one in parameters_by_path(net).items() if id(one) not in own})
    elif freeze is not None:
        freeze_all(net, match_parameters(net, freeze))
    return net


def copy_net(net: Any) -> Any:
    """Copy a net with values on every device, frozen parameters, multipliers and hybridization.

    `copy.deepcopy` fails on a hybridized net that ran (T54). It also copies the Trainer with the parameters, and loses
    the connection between parameters and gradients, so that the copy cannot learn.

    Args:
        net: Any block.

    Returns:
        The copy. Hooks and graphs are not copied; Gluon's names are.

    >>> net = mx.gluon.nn.Dense(2, in_units=1); mxkit.initialize(net, "ones", devices="cpu"); twin = copy_net(net)
    >>> twin.weight.set_data(mx.nd.zeros((2, 1))); net.weight.data().asnumpy().tolist()
    [[1.0], [1.0]]
    """
    with copyable(net):
        copies = {}
        for _, block in blocks_by_path(net):
            for parameter in (*block.params.values(), *own_parameters(block).values()):
                if id(parameter) not in copies:
                    copies[id(parameter)] = copy_parameter(parameter)
        with mx.util.np_shape(True):  # for attributes that are arrays of mx.np without axes
            return deepcopy(net, copies)


def _last_layers(base: Any, head: Optional[str]) -> Tuple[List[str], int]:
    """Paths of the layers that give the classes, and for a detector the outputs before the classes of each anchor."""
    kind = type(base).__name__
    pattern, before = _CLASS_BLOCKS.get(kind, ("", 0))
    if hasattr(base, "reset_class") and not pattern:
        raise ValueError(
            f"finetune: {kind} is not known. Call net.reset_class(classes, reuse_weights=...) of gluoncv, then "
            "mxkit.freeze for what is not to be trained"
        )
    if not pattern:
        return [_last_layer(base, head)], 0
    if head is not None:
        raise ValueError(f"finetune: head: the last layers of a {kind} are known; leave head={head!r} out")
    return [_last_layer(base, path) for path, _ in blocks_by_path(base) if re.fullmatch(pattern, path)], before


def _set_classes(net: Any, names: List[str]) -> List[str]:
    """Set the names of a net's classes, and return the old ones; [] if it has none."""
    known = getattr(net, "classes", None)
    if not isinstance(known, (list, tuple)):
        return []
    parts = dict(child_blocks(net))
    if hasattr(net, "reset_class"):
        net.reset_class(names)
        for name in ("class_predictors", "heads"):  # gluoncv's new blocks are not hybridized, and have faults (T273)
            if name in parts:
                setattr(net, name, parts[name])
    else:
        net.classes = names
    return list(map(str, known))


def _rows(outputs: int, before: int, known: Sequence[str], names: Sequence[str]) -> "np.ndarray":
    """Number of the old output for each new one, -1 if there is none."""
    one = np.array([*range(before), *(before + known.index(name) if name in known else -1 for name in names)])
    return np.where(one < 0, -1, np.arange(0, outputs, before + len(known))[:, None] + one).ravel()


def _last_layer(base: Any, head: Optional[str]) -> str:
    """Path of the last Dense layer or convolution of the head that the forward pass uses."""
    if isinstance(base, gluon.SymbolBlock):
        raise ValueError(
            "finetune: a SymbolBlock is one graph, and has no layer to replace. Load it without its last layer, as "
            "mxkit.load_exported(..., outputs='flatten0_output') does, call mxkit.freeze on it, and put it with a new "
            "Dense layer into a HybridSequential"
        )
    blocks = dict(blocks_by_path(base))
    if head is not None and (head not in blocks or not head):
        known = [path for path in blocks if path]
        raise unknown_path(f"finetune: head: no block stands at {head!r}", nearest(str(head), known), known)
    used = _used(base)
    layers = {path: id(block.weight) in used for path, block in blocks.items() if type(block) in _UNITS}
    for name in _HEADS if head is None else (head,):
        inside = [path for path in layers if path == name or path.startswith(f"{name}.")]
        reached = [path for path in inside if layers[path]]
        if reached:
            return reached[-1]
    if head is not None and not inside:
        raise TypeError(
            f"finetune: {head!r} is a {type(blocks[head]).__name__}, and holds no Dense layer and no convolution. Put "
            "your own layer in its place with mxkit.nets.replace"
        )
    last = [path for path, reached in layers.items() if reached and path][-1:] or ["..."]
    raise ValueError(
        f"finetune: the forward pass uses no layer of {head or ' or '.join(_HEADS)!r}, the names in nets of the zoos. "
        f"Pass the path of the layer that gives the classes: head={last[0]!r}"
    )


def _used(net: Any) -> Set[int]:
    """Ids of the parameters that a forward pass reads; of all if the net cannot be traced with one input."""
    try:
        traced = trace(net, [of_kind(mx.nd.zeros(1), is_numpy_net(net))])
    except Exception:  # of any type: the net's code got a symbol, and may take several
        return set(map(id, parameters_by_path(net).values()))
    names = set(mx.sym.Group(traced.outputs).list_inputs())
    return {id(parameter) for name, parameter in traced.parameters.items() if name in names}


def _like(layer: Any, rows: "np.ndarray", initializer: InitializerSpec, devices: Any) -> Any:
    """Return a layer of the same arguments with other outputs: the old ones of these numbers, and new ones for -1."""
    node = describe(layer)["net"]
    arguments = {**node["arguments"], _UNITS[type(layer)]: len(rows)}
    new = build({"format": 1, "net": {**node, "arguments": arguments}})
    new.cast(layer.weight.dtype)
    initialize(new, initializer, devices=devices)
    for old, parameter in ((layer.weight, new.weight), (layer.bias, new.bias)):
        if parameter is not None and (rows >= 0).any():
            values = to_host(parameter.list_data()[0]).copy()
            values[rows >= 0] = to_host(old.list_data()[0])[rows[rows >= 0]]
            parameter.set_data(values)
    return new


class Preprocessing(NamedTuple):
    """Normalizes batches of images for a net's weights. `preprocess(name)` returns it.

    Attributes:
        mean: Means of red, green and blue, from 0 to 1.
        std: Standard deviations of red, green and blue.
        size: Height and width of the images that the weights were trained on.
    """

    mean: Tuple[float, ...]
    std: Tuple[float, ...]
    size: int

    def __call__(self, x: Any) -> Any:
        """Normalize a batch.

        Args:
            x: Images, NumPy or MXNet's array of shape (N, 3, H, W), red first: uint8, or floats from 0 to 1. The check
                of the range of floats in an array of MXNet waits for the device.

        Returns:
            `(x - mean) / std` in float32, of the same shape, in the same library and on the same device.

        Raises:
            DataError: The shape, the dtype or the range is wrong.
        """
        numpy, x = is_numpy(x), legacy(x)
        shape, kind = tuple(x.shape), np.dtype(x.dtype)
        if len(shape) != 4 or shape[1] != 3:
            raise DataError(f"preprocess: expected images of shape (N, 3, H, W); received {shape}")
        if kind != np.uint8 and kind.kind != "f":
            raise DataError(f"preprocess: expected uint8, or floats from 0 to 1; received {kind.name}")
        x = x.astype("float32")
        if kind == np.uint8:
            x = x / 255
        elif x.size:
            least, most = (float(to_host(edge).item()) for edge in (x.min(), x.max()))
            if not (least >= 0 and most <= 1):
                raise DataError(
                    f"preprocess: expected floats from 0 to 1; received {least:g} to {most:g}: divide by 255, or pass "
                    "uint8, once and before any other normalization"
                )
        mean, std = (np.array(one, "float32").reshape(1, 3, 1, 1) for one in (self.mean, self.std))
        if isinstance(x, mx.nd.NDArray):
            mean, std = (mx.nd.array(one, ctx=x.ctx) for one in (mean, std))
        return of_kind((x - mean) / std, numpy)


def preprocess(name: str) -> Preprocessing:
    """Return the preprocessing for published weights.

    Args:
        name: "imagenet", "cifar10", or a net: "zoo:resnet18_v2", "gluoncv:cifar_resnet20_v1". All nets of MXNet's zoo
            were trained on ImageNet at 224 pixels, Inception v3 at 299; gluoncv's `cifar_` nets on CIFAR-10 at 32.

    Returns:
        Mean, standard deviation and image size; a call with a batch normalizes the batch.

    Raises:
        UnknownNameError: The name is unknown. Other nets of gluoncv were trained on several data sets: pass "imagenet"
            for those that were trained on ImageNet.

    >>> preprocess("zoo:inceptionv3").size
    299
    >>> preprocess("imagenet")(np.zeros((1, 3, 1, 1), "uint8")).shape
    (1, 3, 1, 1)
    """
    imagenet = Preprocessing(IMAGENET_MEAN, IMAGENET_STD, 224)
    cifar = Preprocessing(CIFAR10_MEAN, CIFAR10_STD, 32)
    known = {"imagenet": imagenet, "cifar10": cifar}
    known.update({f"zoo:{net}": imagenet for net in zoo_names("zoo")})
    known["zoo:inceptionv3"] = imagenet._replace(size=299)
    if str(name).startswith("gluoncv:"):
        known.update({f"gluoncv:{net}": cifar for net in zoo_names("gluoncv") if net.startswith("cifar_")})
    if name not in known:
        raise unknown_name("preprocessing", name, known)
    return known[name]
