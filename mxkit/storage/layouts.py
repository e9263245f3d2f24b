"""Which array of a file belongs to which parameter: the layouts that Gluon and Module have written.

    save_parameters          paths: `features.0.weight`; of a SymbolBlock, names without their common beginning (T52)
    collect_params().save    full names: `resnetv10_conv0_weight`
    export, Module           full names after `arg:` and `aux:`
    save_params (old)        full names without the net's prefix

Full names carry counters that the whole process shares (T37): a net built twice has other names, and `dense10`
sorts before `dense9` (T60a). Where no name fits, numbers are compared by their order, and what stays ambiguous is
refused: weights in the wrong layer of the same shape would never be seen.

Where names share nothing, `match="order"` takes the order alone: a file keeps the order of the dict that was saved,
which is that of the blocks for Gluon and that of the graph for Module and `mxkit.export`.
"""

import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from mxkit.core.blocks import child_blocks, parameters_by_path
from mxkit.errors import CheckpointError, UnknownNameError, nearest
from mxnet.gluon import SymbolBlock

# What a full name says beside its counters, and the counters: (("dense", "weight"), (10,)).
_Key = Tuple[Tuple[str, ...], Tuple[int, ...]]

_DIGITS = re.compile(r"\d+")
_STATISTIC = re.compile(r"(running|moving)_(mean|var)$")
_ROLE = re.compile(r"(?:(i2h|h2h)[_.])?(weight|bias|gamma|beta|(?:running|moving)_(?:mean|var))$")
_ROLES = {"weight": "scale", "gamma": "scale", "bias": "shift", "beta": "shift"}


def paths_of_names(
    net: Any, arrays: Mapping[str, Any], rename: Optional[Mapping[str, str]] = None, match: str = "name"
) -> Dict[str, str]:
    """Map names of a file to paths of `net`; names that belong nowhere are left out.

    Args:
        net: Any block.
        arrays: The file's arrays by name, in its order.
        rename: Globs of names in the file and the paths they become, as for `load_parameters`. Renamed names
            are listed even where the net has no such path.
        match: "name", or "order" for names that say nothing, as for `load_parameters`.

    Raises:
        CheckpointError: Which array belongs to which parameter is not certain.
        UnknownNameError: A glob of `rename` fits no name, or gives no path of the net.
        ValueError: Two names would become one path.
    """
    parameters = parameters_by_path(net)
    bare = _bare_names(arrays)
    paths = {name: path for pattern in (rename or {}).items() for name, path in _renamed(pattern, bare, parameters)}
    taken = {id(parameters[path]) for path in paths.values() if path in parameters}
    rest = {bare[name]: name for name in arrays if name not in paths}
    free = {path: one for path, one in parameters.items() if id(one) not in taken}
    left = {short: arrays[name] for short, name in rest.items()}
    found = _in_order(left, free) if match == "order" else _recognised(net, left, free)
    paths.update({rest[short]: path for short, path in found.items()})
    paths.update({name: short for short, name in rest.items() if name not in paths and short in parameters})
    seen: Dict[str, str] = {}
    for name, path in paths.items():
        if seen.setdefault(path, name) != name:
            raise ValueError(f"rename: both {seen[path]!r} and {name!r} of the file would become {path!r}")
    return paths


def _bare_names(names: Iterable[str]) -> Dict[str, str]:
    """Names without `arg:` and `aux:`, where all have one of them."""
    short = {name: re.sub("^(arg|aux):", "", name) for name in names}
    stripped = all(name != bare for name, bare in short.items()) and len(set(short.values())) == len(short)
    return short if stripped else {name: name for name in short}


