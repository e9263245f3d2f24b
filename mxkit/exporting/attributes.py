"""Reads the attributes of an operator in MXNet's graph."""

import ast
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

Number = Union[int, float]


class Attributes:
    """Attributes as MXNet writes them: texts, of which those with their default value may be absent."""

    @property
    def attrs(self) -> Dict[str, str]:
        """Texts by name."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """Number of axes of the first input."""
        raise NotImplementedError

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value: number, tuple, list, True, False, None or text."""
        text = self.attrs.get(name)
        if text is None:
            return default
        try:
            return ast.literal_eval(re.sub(r"(\d)L\b", r"\1", text))  # "(1L, 2L)" of Python 2
        except (ValueError, SyntaxError):
            return text

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute as text; "None" stands for the default."""
        value = self.attrs.get(name, default)
        return default if value == "None" else value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""
        return self.text(name, str(default)).lower() in ("true", "1")

    def real(self, name: str, default: float = 0) -> float:
        """Return a number as a float; "inf" and "nan" are numbers."""
        return float(self.text(name, str(default)))

    def number(self, name: str, default: Number = 0) -> Number:
        """Return a number; a float without decimals becomes an int."""
        value = self.real(name, default)
        return int(value) if value.is_integer() else value

    def integer(self, name: str, default: Any = None) -> Any:
        """Return an int, or the default if the attribute is absent or "None"."""
        value = self.text(name)
        return int(float(value)) if value else default

    def optional_ints(self, name: str) -> Optional[Tuple[Optional[int], ...]]:
        """Return a shape like "(1, None)", "[1, 2]" or "3", whose parts may be None; None if it is absent."""
        value = self.get(name)
        if value is None:
            return None
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def ints(self, name: str) -> Tuple[int, ...]:
        """Return a shape; None in it is 0, and an absent one is ()."""
        return tuple(part or 0 for part in self.optional_ints(name) or ())

    def numbers(self, name: str, default: Sequence[Number]) -> Tuple[Number, ...]:
        """Return a tuple of numbers like "(0.5, 1)"."""
        return tuple(self.get(name) or default)

    def sizes(self, name: str, count: int, default: int) -> List[int]:
        """Return a number for each of `count` axes; one number stands for all, and () for the default."""
        value = self.get(name)
        value = [value] * count if isinstance(value, int) else list(value or ())
        return [int(size) for size in value] or [default] * count

    def axis(self, default: int = -1) -> int:
        """Return the axis, counted from 0."""
        return int(self.integer("axis", default) % max(self.rank, 1))
