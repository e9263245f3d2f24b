"""Layers of your own: a base class with parameters by name, and a proof that a net hybridizes, or the line at fault."""

import linecache
import traceback
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.arrays import arrays_in, of_kind, switches
from mxkit.core.blocks import child_blocks, is_numpy_net, join_path
from mxkit.core.forward_errors import explain_forward_error, explained
from mxkit.core.graphs import traced_graph
from mxkit.core.replicas import finish_initialization
from mxkit.core.statistics import kept_statistics
from mxkit.errors import NotInitializedError
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np

Shape = Tuple[int, ...]

# Initializers of such parameters in Gluon's own layers; Xavier raises an error for vectors.
_INITIALIZERS = {"bias": "zeros", "beta": "zeros", "gamma": "ones"}


class Layer(gluon.HybridBlock):  # type: ignore[misc]
    """A HybridBlock that declares each parameter in one line; `hybrid_forward` gets the parameters by their names.

    It works on several devices, hybridized or not, and is saved, moved, cast and exported as Gluon's own layers are;
    with `@mxkit.nets.register_block` it can be described and rebuilt. A size of 0 in a parameter's shape is inferred
    from the first input: by MXNet for operators such as `F.FullyConnected` and `F.Convolution`, otherwise by `infer`.

    >>> class Linear(Layer):
    ...     def __init__(self, units, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.parameter("weight", (units, 0))
    ...         self.constant("half", [0.5])
    ...     def infer(self, x):
    ...         return {"weight": (self.weight.shape[0], x[-1])}
    ...     def hybrid_forward(self, F, x, weight, half):
    ...         return F.broadcast_mul(F.dot(x, weight, transpose_b=True), half)
    >>> net = Linear(3); net.initialize()
    >>> net(mx.nd.ones((2, 5))).shape, net.weight.shape
    ((2, 3), (3, 5))
    """

    def parameter(self, name: str, shape: Sequence[int], *, init: Any = None, **settings: Any) -> Any:
        """Declare a parameter; `hybrid_forward` gets it under its name.

        Args:
            name: Name of the parameter and of the attribute.
            shape: Its sizes; 0 for a size that is inferred from the first input.
            init: An initializer or its name. None takes the net's initializer, except for names that end in "bias" or
                "beta", which start at 0, and in "gamma", which start at 1, as in Gluon's own layers.
            settings: Other arguments of `gluon.Parameter`: dtype, grad_req, lr_mult, wd_mult.

        Returns:
            The Parameter.

        Raises:
            ValueError: The name cannot be an attribute's name, or is taken.
        """
        self._check_name(name)
        if init is None:
            init = next((default for end, default in _INITIALIZERS.items() if name.endswith(end)), None)
        setattr(self, name, self.params.get(name, shape=tuple(shape), init=init, allow_deferred_init=True, **settings))
        return getattr(self, name)

    def constant(self, name: str, value: Any) -> Any:
        """Declare an array that is saved, moved and cast with the parameters, but never trained.

        Args:
            name: As for `parameter`.
            value: An array of MXNet, or numbers for one of float32.

        Returns:
            The Constant.

        Raises:
            ValueError: The name cannot be an attribute's name, or is taken.
        """
        self._check_name(name)
        value = of_kind(value, mx.util.is_np_array()) if isinstance(value, mx.nd.NDArray) else value
        setattr(self, name, self.params.get_constant(name, value))
        return getattr(self, name)

    def infer(self, *shapes: Any) -> Dict[str, Shape]:
        """Return the shapes of parameters for inputs of some shapes; override it if MXNet cannot infer them.

        Args:
            shapes: One for each input; None for an input that is not an array.

        Returns:
            Complete shapes by the parameters' names; MXNet infers those of other parameters.
        """
        return {}

    def __call__(self, *args: Any) -> Any:
        """Infer unknown shapes, then call as Gluon does.

        Raises:
            NotInitializedError: A net around this layer is traced before all shapes are known.
            ValueError: `infer` returned a wrong name or shape.
        """
        unknown = [name for name, one in self._reg_params.items() if not _whole(one.shape)]
        if unknown and type(self).infer is not Layer.infer:
            self._infer_unknown(args, unknown)
        return super().__call__(*args)

    def _infer_unknown(self, args: Sequence[Any], unknown: List[str]) -> None:
        if any(isinstance(one, mx.sym.Symbol) for one in args):
            raise NotInitializedError(
                f"{type(self).__name__}: the shapes of {', '.join(unknown)} come from infer(), which needs arrays; a "
                "graph is being made without them. Run the net once before net.hybridize(), or give all sizes"
            )
        for name, shape in self.infer(*[getattr(one, "shape", None) for one in args]).items():
            one = self._reg_params.get(name)
            expected: Optional[Any] = None if one is None else one.shape
            if expected is None or not _whole(tuple(shape)) or not _fits(tuple(shape), expected):
                what = f"a whole shape like {expected}" if expected else f"names among {', '.join(self._reg_params)}"
                raise ValueError(f"{type(self).__name__}: infer() must return {what}; it returned {name!r}: {shape}")
            finish_initialization(one, shape)

    def _check_name(self, name: str) -> None:
        if not (isinstance(name, str) and name.isidentifier()) or hasattr(self, name):
            raise ValueError(f"{type(self).__name__}: {name!r} cannot be an attribute's name, or is taken")


