"""docs/api-table.md, from the results of three interpreters."""

from collections import Counter, defaultdict, namedtuple
from configparser import ConfigParser
from fnmatch import fnmatchcase
from pathlib import Path

import api_names
import api_values

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "api-table.md"
#: Why results differ, or why no call of a name gives a result anywhere.
_REASONS = ConfigParser(interpolation=None, delimiters=("=",))
_REASONS.read(str(HERE / "calls" / "reasons.ini"), encoding="utf-8")
_SIZES = """Each row is one name, what was compared, and a kind of difference. It shows the call with the largest one,
the two results there, and of numbers the difference as a part of the larger number."""
_COMPARED = ("mxkit on the oldest pair and MXNet alone there", "the newest pair and the oldest")
_COLUMNS = ("names", "called", "equal", "equal but for a reason", "not called", "unexplained")
_NO_CALL = "no call is written"

#: A difference of a call of a name; `why` is None if there is no reason.
Row = namedtuple("Row", "name compared label kind text why")


def reason_of(name, compared, kind, text):
    """The reason of a difference, or None."""
    for why in _REASONS.sections():
        names, kinds, words = (_REASONS[why].get(key, "").split() for key in ("names", "kinds", "words"))
        named = any(fnmatchcase(name, one) for one in names) and (not kinds or kind in kinds)
        if named and (not words or any(word in compared or word in text for word in words)):
            return why
    return None


def refused(result):
    return isinstance(result, dict) and ("error" in result or "died" in result)


def differences(one, other):
    """How two results of a call differ: a text by kind. What both refuse is equal, in whatever words."""
    if not (refused(one) or refused(other)):
        return api_values.differences(one, other)
    if not (refused(one) and refused(other)):
        return {"error": f"{_outcome(one)} and {_outcome(other)}"}
    return {"end": f"{_outcome(one)} and {_outcome(other)}"} if ("died" in one) != ("died" in other) else {}


def _outcome(result):
    if not refused(result):
        return "a result"
    return f"{result['error']}: {result['text'][:90]}" if "error" in result else f"ends with {result['died']}"


def joined(results):
    """Of each name its calls under each interpreter, or the reason why it is not called."""
    names = {}
    for space in results[-1]["names"]:
        for name in sorted({name for one in results for name in one["names"].get(space, {})}):
            calls = [one["names"].get(space, {}).get(name) for one in results]
            if calls[0] is None and calls[1]:
                calls[0] = {}  # names that mxkit adds
            names[f"{space}.{name}"] = next((one for one in calls if isinstance(one, str)), calls)
    for full, calls in names.items():
        if not isinstance(calls, str) and all(map(refused, (calls[-1] or {}).values())) and not [*_rows(full, calls)]:
            never = ((why, one) for why in _REASONS.sections() for one in _REASONS[why].get("never", "").split())
            names[full] = next((why for why, one in never if fnmatchcase(full, one)), _NO_CALL)
    return names


def _rows(full, calls):
    """Differences between interpreters."""
    for compared, one, other in zip(_COMPARED, calls, calls[1:]):
        if one is None or other is None:
            yield _row(full, compared, "-", "missing", f"{one is not None} and {other is not None}")
        else:
            for label in one:
                if label in other:
                    found = differences(one[label], other[label])
                    yield from (_row(full, compared, label, *item) for item in found.items())


def _row(full, compared, label, kind, text):
    return Row(full, compared, label, kind, text, reason_of(full, compared, kind, text))


def graphs_of(names):
    """Names of `mx.sym`, the names without a graph, and the newest results of both."""
    for full, calls in names.items():
        eager = full.replace("mx.sym.np", "mx.np") if full.startswith("mx.sym.np") else "mx.nd" + full[6:]
        if full.startswith("mx.sym.") and not isinstance(calls, str) and not isinstance(names.get(eager, ""), str):
            yield full, eager, calls[-1] or {}, names[eager][-1] or {}


def graph_rows(names):
    """Where a graph of `mx.sym` gives something else than the function of `mx.nd` or `mx.np`."""
    for full, eager, mine, theirs in graphs_of(names):
        for label in mine:
            if label in theirs and not refused(mine[label]) and not refused(theirs[label]):
                found = api_values.differences(theirs[label], mine[label])
                yield from (_row(full, f"{eager} and its graph", label, *item) for item in found.items())


