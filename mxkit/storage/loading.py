"""Arrays put into a net: all of them compared first, so that a net half loaded never exists (T51)."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from mxkit.core.blocks import check_net, match_parameters, parameters_by_path
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.replicas import is_initialized, load_values
from mxkit.errors import CheckpointError, nearest
from mxkit.storage.layouts import paths_of_names, same_shape
from mxkit.storage.parameter_file import dtype_name, read_arrays
import mxnet as mx

_LINES = 20


class Loaded(NamedTuple):
    """What became of a file.

    Attributes:
        loaded: Paths of the net that have the file's values now.
        missing: Paths of the net that the file has nothing for, or nothing that fits.
        unexpected: Names in the file that were not used.
    """

    loaded: List[str]
    missing: List[str]
    unexpected: List[str]


class _Plan(NamedTuple):
    """What would be loaded, and a line for each thing that hinders, under its headings."""

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
    """Load a parameter file into `net`: whole, or the net is as it was.

    Files of `save_parameters`, `collect_params().save`, `export` and Module are recognised, also where the full
    names carry other counters than the net's.

    Args:
        net: Any block; it may be uninitialized.
        path: The file; see `mxkit.storage.parameter_file.read_arrays`.
        strict: Every parameter of the net must be in the file, and every array of the file in the net. False
            loads what fits by name, shape and dtype; the result tells the rest.
        rename: `{"old.*": "new.*"}`: globs of names in the file (`arg:` and `aux:` may be left away), and the
            paths of the net they become. `*` and `?` carry over in their order; where several fit, the last
            one decides.
        only: A glob over paths of the net, like "features.*", or several. Nothing else is loaded,
            nor missed.
        match: "name", or "order" for a file whose names share nothing with the net's, as of the same layers written
            in another style: the first array goes to the first parameter, and so on. The order of a file is that of
            the dict that was saved (Gluon's is that of the blocks, Module's that of the graph); the order of the net
            is that in which blocks were made children. Running means and variances are paired by themselves, because
            Module writes them last. Every shape must fit, and the pairs are printed. Refused are other counts, a
            beta for a gamma, and arrays of one shape whose numbers descend (`fc10` before `fc2`). `rename` takes out
            pairs beforehand; it goes with neither `only` nor `strict=False`. Settings are no arrays and
            are not loaded: BatchNorm of `mx.sym` has `eps=1e-3` and `fix_gamma=True` (it computes with a gamma of
            1), Gluon's has `epsilon=1e-5` and `scale=True`.
        devices: Where an uninitialized net goes; None is the CPU. An initialized one stays where it is.

    Returns:
        The paths that were loaded, and what was not.

    Raises:
        CheckpointError: The file is damaged, does not fit the net, or fits it in more than one way. All names,
            shapes and dtypes are compared before the net is touched.
        UnknownNameError: A glob of `rename` or `only` fits nothing.
        ValueError: `match` is neither, or "order" was combined with `only` or `strict=False`.
        OSError: The file cannot be read.

    Side effects:
        The net's parameters, on all its devices. `match="order"` prints the pairs.

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
        raise ValueError(
            "load_parameters: match='order' pairs the whole file with the whole net: leave strict=False and only= out"
        )
    arrays = read_arrays(path)
    try:
        plan = _plan(net, arrays, strict, rename, only, match)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None
    put_arrays(net, plan.matched, devices)
    if match == "order":
        names = {id(array): name for name, array in arrays.items()}
        for place, array in plan.matched.items():
            print(f"by order: {place} {array.shape} from {names[id(array)]!r}")
    return Loaded(list(plan.matched), plan.missing, plan.unexpected)


def match_arrays(
    net: Any,
    arrays: Mapping[str, Any],
    *,
    strict: bool = True,
    rename: Optional[Mapping[str, str]] = None,
    only: Union[str, Sequence[str], None] = None,
) -> Dict[str, Any]:
    """Find the arrays that belong to parameters of `net`, without touching it.

    Args:
        net: Any block.
        arrays: By name, in the order of their file.
        strict, rename, only: As for `load_parameters`.

    Returns:
        Arrays by path, in the order of the net. A parameter that two blocks share may stand under one path only.

    Raises:
        CheckpointError, UnknownNameError: As for `load_parameters`.
    """
    return _plan(net, arrays, strict, rename, only).matched


