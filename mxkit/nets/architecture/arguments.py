"""The values that an argument of a layer may have, in a net and in JSON; they are checked before MXNet gets them.

MXNet checks few arguments: `groups=0` ends the process by a division (SIGFPE), `rate="x"` fails at the first batch, a
billion layers of an LSTM fill the memory.
"""

import json
import math
from numbers import Integral, Real
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from mxkit.nets.architecture.graph_blocks import report_of
from mxkit.nets.prediction_graphs import PRECISIONS
from mxkit.storage.params_format import dtype_name
import mxnet as mx
import numpy as np


class Kind(NamedTuple):
    """The values that an argument may have.

    Attributes:
        expected: Their description in errors.
        fits: Returns True for such a plain value.
    """

    expected: str
    fits: Callable[[Any], bool]


def _whole(least: int, most: int = 2**31 - 1, what: str = "a whole number") -> Kind:
    return Kind(f"{what} from {least} to {most}", lambda value: type(value) is int and least <= value <= most)


def _number(what: str, least: float = -math.inf, most: float = math.inf) -> Kind:
    return Kind(what, lambda value: type(value) in (int, float) and math.isfinite(value) and least <= value <= most)


def _some(kind: Kind, lengths: Sequence[int]) -> Kind:
    """Return the kind of values that are of `kind`, or lists of them with one of these lengths."""
    several = _list("", kind, lengths)
    expected = f"{kind.expected}, or a list of one for each axis"
    return Kind(expected, lambda value: kind.fits(value) or several.fits(value))


def _list(expected: str, kind: Kind, lengths: Sequence[int]) -> Kind:
    return Kind(
        expected,
        lambda value: isinstance(value, (list, tuple)) and len(value) in lengths and all(map(kind.fits, value)),
    )


def _one_of(*choices: str) -> Kind:
    return Kind(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices)


def _or_none(kind: Kind) -> Kind:
    return Kind(f"null, or {kind.expected}", lambda value: value is None or kind.fits(value))


def _read_by(expected: str, read: Callable[[Any], Any]) -> Kind:
    """Return the kind of values that a function reads without an error."""

    def fits(value: Any) -> bool:
        try:
            read(value)
        except (ValueError, TypeError, AssertionError, KeyError, AttributeError):
            return False
        return True

    return Kind(expected, fits)


def _is_nested(value: Any, kind: Kind, depth: int = 0) -> bool:
    """Return True for a value of a kind, and for lists of them, nested at most 10 levels deep."""
    if isinstance(value, (list, tuple)):
        return depth < 10 and bool(value) and all(_is_nested(one, kind, depth + 1) for one in value)
    return kind.fits(value)


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
    if name not in known or not isinstance(arguments, dict):
        raise ValueError(f"unknown initializer {name!r}")
    return value if isinstance(value, str) else known[name](**arguments)


def _operator(name: Any) -> Any:
    """Return the function of an operator; functions of mx.nd such as `load` and `save` are not operators."""
    if name.startswith("_") or name == "Custom":
        raise ValueError(name)
    return getattr(mx.nd.op, name)


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = _number("a finite number")
_SIZE, _COUNT = _whole(1), _whole(0)
_AXIS = _whole(-32, 31, "an axis")
_SHARE = _number("a number from 0 to 1", 0, 1)
_TEXT = Kind("a text", lambda value: isinstance(value, str))
_SIZES, _COUNTS = _some(_SIZE, (1, 2, 3)), _some(_COUNT, (1, 2, 3, 8))
_ACTIVATION = _or_none(_one_of("relu", "sigmoid", "softrelu", "softsign", "tanh"))
_LAYOUT = _one_of("NCW", "NWC", "NCHW", "NHWC", "NCDHW", "NDHWC", "TNC", "NTC")
_RANGE = _list("", NUMBER, (2,))
DTYPE = _one_of(*(dtype_name(dtype) for dtype in mx.nd.ndarray._DTYPE_NP_TO_MX if dtype is not None))
_INITIALIZER = _read_by('null, the name of an initializer of MXNet, or ["xavier", {"magnitude": 2}]', initializer)

