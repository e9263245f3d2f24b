"""Python expressions as trees, written on lines of at most 88 characters, as `ruff format` writes them."""

import ast
from typing import Iterator, List, NamedTuple, Optional, Tuple, Union

WIDTH = 88
# Their parts stand on lines of their own if they do not fit on one with the brackets
_ONE_A_LINE = ("nn.Sequential", "nn.ModuleList", "[", "super().__init__")


class Call(NamedTuple):
    """A call, a list or a tuple.

    Attributes:
        function: What is called; "[" for a list, "(" for a tuple.
        arguments: Name and value of each argument; the name is '' if it has none.
    """

    function: str
    arguments: List[Tuple[str, "Expression"]]


Expression = Union[str, Call]


def parse(text: str) -> Expression:
    """Parse an expression; what is no call, list or tuple stays text.

    >>> parse("nn.ReLU()")
    Call(function='nn.ReLU', arguments=[])
    """
    return _tree(ast.parse(text, mode="eval").body, text)


def _tree(node: ast.AST, text: str) -> Expression:
    if isinstance(node, ast.Call) and not any(keyword.arg is None for keyword in node.keywords):
        arguments = [("", _tree(argument, text)) for argument in node.args]
        arguments += [(str(keyword.arg), _tree(keyword.value, text)) for keyword in node.keywords]
        return Call(_source(node.func, text), arguments)
    if isinstance(node, ast.List):
        return Call("[", [("", _tree(part, text)) for part in node.elts])
    return _source(node, text)


def _source(node: ast.AST, text: str) -> str:
    source = ast.get_source_segment(text, node)
    if source is None:
        raise ValueError(f"no source of {ast.dump(node)} in {text!r}")
    return source


def is_literal(text: str) -> bool:
    """Whether a text is a number, a string, True, False, None or a tuple of them."""
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def one_line(expression: Expression) -> str:
    """Write an expression on one line.

    >>> one_line(Call("f", [("", "1"), ("b", Call("[", [("", "x")]))]))
    'f(1, b=[x])'
    """
    if isinstance(expression, str):
        return expression
    inner = ", ".join(_argument(name, value) for name, value in expression.arguments)
    begin, end = _brackets(expression)
    return f"{begin}{inner}{',' * (begin == '(' and len(expression.arguments) == 1)}{end}"


def _is_alone(call: Call) -> bool:
    return len(call.arguments) == 1 and _is_bracket(call.arguments[0][1])


def _is_bracket(expression: Expression) -> bool:
    return isinstance(expression, Call) and expression.function in ("[", "OrderedDict")


def _argument(name: str, value: Expression) -> str:
    return f"{name}={one_line(value)}" if name else one_line(value)


def _brackets(call: Call) -> Tuple[str, str]:
    return {"[": ("[", "]"), "(": ("(", ")")}.get(call.function, (f"{call.function}(", ")"))


def laid_out(prefix: str, expression: Expression, suffix: str = "", indent: int = 0) -> Iterator[str]:
    """Write `prefix expression suffix` on lines that fit, one argument a line where it is too long."""
    space = " " * indent
    line = f"{space}{prefix}{one_line(expression)}{suffix}"
    if len(line) > WIDTH and isinstance(expression, str) and expression.startswith("{"):
        parts = ast.parse(expression, mode="eval").body
        yield f"{space}{prefix}{{"
        for key, value in zip(getattr(parts, "keys", ()), getattr(parts, "values", ())):
            name = f"{_source(key, expression)}: "
            yield from laid_out(name, parse(_source(value, expression)), ",", indent + 4)
        yield f"{space}}}{suffix}"
        return
    if len(line) <= WIDTH or (isinstance(expression, str) and not _operands(expression)):
        yield line
    elif isinstance(expression, str):
        yield from _split(prefix, expression, suffix, indent)
    elif not expression.arguments:
        yield line
    else:
        begin, end = _brackets(expression)
        yield f"{space}{prefix}{begin}"
        inner = f"{space}    {', '.join(_argument(name, value) for name, value in expression.arguments)}"
        several = expression.function in _ONE_A_LINE and not _is_alone(expression)
        if len(inner) <= WIDTH and not several:
            yield inner
            yield f"{space}{end}{suffix}"
            return
        alone = _is_alone(expression)
        for name, value in expression.arguments:
            yield from laid_out(f"{name}=" if name else "", value, "" if alone else ",", indent + 4)
        yield f"{space}{end}{suffix}"


def _operands(text: str) -> Optional[List[str]]:
    """Operands of a sum or product with the operators before them, or None."""
    node: ast.AST = ast.parse(text, mode="eval").body
    if not isinstance(node, ast.BinOp):
        return None
    symbols = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@"}
    kinds = (ast.Add, ast.Sub) if isinstance(node.op, (ast.Add, ast.Sub)) else (type(node.op),)
    parts: List[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, kinds) and type(node.op) in symbols:
        end = node.right.end_col_offset or 0
        begin = node.left.end_col_offset or 0
        between = text[begin:end]
        if node is not None and text[:begin].count("(") != text[:begin].count(")"):
            break
        parts.insert(0, between.strip())
        node = node.left
    return [_source(node, text), *parts] if parts else None


def _split(prefix: str, text: str, suffix: str, indent: int) -> Iterator[str]:
    """Write a long sum inside parentheses, one operand a line."""
    space = " " * indent
    bracketed = suffix != ","
    if bracketed:
        yield f"{space}{prefix}("
        if len(f"{space}    {text}") <= WIDTH:
            yield f"{space}    {text}"
        else:
            yield from (f"{space}    {part}" for part in _operands(text) or [text])
        yield f"{space}){suffix}"
    else:
        parts = _operands(text) or [text]
        yield f"{space}{prefix}{parts[0]}"
        yield from (f"{space}{part}" for part in parts[1:-1])
        yield f"{space}{parts[-1]}{suffix}"
