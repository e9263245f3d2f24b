"""Nets of MXNet's and gluoncv's model zoos, with their published weights."""

from functools import partial
import os
from pathlib import Path
from typing import Any, Dict, Union

from mxkit.data.download import home
from mxkit.models.weights import PRETRAINED, find_weights, load_weights
from mxkit.nets.architecture.catalog import ASKING, gluoncv_model, make_model, split_name


def get_model(name: str, *, weights: Union[None, str, Path] = None, **arguments: Any) -> Any:
    """Build a net of a model zoo.

    Args:
        name: `zoo:resnet18_v2` from MXNet's model zoo, `gluoncv:cifar_resnet20_v1` from gluoncv's.
        weights: As for `load_weights`: a path of a file, a run's folder or a checkpoint, `hf://...`, or "pretrained".
        **arguments: Arguments of the net's function, like `classes=10`. `pretrained=True` means weights="pretrained";
            `root` is then the folder, and `ctx` the devices, as in Gluon. gluoncv itself loads the weights for
            `pretrained` and `pretrained_base` of its nets, and names their classes; the file in its cache is checked
            before.

    Returns:
        A block that `mxkit.nets.describe` can describe, uninitialized without weights.

    Raises:
        UnknownNameError: No net has this name; the text lists the known names and the nearest.
        ValueError: gluoncv makes the net only with weights, and none are requested; or weights are requested twice.
        TypeError: The net does not take an argument, which the text names.
        CheckpointError, DownloadError, OSError: As for `load_weights`.

    >>> get_model("zoo:resnet18_v2", classes=7).output
    Dense(512 -> 7, linear)
    """
    source, short = split_name(name)
    name = f"{source}:{short}"
    requests = [argument for argument in ASKING if arguments.get(argument)]
    if weights is not None and requests:
        raise ValueError(f"model {name!r}: weights={weights!r} and {requests[0]}: pass one of them")
    if source == "zoo" and requests:
        weights = PRETRAINED
    theirs = partial(_with_weights, short, arguments) if source == "gluoncv" and requests else None
    net = make_model(name, arguments, theirs)
    if weights is not None:
        load_weights(net, name, weights, root=arguments.get("root"), ctx=arguments.get("ctx"))
    return net


def _with_weights(name: str, arguments: Dict[str, Any]) -> Any:
    from gluoncv.model_zoo.model_store import _model_sha1

    if arguments.get("pretrained") is True and name in _model_sha1:
        # gluoncv overwrites a file with another SHA-1, and ignores `root` if MXNET_HOME is set (T57)
        root = None if os.environ.get("MXNET_HOME") else arguments.get("root")
        find_weights(f"gluoncv:{name}", root or home() / "models")
    return gluoncv_model(name, arguments)
