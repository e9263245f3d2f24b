"""A base for layers of one's own: parameters and constants by name, shapes from the first input, a repr."""

import inspect
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxkit.core.replicas import finish_initialization
from mxkit.errors import NotInitializedError
import mxnet as mx
from mxnet import gluon

Shape = Tuple[int, ...]

# Gluon's layers give these to each of such parameters: a net's Xavier would refuse vectors.
_STARTS = {"bias": "zeros", "beta": "zeros", "gamma": "ones"}


class Layer(gluon.HybridBlock):  # type: ignore[misc]
    """A HybridBlock whose parameters are declared in one line each, and handed to `hybrid_forward` by their names.

    So it works on several devices, hybridized or not, is saved, moved, cast and exported as Gluon's own layers are;
    with `@mxkit.nets.register_block` it can be described and rebuilt. A size of 0 in a parameter's shape is found with
    the first input: by MXNet, where the operators tell it (`F.FullyConnected`, `F.Convolution`), else by `infer`.

    >>> class Linear(Layer):
    ...     def __init__(self, units, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.parameter("weight", (units, 0))
    ...         self.constant("half", [0.5])
    ...     def infer(self, x):
    ...         return {"weight": (self.weight.shape[0], x[-1])}
    ...     def hybrid_forward(self, F, x, weight, half):
    ...         return F.broadcast_mul(F.dot(x, weight, transpose_b=True), half)
    >>> net = Linear(3); net.initialize(); net
    Linear(units=3)
    >>> net(mx.nd.ones((2, 5))).shape, net.weight.shape
    ((2, 3), (3, 5))
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Keep what the constructor is called with, for the repr."""
        layer = super().__new__(cls)
        vars(layer)["_arguments"] = _arguments(cls, layer, args, kwargs)
        return layer

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r:.60}" for name, value in vars(self)["_arguments"].items())
        start = f"{type(self).__name__}("
        return super().__repr__().replace(start, start + told, 1) if self._children else f"{start}{told})"

    def parameter(self, name: str, shape: Sequence[int], *, init: Any = None, **settings: Any) -> Any:
        """Declare a parameter; `hybrid_forward` gets it under its name.

        Args:
            name: Also the attribute's name.
            shape: Its sizes; 0 where the first input decides.
            init: An initializer or the name of one. None takes the one that the net is initialized with, but for names
                that end in "bias" or "beta", which start at 0, and in "gamma", at 1, as those of Gluon's own layers.
            settings: What else `gluon.Parameter` takes: dtype, grad_req, lr_mult, wd_mult.

        Returns:
            The Parameter.

        Raises:
            ValueError: The name is none for an attribute, or taken.
        """
        self._check_name(name)
        if init is None:
            init = next((start for end, start in _STARTS.items() if name.endswith(end)), None)
        made = self.params.get(name, shape=tuple(shape), init=init, allow_deferred_init=True, **settings)
        setattr(self, name, made)
        return made

    def constant(self, name: str, value: Any) -> Any:
        """Declare an array that is saved, moved and cast with the parameters, but never trained.

        Args:
            name: As for `parameter`.
            value: An NDArray, or what becomes one of float32.

        Returns:
            The Constant.

        Raises:
            ValueError: The name is none for an attribute, or taken.
        """
        self._check_name(name)
        made = self.params.get_constant(name, value)
        setattr(self, name, made)
        return made

    def infer(self, *shapes: Any) -> Dict[str, Shape]:
        """Tell the shapes of parameters from those of the inputs; to be overridden where operators do not tell them.

        Args:
            shapes: One for each input; None for an input that is no array.

        Returns:
            Whole shapes by the parameters' names; parameters that are left out are left to MXNet.
        """
        return {}

    def __call__(self, *args: Any) -> Any:
        """Infer what is not known yet, then call as Gluon does.

        Raises:
            NotInitializedError: A net around this layer is traced before a shape is known.
            ValueError: `infer` told a shape that cannot be.
        """
        unknown = [name for name, one in self._reg_params.items() if not _whole(one.shape)]
        if unknown and type(self).infer is not Layer.infer:
            self._infer_unknown(args, unknown)
        return super().__call__(*args)

    def _infer_unknown(self, args: Sequence[Any], unknown: List[str]) -> None:
        if any(isinstance(one, mx.sym.Symbol) for one in args):
            raise NotInitializedError(
                f"{self!r}: the shapes of {', '.join(unknown)} come from infer(), which needs an input with a shape; a "
                "graph is being made, which has none. Run the net once before net.hybridize(), or give all sizes"
            )
        told = self.infer(*[getattr(one, "shape", None) for one in args])
        for name, shape in told.items():
            one = self._reg_params.get(name)
            expected: Optional[Any] = None if one is None else one.shape
            if expected is None or not _whole(tuple(shape)) or not _fits(tuple(shape), expected):
                what = f"a whole shape like {expected}" if expected else f"names among {', '.join(self._reg_params)}"
                raise ValueError(f"{self!r}: infer() must return {what}; it returned {name!r}: {shape}")
            finish_initialization(one, shape)

    def _check_name(self, name: str) -> None:
        if not (isinstance(name, str) and name.isidentifier()) or hasattr(self, name):
            raise ValueError(f"{type(self).__name__}: {name!r} is no name for an attribute, or taken by another one")


def _whole(shape: Shape) -> bool:
    return all(size > 0 for size in shape)


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(want in (0, -1, got) for got, want in zip(shape, expected))


def _arguments(cls: Any, layer: Any, args: Any, kwargs: Any) -> Dict[str, Any]:
    try:
        bound = inspect.signature(cls.__init__).bind(layer, *args, **kwargs)
    except TypeError:
        return {}  # the constructor is about to say so itself, or a copy is made without it
    bound.apply_defaults()
    told = dict(list(bound.arguments.items())[1:])
    for name, one in inspect.signature(cls.__init__).parameters.items():
        if one.kind is one.VAR_KEYWORD:
            told.update(told.pop(name, {}))
    # blocks are shown as children
    return {name: one for name, one in told.items() if name not in ("prefix", "params") and not _block(one)}


def _block(value: Any) -> bool:
    return isinstance(value, gluon.Block)
