"""Loads arrays into a net after a comparison of all of them, so that a net is never loaded in part (T51)."""

from fnmatch import fnmatchcase
import math
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from mxkit.core.blocks import check_net, is_numpy_net, match_parameters, parameters_by_path
from mxkit.core.device import DeviceSpec
from mxkit.core.device import devices as resolve_devices
from mxkit.core.replicas import is_initialized, load_values
from mxkit.errors import CheckpointError, nearest
from mxkit.storage.hub import find_hub_file, is_hub_address
from mxkit.storage.layouts import paths_of_names, same_shape
from mxkit.storage.parameter_file import read_arrays
from mxkit.storage.params_format import dtype_name
from mxkit.storage.safetensors_file import read_safetensors

_LINES = 20


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

    It recognises files of `save_parameters`, `npx.save`, `collect_params().save`, `export` and Module, also if the
    counters in their full names differ from the net's. Files of nets of `mx.nd` and of `mx.np` are loaded into nets of
    both kinds, under both switches; an uninitialized net becomes one of `mx.np` under `npx.set_np()`.

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
        DownloadError: The hub cannot be reached.
        OSError: The file cannot be read, or is not on the hub.

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
        raise ValueError(
            "load_parameters: match='order' pairs the whole file with the whole net: leave strict=False and only= out"
        )
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


def read_any_arrays(path: Union[str, Path]) -> Dict[str, Any]:
    """Read a parameter file or, by its ending, a safetensors file.

    Raises:
        CheckpointError, OSError: As for `read_arrays` and `read_safetensors`.
    """
    return read_safetensors(Path(path))[0] if str(path).endswith(".safetensors") else read_arrays(path)


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
            difference = _difference(path, parameters[path], name, array, numpy) or _shared_difference(
                name, twin, arrays
            )
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

    def missing(path: str) -> str:
        parameter = parameters[path]
        near = nearest(path, plan.unexpected) or nearest(parameter.name, plan.unexpected)
        return f"missing in the file: {path} {parameter.shape} {dtype_name(parameter.dtype)} {near}".rstrip()

    def unexpected(name: str) -> str:
        near = nearest(name, plan.missing)
        return f"not in the net: {name} {arrays[name].shape} {dtype_name(arrays[name].dtype)} {near}".rstrip()

    kinds: List[Tuple[List[str], Callable[[str], str]]]
    kinds = [(plan.different, str), (plan.missing, missing), (plan.unexpected, unexpected)]
    share, lines = _LINES // sum(bool(problems) for problems, _ in kinds), []
    for problems, phrase in kinds:
        lines += [phrase(problem) for problem in problems[:share]]
        lines += [f"and {len(problems) - share} more"] if len(problems) > share else []
    what = "the arrays do not fit the net" if strict else "no array fits the net"
    hint = ""
    if plan.missing and plan.unexpected and not (plan.matched or plan.different):
        hint = (
            ". No name of the file is one of the net's; if both have the same layers in the same order, "
            "mxkit.load_parameters(net, file, match='order') pairs them"
        )
    return f"{what}, which is left as it was{hint}:\n  " + "\n  ".join(lines)
