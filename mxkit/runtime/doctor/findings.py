"""The parts of a report, and how it is written as text and as JSON."""

from dataclasses import dataclass
import json
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from mxkit.version import __version__

# It grows with each change that breaks a reader of the JSON.
FORMAT = 1

_MARKS = {"ok": " ", "warning": "!", "problem": "X"}


@dataclass(frozen=True)
class Line:
    """One finding.

    Attributes:
        name: The name of what was examined.
        value: The result.
        status: "ok"; "warning": it works, but with less speed or function; "problem": MXNet or mxkit does not run.
        fix: What to type or to do, if it is not "ok".
        data: The value as numbers, for programs.
    """

    name: str
    value: str
    status: str = "ok"
    fix: str = ""
    data: Optional[Mapping[str, Any]] = None


def judged(
    name: str, value: str, is_right: bool, fix: str, data: Optional[Mapping[str, Any]] = None, status: str = "warning"
) -> Line:
    """A finding that is "ok" if `is_right`; else it has `status` and `fix`."""
    return Line(name, value, data=data) if is_right else Line(name, value, status, fix, data)


@dataclass(frozen=True)
class Section:
    """A titled group of findings; `key` is its name in the JSON."""

    key: str
    title: str
    lines: Tuple[Line, ...]


@dataclass(frozen=True)
class Report:
    """All findings, in the order of the text."""

    sections: Tuple[Section, ...] = ()

    @property
    def lines(self) -> Tuple[Line, ...]:
        """Every line of every section."""
        return tuple(line for section in self.sections for line in section.lines)

    @property
    def problems(self) -> Tuple[Line, ...]:
        """The lines whose status is "problem"."""
        return tuple(line for line in self.lines if line.status == "problem")

    @property
    def warnings(self) -> Tuple[Line, ...]:
        """The lines whose status is "warning"."""
        return tuple(line for line in self.lines if line.status == "warning")


def to_dict(report: Report) -> Dict[str, Any]:
    """A report as plain JSON values; docs/doctor.md lists the keys."""
    sections = {
        section.key: [{**vars(line), "data": dict(line.data or {})} for line in section.lines]
        for section in report.sections
    }
    counts = {"problems": len(report.problems), "warnings": len(report.warnings)}
    return {"format": FORMAT, "mxkit": __version__, **counts, "sections": sections}


def to_json(report: Report) -> str:
    """A report as JSON text."""
    return json.dumps(to_dict(report), indent=2)


def render(report: Report) -> str:
    """A report as plain text in aligned columns, with the problems and their fixes at the end."""
    return "\n".join(text for text, _ in rows(report))


def rows(report: Report) -> Iterator[Tuple[str, str]]:
    """The text of `render` line by line, each with "title", "ok", "warning", "problem" or "fix", for colours."""
    width = max((len(line.name) for line in report.lines), default=0)
    for section in report.sections:
        yield section.title, "title"
        for line in section.lines:
            first, *rest = line.value.splitlines() or [""]
            yield f"{_MARKS[line.status]}   {line.name:<{width}}  {first}".rstrip(), line.status
            yield from ((" " * (width + 6) + text, line.status) for text in rest)
        yield "", "ok"
    for line in (*report.problems, *report.warnings):
        first, *rest = line.value.splitlines() or [""]
        yield f"{line.status}: {line.name}: {first}", line.status
        yield from ((f"    {text}", "fix") for text in [*rest, *line.fix.splitlines()])
    worst = "problem" if report.problems else "warning" if report.warnings else "ok"
    counts = {"problem": len(report.problems), "warning": len(report.warnings)}
    yield ", ".join(f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts.items()), worst