def _renamed(pattern: Tuple[str, str], bare: Mapping[str, str], parameters: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Names that one pair of globs renames, with their paths."""
    source, target = pattern
    pieces = re.split("[*?]", target)
    marks = re.findall("[*?]", source)
    if len(pieces) - 1 != len(marks):
        raise ValueError(
            f"rename: {source!r} has {len(marks)} wildcards, so {target!r} needs {len(marks)}; it has {len(pieces) - 1}"
        )
    literal = [re.escape(text) for text in re.split("[*?]", source)]
    groups = ["(.*)" if mark == "*" else "(.)" for mark in marks]
    glob = re.compile("".join(text + group for text, group in zip(literal, [*groups, ""])), re.DOTALL)
    found = []
    for name, short in bare.items():
        match = glob.fullmatch(short) or glob.fullmatch(name)
        if match:
            found.append((name, "".join(text + more for text, more in zip(pieces, [*match.groups(), ""]))))
    if not found:
        near = nearest(source, bare.values())
        raise UnknownNameError(f"rename: no name in the file fits {source!r}: {near or 'names are ' + _some(bare)}")
    if not any(path in parameters for _, path in found):
        near = nearest(found[0][1], parameters)
        raise UnknownNameError(
            f"rename: {found[0][0]!r} would become {found[0][1]!r}, which is no path of the net: "
            f"{near or 'its paths are ' + _some(parameters)}"
        )
    return found


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


def _recognised(net: Any, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> Dict[str, str]:
    full = {parameter.name: path for path, parameter in parameters.items()}
    theirs, ours = _scope(arrays), _scope(full)
    by_path = {name: name for name in arrays if name in parameters}
    by_name = {name: full[name] for name in arrays if name in full}
    below = {name: full[ours + name[len(theirs) :]] for name in arrays if ours + name[len(theirs) :] in full}
    best = max(by_path, by_name, below, key=len)
    reached = {id(parameters[path]) for path in best.values()}
    if len(best) == len(arrays) or len(reached) == len(full):
        return best
    # paths carry no counters; those of a SymbolBlock are names
    if best is by_path and best and not isinstance(net, SymbolBlock):
        return best
    kinds = _kinds(net)
    counted = _by_counters(arrays, full, parameters, kinds)
    if counted is not None:
        return counted
    if best:
        left = [name for name, path in full.items() if id(parameters[path]) not in reached]
        _refuse_shifted([name for name in arrays if name not in best], left, kinds)
    return best


def _in_order(arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> Dict[str, str]:
    """Pair the arrays, in the order of the file, with the parameters, in the order of the net's blocks."""
    first: Dict[int, str] = {}
    for path, parameter in parameters.items():
        first.setdefault(id(parameter), path)
    paths = list(parameters if len(arrays) == len(parameters) else first.values())
    names = list(arrays)
    apart = sorted(paths, key=_is_statistic)
    # Module writes all statistics behind all other arrays, Gluon each beside its gamma and beta
    if sum(map(_is_statistic, names)) == sum(map(_is_statistic, paths)):
        names, paths = sorted(names, key=_is_statistic), apart
    pairs = dict(zip(names, paths))
    misfit = _misfit(pairs, arrays, parameters)
    if misfit or len(names) != len(paths):
        _refuse_order(names, paths, misfit, arrays, parameters)
    if paths != apart and not _misfit(dict(zip(names, apart)), arrays, parameters):
        raise _unordered("running means and variances may stand beside their layers or behind all, and no name tells")
    for name, path in pairs.items():
        theirs, ours = _role(name), _role(path)
        if theirs and ours and theirs != ours:
            raise _unordered(f"by order {name!r} {arrays[name].shape} of the file would be {path!r} of the net")
    known = (set(paths), {parameters[path].name for path in paths})
    for exact in known:
        if set(names) == exact and any(name not in (path, parameters[path].name) for name, path in pairs.items()):
            raise _unordered("the file has the net's own names in another order: leave match='order' out")
    numbered: Dict[Any, Tuple[Tuple[int, ...], str]] = {}
    for name in names:
        numbers = tuple(map(int, _DIGITS.findall(name)))
        before, earlier = numbered.get((_DIGITS.sub("", name), arrays[name].shape), ((), ""))
        if numbers < before:
            raise _unordered(
                f"{earlier!r} stands before {name!r} in the file, and both have the shape {arrays[name].shape}"
            )
        numbered[_DIGITS.sub("", name), arrays[name].shape] = numbers, name
    return pairs


def _refuse_order(
    names: List[str], paths: List[str], misfit: Optional[str], arrays: Mapping[str, Any], parameters: Mapping[str, Any]
) -> None:
    counts = f"the file has {len(names)} arrays, the net {len(paths)} parameters" if len(names) != len(paths) else ""
    if misfit:
        path = paths[names.index(misfit)]
        counts += f"{'; ' if counts else ''}by order {misfit!r} {arrays[misfit].shape} of the file would be {path!r} "
        counts += f"{parameters[path].shape} of the net"
    raise _unordered(counts)


def _is_statistic(name: str) -> bool:
    return _STATISTIC.search(name) is not None


def _role(name: str) -> Optional[Tuple[str, str]]:
    """What a parameter is in its layer, as far as its name says: scales of norms are called gamma or weight."""
    found = _ROLE.search(name)
    return (found[1] or "", _ROLES.get(found[2], found[2][-3:])) if found else None


def _unordered(reason: str) -> CheckpointError:
    return CheckpointError(
        "match='order' pairs the arrays in the order of the file with the parameters in the order of the net's blocks, "
        f"and that is not certain here: {reason}. The net is left as it was. Say the pairs: "
        "rename={'name in the file': 'path in the net'}"
    )


def _scope(names: Iterable[str]) -> str:
    """The beginning that all full names share, in whole words, and never all of a name."""
    common = os.path.commonprefix(list(names))
    return common[: common.rfind("_") + 1]


def _kinds(net: Any) -> Set[str]:
    """Classes whose names end in a digit: `resnetv112_` is the 13th ResNetV1, not the 112th ResNetV."""
    own = {type(net).__name__.lower()} if type(net).__name__[-1].isdigit() else set()
    return own.union(*(_kinds(child) for child in child_blocks(net).values()))


def _key(name: str, kinds: Set[str]) -> _Key:
    words, numbers = [], []
    *scopes, last = name.split("_")
    for scope in scopes:
        kind = next((kind for kind in kinds if scope.startswith(kind) and scope[len(kind) :].isdecimal()), "")
        match = re.fullmatch(r"(.*?)(\d*)", scope)
        word, number = (kind, scope[len(kind) :]) if kind or not match else match.groups()
        words.append(word)
        numbers.append(int(number or -1))
    return (*words, last), tuple(numbers)


def _grouped(names: List[str], kinds: Set[str]) -> Dict[Tuple[str, ...], List[Tuple[Tuple[int, ...], str]]]:
    groups: Dict[Tuple[str, ...], List[Tuple[Tuple[int, ...], str]]] = {}
    for name in names:
        words, numbers = _key(name, kinds)
        groups.setdefault(words, []).append((numbers, name))
    return groups


def _by_counters(
    arrays: Mapping[str, Any], full: Mapping[str, str], parameters: Mapping[str, Any], kinds: Set[str]
) -> Optional[Dict[str, str]]:
    """Match names that differ in their counters alone, or return None.

    Blocks of one class are numbered in the order they were made, so the order of the numbers tells which is which.
    """
    left = _grouped(list(arrays), kinds)
    for cut in (0, len(os.path.commonprefix(list(full)))):  # a SymbolBlock leaves it away
        ours = {name[cut:]: name for name in full}
        right = _grouped(list(ours), kinds)
        if {words: len(one) for words, one in left.items()} == {words: len(one) for words, one in right.items()}:
            break
    else:
        return None
    pairs = [(words, a, b) for words in left for a, b in zip(sorted(left[words]), sorted(right[words]))]
    if not _same_scopes([(words, a[0], b[0]) for words, a, b in pairs]):
        return None
    by_number = {a[1]: full[ours[b[1]]] for _, a, b in pairs}
    by_order = {a: full[ours[b]] for words in left for (_, a), (_, b) in zip(left[words], right[words])}
    misfit = _misfit(by_number, arrays, parameters)
    if misfit:
        path = by_number[misfit]
        raise _ambiguous(
            f"by the order of its numbers {misfit!r} {arrays[misfit].shape} of the file would be {path!r} "
            f"{parameters[path].shape} of the net"
        )
    if by_order != by_number and not _misfit(by_order, arrays, parameters):
        name = next(name for name, path in by_number.items() if by_order[name] != path)
        raise _ambiguous(
            f"{name!r} of the file would be {by_number[name]!r} of the net by the order of the numbers, but "
            f"{by_order[name]!r} by the order of the file"
        )
    return by_number


def _same_scopes(pairs: List[Tuple[Tuple[str, ...], Tuple[int, ...], Tuple[int, ...]]]) -> bool:
    """Whether each block of the file becomes one block of the net, and each block of the net comes from one."""
    forward: Dict[Any, Any] = {}
    back: Dict[Any, Any] = {}
    for words, theirs, ours in pairs:
        for depth in range(1, len(theirs) + 1):
            there, here = (words[:depth], theirs[:depth]), (words[:depth], ours[:depth])
            if forward.setdefault(there, here) != here or back.setdefault(here, there) != there:
                return False
    return True


def _misfit(paths: Mapping[str, str], arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> Optional[str]:
    return next((name for name, path in paths.items() if not same_shape(parameters[path], arrays[name])), None)


def same_shape(parameter: Any, array: Any) -> bool:
    """Whether an array has a parameter's shape; sizes of 0 or -1 are told by the first forward pass, and fit any."""
    if parameter.shape is None:
        return True
    return len(parameter.shape) == len(array.shape) and all(
        ours <= 0 or ours == theirs for ours, theirs in zip(parameter.shape, array.shape)
    )


def _refuse_shifted(names: List[str], left: List[str], kinds: Set[str]) -> None:
    """Refuse names that fit by chance: `dense1` of the file is not `dense1` of the net where both are a first layer."""
    waiting = {_key(name, kinds)[0]: name for name in left}
    for name in names:
        twin = waiting.get(_key(name, kinds)[0])
        if twin is not None:
            raise _ambiguous(f"{name!r} is in the file alone, {twin!r} in the net alone")


def _ambiguous(reason: str) -> CheckpointError:
    return CheckpointError(
        "it is not certain which array belongs to which parameter: the file holds Gluon's full names, whose counters "
        f"depend on what the process built before, and {reason}. Write the file with net.save_parameters, or say it: "
        "rename={'name in the file': 'path in the net'}"
    )
