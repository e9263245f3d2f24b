"""A base class for your own layers: parameters and constants by name, shapes from the first input, a repr."""

import inspect
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxkit.core.arrays import of_kind
from mxkit.core.replicas import finish_initialization
from mxkit.errors import NotInitializedError
from mxkit.nets.architecture.catalog import constructor_arguments
import mxnet as mx
from mxnet import gluon

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
    >>> net = Linear(3); net.initialize(); net
    Linear(units=3)
    >>> net(mx.nd.ones((2, 5))).shape, net.weight.shape
    ((2, 3), (3, 5))
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the arguments of the constructor, for the repr."""
        layer = super().__new__(cls)
        arguments = constructor_arguments(inspect.signature(cls.__init__), layer, args, kwargs)
        # blocks are shown as children
        vars(layer)["_arguments"] = {
            name: value for name, value in arguments.items() if not isinstance(value, gluon.Block)
        }
        return layer

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r:.60}" for name, value in vars(self)["_arguments"].items())
        start = f"{type(self).__name__}("
        return super().__repr__().replace(start, start + arguments, 1) if self._children else f"{start}{arguments})"

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
                f"{self!r}: the shapes of {', '.join(unknown)} come from infer(), which needs an input with a shape; a "
                "graph is being made, which has none. Run the net once before net.hybridize(), or give all sizes"
            )
        shapes = self.infer(*[getattr(one, "shape", None) for one in args])
        for name, shape in shapes.items():
            one = self._reg_params.get(name)
            expected: Optional[Any] = None if one is None else one.shape
            if expected is None or not _whole(tuple(shape)) or not _fits(tuple(shape), expected):
                what = f"a whole shape like {expected}" if expected else f"names among {', '.join(self._reg_params)}"
                raise ValueError(f"{self!r}: infer() must return {what}; it returned {name!r}: {shape}")
            finish_initialization(one, shape)

    def _check_name(self, name: str) -> None:
        if not (isinstance(name, str) and name.isidentifier()) or hasattr(self, name):
            raise ValueError(f"{type(self).__name__}: {name!r} cannot be an attribute's name, or is taken")


def _whole(shape: Shape) -> bool:
    return all(size > 0 for size in shape)


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(want in (0, -1, got) for got, want in zip(shape, expected))
