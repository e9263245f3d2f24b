"""Arguments of layers as JSON values, and layers' arguments from them.

They are not checked against what a layer can compute: that is for MXNet, which checks few of them.
"""

import json
import math
from numbers import Integral, Real
from typing import Any, List

from mxkit.storage.params_format import dtype_name
import mxnet as mx
import numpy as np

_DTYPES = {dtype_name(dtype) for dtype in mx.nd.ndarray._DTYPE_NP_TO_MX if dtype is not None}


def initializer(value: Any) -> Any:
    """Return the initializer that a plain value describes; None and names stay as they are.

    Only registered initializers are built; `Load`, which reads a file, and `Mixed` are not registered.

    Raises:
        ValueError: The value does not describe an initializer.
    """
    if value is None:
        return None
    name, arguments = (value, {}) if isinstance(value, str) else value
    known = mx.registry.get_registry(mx.init.Initializer)
    if name not in known:
        raise ValueError(f"unknown initializer {name!r}")
    return value if isinstance(value, str) else known[name](**arguments)


def argument(name: str, value: Any) -> Any:
    """Return a plain value as a stock layer's constructor takes it, with tuples and initializer objects.

    Raises:
        ValueError: It names a dtype, an initializer or an operator that is not MXNet's.
    """
    if name.endswith("_initializer"):
        return initializer(value)
    if name == "dtype" and value not in _DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(sorted(_DTYPES))}")
    # functions of mx.nd such as `load` and `save` are not operators
    if name == "function" and (value[:1] == "_" or value == "Custom" or not hasattr(mx.nd.op, value)):
        raise ValueError("function: expected the name of an operator of mx.nd, without underscore in front")
    return tuple(value) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Return a value as JSON values: tuples become lists, NumPy's numbers Python's, dtypes and initializers text.

    Raises:
        TypeError: The value has no such form.

    >>> plain((np.int64(3), np.float32, mx.init.Normal(0.5)))
    [3, 'float32', ['normal', {'sigma': 0.5}]]
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, mx.init.Initializer):
        return _plain_initializer(value)
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return dtype_name(value)
    raise TypeError(f"{value!r:.100} of type {type(value).__name__} has no form in JSON")


def _plain_initializer(value: "mx.init.Initializer") -> List[Any]:
    name, arguments = json.loads(value.dumps())
    if mx.registry.get_registry(mx.init.Initializer).get(name) is not type(value):
        raise TypeError(
            f"the initializer {type(value).__name__} is not registered: decorate it with @mx.init.register, "
            "or set the parameter's init to None"
        )
    return [name, plain(arguments)]