def _whole(shape: Shape) -> bool:
    return all(size > 0 for size in shape)


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(want in (0, -1, got) for got, want in zip(shape, expected))


# The graph may add in another order.
_TOLERANCES = {"float16": 1e-2, "float64": 1e-9}


class Hybridization(NamedTuple):
    """Result of `try_hybridize`; true if the net is hybridized.

    Attributes:
        hybridized: True if the net is hybridized.
        reason: Why it is not; empty if it is.
        place: `file:line: source` of the user's code that cannot be traced; may be empty.
        compared: Modes in which the outputs were compared: "predict", and "training" if it is deterministic.
        difference: Largest absolute difference of the outputs.
        python: Paths of blocks that Gluon runs without a graph and without a warning: those that are not
            HybridBlocks, and HybridBlocks that define `forward` in place of `hybrid_forward`. '' is the net itself.
    """

    hybridized: bool
    reason: str
    place: str
    compared: Tuple[str, ...]
    difference: float
    python: Tuple[str, ...]

    def __bool__(self) -> bool:
        return self.hybridized

    def __str__(self) -> str:
        if self.hybridized:
            some = f"; without a graph: {', '.join(path or 'the net' for path in self.python)}" if self.python else ""
            return f"hybridized: equal in {' and '.join(self.compared)} to {self.difference:.1e}{some}"
        return f"not hybridized: {self.reason}{chr(10) + self.place if self.place else ''}"


def try_hybridize(net: Any, *inputs: Any, **flags: Any) -> Hybridization:
    """Hybridize `net` if its graph gives the same outputs; otherwise leave it without a graph, and report the reason.

    The net runs twice as Python code and twice as a graph, in predict mode and in training mode. A graph keeps the
    results of Python code from the time of the trace (T39). So a net whose outputs change from call to call in predict
    mode is not hybridized either.

    Args:
        net: An initialized block.
        *inputs: Typical inputs on the net's device; arrays are converted to the kind of the net, `mx.nd` or `mx.np`.
        **flags: Arguments of `net.hybridize`, like `static_alloc=True`.

    Returns:
        The result; true if the net is hybridized.

    Raises:
        ForwardError: The net does not run without a graph either; the text names the block.
        ValueError: No input is an array.

    Side effects:
        The net runs up to eight times: it draws random numbers, calls hooks, and infers deferred shapes. Graphs cached
        before are dropped.

    >>> net = mxkit.models.mlp(3, hidden=[8]); mxkit.initialize(net, devices="cpu")
    >>> result = try_hybridize(net, mx.nd.ones((2, 4)))
    >>> result.hybridized, result.compared
    (True, ('predict', 'training'))
    """
    numpy = is_numpy_net(net)
    if not arrays_in(inputs):
        raise ValueError("try_hybridize: pass typical inputs of the net: arrays on the device of its parameters")
    with switches(numpy):
        return _try_hybridize(net, of_kind(inputs, numpy), flags)


