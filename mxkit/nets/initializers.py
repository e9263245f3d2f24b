"""Initializers by name, the initialization of nets, and their move to other devices."""

from typing import Any, List, Mapping, Tuple, Union
import warnings

from mxkit.core.arguments import make, split_spec
from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxkit.core.blocks import blocks_by_path, distinct, is_numpy_net, parameters_by_path
from mxkit.core.device import DeviceSpec, as_ndarray
from mxkit.core.device import devices as resolve_devices
from mxkit.core.forward_errors import explained
from mxkit.core.graphs import drop_graph, drop_static_graphs
from mxkit.core.replicas import is_deferred, is_initialized, is_sparse, set_trainer, set_values, trainer_of, values_of
from mxkit.errors import TrapWarning, unknown_name
import mxnet as mx
from mxnet import autograd, gluon, nd
from mxnet.util import is_np_array

InitializerSpec = Union[str, Tuple[str, Mapping[str, Any]], "mx.init.Initializer"]


def initializer_names() -> List[str]:
    """Return the names in MXNet's registry of initializers."""
    return sorted(mx.registry.get_registry(mx.init.Initializer))


def get_initializer(spec: InitializerSpec) -> "mx.init.Initializer":
    """Return an initializer.

    Args:
        spec: A name, a pair of a name and its arguments like `("normal", {"sigma": 0.01})`, or an object
            of `mx.init`, which is returned unchanged.

    Raises:
        UnknownNameError: MXNet has no initializer of this name; the text lists the known names and the nearest.
        TypeError: `spec` has another form, or an argument that the initializer does not take.
    """
    spec, arguments = split_spec(spec)
    if isinstance(spec, str):
        if spec.lower() not in initializer_names():
            raise unknown_name("initializer", spec, initializer_names())
        return make("initializer", spec, mx.registry.get_registry(mx.init.Initializer)[spec.lower()], arguments)
    if isinstance(spec, mx.init.Initializer):
        return spec
    raise TypeError(f"initializer: expected a name, (name, arguments) or an object of mx.init; received {spec!r:.100}")


def initialize(
    net: Any,
    initializer: InitializerSpec = "xavier",
    *,
    devices: DeviceSpec = "auto",
    force: bool = False,
    sample: Any = None,
) -> None:
    """Give every parameter of `net` values on some devices.

    Args:
        net: Any block.
        initializer: As for `get_initializer`. The default is Xavier; with Gluon's own default, Uniform(0.07), a LeNet
            does not learn (T22).
        devices: As for `mxkit.devices`; every device gets the same values.
        force: Draw new values for parameters that have values already.
        sample: An input of the net, a tuple of several, or the shape of one. The net runs on it once, in predict
            mode, which determines all sizes and values. With None the first batch determines unknown sizes.

    Raises:
        ValueError: A parameter has a value already: Gluon would ignore the call (T20). Or it has fewer axes than its
            initializer needs, as a vector has for Xavier.
        UnknownNameError: MXNet has no initializer of this name.
        DeviceError: A device does not exist.
        ForwardError: `sample` does not fit the net; the text names the layer.

    Side effects:
        The values come from MXNet's generator: call `mxkit.seed_all` before to get the same values again. Nets of
        `mx.np` get those of `mx.nd` (T166).
        Parameters of unknown shape get their values in the first forward pass.

    >>> net = mx.gluon.nn.Dense(3); initialize(net, sample=(1, 5)); net.weight.data().shape
    (3, 5)
    """
    where = resolve_devices(devices)
    for path, parameter in parameters_by_path(net).items():
        if not force and is_initialized(parameter):
            raise ValueError(
                f"initialize: parameter {path!r} has a value already, on {parameter.list_ctx()}. Pass force=True for "
                f"new values, or move the net with mxkit.to(net, {where})"
            )
    _give_norms_their_values(net)
    chosen = get_initializer(initializer)
    _check_axes(net, chosen)
    numpy = is_numpy_net(net)
    with switches(numpy):
        net.initialize(SameValues(chosen) if numpy else chosen, ctx=where, force_reinit=force)
    if force:
        drop_static_graphs(net)
    if sample is not None:
        is_shape = isinstance(sample, tuple) and all(isinstance(size, int) for size in sample)
        inputs = (mx.nd.zeros(sample),) if is_shape else sample if isinstance(sample, tuple) else (sample,)
        arrays = [as_ndarray(one).as_in_context(where[0]) for one in inputs]
        with switches(numpy), autograd.pause(train_mode=False), explained(net):
            net(*of_kind(arrays, numpy))


# Ends of names in a symbol, as MXNet's initializers read them.
_BY_NAME = {"gamma": mx.init.One, "var": mx.init.One, "beta": mx.init.Zero, "mean": mx.init.Zero, "bias": mx.init.Zero}


def _give_norms_their_values(net: Any) -> None:
    """Let norms and biases in a SymbolBlock begin with ones and zeros: MXNet forgets their initializers (T269)."""
    for _, block in blocks_by_path(net):
        if isinstance(block, gluon.SymbolBlock):
            for name, parameter in block.params.items():
                kind = _BY_NAME.get(name.rpartition("_")[2])
                if kind is not None and parameter.init is None:
                    parameter.init = kind()


