"""MXNet's and gluoncv's model zoos: nets by name, without their numbers, which remember how they were made.

MXNet's nets are made of blocks that `describe` knows. gluoncv has hundreds of classes of its own, so its nets are
described by their name here and the arguments.
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

# Where a net keeps how it was made: its name here, and the arguments.
MADE = "_mxkit_made"
_ALWAYS_NUMBERS = re.compile(r".*_int8|resnet\d+_v1b_(kinetics400|sthsthv2|custom|hmdb51|ucf101)")
# They load numbers, most of them from the network, or say where from and where to.
_BASES = ("pretrained_base", "use_kinetics_pretrain")
ASKING = ("pretrained", "transfer", *_BASES)
# What a net's architecture does not depend on.
NUMBERS = (*ASKING, "root", "ctx", "weights")


def split_name(name: str) -> Tuple[str, str]:
    """Separate `gluoncv:resnet18_v1b` into the zoo and the net's name there.

    Raises:
        UnknownNameError: No zoo has such a net; the known ones and the nearest are listed.
    """
    source, _, short = name.partition(":")
    known = zoo_names(source)
    if short.lower() not in known:
        raise unknown_name("model", name, [f"{source}:{one}" for one in known])
    return source, short.lower()


def make_model(name: str, arguments: Dict[str, Any], make: Optional[Callable[[], Any]] = None) -> Any:
    """Build a net of a zoo, without numbers unless `make` is given, which is then called for it.

    Raises:
        UnknownNameError: No zoo has such a net.
        ValueError: gluoncv makes the net with numbers only.
        TypeError: The net does not take an argument; its name is told.
    """
    source, short = split_name(name)
    name = f"{source}:{short}"
    architecture = {key: value for key, value in arguments.items() if key not in NUMBERS}
    if make is None and source == "gluoncv" and _ALWAYS_NUMBERS.fullmatch(short):
        raise ValueError(f"model {name!r}: gluoncv makes it with numbers from the network only; pass pretrained=True")
    try:
        if make is not None:
            net = make()
        elif source == "zoo":
            net = vision.get_model(short, **architecture)
        else:
            net = _without_numbers(short, architecture)
    except TypeError as error:
        raise TypeError(f"model {name!r} refuses its arguments {arguments}: {error}") from error
    vars(net)[MADE] = (name, copy.deepcopy(architecture))
    return net


def zoo_names(source: str) -> List[str]:
    """Names in a model zoo: MXNet's, `"zoo"`, or `"gluoncv"`.

    Raises:
        UnknownNameError: `source` is neither.
    """
    if source == "zoo":
        # The table is a variable of get_model, told only in the error of a wrong name.
        try:
            vision.get_model("")
        except ValueError as error:
            return sorted(line.strip() for line in str(error).splitlines()[1:] if line.strip())
    if source == "gluoncv":
        from gluoncv.model_zoo import get_model_list  # gluoncv costs seconds to import

        return sorted(get_model_list())
    raise unknown_name("source of models", source, ["zoo", "gluoncv"])


def gluoncv_model(name: str, arguments: Dict[str, Any]) -> Any:
    """Call gluoncv's function for a net, which costs seconds to import."""
    from gluoncv.model_zoo import get_model as get_gluoncv_model

    return get_gluoncv_model(name, **arguments)


def _without_numbers(name: str, arguments: Dict[str, Any]) -> Any:
    more = {**_without_bases(name), **arguments, "pretrained": False}
    net = gluoncv_model(name, more)
    graphs = _graphs(net)
    if graphs:
        # Paths into a graph carry Gluon's counters (T37), which begin anew in each thread: take a fresh process's.
        with ThreadPoolExecutor(1) as thread:
            fresh = thread.submit(gluoncv_model, name, more).result()
        for graph, other in zip(graphs, _graphs(fresh)):
            held = own_parameters(graph)
            renamed = dict(zip(own_parameters(other), held.values()))
            held.clear()
            held.update(renamed)
    return net


def _graphs(net: Any) -> List[Any]:
    return [block for _, block in blocks_by_path(net) if isinstance(block, gluon.SymbolBlock)]


def _without_bases(name: str) -> Dict[str, bool]:
    """Arguments that keep a detection, segmentation or video net from loading its base's numbers."""
    from gluoncv.model_zoo.model_zoo import _models

    function = _models[name]
    takers = [function]
    if any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values()):
        # it hands them to a function or a class of its module
        others = vars(inspect.getmodule(function)).values()
        takers += [one for one in others if callable(one) and getattr(one, "__module__", "") == function.__module__]
    taken = {name for one in takers for name in inspect.signature(one).parameters}
    return {base: False for base in _BASES if base in taken}
