"""Blocks with the same code share one class: what differs between them becomes an argument of its constructor."""

from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from mxkit.exporting.to_torch.constructor_arguments import DEFAULTS, Argument, Arguments, Slot
from mxkit.exporting.to_torch.layout import Call, Expression, is_literal
from mxkit.exporting.to_torch.trees import Instance, Statement

_LAYERS_WITH = {
    "bias": ("nn.Conv", "nn.Linear"),
    "momentum": ("nn.BatchNorm",),
    **dict.fromkeys(("stride", "padding", "dilation", "groups"), ("nn.Conv",)),
}
_ORDER = ("kernel_size", "stride", "padding", "output_padding", "dilation", "groups", "bias", "eps", "momentum")
_POSITIONS = {
    "nn.Conv": ("in_channels", "channels", "kernel_size"),
    "nn.ConvTranspose": ("in_channels", "channels", "kernel_size"),
    "nn.Linear": ("in_features", "out_features"),
    "nn.BatchNorm": ("channels",),
    "nn.InstanceNorm": ("channels",),
    "nn.GroupNorm": ("num_groups", "channels"),
    "nn.LayerNorm": ("size",),
    "nn.Embedding": ("num_embeddings", "size"),
    "nn.LSTM": ("input_size", "hidden_size"),
    "nn.GRU": ("input_size", "hidden_size"),
    "nn.RNN": ("input_size", "hidden_size"),
    "nn.Dropout": ("dropout",),
}


@dataclass(eq=False)
class Class:
    """A class of the generated file.

    Attributes:
        name: Its name.
        base: The class that it derives from.
        arguments: Of its constructor.
        statements: Of its constructor, with the arguments' names; None for each optional child.
        forward: Its method `forward`, or None.
        optional: Children that only some of its objects have.
        instances: Its objects.
    """

    name: str
    base: str
    instances: List[Instance]
    forward: Any
    arguments: List[Argument] = field(default_factory=list)
    statements: List[Statement] = field(default_factory=list)
    optional: List[str] = field(default_factory=list)


