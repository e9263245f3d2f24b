"""Why results differ, or names are not called: calls/reasons.ini."""

from configparser import ConfigParser
from fnmatch import fnmatchcase
from pathlib import Path

_FILE = ConfigParser(interpolation=None, delimiters=("=",))
_FILE.read(str(Path(__file__).with_name("calls") / "reasons.ini"), encoding="utf-8")
#: Reasons, in their order, without those of names that never work.
REASONS = [why for why in _FILE.sections() if "names" in _FILE[why]]


def reason_of(full, found):
    """The reason of a difference, or None."""
    compared, _, kind, text = found
    for why in REASONS:
        names, kinds, words = (_FILE[why].get(key, "").split() for key in ("names", "kinds", "words"))
        named = any(fnmatchcase(full, one) for one in names) and (not kinds or kind in kinds)
        if named and (not words or any(word in compared or word in text for word in words)):
            return why
    return None


def never_works(full):
    """Why no call of a name gives a result anywhere."""
    for why in _FILE.sections():
        if any(fnmatchcase(full, one) for one in _FILE[why].get("never", "").split()):
            return why
    return "no call is written"
