"""A HybridSequential that checks the size of images before MXNet computes.

MXNet's messages name neither the layer nor a usable size (T38), and some sizes give wrong results without an error: the
positions after a pooling are flattened into classes. MXNet's own shape inference decides whether a size fits.
"""

from contextlib import redirect_stdout
import io
from typing import Any, List, Optional, Set, Tuple

from mxkit.core.arguments import whole_number
from mxkit.core.arrays import of_kind
from mxkit.core.blocks import blocks_by_path, child_blocks, is_numpy_net
from mxkit.core.tracing import Trace, infer_shapes, trace
from mxkit.errors import ForwardError
from mxkit.nets.architecture.catalog import SUPPORTED, constructed
from mxkit.nets.layer_table.measures import Output, find_fault
import mxnet as mx
from mxnet.gluon import nn

Shape = Tuple[int, ...]
LARGEST = 1024


class SizedNet(nn.HybridSequential):  # type: ignore[misc]
    """A HybridSequential that refuses inputs that its layers cannot take, and names the layer; base of mxkit's nets.

    Each sample shape is checked once, with its first batch, by shape inference: nothing is computed, and later batches
    cost a lookup in a set. Inside another hybridized block it is part of that block's graph, and checks nothing.

    Args:
        input_size: Side of the square images that it accepts; 0 accepts every size that the layers do.
        one_position: The last layer flattens the output of a pooling, which must have one position; with more, the
            net would return more numbers per sample than there are classes.

    >>> net = SizedNet(); net.add(nn.Conv2D(2, 5, in_channels=1), nn.Flatten()); net.initialize()
    >>> net(mx.nd.ones((1, 2, 6, 6)))
    Traceback (most recent call last):
    mxkit.errors.ForwardError: '0' (Conv2D) is built for 1 channels (NCHW) and got shape (1, 2, 6, 6), which has 2. \
Give it in_channels=2, or hand it 1
    """

    def __init__(
        self, input_size: int = 0, one_position: bool = False, prefix: Optional[str] = None, params: Any = None
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._input_size = whole_number(input_size, "input_size", least=0)
        self._one_position = one_position
        self._fitting: Set[Shape] = set()
        self.mxkit_name = ""  # `get_model` sets it; tables of layers and errors show it

    def __repr__(self) -> str:
        kind = type(self).__name__
        return str(super().__repr__().replace(kind, self.mxkit_name or kind, 1))

    def __call__(self, *inputs: Any) -> Any:
        for x in inputs[:1]:
            if isinstance(x, mx.nd.NDArray) and x.shape[1:] not in self._fitting:
                check_shape(self, x.shape)
                self._fitting.add(x.shape[1:])
        return super().__call__(*inputs)

    def _clear_cached_op(self) -> None:
        # a layer was added or replaced: its sizes differ
        self._fitting = set()
        super()._clear_cached_op()


SUPPORTED["SizedNet"] = (SizedNet, constructed(SizedNet))


def check_shape(net: SizedNet, shape: Shape) -> None:
    """Refuse a batch of this shape if a layer cannot take it, or if it is not the net's `input_size`.

    Args:
        net: Initialized or not; known shapes of its parameters are used.
        shape: Shape of a batch, the number of samples first.

    Raises:
        ForwardError: The text names the layer, and the square sizes that the net takes.
    """
    size = net._input_size
    if size and len(shape) == 4 and shape[2:] != (size, size):
        raise ForwardError(
            f"the net was made for images of {size} x {size} (input_size) and got shape {shape}. Resize them, or pass "
            "their input_size; without input_size the net takes every size that its layers do",
            "",
            net,
        )
    traced = _traced(net, shape)
    if traced is None:
        return
    fault = _fault(net, traced, shape)
    if fault is not None:
        raise ForwardError(f"{fault}{_usable(net, traced, shape)}", fault.path, fault.block) from fault.__cause__


def usable_sizes(net: SizedNet, channels: int = 3) -> List[int]:
    """Smallest and largest side of square images that a net's layers take, up to 1024.

    Args:
        net: Initialized or not; known shapes of its parameters are used.
        channels: Channels of the images.

    Returns:
        The smallest and the largest size; 1024 if there is no limit below it. Empty if no size fits.

    >>> from mxkit.models import nin
    >>> usable_sizes(nin())
    [195, 354]
    """
    traced = _traced(net, (1, channels, LARGEST, LARGEST))
    return [] if traced is None else _range(net, traced, channels)


def finished(name: str, net: SizedNet, in_channels: int, way: str = "") -> SizedNet:
    """Check `input_size` against the layers, and set the shapes of parameters that follow from it.

    Args:
        name: Name of the function that builds the net, for errors.
        net: The net with all its layers.
        in_channels: Channels of the images; 0 takes them from the first batch.
        way: Sentence that says what to do with images that are too small.

    Returns:
        The net. With `in_channels` and `input_size` all parameters have their shapes before the first batch.

    Raises:
        ValueError: Images of `input_size` do not fit; the text names the layer and the sizes that fit.
    """
    whole_number(in_channels, "in_channels", least=0)
    if in_channels:
        first = _first_layer(net)
        if isinstance(first, nn.Conv2D):
            first.weight.shape = (first.weight.shape[0], in_channels, *first.weight.shape[2:])
    size = net._input_size
    if size:
        shape = (1, in_channels or 3, size, size)
        try:
            check_shape(net, shape)
        except ForwardError as error:
            raise ValueError(f"{name}(input_size={size}): {error}{way and '. ' + way}") from error
        traced = _traced(net, shape)
        if in_channels and traced is not None:
            for parameter, known in zip(traced.parameters.values(), _inferred(traced, shape)[1]):
                parameter.shape = known
    return net


def _first_layer(net: SizedNet) -> Any:
    """The first block with a weight."""
    return next((block for _, block in blocks_by_path(net) if getattr(block, "weight", None) is not None), None)


def _traced(net: SizedNet, shape: Shape) -> Optional[Trace]:
    try:
        return trace(net, of_kind([mx.nd.empty((1,) * len(shape))], is_numpy_net(net)))
    except Exception:  # a block that takes no symbols: MXNet raises in its forward pass
        return None


def _inferred(traced: Trace, shape: Shape) -> Tuple[Shape, List[Shape]]:
    """Shape of the last layer's input, and shapes of all parameters."""
    last = [call for call in traced.calls if "." not in call.path][-1]
    # MXNet prints the arguments if shapes do not fit
    with redirect_stdout(io.StringIO()):
        shapes, parameters = infer_shapes(traced, [*last.inputs, *traced.outputs], [shape])
    return shapes[0], [parameters[name] for name in traced.parameters]


def _fault(net: SizedNet, traced: Trace, shape: Shape) -> Optional[ForwardError]:
    try:
        taken, _ = _inferred(traced, shape)
    except mx.MXNetError:
        return find_fault(traced, [Output(shape, "float32")])
    except ValueError:
        return None
    if not net._one_position or max(taken[2:], default=1) == 1:
        return None
    path, last = list(child_blocks(net).items())[-1]
    _, classes, height, width = taken
    text = (
        f"{path!r} ({type(last).__name__}) gets {height} x {width} positions from the pooling before "
        f"it for shape {shape}, and would give {classes} x {height} x {width} = {classes * height * width} numbers a "
        f"sample in place of {classes}. Take smaller images, or a global pooling"
    )
    return ForwardError(text, path, last)


def _range(net: SizedNet, traced: Trace, channels: int) -> List[int]:
    def fits(size: int) -> bool:
        try:
            taken, _ = _inferred(traced, (1, channels, size, size))
            return not net._one_position or max(taken[2:], default=1) == 1
        except (mx.MXNetError, ValueError):
            return False

    least = next((size for size in range(1, LARGEST + 1) if fits(size)), None)
    if least is None:
        return []
    if fits(LARGEST):
        return [least, LARGEST]
    return [least, next(size for size in range(least, LARGEST) if not fits(size + 1))]


def _usable(net: SizedNet, traced: Trace, shape: Shape) -> str:
    """Sentence about the sizes that the net takes; empty if no size fits."""
    first = _first_layer(net)
    other_channels = isinstance(first, nn.Conv2D) and first.weight.shape[1] not in (0, -1, *shape[1:2])
    sizes = [] if len(shape) != 4 or other_channels else _range(net, traced, shape[1])
    if not sizes:
        return ""
    least, most = sizes
    rest = " and larger" if most == LARGEST else f" to {most} x {most}" if most > least else " only"
    channels = f"{shape[1]} channel{'s' if shape[1] > 1 else ''}"
    return f". Of square images with {channels} the net takes {least} x {least}{rest}"
