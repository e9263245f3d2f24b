"""Loads arrays into a net after a comparison of all of them, so that a net is never loaded in part (T51)."""

from fnmatch import fnmatchcase
import math
import os
from pathlib import Path
import re
from reprlib import repr as brief
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from mxkit.core.blocks import check_net, distinct, is_numpy_net, match_parameters, parameters_by_path
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.replicas import is_initialized, load_values
from mxkit.errors import CheckpointError, UnknownNameError, nearest
from mxkit.storage.hub import find_hub_file, is_hub_address
from mxkit.storage.parameter_file import read_any_arrays
from mxkit.storage.params_format import dtype_name
from mxnet.gluon import SymbolBlock

# Lines for each kind of problem.
_LINES = 7


class Loaded(NamedTuple):
    """Result of `load_parameters`.

    Attributes:
        loaded: Paths of the net that have the file's values now.
        missing: Paths of the net for which the file has no array, or none that fits.
        unexpected: Names in the file that were not used.
    """

    loaded: List[str]
    missing: List[str]
    unexpected: List[str]


class _Plan(NamedTuple):
    """Arrays to load by path, paths without an array, unused names, and a line for each array that does not fit."""

    matched: Dict[str, Any]
    missing: List[str]
    unexpected: List[str]
    different: List[str]


def load_parameters(
    net: Any,
    path: Union[str, Path],
    *,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    only: Union[str, Sequence[str], None] = None,
    match: str = "name",
    devices: Optional[DeviceSpec] = None,
) -> Loaded:
    """Load a parameter file into `net`, completely or not at all.

    It reads files of `save_parameters`, `npx.save`, `collect_params().save`, `export` and Module, even if the numbers
    in their names, like the 3 of `dense3_weight`, differ from the net's. Files of nets of `mx.nd` and of `mx.np` are
    loaded into nets of both kinds, under both switches; an uninitialized net becomes one of `mx.np` under
    `npx.set_np()`.

    Args:
        net: Any block; it may be uninitialized.
        path: The file; see `mxkit.storage.parameter_file.read_arrays`. `.safetensors` is read, too, also from the
            Hugging Face hub: `hf://owner/name[@revision][/file.safetensors]`.
        strict: Every parameter of the net must be in the file, and every array of the file in the net. False
            loads the arrays that fit by name, shape and dtype; the result lists the others.
        rename: `{"old.*": "new.*"}`: globs of names in the file (with or without `arg:` and `aux:`), and their
            paths in the net. The texts of `*` and `?` are copied in their order. If several globs fit a name, the
            last one decides.
        only: A glob of paths of the net, like "features.*", or several. All other parameters are ignored.
        match: "name", or "order" for a file with other names, like the same layers written in another style: the
            first array goes to the first parameter, and so on. A file has the order of the saved dict (the order of
            the blocks for Gluon, of the graph for Module); the net has the order in which its blocks were added.
            Running means and variances are paired separately, because Module writes them last. Every shape must
            fit, and the pairs are printed. Different counts, a beta for a gamma, and descending numbers of one
            shape (`fc10` before `fc2`) are errors. Pairs in `rename` are removed first. "order" requires
            `strict=True` and no `only`. Settings are not arrays and are not loaded: BatchNorm of `mx.sym` has
            `eps=1e-3` and `fix_gamma=True` (a gamma of 1), Gluon's has `epsilon=1e-5` and `scale=True`.
        devices: Devices for an uninitialized net; None is the CPU. An initialized net stays on its devices.

    Returns:
        The loaded paths, the missing paths, and the unused names.

    Raises:
        CheckpointError: The file is damaged, does not fit the net, or fits it in more than one way. All names,
            shapes and dtypes are compared before the net changes.
        UnknownNameError: A glob of `rename` or `only` fits nothing.
        ValueError: `match` is something else, or "order" was combined with `only` or `strict=False`.
        DownloadError: The file is not on the hub, or the hub cannot be reached.
        OSError: The file cannot be read.

    Side effects:
        Sets the net's parameters on all its devices. `match="order"` prints the pairs.

    >>> net, other = mxkit.models.mlp(3, hidden=[4]), mxkit.models.mlp(10, hidden=[4])
    >>> mxkit.initialize(net); _ = net(mx.nd.ones((1, 5)))
    >>> path = getfixture("tmp_path") / "a.params"; net.save_parameters(str(path))
    >>> load_parameters(other, path, only="1.*")
    Loaded(loaded=['1.weight', '1.bias'], missing=[], unexpected=[])
    >>> mx.nd.save(str(path), {"w": mx.nd.ones((2, 5)), "b": mx.nd.zeros(2)}); twin = mx.gluon.nn.Dense(2)
    >>> _ = load_parameters(twin, path, match="order")
    by order: weight (2, 5) from 'w'
    by order: bias (2,) from 'b'
    """
    check_net(net)
    if match not in ("name", "order"):
        raise ValueError(f"load_parameters: match: expected 'name' or 'order'; received {match!r:.100}")
    if match == "order" and not (strict and only is None):
        raise ValueError("match='order' pairs the whole file with the whole net: leave strict=False and only= out")
    arrays = read_any_arrays(find_hub_file(str(path)).path if is_hub_address(path) else path)
    try:
        plan = _plan(net, arrays, strict, rename, only, match)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    put_arrays(net, plan.matched, devices)
    if match == "order":
        names = {id(array): name for name, array in arrays.items()}
        for parameter_path, array in plan.matched.items():
            print(f"by order: {parameter_path} {array.shape} from {names[id(array)]!r}")
    return Loaded(list(plan.matched), plan.missing, plan.unexpected)


