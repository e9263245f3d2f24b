"""Networks by name: mxkit's own, MXNet's model zoo and gluoncv's."""

from typing import Any, Callable, Dict, List

from mxkit.errors import unknown_name
from mxkit.models.networks import lenet, mlp, softmax_regression
from mxnet.gluon.model_zoo import vision

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
    if source == "zoo":
        # The zoo keeps its table inside get_model; every public function that it lists takes no argument.
        return sorted(_zoo())
    if source == "gluoncv":
        from gluoncv.model_zoo import get_model_list  # gluoncv costs seconds to import

        return sorted(get_model_list())
    raise unknown_name("source of models", source, ["zoo", "gluoncv"])


def get_model(name: str, **kwargs: Any) -> Any:
    """Build a net by name.

    Args:
        name: `lenet`, `mlp`, `softmax_regression`; `zoo:resnet18_v2` from MXNet's model zoo;
            `gluoncv:cifar_resnet20_v1` from gluoncv's.
        **kwargs: What the net's function takes, like `classes=10`.

    Returns:
        An uninitialized block, unless `pretrained=True` is passed to a zoo.

    Raises:
        UnknownNameError: No net has this name; the known ones and the nearest are listed.
        TypeError: The net does not take an argument; its name is told.

    >>> len(get_model("mlp", hidden=(64, 64)))
    4
    """
    source, _, short = name.rpartition(":")
    known = model_names(source)
    if short not in known:
        hidden = {f"zoo:{zoo}" for zoo in _zoo()} if not source else set()
        raise unknown_name("model", name, {f"{source}:{one}" if source else one for one in known} | hidden)
    try:
        if source == "zoo":
            return vision.get_model(short, **kwargs)
        if source == "gluoncv":
            from gluoncv.model_zoo import get_model as get_gluoncv_model

            return get_gluoncv_model(short, **kwargs)
        return MODELS[short](**kwargs)
    except TypeError as error:
        raise TypeError(f"model {name!r} refuses its arguments {kwargs}: {error}") from error


def _zoo() -> List[str]:
    """Names of MXNet's model zoo, which it tells only in the error of a wrong one."""
    try:
        vision.get_model("")
    except ValueError as error:
        return [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
    return []
