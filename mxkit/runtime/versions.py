"""Version numbers as tuples, and the two classes that MXNet imports from ``distutils.version``."""

from functools import total_ordering
import re
from types import SimpleNamespace
from typing import Tuple

_RELEASE = re.compile(r"^\d+(?:\.\d+)*")
_PARTS = re.compile(r"\d+|[a-z]+")

# Suffixes that sort before their release; all others sort after it ("1.0.post1").
_BEFORE_RELEASE = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "rc": -1, "c": -1}


def release(text: str) -> Tuple[int, ...]:
    """Read the leading numbers of a version.

    >>> release("2.5.0rc1"), release("1.26.4"), release("1.9.1.post0+local")
    ((2, 5, 0), (1, 26, 4), (1, 9, 1))
    """
    numbers = _RELEASE.match(text)
    return tuple(map(int, numbers.group().split("."))) if numbers else ()


@total_ordering
class ComparableVersion:
    """A version that can be compared, also with text; it replaces the two version classes of distutils.

    distutils left the standard library in Python 3.12 and warns since 3.10 (T89). Its StrictVersion rejects
    "2.5.0rc1" and its LooseVersion raises TypeError for some pairs; here every pair has an order.

    >>> ComparableVersion("1.10") > "1.9.1", ComparableVersion("2.0.0rc1") < ComparableVersion("2.0.0")
    (True, True)
    """

    def __init__(self, vstring: str = "") -> None:
        self.vstring = str(vstring)
        self._key = _sort_key(self.vstring)

    def __str__(self) -> str:
        return self.vstring

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self._key == _sort_key(str(other))

    def __lt__(self, other: object) -> bool:
        return self._key < _sort_key(str(other))


def _sort_key(text: str) -> Tuple[Tuple[int, ...], Tuple[Tuple[int, str], ...]]:
    # A local label ("1.9.1+cpu") says how a release was built, not which one it is.
    text = text.lower().split("+")[0]
    numbers = list(release(text))
    rest = _PARTS.findall(_RELEASE.sub("", text, count=1))
    while numbers and numbers[-1] == 0:
        numbers.pop()
    suffix = [(int(part), "") if part.isdigit() else (_BEFORE_RELEASE.get(part, 0), part) for part in rest]
    # The end sorts like the number zero: above "rc1" and "dev0", below "post1".
    return tuple(numbers), (*suffix, (0, ""))


#: ``from distutils.version import ...`` inside MXNet and GluonCV.
DISTUTILS_VERSION = SimpleNamespace(
    __name__="distutils.version", StrictVersion=ComparableVersion, LooseVersion=ComparableVersion
)

#: ``import distutils.version`` and ``from distutils import version`` inside MXNet and GluonCV.
DISTUTILS = SimpleNamespace(__name__="distutils", version=DISTUTILS_VERSION)