class Classes:
    """Groups blocks into classes.

    Args:
        instances: Blocks, inner ones before those that contain them.
        root: Name of the net's class.
    """

    def __init__(self, instances: Sequence[Instance], root: str) -> None:
        self._classes: List[Class] = []
        self._by_key: Dict[str, Class] = {}
        self._of: Dict[str, Class] = {}
        self._given: Dict[str, Dict[str, str]] = {}
        self._root = root
        self._names: Set[str] = {root}
        for instance in instances:
            self._place(instance)
        self._merge()
        for one in self._classes:
            one.name = self._class_name(one)
        for one in self._classes:
            self._complete(one)

    def all(self) -> List[Class]:
        """Classes, each after those that it uses."""
        return self._classes

    def _place(self, instance: Instance) -> None:
        key = self._key(instance, instance.forward, instance.statements)
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = Class("", instance.base, [], instance.forward)
            self._classes.append(found)
        found.instances.append(instance)
        self._of[str(id(instance.module.block))] = found

    def _key(self, instance: Instance, forward: Any, statements: Sequence[Statement]) -> str:
        name = type(instance.module.block).__name__ if instance.module.target else ""
        lines = [f"{line.target} = {self._skeleton(line.value)}" for line in statements]
        return "\n".join([name, instance.base, *lines, forward.text() if forward else ""])

    def _skeleton(self, value: Expression) -> str:
        """Return an expression without its literals; blocks with equal ones can share a class."""
        if isinstance(value, str):
            return "_" if is_literal(value) and not value.startswith(("'", '"')) else value
        if value.function == "@":
            return f"@{id(self._of[str(value.arguments[0][1])])}"
        parts = [
            f"{name}={self._skeleton(inner)}" if name else self._skeleton(inner)
            for name, inner in value.arguments
            if not _takes(value, name)
        ]
        return f"{value.function}({', '.join(parts)})"

    def _merge(self) -> None:
        """Let blocks without a child, like a residual block's `downsample`, use the class of those that have it."""
        for whole in list(self._classes):
            for child in sorted(whole.instances[0].elided):
                if whole in self._classes:  # not merged into another one before
                    self._merge_into(whole, child)

    def _merge_into(self, whole: Class, child: str) -> None:
        first = whole.instances[0]
        rest = [line for line in first.statements if line.target != f"self.{child}"]
        key = self._key(first, first.elided[child], rest)
        other = self._by_key.get(key)
        if other not in self._classes or other is whole or other.optional or whole.optional:
            return
        whole.optional.append(child)
        for instance in other.instances:
            instance.whole = whole.forward
            instance.absent = {
                line.expression for line in whole.forward.lines if line.expression.startswith(f"self.{child}(")
            }
        whole.instances = sorted(whole.instances + other.instances, key=lambda one: one.module.scopes[0].number)
        place = max(self._classes.index(whole), self._classes.index(other))
        self._of.update({number: whole for number, one in self._of.items() if one is other})
        self._classes.insert(place + 1, whole)
        self._classes.remove(whole)
        self._classes.remove(other)

    def _class_name(self, one: Class) -> str:
        module = one.instances[0].module
        if not module.target:
            return self._root
        stem = type(module.block).__name__.lstrip("_")
        stem = stem[:1].upper() + stem[1:]
        name, number = stem, 2
        while name in self._names:
            name, number = f"{stem}{number}", number + 1
        self._names.add(name)
        return name

    def _complete(self, one: Class) -> None:
        """Find the arguments of a class and write its constructor with them."""
        filled = [self._filled(instance) for instance in one.instances]
        whole = next(index for index, lines in enumerate(filled) if len(lines) == max(map(len, filled)))
        targets = [line.target for line in filled[whole]]
        slots: List[Dict[Slot, str]] = []
        for lines in filled:
            skipped = 0
            own: Dict[Slot, str] = {}
            for index, target in enumerate(targets):
                if index - skipped >= len(lines) or lines[index - skipped].target != target:
                    skipped += 1
                    continue
                own.update({(index, path): text for path, text in _slots(lines[index - skipped].value)})
            slots.append(own)
        finder = Arguments(one.optional, one.instances, slots, {**dict(_hints(filled[whole]))}, targets)
        chosen = finder.find()
        one.arguments = finder.arguments()
        one.statements = [
            Statement(line.target, self._named(_replaced(line.value, index, chosen, ())))
            for index, line in enumerate(filled[whole])
        ]
        for instance, values in zip(one.instances, finder.values()):
            self._given[str(id(instance.module.block))] = values

    def _filled(self, instance: Instance) -> List[Statement]:
        """Statements with the arguments of inner classes, and with the defaults that other instances name."""
        return [Statement(line.target, self._with_arguments(line.value)) for line in instance.statements]

    def _with_arguments(self, value: Expression) -> Expression:
        if isinstance(value, str):
            return value
        if value.function == "@":
            number = str(value.arguments[0][1])
            return Call(f"@{self._of[number].name}", list(self._given[number].items()))
        arguments = [(name, self._with_arguments(inner)) for name, inner in value.arguments]
        if value.function.startswith(tuple(_POSITIONS)):
            present = {name for name, _ in arguments}
            arguments += [
                (name, text) for name, text in DEFAULTS.items() if name not in present and _takes(value, name)
            ]
            arguments.sort(key=lambda one: _ORDER.index(one[0]) if one[0] in _ORDER else -1)
        return Call(value.function, arguments)

    def _named(self, value: Expression) -> Expression:
        """Write constructors of classes by name, without arguments that have their default."""
        if isinstance(value, str):
            return value
        arguments = [(name, self._named(inner)) for name, inner in value.arguments]
        if value.function.startswith("@"):
            one = next(one for one in self._classes if one.name == value.function[1:])
            written: List[Tuple[str, Expression]] = []
            for argument, (name, inner) in zip(one.arguments, arguments):
                if not argument.default:
                    written.append(("", inner))
                elif inner != argument.default:
                    written.append((name, inner))
            return Call(one.name, written)
        kept = [(name, inner) for name, inner in arguments if not (_takes(value, name) and inner == DEFAULTS[name])]
        return Call(value.function, kept)


def _takes(call: Call, name: str) -> bool:
    """Whether a layer of torch.nn has an argument with a default."""
    return call.function.startswith(_LAYERS_WITH.get(name, ("-",)))


def _slots(value: Expression, path: Tuple[str, ...] = ()) -> Iterator[Tuple[Tuple[str, ...], str]]:
    """Yield the literals of an expression with their paths in it."""
    if isinstance(value, str):
        if is_literal(value) and not value.startswith(("'", '"')):
            yield path, value
        return
    for number, (name, inner) in enumerate(value.arguments):
        yield from _slots(inner, (*path, name or str(number)))


def _replaced(value: Expression, index: int, chosen: Dict[Slot, str], path: Tuple[str, ...]) -> Expression:
    """Replace literals by the names of arguments."""
    if isinstance(value, str):
        return chosen.get((index, path), value)
    arguments = [
        (name, _replaced(inner, index, chosen, (*path, name or str(number))))
        for number, (name, inner) in enumerate(value.arguments)
    ]
    return Call(value.function, arguments)


def _hints(lines: Sequence[Statement]) -> Iterator[Tuple[Slot, str]]:
    for index, line in enumerate(lines):
        yield from _hints_in(line.value, index, ())


def _hints_in(value: Expression, index: int, path: Tuple[str, ...]) -> Iterator[Tuple[Slot, str]]:
    """Yield names for arguments, by the paths of the literals."""
    if isinstance(value, str):
        return
    known = next(
        (names for kind, names in sorted(_POSITIONS.items(), reverse=True) if value.function.startswith(kind)), ()
    )
    for number, (name, inner) in enumerate(value.arguments):
        where = (*path, name or str(number))
        if isinstance(inner, str):
            yield (index, where), name or (known[number] if number < len(known) else "size")
        else:
            yield from _hints_in(inner, index, where)