def match_arrays(
    net: Any,
    arrays: Mapping[str, Any],
    *,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    only: Union[str, Sequence[str], None] = None,
) -> Dict[str, Any]:
    """Find the arrays that belong to parameters of `net`, without a change of the net.

    Args:
        net: Any block.
        arrays: By name, in the order of their file.
        strict, rename, only: As for `load_parameters`.

    Returns:
        Arrays by path, in the order of the net. For a parameter that two blocks share, one path may be enough.

    Raises:
        CheckpointError, UnknownNameError: As for `load_parameters`.
    """
    return _plan(net, arrays, strict, rename, only).matched


def put_arrays(net: Any, matched: Mapping[str, Any], devices: Optional[DeviceSpec] = None) -> None:
    """Set parameters to the result of `match_arrays`, on every device of the net.

    Args:
        net: The block of the call of `match_arrays`.
        matched: Arrays by path.
        devices: Devices for parameters without a value; None is the CPU. Other parameters stay on their devices.

    Raises:
        DeviceError: A device does not exist; nothing changes.
    """
    where = resolve_devices("cpu" if devices is None else devices)
    parameters = parameters_by_path(net)
    numpy = is_numpy_net(net)
    for path, array in matched.items():
        parameter = parameters[path]
        load_values(parameter, array, numpy, parameter.list_ctx() if is_initialized(parameter) else where)


def _plan(
    net: Any,
    arrays: Mapping[str, Any],
    strict: bool,
    rename: Optional[Mapping[str, str]],
    only: Union[str, Sequence[str], None],
    match: str = "name",
) -> _Plan:
    parameters = parameters_by_path(net)
    globs = [only] if isinstance(only, str) else list(only or [])
    chosen = [parameters] if only is None else [match_parameters(net, glob) for glob in globs]
    selected = {path: parameter for part in chosen for path, parameter in part.items()}
    wanted = {id(parameter) for parameter in selected.values()}
    paths = paths_of_names(net, arrays, rename, match)
    plan = _Plan({}, [], [], [])
    numpy = is_numpy_net(net)
    first: Dict[int, str] = {}
    matched: Dict[str, Any] = {}
    for name, array in arrays.items():
        path = paths.get(name, name)
        if path not in parameters:
            if only is None or any(fnmatchcase(path, glob) for glob in globs):
                plan.unexpected.append(name)
        elif id(parameters[path]) in wanted:
            twin = first.setdefault(id(parameters[path]), name)
            difference = _difference(path, parameters[path], name, array, numpy)
            difference = difference or _shared_difference(name, twin, arrays)
            if difference:
                plan.different.append(difference)
            if difference and not strict:
                plan.unexpected.append(name)
            else:
                matched[path] = array
    plan.matched.update({path: matched[path] for path in parameters if path in matched})
    reached = {id(parameters[path]) for path in matched}
    plan.missing.extend(path for path in parameters if path in selected and id(parameters[path]) not in reached)
    if (plan.different or plan.missing or plan.unexpected) and (strict or not plan.matched):
        raise CheckpointError(_explain(plan, arrays, parameters, strict))
    return plan


def _difference(path: str, parameter: Any, name: str, array: Any, numpy: bool) -> str:
    """Phrase the reason why an array does not fit a parameter, or return an empty string."""
    where = path if name == path else f"{path} ({name!r} in the file)"
    if not same_shape(parameter, array):
        return f"another shape: {where} is {array.shape} in the file, {parameter.shape} in the net"
    if not numpy and not math.prod(array.shape or (0,)):
        return f"only for mx.np: {where} is {array.shape} in the file; call npx.set_np() before the net is initialized"
    if array.stype != "default" and any(size <= 0 for size in parameter.shape or (0,)):
        # a sparse array's shape is only declared; the stored bytes cannot confirm it
        return f"sparse: {where} is {array.stype} in the file; run the net once, so that its shape is known"
    ours, theirs = dtype_name(parameter.dtype), dtype_name(array.dtype)
    if ours != theirs:
        return f"another dtype: {where} is {theirs} in the file, {ours} in the net (net.cast({theirs!r}) first)"
    return ""


