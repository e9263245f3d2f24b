"""Nets of MXNet's and gluoncv's model zoos by name, without weights.

`describe` knows the blocks of MXNet's nets. gluoncv has hundreds of classes of its own, so its nets are described by
name and arguments, which each net records.
"""

from concurrent.futures import ThreadPoolExecutor
import copy
import inspect
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from mxkit.core.blocks import blocks_by_path, own_parameters
from mxkit.errors import unknown_name
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

# Attribute of a net that holds its name and its arguments.
MADE = "_mxkit_made"
_ALWAYS_PRETRAINED = re.compile(r".*_int8|resnet\d+_v1b_(kinetics400|sthsthv2|custom|hmdb51|ucf101)")
# Arguments that load weights, most of them from the network.
_BASES = ("pretrained_base", "use_kinetics_pretrain")
ASKING = ("pretrained", "transfer", *_BASES)
# Arguments that do not change the architecture.
NUMBERS = (*ASKING, "root", "ctx", "weights")


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
    """Build a net of a zoo without weights, or by calling `make`.

    Raises:
        UnknownNameError: No zoo has such a net.
        ValueError: gluoncv makes the net with weights only.
        TypeError: The net does not take an argument; the text names it.
    """
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
