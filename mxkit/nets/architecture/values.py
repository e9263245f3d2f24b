"""The values that an argument of a layer may have, in a net and in JSON; they are checked before MXNet gets them.

MXNet checks few arguments: `groups=0` ends the process by a division (SIGFPE), `rate="x"` fails at the first batch, a
billion layers of an LSTM fill the memory.
"""

import json
import math
from numbers import Integral, Real
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from mxkit.nets.prediction_graphs import PRECISIONS
from mxkit.nets.prediction_report import report_of
from mxkit.storage.params_format import dtype_name
import mxnet as mx
import numpy as np

_DTYPES = tuple(dtype_name(dtype) for dtype in mx.nd.ndarray._DTYPE_NP_TO_MX if dtype is not None)


class Kind(NamedTuple):
    """The values that an argument may have.

    Attributes:
        expected: Their description in errors.
        fits: Returns True for such a plain value.
    """

    expected: str
    fits: Callable[[Any], bool]


def _whole(least: int, most: int = 2**31 - 1) -> Kind:
    expected = f"a whole number from {least} to {most}"
    return Kind(expected, lambda value: type(value) is int and least <= value <= most)


def _some(kind: Kind, lengths: Sequence[int]) -> Kind:
    """Return the kind of values that are of `kind`, or lists of them with one of these lengths."""
    expected = f"{kind.expected}, or a list of one for each axis"
    return Kind(expected, lambda value: kind.fits(value) or _is_list(value, kind, lengths))


def _one_of(*choices: str) -> Kind:
    return Kind(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices)


def _or_none(kind: Kind) -> Kind:
    return Kind(f"null, or {kind.expected}", lambda value: value is None or kind.fits(value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_list(value: Any, kind: Kind, lengths: Sequence[int]) -> bool:
    return isinstance(value, (list, tuple)) and len(value) in lengths and all(map(kind.fits, value))


def _is_nested(value: Any, kind: Kind, depth: int = 0) -> bool:
    """Return True for a value of a kind, and for lists of them, nested at most 10 levels deep."""
    if isinstance(value, (list, tuple)):
        return depth < 10 and bool(value) and all(_is_nested(one, kind, depth + 1) for one in value)
    return kind.fits(value)


def _is_initializer(value: Any) -> bool:
    try:
        initializer(value)
    except (ValueError, TypeError, AssertionError, KeyError, AttributeError):
        return False
    return True


def _is_report(value: Any) -> bool:
    try:
        report_of(value)
    except ValueError:
        return False
    return True


FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NUMBER = Kind("a finite number", _is_number)
SIZE, COUNT = _whole(1), _whole(0)
_AXIS = Kind("an axis from -32 to 31", _whole(-32, 31).fits)
_SHARE = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_TEXT = Kind("a text", lambda value: isinstance(value, str))
_SIZES, _COUNTS = _some(SIZE, (1, 2, 3)), _some(COUNT, (1, 2, 3, 8))
_ACTIVATION = _or_none(_one_of("relu", "sigmoid", "softrelu", "softsign", "tanh"))
_LAYOUT = _one_of("NCW", "NWC", "NCHW", "NHWC", "NCDHW", "NDHWC", "TNC", "NTC")
DTYPE = _one_of(*_DTYPES)
SHAPE = Kind("a list of sizes", lambda value: _is_list(value, SIZE, range(33)))
GRAD_REQ = _one_of("write", "add", "null")
INITIALIZER = Kind('null, the name of an initializer of MXNet, or ["xavier", {"magnitude": 2}]', _is_initializer)

# Kinds by the name of the argument, which has one meaning in all constructors of MXNet.
KINDS: Dict[str, Kind] = {
    **dict.fromkeys(["units", "channels", "input_dim", "output_dim", "hidden_size", "groups"], SIZE),
    **dict.fromkeys(["num_groups", "num_devices", "hidden_channels"], SIZE),
    **dict.fromkeys(["in_units", "in_channels", "input_size"], COUNT),
    **dict.fromkeys(["kernel_size", "strides", "dilation", "pool_size", "factor"], _SIZES),
    **dict.fromkeys(["i2h_kernel", "h2h_kernel", "i2h_dilate", "h2h_dilate"], _SIZES),
    **dict.fromkeys(["padding", "output_padding", "i2h_pad"], _COUNTS),
    **dict.fromkeys(["use_bias", "flatten", "sparse_grad", "center", "scale", "use_global_stats"], FLAG),
    **dict.fromkeys(["ceil_mode", "count_include_pad", "bidirectional", "use_sequence_length"], FLAG),
    **dict.fromkeys(["state_clip_nan", "use_shortcut"], FLAG),
    **dict.fromkeys(["rate", "dropout", "momentum", "zoneout_outputs", "zoneout_states"], _SHARE),
    **dict.fromkeys(["drop_inputs", "drop_states", "drop_outputs"], _SHARE),
    **dict.fromkeys(["alpha", "beta", "epsilon"], NUMBER),
    **dict.fromkeys(["state_clip_min", "state_clip_max"], _or_none(NUMBER)),
    **dict.fromkeys(["activation", "recurrent_activation"], _ACTIVATION),
    "projection_size": _or_none(SIZE),
    # MXNet's pattern for the names of layers reads one digit
    "num_layers": _whole(1, 10),
    "axis": _AXIS,
    "axes": Kind("a list of axes", lambda value: _is_list(value, _AXIS, range(33))),
    **dict.fromkeys(["layout", "conv_layout"], _LAYOUT),
    "input_shape": Kind(
        "a list of 2 to 4 sizes, 0 for an unknown one", lambda value: _is_list(value, COUNT, (2, 3, 4))
    ),
    "dtype": DTYPE,
    "function": Kind(
        "the name of an operator of mx.nd, without underscore in front",
        lambda value: isinstance(value, str) and operator(value) is not None,
    ),
    "graph": Kind("a graph as Symbol.tojson gives it", lambda value: isinstance(value, dict)),
    "inputs": Kind("a name, or a list of names nested as in a call", lambda value: _is_nested(value, _TEXT)),
    "outputs": Kind("0 for one output, or a list of such", lambda value: _is_nested(value, COUNT)),
    "output_prefix": _TEXT,
    "precision": _one_of(*PRECISIONS),
    "joined": FLAG,
    "report": Kind("null, or a report of mxkit.optimize", _is_report),
    "float_layers": Kind("a list of names", lambda value: _is_list(value, _TEXT, range(10**5))),
    "thresholds": Kind(
        "two numbers by name, the smaller one first",
        lambda value: (
            isinstance(value, dict) and all(_is_list(one, NUMBER, (2,)) and one[0] <= one[1] for one in value.values())
        ),
    ),
}


def kind_of(argument: str) -> Kind:
    """Return the kind of a stock layer's argument.

    >>> kind_of("units").expected
    'a whole number from 1 to 2147483647'
    """
    return INITIALIZER if argument.endswith("_initializer") else KINDS[argument]


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


def operator(name: str) -> Any:
    """Return the function of an operator, or None; functions of mx.nd such as `load` and `save` are not operators."""
    return None if name.startswith("_") or name == "Custom" else getattr(mx.nd.op, name, None)


def argument(name: str, value: Any) -> Any:
    """Convert a checked plain value for a stock layer's constructor, which takes tuples and initializer objects."""
    if name.endswith("_initializer"):
        return initializer(value)
    return tuple(value) if isinstance(value, list) else value