def _shared_difference(name: str, twin: str, arrays: Mapping[str, Any]) -> str:
    """Phrase two different values for one shared parameter: MXNet would keep the last one without an error."""
    if name == twin or arrays[name].shape != arrays[twin].shape:
        return ""
    if arrays[name].asnumpy().tobytes() == arrays[twin].asnumpy().tobytes():
        return ""
    return f"shared: {twin} and {name} are one parameter of the net, but hold different values in the file"


def _explain(plan: _Plan, arrays: Mapping[str, Any], parameters: Mapping[str, Any], strict: bool) -> str:
    """List the problems in about 20 lines; the nearest name is searched only for the lines shown."""

    def phrase(problem: str, place: str, array: Any, others: Sequence[str]) -> str:
        return f"{place}: {problem} {array.shape} {dtype_name(array.dtype)} {nearest(problem, others)}".rstrip()

    kinds: List[Tuple[List[str], Callable[[str], str]]] = [
        (plan.different, str),
        (plan.missing, lambda path: phrase(path, "missing in the file", parameters[path], plan.unexpected)),
        (plan.unexpected, lambda name: phrase(name, "not in the net", arrays[name], plan.missing)),
    ]
    what = "the arrays do not fit the net" if strict else "no array fits the net"
    lines = [f"{what}, which is left as it was:"]
    if plan.missing and plan.unexpected and not (plan.matched or plan.different):
        lines += ["No name of the file is one of the net's. Do both have the same layers in the same order? Then pass"]
        lines[-1] += " mxkit.load_parameters(net, file, match='order')"
    for problems, phrased in kinds:
        lines += [phrased(problem) for problem in problems[:_LINES]]
        lines += [f"and {len(problems) - _LINES} more"] if len(problems) > _LINES else []
    return "\n  ".join(lines)


# A full name in parts: (("mlp", 0), ("dense", 1), ("weight", -1)) is a weight of `mlp0_dense1_`.
_Parts = Tuple[Tuple[str, int], ...]

_DIGITS = re.compile(r"\d+")
_STATISTIC = re.compile(r"(running|moving)_(mean|var)$")
_ROLE = re.compile(r"(?:(i2h|h2h)[_.])?(weight|bias|gamma|beta|(?:running|moving)_(?:mean|var))$")
_ROLES = {"weight": "scale", "gamma": "scale", "bias": "shift", "beta": "shift"}


def paths_of_names(
    net: Any, arrays: Mapping[str, Any], rename: Optional[Mapping[str, str]] = None, match: str = "name"
) -> Dict[str, str]:
    """Map names of a file to paths of `net`; the result lacks names that fit no path.

    Args:
        net: Any block.
        arrays: The file's arrays by name, in its order.
        rename: Globs of names in the file and their paths, as for `load_parameters`. The result contains
            renamed names even if the net has no such path.
        match: "name", or "order" to ignore the names, as for `load_parameters`.

    Raises:
        CheckpointError: The match of arrays and parameters is ambiguous.
        UnknownNameError: A glob of `rename` fits no name, or its result is no path of the net.
        ValueError: Two names would become one path.
    """
    parameters = parameters_by_path(net)
    bare = _bare_names(arrays)
    paths = {name: path for pattern in (rename or {}).items() for name, path in _renamed(pattern, bare, parameters)}
    taken = {id(parameters[path]) for path in paths.values() if path in parameters}
    rest = {bare[name]: name for name in arrays if name not in paths}
    free = {path: parameter for path, parameter in parameters.items() if id(parameter) not in taken}
    left = {short: arrays[name] for short, name in rest.items()}
    matched = _by_order(left, free) if match == "order" else _by_name(net, left, free)
    paths.update({rest[short]: path for short, path in matched.items()})
    paths.update({name: short for short, name in rest.items() if name not in paths and short in parameters})
    seen: Dict[str, str] = {}
    for name, path in paths.items():
        if seen.setdefault(path, name) != name:
            raise ValueError(f"rename: both {seen[path]!r} and {name!r} of the file would become {path!r}")
    return paths


