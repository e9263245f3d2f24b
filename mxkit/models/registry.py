"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

from pathlib import Path
from typing import Any, Callable, Dict, List, Union

from mxkit.core.arguments import Plugged
from mxkit.errors import unknown_name
from mxkit.models import zoo
from mxkit.models.networks import (
    alexnet,
    densenet121,
    googlenet,
    lenet,
    lenet5,
    linear_regression,
    mlp,
    nin,
    resnet18,
    resnet34,
    resnet50,
    softmax_regression,
    vgg11,
    vgg13,
    vgg16,
    vgg19,
)
from mxkit.models.sizes import SizedNet
from mxkit.models.weights import load_weights
from mxkit.nets.architecture.catalog import zoo_names

MODELS: Dict[str, Callable[..., Any]] = {
    build.__name__: build
    for build in (
        *(linear_regression, softmax_regression, mlp, lenet, lenet5, alexnet, nin, googlenet, densenet121),
        *(vgg11, vgg13, vgg16, vgg19, resnet18, resnet34, resnet50),
    )
}
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
        **kwargs: Arguments of the net's function, like `classes=10`; for nets of the zoos also Gluon's
            `pretrained=True`, `root` and `ctx`.

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
            size, whether it is incomplete, and how to use it. Nothing is deleted.
        DownloadError: The published file is missing and cannot be downloaded; the text says what to fetch by hand.
        OSError: `weights` cannot be read.

    >>> len(get_model("mlp", hidden=(64, 64)))
    4
    """
    source, _, short = name.rpartition(":")
    if source:
        return zoo.get_model(name, weights=weights, **kwargs)
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
