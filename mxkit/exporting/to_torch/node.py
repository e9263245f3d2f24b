"""An operator of MXNet as the conversions to PyTorch see it."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from mxkit.core.graph import Attributes
from mxkit.errors import ExportError


class _Fields(NamedTuple):
    """See `Node`."""

    operator: str
    attrs: Dict[str, str]
    inputs: List[str]
    shapes: List[Tuple[int, ...]]
    outputs: List[Tuple[int, ...]]
    values: List[Optional[Any]]
    dtypes: List[str]
    name: str


class Node(_Fields, Attributes):
    """One operator in the forward pass of a block.

    Attributes:
        operator: MXNet's name, like "Convolution".
        attrs: Its attributes as MXNet writes them, all of them text.
        inputs: A Python expression for each input: a variable of `forward`, or `self.weight`.
        shapes: Shape of each input, for one batch size. A conversion must not depend on the size of the batch.
        outputs: Shape of each output.
        values: For each input that is a parameter, its value as NumPy's; None for the others.
        dtypes: Of the inputs, like "float32".
        name: The operator's name in MXNet's graph, for errors.
    """

    @property
    def rank(self) -> int:
        """Number of axes of the first input."""
        return len(self.shapes[0])

    def refused(self, reason: str) -> ExportError:
        """Return the error for an operator that PyTorch cannot compute as MXNet does."""
        return ExportError(f"{self.name}: operator {self.operator} cannot be converted to PyTorch: {reason}")


Conversion = Callable[[Node], str]


class Layer(NamedTuple):
    """A module of torch.nn for an operator whose parameters nothing else uses, or without parameters.

    Attributes:
        constructor: Like "nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)".
        state: Values of its parameters and buffers by torch's name, like "weight" and "running_mean".
        call: Its call, "{layer}" and "{0}" standing for the module and the first input, if that is not `layer(input)`:
            "{layer}({0}.flatten(1))".
        before: A module without parameters that must stand before it in an nn.Sequential, like "nn.Flatten()".
        frozen: Names in `state` that MXNet does not train, like a BatchNorm's "weight" with fix_gamma.
    """

    constructor: str
    state: Dict[str, Any]
    call: Optional[str] = None
    before: Optional[str] = None
    frozen: Tuple[str, ...] = ()
