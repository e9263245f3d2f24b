"""docs/api-table.md, from the results of three interpreters."""

from collections import defaultdict
from pathlib import Path

import api_names
import api_reasons
import api_values

PAGE = Path(__file__).parents[2] / "docs" / "api-table.md"
_INTRODUCTION = Path(__file__).with_name("calls") / "page.md"
_SIZES = """Each row is one name, what was compared, and a kind of difference. It shows the call with the largest one,
the two results there, and of numbers the difference as a part of the larger number."""
_COMPARED = ("mxkit on the oldest pair and MXNet alone there", "the newest pair and the oldest")


def refused(result):
    return isinstance(result, dict) and ("error" in result or "died" in result)


def differences(one, other):
    """How two results of a call differ: a text by kind. What both refuse is equal, in whatever words."""
    if refused(one) and refused(other):
        return {"end": _outcome(one, other)} if ("died" in one) != ("died" in other) else {}
    if refused(one) or refused(other):
        return {"error": _outcome(one, other)}
    return api_values.differences(one, other)


def _outcome(*results):
    texts = []
    for one in results:
        if not refused(one):
            texts.append("a result")
        else:
            texts.append(f"{one['error']}: {one['text'][:90]}" if "error" in one else f"ends with {one['died']}")
    return " and ".join(texts)


class Name:
    """What was found about one public name."""

    def __init__(self, full, calls):
        self.full, self.calls = full, calls
        self.reason = next((one for one in calls if isinstance(one, str)), None)
        self.found = [] if self.reason else list(self._differences())
        results = [] if self.reason else [one for one in (calls[-1] or {}).values() if not refused(one)]
        if not self.reason and not results and not self.found:
            self.reason = api_reasons.never_works(full)

    def _differences(self):
        plain, oldest, newest = self.calls
        plain = {} if plain is None and oldest else plain  # names that mxkit adds
        for number, (one, other) in enumerate(((plain, oldest), (oldest, newest))):
            if one is None or other is None:
                yield _COMPARED[number], "-", "missing", f"{one is not None} and {other is not None}"
                continue
            for label in (label for label in one if label in other):
                found = differences(one[label], other[label])
                yield from ((_COMPARED[number], label, *item) for item in found.items())

    def explained(self):
        """Reasons by difference; None where there is none."""
        return {one: api_reasons.reason_of(self.full, one) for one in self.found}


def joined(results):
    """All names, with their calls under each interpreter."""
    names = {}
    for space in results[-1]["names"]:
        for name in sorted({name for one in results for name in one["names"].get(space, {})}):
            calls = [one["names"].get(space, {}).get(name) for one in results]
            names[f"{space}.{name}"] = Name(f"{space}.{name}", calls)
    return names


def graphs_of(names):
    """Names of `mx.sym`, the names without a graph, and the newest results of both."""
    for full, one in names.items():
        if not full.startswith("mx.sym.") or one.reason:
            continue
        eager = full.replace("mx.sym.np", "mx.np") if full.startswith("mx.sym.np") else "mx.nd" + full[6:]
        other = names.get(eager)
        if other is not None and not other.reason:
            yield one, eager, one.calls[-1] or {}, other.calls[-1] or {}


def graph_differences(names):
    """Names of `mx.sym` whose graphs give something else than the function of `mx.nd` or `mx.np`."""
    for one, eager, mine, theirs in graphs_of(names):
        for label in mine:
            if label in theirs and not refused(mine[label]) and not refused(theirs[label]):
                found = api_values.differences(theirs[label], mine[label])
                yield from ((one, (f"{eager} and its graph", label, *item)) for item in found.items())


def compared_calls(names):
    """How many calls were compared: by interpreters, and between functions and their graphs."""
    pairs = [one.calls[place : place + 2] for place in (0, 1) for one in names.values() if not one.reason]
    half = len(pairs) // 2
    counts = [len(set(one or ()) & set(other or ())) for one, other in pairs]
    graphs = sum(len(set(mine) & set(theirs)) for _, _, mine, theirs in graphs_of(names))
    return sum(counts[:half]), sum(counts[half:]), graphs