def compared_calls(names):
    """How many calls were compared: by interpreters, and between functions and their graphs."""
    called = [calls for calls in names.values() if not isinstance(calls, str)]
    counts = [sum(len(set(one[i] or ()) & set(one[i + 1] or ())) for one in called) for i in (0, 1)]
    return (*counts, sum(len(set(mine) & set(theirs)) for _, _, mine, theirs in graphs_of(names)))


def write(results):
    """Write the page; returns 1 if a difference has no reason."""
    names, rows = joined(results), defaultdict(list)
    for full, calls in names.items():
        rows[full] += [] if isinstance(calls, str) else _rows(full, calls)
    for row in graph_rows(names):
        rows[row.name].append(row)
    PAGE.write_text("\n".join(lines_of(results, names, rows)) + "\n", encoding="utf-8")
    unexplained = [row for found in rows.values() for row in found if not row.why]
    for row in unexplained:
        print(*row[:-1], sep=" | ")  # noqa: T201
    return bool(unexplained or _NO_CALL in names.values())


def lines_of(results, names, rows):
    named = {**dict(zip(("plain", "oldest", "newest"), results)), "calls": compared_calls(names)}
    yield from (HERE / "calls" / "page.md").read_text(encoding="utf-8").format(**named).splitlines()
    yield from ("", f"| namespace | {' | '.join(_COLUMNS)} |", "|---" * 7 + "|")
    counts = Counter()
    for full, calls in names.items():
        whys = [row.why for row in rows[full]]
        kind = "not called" if isinstance(calls, str) else "equal" if not whys else "equal but for a reason"
        kinds = ["names", kind if all(whys) else "unexplained", *([] if kind == "not called" else ["called"])]
        counts.update((group, one) for group in (api_names.group_of(full), "all") for one in kinds)
    for group in (*api_names.GROUPS, "all"):
        shown = group if group == "all" else f"`{group}`"
        yield f"| {shown} | {' | '.join(str(counts[group, column]) for column in _COLUMNS)} |"
    yield from ("", "## Differences, and their reasons", "")
    yield from _explained(rows)
    yield from ("", "## Names that are not called", "")
    reasons, spaces = defaultdict(list), defaultdict(list)
    for full, calls in names.items():
        spaces[full.rpartition(".")[0]].append(f"`{full.rpartition('.')[2]}`")
        if isinstance(calls, str):
            reasons[calls].append(f"`{full}`")
    for why, group in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"- {why}: {', '.join(group)}"
    yield from ("", "## All names", "")
    for space, own in spaces.items():
        yield from (f"**{space}**: {' '.join(own)}", "")


def _explained(rows):
    """The reasons, then a row for each name, comparison and kind of difference: how many calls, and the largest."""
    groups = defaultdict(list)
    for row in (row for found in rows.values() for row in found):
        groups[row.why, row.name, row.compared, row.kind].append((_size(row.text), row))
    reasons = [why for why in _REASONS.sections() if any(group[0] == why for group in groups)]
    yield from (f"{number}. {why}" for number, why in enumerate(reasons, 1))
    yield from ("", _SIZES, "")
    yield "| reason | name | compared | calls that differ | the largest difference |"
    yield "|---|---|---|---|---|"
    for number, reason in enumerate(reasons, 1):
        for (why, full, compared, kind), found in groups.items():
            if why == reason:
                size, row = max(found, key=lambda item: item[0])
                text = row.text.replace("|", "\\|").replace("\n", " ").replace("`", "'")[:100]
                percent = f", {size:.1%}" if size >= 0.001 else f", {size:.1e}" if size else ""
                shown = f"{kind}: `{text}` in call `{row.label}`{percent}"
                yield f"| {number} | `{full}` | {compared} | {len(found)} | {shown} |"


def _size(text):
    """The difference of a pair of numbers, as a part of the larger one; 0 if these are no numbers."""
    try:
        one, other = map(float, text.split(" and "))
    except ValueError:
        return 0
    return abs(one - other) / (max(abs(one), abs(other)) or 1)