def _try_hybridize(net: Any, inputs: Tuple[Any, ...], flags: Mapping[str, Any]) -> Hybridization:
    net.hybridize(False)
    python = tuple(_without_graph(net))
    with explained(net):
        expected = {
            mode: (_outputs(net, inputs, mode), _outputs(net, inputs, mode)) for mode in ("predict", "training")
        }
    if _difference(*expected["predict"])[0] != 0:
        reason = "its outputs change from call to call, also in predict mode; a graph would freeze what Python draws"
        return Hybridization(False, f"{reason} (T39)", "", (), float("nan"), python)
    modes = tuple(mode for mode, outputs in expected.items() if _difference(*outputs)[0] == 0)
    net.hybridize(**flags)
    distances = []
    try:
        for mode in (*modes, *modes):
            distance, close = _difference(_outputs(net, inputs, mode), expected[mode][0])
            distances.append(distance)
            if not close:
                net.hybridize(False)
                reason = f"in {mode} mode the graph's outputs differ from those of the code by {distances[-1]:.3g}"
                return Hybridization(False, f"{reason} (T39)", "", modes, distances[-1], python)
    except Exception as error:
        reason = str(explain_forward_error(net, error) or error)
        net.hybridize(False)
        return Hybridization(False, reason, _place(error), (), float("nan"), python)
    return Hybridization(True, "", "", modes, max(distances), tuple(_without_graph(net)))


def _without_graph(block: Any, path: str = "") -> Iterator[str]:
    if traced_graph(block):
        return
    of_mxnet = str(type(block).forward.__module__).startswith("mxnet.")
    if not of_mxnet if isinstance(block, gluon.HybridBlock) else path:
        yield path
    for name, child in child_blocks(block).items():
        yield from _without_graph(child, join_path(path, name))


def _outputs(net: Any, inputs: Tuple[Any, ...], mode: str) -> List["np.ndarray"]:
    with kept_statistics(net), autograd.pause(train_mode=mode == "training"):
        return [array.asnumpy() for array in arrays_in([net(*inputs)])]


def _difference(ours: List["np.ndarray"], theirs: List["np.ndarray"]) -> Tuple[float, bool]:
    """Return the largest difference and whether all are within the tolerances; an equal NaN or infinity is none."""
    if [one.shape for one in ours] != [one.shape for one in theirs]:
        return float("inf"), False
    apart, close = 0.0, True
    for one, other in zip(ours, theirs):
        differ = (one != other) & ((one == one) | (other == other))
        with np.errstate(invalid="ignore"):
            gaps = np.abs(one[differ].astype("float64") - other[differ].astype("float64"))
        apart = max(apart, float(np.nan_to_num(gaps, nan=np.inf).max(initial=0)))
        tolerance, scale = _TOLERANCES.get(other.dtype.name, 1e-4), np.abs(np.nan_to_num(other)).max(initial=0)
        close = close and np.allclose(one, other, tolerance, tolerance * min(1.0, float(scale)), True)
    return apart, close


def _place(error: Exception) -> str:
    """Return the innermost line of code that is neither MXNet's nor mxkit's."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if str(frame.f_globals.get("__name__")).split(".")[0] not in ("mxnet", "mxkit"):
            name = frame.f_code.co_filename
            return f"{name}:{line}: {linecache.getline(name, line).strip()}"
    return ""
