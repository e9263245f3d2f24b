"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

from typing import Any, Callable, Dict, List

from mxkit.errors import unknown_name
from mxkit.models import zoo
from mxkit.models.networks import lenet, mlp, softmax_regression

MODELS: Dict[str, Callable[..., Any]] = {"lenet": lenet, "mlp": mlp, "softmax_regression": softmax_regression}


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
        name: `lenet`, `mlp`, `softmax_regression`; `zoo:resnet18_v2` from MXNet's model zoo;
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