def write(results):
    """Write the page; returns 1 if a difference has no reason."""
    names = joined(results)
    for one, found in graph_differences(names):
        one.found.append(found)
    PAGE.write_text("\n".join(lines_of(results, names)) + "\n", encoding="utf-8")
    unexplained = [(one.full, found) for one in names.values() for found, why in one.explained().items() if not why]
    for full, found in unexplained:
        print(full, *found, sep=" | ")  # noqa: T201
    return bool(unexplained or any(one.reason == "no call is written" for one in names.values()))


def lines_of(results, names):
    plain, oldest, newest = results
    named = {"plain": plain, "oldest": oldest, "newest": newest, "calls": compared_calls(names)}
    yield from _INTRODUCTION.read_text(encoding="utf-8").format(**named).splitlines()
    yield from ("", "| namespace | names | called | equal | equal but for a reason | not called | unexplained |")
    yield "|---|---|---|---|---|---|---|"
    counts = defaultdict(lambda: [0] * 6)
    for one in names.values():
        for row in (api_names.group_of(one.full), "all"):
            counts[row][0] += 1
            counts[row][1 if not one.reason else 4] += 1
            if not one.reason:
                whys = one.explained().values()
                counts[row][5 if not all(whys) else 3 if whys else 2] += 1
    for row in (*api_names.GROUPS, "all"):
        yield f"| {f'`{row}`' if row != 'all' else 'all'} | {' | '.join(map(str, counts[row]))} |"
    yield from ("", "## Differences, and their reasons", "")
    yield from _explained(names)
    yield from ("", "## Names that are not called", "")
    yield from _grouped({one.full: [one.reason] for one in names.values() if one.reason})
    yield from ("", "## All names", "")
    spaces = defaultdict(list)
    for full in names:
        spaces[full.rpartition(".")[0]].append(full.rpartition(".")[2])
    for space, own in spaces.items():
        yield from (f"**{space}**: {' '.join(f'`{name}`' for name in own)}", "")


def _grouped(reasons):
    """A line for each reason, with the names that have it."""
    names = defaultdict(list)
    for full, whys in reasons.items():
        for why in whys:
            names[why].append(full)
    for why, group in sorted(names.items(), key=lambda item: -len(item[1])):
        yield f"- {why}: {', '.join(f'`{name}`' for name in group)}"


def _explained(names):
    """The reasons, then a row for each name, comparison and kind of difference: how many calls, and the largest."""
    rows = defaultdict(list)
    for one in names.values():
        for (compared, label, kind, text), why in one.explained().items():
            rows[str(why), one.full, compared, kind].append((_size(text), label, text))
    reasons = [why for why in api_reasons.REASONS if any(row[0] == why for row in rows)]
    yield from (f"{number}. {why}" for number, why in enumerate(reasons, 1))
    yield from ("", _SIZES, "")
    yield "| reason | name | compared | calls that differ | the largest difference |"
    yield "|---|---|---|---|---|"
    for number, reason in enumerate(reasons, 1):
        for (why, full, compared, kind), found in rows.items():
            if why == reason:
                size, label, text = max(found, key=lambda item: item[0])
                text = text.replace("|", "\\|").replace("\n", " ").replace("`", "'")[:100]
                percent = f", {size:.1%}" if size >= 0.001 else f", {size:.1e}" if size else ""
                shown = f"{kind}: `{text}` in call `{label}`{percent}"
                yield f"| {number} | `{full}` | {compared} | {len(found)} | {shown} |"


def _size(text):
    """The difference of a pair of numbers, as a part of the larger one; 0 if these are no numbers."""
    try:
        one, other = map(float, text.split(" and "))
    except ValueError:
        return 0
    return abs(one - other) / (max(abs(one), abs(other)) or 1)
