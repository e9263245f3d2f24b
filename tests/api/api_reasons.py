"""Why results differ, or names are not called."""

from fnmatch import fnmatchcase

INTRODUCTION = """# Every public name of MXNet and GluonCV

Made by `tests/api/api_table.py`, which calls each name with generated inputs, ragged ones too. Compared are: MXNet
without mxkit on Python {plain[python]} with NumPy {plain[numpy]}; mxkit on the same pair; and mxkit on Python
{newest[python]} with NumPy {newest[numpy]}. Functions of arrays and their methods get the same sets of arguments each,
graphs of `mx.sym` run with the inputs of `mx.nd`; classes are built and used.

Equal means: the same kinds of objects, types and shapes; numbers within 1e-5 (float32), 1e-8 (float64) and 2e-3 (float16)
of each other, relatively; and what one interpreter refuses, the other refuses too, in whatever words. Random numbers are
drawn after the same seed and compared like all others."""

#: Reason; patterns of names; kinds of differences (None: all); which comparison (a word of it, None: all).
REASONS = []

NEVER = []


def reason_of(full, found):
    """The reason of a difference, or None."""
    compared, _, kind, text = found
    for why, patterns, kinds, words in REASONS:
        if any(fnmatchcase(full, one) for one in patterns) and (not kinds or kind in kinds):
            if not words or any(word in compared or word in text for word in words):
                return why
    return None


def never_works(full):
    """Why no call of a name gives a result anywhere."""
    for why, patterns in NEVER:
        if any(fnmatchcase(full, one) for one in patterns):
            return why
    return "no call is written"