def put_arrays(net: Any, matched: Mapping[str, Any], devices: Optional[DeviceSpec] = None) -> None:
    """Give parameters the values that `match_arrays` found, on every device the net lives on.

    Args:
        net: The block that they were matched with.
        matched: Arrays by path.
        devices: Where parameters go that have no value yet; None is the CPU. Others stay where they are.

    Raises:
        DeviceError: A device does not exist; nothing was changed.
    """
    where = resolve_devices("cpu" if devices is None else devices)
    parameters = parameters_by_path(net)
    for path, array in matched.items():
        parameter = parameters[path]
        value = array.as_np_ndarray() if mx.util.is_np_array() else array
        load_values(parameter, value, parameter.list_ctx() if is_initialized(parameter) else where)


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
    asked = {path: parameter for part in chosen for path, parameter in part.items()}
    wanted = {id(parameter) for parameter in asked.values()}
    paths = paths_of_names(net, arrays, rename, match)
    plan = _Plan({}, [], [], [])
    first: Dict[int, str] = {}
    matched: Dict[str, Any] = {}
    for name, array in arrays.items():
        path = paths.get(name, name)
        if path not in parameters:
            if only is None or any(fnmatchcase(path, glob) for glob in globs):
                plan.unexpected.append(name)
        elif id(parameters[path]) in wanted:
            twin = first.setdefault(id(parameters[path]), name)
            difference = _difference(path, parameters[path], name, array) or _torn(name, twin, arrays)
            if difference:
                plan.different.append(difference)
            if difference and not strict:
                plan.unexpected.append(name)
            else:
                matched[path] = array
    plan.matched.update({path: matched[path] for path in parameters if path in matched})
    reached = {id(parameters[path]) for path in matched}
    plan.missing.extend(path for path in parameters if path in asked and id(parameters[path]) not in reached)
    hindered = plan.different or plan.missing or plan.unexpected
    if hindered and (strict or not plan.matched):
        raise CheckpointError(_explain(plan, arrays, parameters, strict))
    return plan


def _difference(path: str, parameter: Any, name: str, array: Any) -> str:
    """What keeps an array from going into a parameter, or an empty string."""
    where = path if name == path else f"{path} ({name!r} in the file)"
    if not same_shape(parameter, array):
        return f"another shape: {where} is {array.shape} in the file, {parameter.shape} in the net"
    if array.stype != "default" and any(size <= 0 for size in parameter.shape or (0,)):
        # the shape of a sparse array is a word of the file that no bytes stand behind
        return f"sparse: {where} is {array.stype} in the file; run the net once, so that its shape is known"
    if dtype_name(parameter.dtype) != dtype_name(array.dtype):
        received = dtype_name(array.dtype)
        return (
            f"another dtype: {where} is {received} in the file, {dtype_name(parameter.dtype)} in the net "
            f"(net.cast({received!r}) first)"
        )
    return ""


def _torn(name: str, twin: str, arrays: Mapping[str, Any]) -> str:
    """Whether a parameter that two blocks share would get two values, of which MXNet keeps the last in silence."""
    if name == twin or arrays[name].shape != arrays[twin].shape:
        return ""
    if arrays[name].asnumpy().tobytes() == arrays[twin].asnumpy().tobytes():
        return ""
    return f"shared: {twin} and {name} are one parameter of the net, but hold different values in the file"


def _explain(plan: _Plan, arrays: Mapping[str, Any], parameters: Mapping[str, Any], strict: bool) -> str:
    """Name what hinders, at most some 20 lines of it; the nearest name is looked for only where it is shown."""
    kinds = [kind for kind in (plan.different, plan.missing, plan.unexpected) if kind]
    share = _LINES // len(kinds)
    lines = plan.different[:share] + _more(plan.different, share)
    for path in plan.missing[:share]:
        parameter = parameters[path]
        near = nearest(path, plan.unexpected) or nearest(parameter.name, plan.unexpected)
        lines.append(f"missing in the file: {path} {parameter.shape} {dtype_name(parameter.dtype)} {near}".rstrip())
    lines += _more(plan.missing, share)
    for name in plan.unexpected[:share]:
        array = arrays[name]
        lines.append(
            f"not in the net: {name} {array.shape} {dtype_name(array.dtype)} {nearest(name, plan.missing)}".rstrip()
        )
    lines += _more(plan.unexpected, share)
    what = "the arrays do not fit the net" if strict else "no array fits the net"
    hint = ""
    if plan.missing and plan.unexpected and not (plan.matched or plan.different):
        hint = (
            ". No name of the file is one of the net's; where both have the same layers in the same order, "
            "mxkit.load_parameters(net, file, match='order') pairs them"
        )
    return f"{what}, which is left as it was{hint}:\n  " + "\n  ".join(lines)


def _more(lines: Sequence[str], shown: int) -> List[str]:
    return [f"and {len(lines) - shown} more"] if len(lines) > shown else []
