"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

from functools import partial
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Union

from mxkit.core.arguments import Plugged
from mxkit.data.download import home
from mxkit.errors import unknown_name
from mxkit.models import detectors, networks
from mxkit.models.sizes import SizedNet
from mxkit.models.weights import PRETRAINED, find_weights, load_weights
from mxkit.nets.architecture.catalog import ASKING, gluoncv_model, make_model, split_name, zoo_names

_OWN = "linear_regression softmax_regression mlp lenet lenet5 alexnet nin googlenet densenet121 vgg11 vgg13 vgg16 vgg19"
MODELS: Dict[str, Callable[..., Any]] = {
    name: getattr(networks, name) for name in f"{_OWN} resnet18 resnet34 resnet50".split()
}
_SMALL = "small_centernet small_deeplab small_faster_rcnn small_fcn small_pose small_ssd small_yolo3"
MODELS.update({name: getattr(detectors, name) for name in _SMALL.split()})
MODELS = Plugged("mxkit.models", MODELS)


def model_names(source: str = "") -> List[str]:
    """Names for `get_model`.

    Args:
        source: `""` for mxkit's own, `"zoo"` for MXNet's model zoo, `"gluoncv"` for gluoncv's.

    Returns:
        The sorted names, without the prefix `zoo:` or `gluoncv:`.

    Raises:
        UnknownNameError: `source` is none of these.
    """
    if source == "":
        return sorted(MODELS)
    return zoo_names(source)


def get_model(name: str, *, weights: Union[None, str, Path] = None, **kwargs: Any) -> Any:
    """Build a net by name.

    Args:
        name: `lenet`, `resnet18` or another of `model_names()`; `zoo:resnet18_v2` from MXNet's model zoo;
            `gluoncv:cifar_resnet20_v1` from gluoncv's.
        weights: Path of a `.params` or `.safetensors` file, which must fit completely and needs no checksum; or of a
            run's folder, its checkpoints or one of them; or `hf://owner/name[@revision][/file.safetensors]` on the
            Hugging Face hub. Or "pretrained": the weights that a zoo published, from the cache or downloaded, checked
            by SHA-1. None leaves the net uninitialized.
        **kwargs: Arguments of the net's function, like `classes=10`. For nets of the zoos `pretrained=True` means
            weights="pretrained"; `root` is then the folder, and `ctx` the devices, as in Gluon. gluoncv itself loads
            the weights for `pretrained` and `pretrained_base` of its nets, and names their classes; the file in its
            cache is checked before.

    Returns:
        A block that `mxkit.nets.describe` can describe, uninitialized without weights. With weights it is on the CPU,
        or on `ctx`; `mxkit.to` moves it.

    Raises:
        UnknownNameError: No net has this name; the text lists the known names and the nearest.
        TypeError: The net does not take an argument, which the text names.
        ValueError: No weights of this net were published; or gluoncv makes it only with downloaded weights, and
            `pretrained` is not set.
        CheckpointError: The weights are damaged, or do not fit; the text has the shapes. For another number of classes
            use `mxkit.finetune`. Or a file in the cache has another SHA-1 than the published one: the text has its
            size, and how to use it. Nothing is deleted.
        DownloadError: The published file is missing and cannot be downloaded; the text says what to fetch by hand.
        OSError: `weights` cannot be read.

    >>> len(get_model("mlp", hidden=(64, 64)))
    4
    """
    source, _, short = name.rpartition(":")
    if source:
        return _zoo_model(name, weights, kwargs)
    if short not in MODELS:
        raise unknown_name("model", name, [*MODELS, *(f"zoo:{one}" for one in zoo_names("zoo"))])
    try:
        net = MODELS[short](**kwargs)
    except TypeError as error:
        raise TypeError(f"model {name!r} refuses its arguments {kwargs}: {error}") from error
    if isinstance(net, SizedNet):
        net.mxkit_name = name
    if weights is not None:
        load_weights(net, name, weights)
    return net


def _zoo_model(name: str, weights: Union[None, str, Path], arguments: Dict[str, Any]) -> Any:
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
