"""Prints texts of files that nobody checked: a name may hold what moves a terminal's cursor."""

import sys
from typing import Iterable


def shown(text: str) -> str:
    """Return a text as it is if every character can be printed, else with escapes.

    >>> shown("größe.weight"), shown("a\\x1b[2J")
    ('größe.weight', 'a\\\\x1b[2J')
    """
    return text if text.isprintable() else ascii(text)[1:-1]


def write_lines(lines: Iterable[str]) -> None:
    """Print lines; characters that standard output cannot encode become escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines)
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
