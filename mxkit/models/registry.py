"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

from typing import Any, Callable, Dict, List

from mxkit.errors import unknown_name
from mxkit.models import zoo
from mxkit.models.alexnet import alexnet
from mxkit.models.densenet import densenet121
from mxkit.models.googlenet import googlenet
from mxkit.models.networks import lenet, lenet5, linear_regression, mlp, softmax_regression
from mxkit.models.nin import nin
from mxkit.models.resnet import resnet18, resnet34, resnet50
from mxkit.models.vgg import vgg11, vgg13, vgg16, vgg19

MODELS: Dict[str, Callable[..., Any]] = {
    "alexnet": alexnet,
    "densenet121": densenet121,
    "googlenet": googlenet,
    "lenet": lenet,
    "lenet5": lenet5,
    "linear_regression": linear_regression,
    "mlp": mlp,
    "nin": nin,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "softmax_regression": softmax_regression,
    "vgg11": vgg11,
    "vgg13": vgg13,
    "vgg16": vgg16,
    "vgg19": vgg19,
}


def model_names(source: str = "") -> List[str]:
    """Names that `get_model` knows.

    Args:
        source: `""` for mxkit's own, `"zoo"` for MXNet's model zoo, `"gluoncv"` for gluoncv's.

    Raises:
        UnknownNameError: `source` is none of these.
    """
    if source == "":
        return sorted(MODELS)
    return zoo.zoo_names(source)


def get_model(name: str, **kwargs: Any) -> Any:
    """Build a net by name.

    Args:
        name: `lenet`, `resnet18` or another of `model_names()`; `zoo:resnet18_v2` from MXNet's model zoo;
            `gluoncv:cifar_resnet20_v1` from gluoncv's.
        **kwargs: What the net's function takes, like `classes=10`.

    Returns:
        An uninitialized block, unless `pretrained=True` is passed to a zoo. `mxkit.describe` can describe it.

    Raises:
        UnknownNameError: No net has this name; the known ones and the nearest are listed.
        TypeError: The net does not take an argument; its name is told.
        ValueError: gluoncv makes the net with numbers from the network only, and they are not asked for.

    >>> len(get_model("mlp", hidden=(64, 64)))
    4
    """
    source, _, short = name.rpartition(":")
    if source:
        return zoo.get_model(name, **kwargs)
    if short not in MODELS:
        raise unknown_name("model", name, [*MODELS, *(f"zoo:{one}" for one in zoo.zoo_names("zoo"))])
    try:
        return MODELS[short](**kwargs)
    except TypeError as error:
        raise TypeError(f"model {name!r} refuses its arguments {kwargs}: {error}") from error
