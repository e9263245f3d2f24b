"""MXNet's and gluoncv's model zoos: nets by name, which remember how they were made.

MXNet's nets are made of blocks that `mxkit.nets.describe` knows. gluoncv has hundreds of classes of its own, so its
nets are described by their name here and the arguments.
"""

from concurrent.futures import ThreadPoolExecutor
import copy
import inspect
import os
from pathlib import Path
import re
from typing import Any, Dict, List, Union

from mxkit.core.blocks import blocks_by_path
from mxkit.data.files.cache import home
from mxkit.errors import unknown_name
from mxkit.models.weights import PRETRAINED, find_weights, load_weights
from mxnet import gluon
from mxnet.gluon.model_zoo import vision

# Where a net keeps how it was made: its name here, and the arguments.
MADE = "_mxkit_made"
_ALWAYS_NUMBERS = re.compile(r".*_int8|resnet\d+_v1b_(kinetics400|sthsthv2|custom|hmdb51|ucf101)")
# They load numbers, most of them from the network, or say where from and where to.
_BASES = ("pretrained_base", "use_kinetics_pretrain")
_ASKING = ("pretrained", "transfer", *_BASES)
# What a net's architecture does not depend on.
NUMBERS = (*_ASKING, "root", "ctx", "weights")


def get_model(name: str, *, weights: Union[None, str, Path] = None, **arguments: Any) -> Any:
    """Build a net of a model zoo.

    Args:
        name: `zoo:resnet18_v2` from MXNet's model zoo, `gluoncv:cifar_resnet20_v1` from gluoncv's.
        weights: As for `load_weights`: a path of a file, a run's folder or a checkpoint, or "pretrained".
        **arguments: What the net's function takes, like `classes=10`. `pretrained=True` means weights="pretrained";
            with it `root`, a folder, and `ctx`, the devices, count as in Gluon. What asks gluoncv for numbers
            (`pretrained`, `pretrained_base`) is left to gluoncv, which also gives the net its classes' names; the file
            of its cache is looked at before.

    Returns:
        A block that `mxkit.nets.describe` can describe, uninitialized unless weights were asked for.

    Raises:
        UnknownNameError: No net has this name; the known ones and the nearest are listed.
        ValueError: gluoncv makes the net with numbers only, and they are not asked for; or they are asked for twice.
        TypeError: The net does not take an argument; its name is told.
        CheckpointError, DownloadError, OSError: As for `load_weights`.

    >>> get_model("zoo:resnet18_v2", classes=7).output
    Dense(512 -> 7, linear)
    """
    source, _, short = name.partition(":")
    known = zoo_names(source)
    if short.lower() not in known:
        raise unknown_name("model", name, [f"{source}:{one}" for one in known])
    short = short.lower()
    name = f"{source}:{short}"
    architecture = {key: value for key, value in arguments.items() if key not in NUMBERS}
    asking = [one for one in _ASKING if arguments.get(one)]
    if weights is not None and asking:
        raise ValueError(f"model {name!r}: weights={weights!r} and {asking[0]}: pass one of them")
    if source == "zoo" and asking:
        weights = PRETRAINED
    theirs = source == "gluoncv" and bool(asking)
    if source == "gluoncv" and not theirs and _ALWAYS_NUMBERS.fullmatch(short):
        raise ValueError(f"model {name!r}: gluoncv makes it with numbers from the network only; pass pretrained=True")
    try:
        if source == "zoo":
            net = vision.get_model(short, **architecture)
        elif theirs:
            net = _with_numbers(short, arguments)
        else:
            net = _without_numbers(short, architecture)
    except TypeError as error:
        raise TypeError(f"model {name!r} refuses its arguments {arguments}: {error}") from error
    vars(net)[MADE] = (name, copy.deepcopy(architecture))
    if weights is not None:
        load_weights(net, name, weights, root=arguments.get("root"), ctx=arguments.get("ctx"))
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


def _gluoncv(name: str, arguments: Dict[str, Any]) -> Any:
    from gluoncv.model_zoo import get_model as get_gluoncv_model

    return get_gluoncv_model(name, **arguments)


def _with_numbers(name: str, arguments: Dict[str, Any]) -> Any:
    from gluoncv.model_zoo.model_store import _model_sha1

    if arguments.get("pretrained") is True and name in _model_sha1:
        # gluoncv would put a download over a file that is not right, and takes no other folder where this is set (T57)
        root = None if os.environ.get("MXNET_HOME") else arguments.get("root")
        find_weights(f"gluoncv:{name}", root or home() / "models")
    return _gluoncv(name, arguments)


def _without_numbers(name: str, arguments: Dict[str, Any]) -> Any:
    more = {**_without_bases(name), **arguments, "pretrained": False}
    net = _gluoncv(name, more)
    graphs = _graphs(net)
    if graphs:
        # Paths into a graph carry Gluon's counters (T37), which begin anew in each thread: take a fresh process's.
        with ThreadPoolExecutor(1) as thread:
            fresh = thread.submit(_gluoncv, name, more).result()
        for graph, other in zip(graphs, _graphs(fresh)):
            graph._reg_params = dict(zip(other._reg_params, graph._reg_params.values()))
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
