"""Reads the attributes of an MXNet operator, and writes parts of Python expressions."""

import ast
import re
from typing import Any, Iterable, Optional, Sequence, Tuple, Union

from mxkit.errors import ExportError
from mxkit.export.to_torch.node import Node

Number = Union[int, float]


def refused(node: Node, reason: str) -> ExportError:
    """Return the error for an operator that PyTorch cannot compute as MXNet does."""
    return ExportError(f"{node.name}: operator {node.operator} cannot be converted to PyTorch: {reason}")


def text(node: Node, name: str, default: str = "") -> str:
    """Read an attribute as text; MXNet's "None" is the default."""
    value = node.attrs.get(name, default)
    return default if value == "None" else value


def flag(node: Node, name: str, default: bool = False) -> bool:
    """Read an attribute that is true or false."""
    return text(node, name, str(default)).lower() in ("true", "1")


def number(node: Node, name: str, default: Number = 0) -> Number:
    """Read a number; a float without decimals is returned as an int."""
    value = float(text(node, name, str(default)))
    return int(value) if value.is_integer() else value


def integer(node: Node, name: str, default: Optional[int] = None) -> Optional[int]:
    """Read an int, or the default if the attribute is absent or "None"."""
    value = text(node, name)
    return int(float(value)) if value else default


def ints(node: Node, name: str, default: Sequence[int] = ()) -> Tuple[int, ...]:
    """Read a shape like "(1, 2)", "[1, 2]", "3", or Python 2's "(1L, 2L)"."""
    value = optional_ints(node, name)
    return tuple(default) if value is None else tuple(part or 0 for part in value)


def optional_ints(node: Node, name: str) -> Optional[Tuple[Optional[int], ...]]:
    """Read a shape whose parts may be "None"; None if the attribute is absent."""
    value = text(node, name)
    if not value:
        return None
    parsed = ast.literal_eval(re.sub(r"(\d)L\b", r"\1", value))
    return tuple(parsed) if isinstance(parsed, (tuple, list)) else (parsed,)


# Torch's names of MXNet's types
TYPES = {
    "float16": "torch.float16",
    "float32": "torch.float32",
    "float64": "torch.float64",
    "bfloat16": "torch.bfloat16",
    "int8": "torch.int8",
    "uint8": "torch.uint8",
    "int32": "torch.int32",
    "int64": "torch.int64",
    "bool": "torch.bool",
}
_SHORT = {"float16": "half", "float32": "float", "float64": "double", "int32": "int", "int64": "long"}


def dtype_of(node: Node, name: str = "dtype", default: str = "float32") -> str:
    """Return torch's name for the type in an attribute."""
    kind = text(node, name, default)
    if kind not in TYPES:
        raise refused(node, f"{name}={kind} has no equivalent; expected one of {', '.join(TYPES)}")
    return TYPES[kind]


def cast(value: str, dtype: str) -> str:
    """Write a cast to a type of MXNet: `x.float()`."""
    return f"{atom(value)}.{_SHORT[dtype]}()" if dtype in _SHORT else f"{atom(value)}.to({TYPES[dtype]})"


def as_first_input(node: Node, value: str) -> str:
    """Cast a boolean expression to the type of the first input, as legacy operators of MXNet return it."""
    return cast(value, node.dtypes[0] if node.dtypes else "float32")


def long_index(node: Node, which: int) -> str:
    """Write an input as an index of torch."""
    value = node.inputs[which]
    known = which < len(node.dtypes) and node.dtypes[which] == "int64"
    return atom(value) if known else f"{atom(value)}.long()"


def literal(value: Any) -> str:
    """Write a number or a tuple of numbers."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return repr(value)


def size(values: Sequence[int]) -> str:
    """Write a size for each dimension, as one number if all are the same."""
    return literal(values[0] if len(set(values)) == 1 else tuple(values))


def options(**values: Any) -> str:
    """Write keyword arguments, each after a comma; those of value None are left out."""
    return "".join(f", {name}={value}" for name, value in values.items() if value is not None)


def unless(value: Any, default: Any) -> Any:
    """Return the value's text, or None if it is torch's default."""
    return None if value == default else (size(value) if isinstance(value, tuple) else literal(value))


def axis_of(node: Node, name: str = "axis", default: int = -1, rank: Optional[int] = None) -> int:
    """Read an axis and count it from 0."""
    found = integer(node, name, default)
    rank = len(node.shapes[0]) if rank is None else rank
    return (default if found is None else found) % max(rank, 1)


def listed(parts: Iterable[str]) -> str:
    """Join expressions with commas."""
    return ", ".join(parts)


_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Tuple)
_LEVELS = {ast.Add: 1, ast.Sub: 1, ast.Mult: 2, ast.Div: 2, ast.Mod: 2, ast.FloorDiv: 2, ast.MatMult: 2, ast.Pow: 4}
_SIGNS = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "@": 2, "**": 4}


def atom(value: str) -> str:
    """Write an expression so that a method can be called on it: in parentheses unless it is a name, a call ..."""
    tree = ast.parse(value.strip(), mode="eval").body
    return value if isinstance(tree, _ATOMS) else f"({value})"


def _operand(value: str, level: int, bare: bool) -> str:
    tree = ast.parse(value, mode="eval").body
    if isinstance(tree, (*_ATOMS, ast.Constant)):
        return value
    if isinstance(tree, ast.BinOp):
        own = _LEVELS.get(type(tree.op), 0)
        return value if own > level or (own == level and bare) else f"({value})"
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.operand, ast.Constant) and level < 4:
        return value
    return f"({value})"


def binary(left: str, sign: str, right: str) -> str:
    """Write `left sign right` with the parentheses that Python needs."""
    level = _SIGNS.get(sign, 0)  # a comparison binds weaker than arithmetic
    chained = sign in ("+", "-", "*", "/")
    return f"{_operand(left, level, chained)} {sign} {_operand(right, level, False)}"


def sum_of(parts: Sequence[str]) -> str:
    """Write a sum of expressions."""
    total = parts[0]
    for part in parts[1:]:
        total = binary(total, "+", part)
    return total
