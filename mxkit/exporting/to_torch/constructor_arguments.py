"""The literals that differ between objects of one class become arguments of its constructor."""

from ast import literal_eval
from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.exporting.to_torch.trees import Instance

# Defaults of torch.nn, so that a layer that names an argument and one that does not can be of one class
DEFAULTS = {"stride": "1", "padding": "0", "dilation": "1", "groups": "1", "bias": "True", "momentum": "0.1"}
# Arguments that get a default in the class, too
_WITH_DEFAULT = frozenset(["stride", "dilation", "groups", "bias", "padding"])


class Argument(NamedTuple):
    """An argument of a class.

    Attributes:
        name: Its name.
        annotation: Its type.
        default: '' if it has none.
    """

    name: str
    annotation: str
    default: str


Slot = Tuple[int, Tuple[str, ...]]


@dataclass
class Arguments:
    """Finds the literals that differ between the objects of a class, and names for them.

    Attributes:
        optional: Children that only some of the objects have.
        instances: The objects.
        slots: The literals of each object, by their places.
        hints: Names for arguments, by the places of the literals.
        targets: The attributes that the constructor's statements set.
        columns: The literals of each argument in all objects; None where an object has none.
        defaults: Of the arguments, by their names.
    """

    optional: Sequence[str]
    instances: Sequence[Instance]
    slots: List[Dict[Slot, str]]
    hints: Dict[Slot, str]
    targets: List[str]
    columns: Dict[str, List[Optional[str]]] = field(default_factory=dict)
    defaults: Dict[str, str] = field(default_factory=dict)

    def find(self) -> Dict[Slot, str]:
        """Names of arguments by the literals that they replace."""
        chosen: Dict[Slot, str] = {}
        for slot in self.hints:
            column = [own.get(slot) for own in self.slots]
            several = {text for text in column if text is not None}
            if len(several) > 1 or (None in column and self._known(slot, column)):
                chosen[slot] = self._argument(slot, column)
        for child in self.optional:
            has = [child in instance.module.children for instance in self.instances]
            self.columns[child] = [str(one) for one in has]
            self.defaults[child] = "False"
        return chosen

    def _known(self, slot: Slot, column: List[Optional[str]]) -> bool:
        """Whether a literal of an optional child is what an argument of this name is in every object that has it."""
        other = self.columns.get(self.hints[slot])
        return other is not None and all(text in (None, own) for text, own in zip(column, other))

    def _argument(self, slot: Slot, column: List[Optional[str]]) -> str:
        hint = self.hints[slot]
        for name, other in self.columns.items():
            pairs = [(a, b) for a, b in zip(column, other) if a is not None and b is not None]
            if pairs and all(a == b for a, b in pairs):
                self.columns[name] = [a if a is not None else b for a, b in zip(other, column)]
                return name
        name = self._name(hint, slot)
        self.columns[name] = column
        if hint in _WITH_DEFAULT:
            texts = [text for text in column if text is not None]
            self.defaults[name] = DEFAULTS[hint] if DEFAULTS[hint] in texts else Counter(texts).most_common(1)[0][0]
        return name

    def _name(self, hint: str, slot: Slot) -> str:
        target = self.targets[slot[0]].rpartition(".")[2]
        places = [f"{target}_{hint}"] if target.isidentifier() else []
        for name in [hint, *(["out_channels"] if hint == "channels" else []), *places]:
            if name not in self.columns and name not in self.optional:
                return name
        number = 2
        while f"{hint}{number}" in self.columns:
            number += 1
        return f"{hint}{number}"

    def arguments(self) -> List[Argument]:
        """Arguments in the order of the constructor: those with a default come last."""
        found = [
            Argument(name, _annotation([text for text in column if text]), self.defaults.get(name, ""))
            for name, column in self.columns.items()
        ]
        return sorted(found, key=lambda one: bool(one.default))

    def values(self) -> Iterator[Dict[str, str]]:
        """Arguments of each object."""
        order = [one.name for one in self.arguments()]
        for index in range(len(self.slots)):
            yield {
                name: self.columns[name][index] or self.defaults.get(name) or next(filter(None, self.columns[name]))
                for name in order
            }


def _annotation(texts: Sequence[str]) -> str:
    kinds = []
    for text in texts:
        value = literal_eval(text)
        kinds.append(
            f"tuple[{', '.join(type(part).__name__ for part in value)}]"
            if type(value) is tuple
            else type(value).__name__
        )
    distinct = sorted(set(kinds))
    return " | ".join("None" if kind == "NoneType" else kind for kind in distinct)