# Kinds by the name of the argument, which has one meaning in all constructors of MXNet.
KINDS: Dict[str, Kind] = {
    **dict.fromkeys(["units", "channels", "input_dim", "output_dim", "hidden_size", "groups"], _SIZE),
    **dict.fromkeys(["num_groups", "num_devices", "hidden_channels"], _SIZE),
    **dict.fromkeys(["in_units", "in_channels", "input_size"], _COUNT),
    **dict.fromkeys(["kernel_size", "strides", "dilation", "pool_size", "factor"], _SIZES),
    **dict.fromkeys(["i2h_kernel", "h2h_kernel", "i2h_dilate", "h2h_dilate"], _SIZES),
    **dict.fromkeys(["padding", "output_padding", "i2h_pad"], _COUNTS),
    **dict.fromkeys(["use_bias", "flatten", "sparse_grad", "center", "scale", "use_global_stats"], FLAG),
    **dict.fromkeys(["ceil_mode", "count_include_pad", "bidirectional", "use_sequence_length"], FLAG),
    **dict.fromkeys(["state_clip_nan", "use_shortcut", "joined"], FLAG),
    **dict.fromkeys(["rate", "dropout", "momentum", "zoneout_outputs", "zoneout_states"], _SHARE),
    **dict.fromkeys(["drop_inputs", "drop_states", "drop_outputs"], _SHARE),
    **dict.fromkeys(["alpha", "beta", "epsilon"], NUMBER),
    **dict.fromkeys(["state_clip_min", "state_clip_max"], _or_none(NUMBER)),
    **dict.fromkeys(["activation", "recurrent_activation"], _ACTIVATION),
    "projection_size": _or_none(_SIZE),
    # MXNet's pattern for the names of layers reads one digit
    "num_layers": _whole(1, 10),
    "axis": _AXIS,
    "axes": _list("a list of axes", _AXIS, range(33)),
    **dict.fromkeys(["layout", "conv_layout"], _LAYOUT),
    "input_shape": _list("a list of 2 to 4 sizes, 0 for an unknown one", _COUNT, (2, 3, 4)),
    "dtype": DTYPE,
    "function": _read_by("the name of an operator of mx.nd, without underscore in front", _operator),
    "graph": Kind("a graph as Symbol.tojson gives it", lambda value: isinstance(value, dict)),
    "inputs": Kind("a name, or a list of names nested as in a call", lambda value: _is_nested(value, _TEXT)),
    "outputs": Kind("0 for one output, or a list of such", lambda value: _is_nested(value, _COUNT)),
    "output_prefix": _TEXT,
    "precision": _one_of(*PRECISIONS),
    "report": _read_by("null, or a report of mxkit.optimize", report_of),
    "float_layers": _list("a list of names", _TEXT, range(10**5)),
    "thresholds": Kind(
        "two numbers by name, the smaller one first",
        lambda value: isinstance(value, dict) and all(_RANGE.fits(one) and one[0] <= one[1] for one in value.values()),
    ),
}
# Settings of a parameter that its block's arguments do not determine.
STATES = {
    "shape": _list("a list of sizes", _SIZE, range(33)),
    "dtype": DTYPE,
    "grad_req": _one_of("write", "add", "null"),
    "differentiable": FLAG,
    "lr_mult": NUMBER,
    "wd_mult": NUMBER,
    "initializer": _INITIALIZER,
}


def kind_of(argument: str) -> Kind:
    """Return the kind of a stock layer's argument.

    >>> kind_of("units").expected
    'a whole number from 1 to 2147483647'
    """
    return _INITIALIZER if argument.endswith("_initializer") else KINDS[argument]


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
    known = mx.registry.get_registry(mx.init.Initializer)
    if known.get(name) is not type(value):
        raise TypeError(
            f"the initializer {type(value).__name__} is not registered: decorate it with @mx.init.register, "
            "or set the parameter's init to None"
        )
    return [name, plain(arguments)]


def argument(name: str, value: Any) -> Any:
    """Convert a checked plain value for a stock layer's constructor, which takes tuples and initializer objects."""
    if name.endswith("_initializer"):
        return initializer(value)
    return tuple(value) if isinstance(value, list) else value
