"""What a conversion reads of an operator, and how it writes expressions of Python."""

import ast
import re
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.graph import Attributes
from mxkit.errors import ExportError

# Torch's names of MXNet's types
_TYPES = "float16 float32 float64 bfloat16 int8 uint8 int32 int64 bool"
TYPES = {name: f"torch.{name}" for name in _TYPES.split()}
_SHORT = {"float16": "half", "float32": "float", "float64": "double", "int32": "int", "int64": "long"}
_NUMBER = re.compile(r"[\d.]+(e[-+]?\d+)?")
RANDOM = "it draws random numbers, which no other library draws alike"
# The name of draws that the proof of a training hands over
DRAWS = "handed_over"
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Tuple)


class _Fields(NamedTuple):
    """See `Node`."""

    operator: str
    attrs: Dict[str, str]
    inputs: List[str]
    shapes: List[Tuple[int, ...]]
    outputs: List[Tuple[int, ...]]
    values: List[Optional[Any]]
    dtypes: List[str]
    name: str


class Node(_Fields, Attributes):
    """One operator in the forward pass of a block.

    Attributes:
        operator: MXNet's name, like "Convolution".
        attrs: Its attributes as MXNet writes them, all of them text.
        inputs: A Python expression for each input: a variable of `forward`, or `self.weight`.
        shapes: Shape of each input, for one batch size. A conversion must not depend on the size of the batch.
        outputs: Shape of each output.
        values: For each input that is a parameter, its value as NumPy's; None for the others.
        dtypes: Of the inputs, like "float32".
        name: The operator's name in MXNet's graph, for errors.
    """

    @property
    def rank(self) -> int:
        """Number of axes of the first input."""
        return len(self.shapes[0])

    @property
    def x(self) -> str:
        """The first input."""
        return self.inputs[0]

    @property
    def a(self) -> str:
        """The first input as an atom, on which a method can be called."""
        return atom(self.inputs[0])

    @property
    def y(self) -> str:
        """The last input."""
        return self.inputs[-1]

    @property
    def is_numpy(self) -> bool:
        """Whether it is an operator of `mx.np`."""
        return self.operator.startswith("_np")

    @property
    def is_whole(self) -> bool:
        """Whether the first input holds whole numbers."""
        return bool(self.dtypes) and "int" in self.dtypes[0]

    @property
    def keepdim(self) -> str:
        """The argument of a reduction that keeps the reduced axes."""
        return ", keepdim=True" if self.flag("keepdims") else ""

    @property
    def dtype(self) -> str:
        """Torch's name for the type in the attribute `dtype`."""
        kind = self.text("dtype", "float32")
        if kind not in TYPES:
            raise self.refused(f"dtype={kind} has no equivalent; expected one of {', '.join(TYPES)}")
        return TYPES[kind]

    def as_first(self, value: str) -> str:
        """Cast a boolean expression to the type of the first input, as the operators of `mx.nd` return it."""
        return value if self.is_numpy else cast(value, self.dtypes[0] if self.dtypes else "float32")

    def long(self, which: int) -> str:
        """Write an input as an index of torch."""
        value = atom(self.inputs[which])
        return value if self.dtypes[which : which + 1] == ["int64"] else f"{value}.long()"

    def refused(self, reason: str) -> ExportError:
        """Return the error for an operator that PyTorch cannot compute as MXNet does."""
        return ExportError(f"{self.name}: operator {self.operator} cannot be converted to PyTorch: {reason}")

    def filled(self, pattern: str) -> str:
        """Fill a pattern: `{x}` is the first input, `{a}` the same before a method, `{y}` the last one, and other
        names are those of attributes, which are numbers."""
        names = dict.fromkeys(re.findall(r"{(\w+)}", pattern))
        return pattern.format(
            **{one: getattr(self, one) if one in "xya" else literal(self.number(one)) for one in names}
        )


Conversion = Callable[[Node], str]