def _bare_names(names: Iterable[str]) -> Dict[str, str]:
    """Strip `arg:` and `aux:` if every name begins with one of them."""
    short = {name: re.sub("^(arg|aux):", "", name) for name in names}
    stripped = all(name != bare for name, bare in short.items()) and len(set(short.values())) == len(short)
    return short if stripped else {name: name for name in short}


def _renamed(pattern: Tuple[str, str], bare: Mapping[str, str], parameters: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """List the names that one pair of globs renames, with their paths."""
    source, target = pattern
    glob = re.compile(re.escape(source).replace(r"\*", "(.*)").replace(r"\?", "(.)"), re.DOTALL)
    pieces = re.split("[*?]", target)
    if glob.groups != len(pieces) - 1:
        raise ValueError(f"rename: {source!r} has {glob.groups} wildcards, {target!r} has {len(pieces) - 1}")
    matches = [(name, glob.fullmatch(short) or glob.fullmatch(name)) for name, short in bare.items()]
    renamed = [(name, "".join(map("".join, zip(pieces, [*match.groups(), ""])))) for name, match in matches if match]
    if not renamed:
        near = nearest(source, bare.values()) or f"names are {brief(list(bare))}"
        raise UnknownNameError(f"rename: no name in the file fits {source!r}: {near}")
    name, path = renamed[0]
    if not any(path in parameters for _, path in renamed):
        near = nearest(path, parameters) or f"its paths are {brief(list(parameters))}"
        raise UnknownNameError(f"rename: {name!r} would become {path!r}, which is no path of the net: {near}")
    return renamed


def _by_name(net: Any, arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> Dict[str, str]:
    full = {parameter.name: path for path, parameter in parameters.items()}
    theirs, ours = _scope(arrays), _scope(full)
    by_path = {name: name for name in arrays if name in parameters}
    by_full_name = {name: full[name] for name in arrays if name in full}
    in_scope = {name: full[ours + name[len(theirs) :]] for name in arrays if ours + name[len(theirs) :] in full}
    best = max(by_path, by_full_name, in_scope, key=len)
    reached = {id(parameters[path]) for path in best.values()}
    if len(best) == len(arrays) or len(reached) == len(full):
        return best
    # paths have no counters, except those of a SymbolBlock, which are names
    if best is by_path and best and not isinstance(net, SymbolBlock):
        return best
    by_counters = _by_counters(arrays, full, parameters)
    if by_counters is None and best:
        # `dense1` of the file is not `dense1` of the net if both nets have another first layer
        words = {_words(name): name for name, path in full.items() if id(parameters[path]) not in reached}
        twins = [(name, words[_words(name)]) for name in arrays if name not in best and _words(name) in words]
        if twins:
            raise _ambiguous("{!r} is in the file alone, {!r} in the net alone".format(*twins[0]))
    return best if by_counters is None else by_counters


def _by_order(arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> Dict[str, str]:
    """Pair the arrays, in the order of the file, with the parameters, in the order of the net's blocks."""
    names, paths = list(arrays), list(parameters if len(arrays) == len(parameters) else distinct(parameters))
    apart = sorted(paths, key=_is_statistic)
    # Module writes all statistics after all other arrays, Gluon each one after its gamma and beta
    if sum(map(_is_statistic, names)) == sum(map(_is_statistic, paths)):
        names, paths = sorted(names, key=_is_statistic), apart
    pairs = dict(zip(names, paths))
    misfit = _misfit(pairs, arrays, parameters)
    if misfit or len(names) != len(paths):
        counts = f"the file has {len(names)} arrays, the net {len(paths)} parameters"
        raise _unordered(f"{counts}; by order {misfit or 'they would fit'}")
    if paths != apart and not _misfit(dict(zip(names, apart)), arrays, parameters):
        raise _unordered("the names do not say whether means and variances are beside their layers or after all others")
    _refuse_contradictions(pairs, arrays, parameters)
    return pairs


def _refuse_contradictions(pairs: Mapping[str, str], arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Refuse pairs by order that the names contradict: other roles, the net's own names, or descending numbers."""
    for name, path in pairs.items():
        theirs, ours = _role(name), _role(path)
        if theirs and ours and theirs != ours:
            raise _unordered(f"by order {name!r} {arrays[name].shape} of the file would be {path!r} of the net")
    full = {path: parameters[path].name for path in pairs.values()}
    own = any(set(pairs) == set(exact) for exact in (full, full.values()))
    if own and any(name not in (path, full[path]) for name, path in pairs.items()):
        raise _unordered("the file has the net's own names in another order: leave match='order' out")
    last: Dict[Any, Tuple[List[int], str]] = {}
    for name in pairs:
        numbers, group = [int(digits) for digits in _DIGITS.findall(name)], (_DIGITS.sub("", name), arrays[name].shape)
        before, earlier = last.get(group, ([], ""))
        if numbers < before:
            raise _unordered(f"{earlier!r} stands before {name!r} in the file, and both have the shape {group[1]}")
        last[group] = numbers, name


def _is_statistic(name: str) -> bool:
    return _STATISTIC.search(name) is not None


def _role(name: str) -> Optional[Tuple[str, str]]:
    """Role of a parameter in its layer, read from its name: the scale of a norm is called gamma or weight."""
    match = _ROLE.search(name)
    return (match[1] or "", _ROLES.get(match[2], match[2][-3:])) if match else None


def _unordered(reason: str) -> CheckpointError:
    text = f"match='order' is not certain here: {reason}. The net is left as it was. Name the pairs: "
    return CheckpointError(text + "rename={'name in the file': 'path in the net'}")


def _scope(names: Iterable[str]) -> str:
    """Common beginning of all full names, in whole words, without the last word."""
    common = os.path.commonprefix(list(names))
    return common[: common.rfind("_") + 1]


def _parts(name: str) -> _Parts:
    *scopes, last = name.split("_")
    matches = [re.fullmatch(r"(.*?)(\d*)", scope, re.DOTALL) for scope in scopes]
    return (*((match[1], int(match[2] or -1)) for match in matches if match), (last, -1))


def _words(name: str) -> Tuple[str, ...]:
    return tuple(word for word, _ in _parts(name))


def _ranked(names: Iterable[str]) -> Dict[_Parts, str]:
    """Names by their parts, with the rank of each number among those of the same word and block in its place."""
    parts = {name: _parts(name) for name in names}
    numbers: Dict[Any, Set[int]] = {}
    for one in parts.values():
        for depth, (word, number) in enumerate(one):
            numbers.setdefault((one[:depth], word), set()).add(number)
    ranks = {key: {number: rank for rank, number in enumerate(sorted(some))} for key, some in numbers.items()}
    return {
        tuple((word, ranks[one[:depth], word][number]) for depth, (word, number) in enumerate(one)): name
        for name, one in parts.items()
    }


def _by_counters(
    arrays: Mapping[str, Any], full: Mapping[str, str], parameters: Mapping[str, Any]
) -> Optional[Dict[str, str]]:
    """Match names that differ only in their counters, or return None.

    Gluon numbers the blocks of a class in the order of their creation, so the order of the numbers decides.
    """
    theirs = _ranked(arrays)
    for cut in (0, len(os.path.commonprefix(list(full)))):  # a SymbolBlock's file lacks the common beginning
        ours = {name[cut:]: path for name, path in full.items()}
        ranked = _ranked(ours)
        if theirs.keys() == ranked.keys():
            break
    else:
        return None
    by_number = {name: ours[ranked[parts]] for parts, name in theirs.items()}
    paths: Dict[Tuple[str, ...], List[str]] = {}
    for name, path in ours.items():
        paths.setdefault(_words(name), []).append(path)
    by_order = {name: paths[_words(name)].pop(0) for name in arrays}
    misfit = _misfit(by_number, arrays, parameters)
    if misfit:
        raise _ambiguous(f"by the order of its numbers {misfit}")
    if by_order != by_number and not _misfit(by_order, arrays, parameters):
        name = next(name for name, path in by_number.items() if by_order[name] != path)
        places = f"{by_number[name]!r} of the net by the order of the numbers, but {by_order[name]!r} by the order of"
        raise _ambiguous(f"{name!r} of the file would be {places} the file")
    return by_number


def _misfit(paths: Mapping[str, str], arrays: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Phrase the first pair whose shapes differ, or return an empty string."""
    for name, path in paths.items():
        if not same_shape(parameters[path], arrays[name]):
            shapes = arrays[name].shape, parameters[path].shape
            return f"{name!r} {shapes[0]} of the file would be {path!r} {shapes[1]} of the net"
    return ""


def same_shape(parameter: Any, array: Any) -> bool:
    """Whether an array has a parameter's shape; sizes of 0 or -1, which the first batch decides, fit any size."""
    shape = array.shape if parameter.shape is None else parameter.shape
    return len(shape) == len(array.shape) and all(ours in (0, -1, size) for ours, size in zip(shape, array.shape))


def _ambiguous(reason: str) -> CheckpointError:
    text = "it is not certain which array belongs to which parameter, because the numbers in Gluon's full names differ"
    way_out = "Write the file with net.save_parameters, or pass rename={'name in the file': 'path in the net'}"
    return CheckpointError(f"{text}: {reason}. {way_out}")
