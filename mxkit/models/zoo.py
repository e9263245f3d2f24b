"""Nets of MXNet's and gluoncv's model zoos, with the numbers that were published for them."""

from functools import partial
import os
from pathlib import Path
from typing import Any, Dict, Union

from mxkit.data.files.cache import home
from mxkit.models.weights import PRETRAINED, find_weights, load_weights
from mxkit.nets.architecture.zoos import ASKING, gluoncv_model, make_model, split_name


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
    source, short = split_name(name)
    name = f"{source}:{short}"
    asking = [one for one in ASKING if arguments.get(one)]
    if weights is not None and asking:
        raise ValueError(f"model {name!r}: weights={weights!r} and {asking[0]}: pass one of them")
    if source == "zoo" and asking:
        weights = PRETRAINED
    theirs = partial(_with_numbers, short, arguments) if source == "gluoncv" and asking else None
    net = make_model(name, arguments, theirs)
    if weights is not None:
        load_weights(net, name, weights, root=arguments.get("root"), ctx=arguments.get("ctx"))
    return net


def _with_numbers(name: str, arguments: Dict[str, Any]) -> Any:
    from gluoncv.model_zoo.model_store import _model_sha1

    if arguments.get("pretrained") is True and name in _model_sha1:
        # gluoncv would put a download over a file that is not right, and takes no other folder where this is set (T57)
        root = None if os.environ.get("MXNET_HOME") else arguments.get("root")
        find_weights(f"gluoncv:{name}", root or home() / "models")
    return gluoncv_model(name, arguments)