class Argument(NamedTuple):
    """An argument of a constructor.

    Attributes:
        name: Its name.
        value: An expression.
        default: Torch's; "" for one that is always written, None for one that is written without its name.
    """

    name: str
    value: Any
    default: Optional[str] = None


class Call(NamedTuple):
    """An expression that makes a module, or a list or tuple of them.

    Attributes:
        function: What is called; "[" for a list, "" for a tuple.
        arguments: Its arguments.
    """

    function: str
    arguments: Tuple[Argument, ...]

    def __str__(self) -> str:
        inner = ", ".join(f"{name}{value}" for name, value in self.written())
        return f"[{inner}]" if self.function == "[" else f"{self.function}({inner})"

    def written(self) -> List[Tuple[str, Any]]:
        """Its arguments without those that have torch's default, each with what stands before it."""
        own = (one for one in self.arguments if str(one.value) != one.default)
        return [("" if one.default is None else f"{one.name}=", one.value) for one in own]


class Layer(NamedTuple):
    """A module of torch.nn for an operator whose parameters nothing else uses, or without parameters.

    Attributes:
        constructor: Like "nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)".
        state: Values of its parameters and buffers by torch's name, like "weight" and "running_mean".
        call: Its call, "{layer}" and "{0}" standing for the module and the first input, if that is not `layer(input)`:
            "{layer}({0}.flatten(1))".
        frozen: Names in `state` that MXNet does not train, like a BatchNorm's "weight" with fix_gamma.
    """

    constructor: Call
    state: Dict[str, Any]
    call: Optional[str] = None
    frozen: Tuple[str, ...] = ()


def module(function: str, *values: Tuple[str, Any], **named: Tuple[Any, Any]) -> Call:
    """Write a module of torch.nn.

    Args:
        function: Like "nn.Conv2d".
        values: Arguments that are written without their name, which a class takes if its objects differ in them.
        named: Values and torch's defaults of arguments by name; None for an argument that is always written.
    """
    by_name = ((name, value, "" if default is None else _sized(default)) for name, (value, default) in named.items())
    written = [Argument(name, _sized(value)) for name, value in values]
    written += [Argument(name, _sized(value), default) for name, value, default in by_name]
    return Call(function, tuple(written))


def options(**named: Tuple[Any, Any]) -> str:
    """Write keyword arguments, each after a comma, of values and torch's defaults, with which they are left out."""
    texts = {name: (_sized(value), _sized(default)) for name, (value, default) in named.items()}
    return "".join(f", {name}={value}" for name, (value, default) in texts.items() if value != default)


def _sized(value: Any) -> str:
    return size(value) if isinstance(value, tuple) and value else literal(value)


def cast(value: str, dtype: str) -> str:
    """Write a cast to a type of MXNet: `x.float()`."""
    return f"{atom(value)}.{_SHORT[dtype]}()" if dtype in _SHORT else f"{atom(value)}.to({TYPES[dtype]})"


def literal(value: Any) -> str:
    """Write a number, a text, or a tuple of numbers."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return f'"{value}"' if isinstance(value, str) else repr(value)


def size(values: Sequence[int]) -> str:
    """Write a size for each dimension, as one number if all are the same."""
    return literal(values[0] if len(set(values)) == 1 else tuple(values))


def axes_of(axes: Sequence[Any]) -> str:
    """Write axes: one of them as a number."""
    return literal(axes[0] if len(axes) == 1 else tuple(axes))


def listed(parts: Iterable[Any]) -> str:
    """Join expressions with commas."""
    return ", ".join(map(str, parts))


def atom(value: str) -> str:
    """Write an expression so that a method can be called on it: in parentheses unless it is a name, a call ..."""
    tree = ast.parse(value.strip(), mode="eval").body
    return value if isinstance(tree, _ATOMS) else f"({value})"


def binary(left: str, sign: str, right: str) -> str:
    """Write `left sign right`, with parentheses around all but numbers and atoms."""
    return f" {sign} ".join(value if _NUMBER.fullmatch(value) else atom(value) for value in (left, right))
