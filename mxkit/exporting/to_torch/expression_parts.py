"""Writes parts of Python expressions."""

import ast
from typing import Any, Iterable, Sequence

from mxkit.exporting.to_torch.node import Node

# Torch's names of MXNet's types
_TYPES = "float16 float32 float64 bfloat16 int8 uint8 int32 int64 bool"
TYPES = {name: f"torch.{name}" for name in _TYPES.split()}
_SHORT = {"float16": "half", "float32": "float", "float64": "double", "int32": "int", "int64": "long"}


def dtype_of(node: Node) -> str:
    """Return torch's name for the type in the attribute `dtype`."""
    kind = node.text("dtype", "float32")
    if kind not in TYPES:
        raise node.refused(f"dtype={kind} has no equivalent; expected one of {', '.join(TYPES)}")
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


def axes_text(axes: Sequence[Any]) -> str:
    """Write axes: one of them as a number."""
    return literal(axes[0] if len(axes) == 1 else tuple(axes))


def keepdim(node: Node) -> str:
    """Write the argument of a reduction that keeps the reduced axes."""
    return ", keepdim=True" if node.flag("keepdims") else ""


def options(**values: Any) -> str:
    """Write keyword arguments, each after a comma; those of value None are left out."""
    return "".join(f", {name}={value}" for name, value in values.items() if value is not None)


def unless(value: Any, default: Any) -> Any:
    """Return the value's text, or None if it is torch's default."""
    return None if value == default else (size(value) if isinstance(value, tuple) else literal(value))


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
