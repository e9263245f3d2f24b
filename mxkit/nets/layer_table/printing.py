"""A table of layers as text."""

from typing import Any, List, Optional, Sequence, Tuple

from mxkit.core.blocks import layer_settings
from mxkit.core.system import aligned, terminal_width
from mxkit.nets.layer_table.costs import Shape

_LEFT = ("path", "type", "output", "dtype", "note")
_SHRINKABLE = ("type", "output", "note")


def arguments_of(block: Any) -> str:
    """Return the arguments of a stock layer that its size and its cost depend on, as short text.

    >>> arguments_of(mx.gluon.nn.Conv2D(8, (3, 5), strides=2, groups=4)), arguments_of(mx.gluon.nn.Dropout(0.5))
    ('3x5/2 groups 4', '0.5')
    """
    settings = layer_settings(block)
    if "kernel" in settings and not settings.get("global_pool"):
        text = "x".join(map(str, settings["kernel"]))
        text += f"/{_axes(settings['stride'])}" if set(settings["stride"]) != {1} else ""
        text += f" dilation {_axes(settings['dilate'])}" if set(settings.get("dilate", (1,))) != {1} else ""
        return text + (f" groups {settings['num_group']}" if settings.get("num_group", 1) != 1 else "")
    for name in ("_act_type", "_rate"):
        if type(block).__module__.startswith("mxnet.gluon.") and isinstance(getattr(block, name, None), (str, float)):
            return str(getattr(block, name))
    return ""


def _axes(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(set(sizes)) == 1 else "x".join(map(str, sizes))


def in_units(number: int, unit: str = "") -> str:
    """Write a number with three digits and a unit's prefix of 1000s.

    >>> in_units(999), in_units(4111512), in_units(3855925248), in_units(102228128, "B")
    ('999', '4.11M', '3.86G', '102 MB')
    """
    prefixes = ["", "k", "M", "G", "T", "P"]
    value = float(number)
    while value >= 999.5 and len(prefixes) > 1:
        value, prefixes = value / 1000, prefixes[1:]
    decimals = 0 if prefixes[0] == "" or value >= 99.95 else 1 if value >= 9.995 else 2
    digits = f"{value:.{decimals}f}"
    return f"{digits}{' ' if unit else ''}{prefixes[0]}{unit}"


def columns_of(table: Any) -> List[Tuple[str, List[str]]]:
    """Return names and cells of the columns; some are left out if they have nothing to show."""
    dtypes = {dtype for row in table for dtype in row.dtypes}
    measured = bool(table.inputs)
    columns = [
        ("path", [row.path or "(net)" for row in table], True),
        ("type", [f"{row.kind} {row.arguments}".strip() for row in table], True),
        ("output", [_shapes(row.outputs) for row in table], measured),
        ("dtype", [", ".join(dict.fromkeys(row.dtypes)) for row in table], len(dtypes) > 1),
        ("parameters", [_count(row.parameters) for row in table], True),
        ("MACs", [in_units(row.macs) if row.macs else "-" for row in table], measured),
        ("note", [row.note for row in table], any(row.note for row in table)),
    ]
    return [(name, texts) for name, texts, shown in columns if shown]


def text_table(table: Any) -> str:
    """Return the table as text; columns other than paths and numbers are cut to the terminal's width."""
    columns = columns_of(table)
    left, shrinkable = (
        [number for number, (name, _) in enumerate(columns) if name in names] for names in (_LEFT, _SHRINKABLE)
    )
    rows = list(zip(*([name, *texts] for name, texts in columns)))
    lines = aligned(rows, left, shrinkable=shrinkable, width=terminal_width())
    return "\n".join([*_head(table), *lines, *_foot(table)])


def _head(table: Any) -> List[str]:
    if not table.inputs:
        return []
    dtypes = list(dict.fromkeys(table.input_dtypes))
    return [f"{table.kind} for {', '.join(map(str, table.inputs))} {', '.join(dtypes)}"]


def _foot(table: Any) -> List[str]:
    parts = [(table.trained, "trained"), (table.not_trained, "not trained")]
    states = ", ".join(f"{number:,} {word}" for number, word in parts if number)
    states = "all trained" if table.parameters and not table.not_trained else states
    total = f"{table.parameters:,} parameters ({in_units(table.parameter_bytes, 'B')})"
    unknown = f"; {table.unknown} of unknown shape are not in it" if table.unknown else ""
    lines = [f"{total}{': ' * bool(states)}{states}{unknown}"]
    if table.inputs:
        lines.append(f"{in_units(table.macs)} multiply-adds; outputs of layers: {in_units(table.output_bytes, 'B')}")
    if table.not_counted:
        lines.append("not counted: " + ", ".join(f"{name} ({number})" for name, number in table.not_counted.items()))
    return lines


def _count(number: Optional[int]) -> str:
    return "?" if number is None else f"{number:,}" if number else "-"


def _shapes(shapes: Sequence[Shape]) -> str:
    shown = ", ".join(map(str, shapes[:2]))
    return f"{shown} and {len(shapes) - 2} more" if len(shapes) > 2 else shown