# Axes that initializers of MXNet need at least. A class of the user's may draw vectors, in another way.
_AXES = {mx.init.Xavier: 2, mx.init.MSRAPrelu: 2, mx.init.Orthogonal: 2, mx.init.Bilinear: 4}


def _check_axes(net: Any, initializer: "mx.init.Initializer") -> None:
    """Refuse a parameter of too few axes by its path, before any parameter has values."""
    for path, parameter in parameters_by_path(net).items():
        chosen = type(initializer if parameter.init is None else mx.init.create(parameter.init))
        needed = _AXES.get(chosen, 0)
        if parameter.shape is not None and len(parameter.shape) < needed:
            raise ValueError(
                f"initialize: parameter {path!r} of shape {parameter.shape} has too few axes for {chosen.__name__}, "
                f"which needs {needed} or more. Give this parameter another initializer, like init='normal' in "
                "params.get, or the whole net, like mxkit.initialize(net, 'normal')"
            )


class SameValues(mx.init.Initializer):  # type: ignore[misc]
    """Gives parameters of `mx.np` the values that those of `mx.nd` get with the same seed.

    MXNet's own initializers draw by other operators under `npx.set_np()`. Other initializers get arrays of `mx.np`.

    Args:
        initializer: The net's initializer.
    """

    def __init__(self, initializer: "mx.init.Initializer") -> None:
        super().__init__()
        self._initializer = initializer

    def __call__(self, name: Any, array: Any) -> None:
        own = name.attrs["__init__"]  # of the parameter
        chosen = self._initializer if own is self else mx.init.create(own)
        of_mxnet = type(chosen).__module__ == mx.init.Initializer.__module__
        of_mxnet = of_mxnet and not is_numpy(getattr(chosen, "value", None))  # mx.init.Constant of an array
        if of_mxnet:
            array = legacy(array) if array.ndim else legacy(array).reshape((1,))  # they fail on an array without axes
        with switches(not of_mxnet):
            self._initializer(mx.init.InitDesc(name, {"__init__": chosen}), array)


def to(net: Any, devices: DeviceSpec, *, drop_trainer: bool = False) -> Any:
    """Move every parameter of `net` to `devices`.

    Gluon's own calls fit one state of the net each: a second `initialize` is ignored with a warning, and `reset_ctx`
    fails before the first `initialize` and averages over devices after it (T20, T59).

    Args:
        net: Any block. A parameter keeps the values of its first device, bit for bit; a deferred parameter gets its
            values on the new devices; one that is not initialized is initialized as by `mxkit.initialize(net)`.
        devices: As for `mxkit.devices`: "cpu", "gpu:0,1", contexts.
        drop_trainer: Moves parameters that belong to a Trainer, which must not be used afterwards.

    Returns:
        `net`.

    Raises:
        DeviceError: A device does not exist.
        ValueError: A Trainer exists over parameters that would move, and its optimizer's states would not. Or
            gradients are being accumulated, and would be lost. Nothing has moved then.

    Warns:
        TrapWarning: A block has an NDArray that is not a parameter on another device; it is not moved.

    Side effects:
        Gradients are 0, in buffers on the new devices. Cached graphs are dropped. If all parameters are on `devices`
        already, nothing happens.

    >>> net = mx.gluon.nn.Dense(2, in_units=3)
    >>> to(to(net, "cpu"), "cpu:2").weight.list_ctx()
    [cpu(0), cpu(1)]
    """
    where, numpy = resolve_devices(devices), is_numpy_net(net)
    moving = [(path, one) for path, one in distinct(parameters_by_path(net)).items() if _devices(one) != where]
    for path, one in moving:
        if trainer_of(one) is not None and not drop_trainer:
            raise ValueError(
                f"to: a Trainer exists over {path!r}, on {one.list_ctx()}: it would still read the gradients there. "
                "Move the net before the Trainer is made; or pass drop_trainer=True, and make a new one. Nothing was "
                "moved"
            )
    adding = [path for path, one in moving if values_of(one) and one.grad_req == "add"]
    if adding:
        raise ValueError(
            f"to: grad_req of {adding[0]!r} is 'add': gradients summed up so far would be lost. Move the net outside "
            "of an Accumulator's window. Nothing was moved"
        )
    for _, one in moving:
        if drop_trainer:
            set_trainer(one, None)
        with switches(numpy):
            _move(one, where)
    for path, block in blocks_by_path(net):
        if moving:
            drop_graph(block)  # it holds memory on the old devices
        for name, value in vars(block).items():
            if isinstance(value, nd.NDArray) and value.ctx not in where:
                warnings.warn(
                    f"to: {path or 'the net'} ({type(block).__name__}) keeps a plain NDArray {name!r} on {value.ctx}, "
                    "which is neither moved nor saved. Make it a constant: self.params.get_constant",
                    TrapWarning,
                    stacklevel=2,
                )
    return net


def _devices(parameter: Any) -> List[Any]:
    return list(parameter.list_ctx()) if is_initialized(parameter) else []


def _move(parameter: Any, where: List[Any]) -> None:
    if not is_initialized(parameter):
        xavier = get_initializer("xavier")
        parameter.initialize(ctx=where, default_init=SameValues(xavier) if is_np_array() else xavier)
    elif is_deferred(parameter) or is_sparse(parameter):
        parameter.reset_ctx(where)
    else:
        set_values(parameter, parameter.data(parameter.list_ctx()[0]), where)
