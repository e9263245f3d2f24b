"""Checks the inputs of a table of layers, which are arrays or shapes."""

from numbers import Integral
from typing import Any, List, Sequence, Tuple

from mxkit.core.blocks import parameters_by_path, unfit_inputs
from mxkit.nets.layer_table.costs import first_stride
from mxkit.nets.layer_table.traced_layers import Output
from mxkit.storage.params_format import dtype_name
import mxnet as mx


def read_inputs(net: Any, inputs: Sequence[Any]) -> Tuple[List[Any], List[Output]]:
    """Replace every shape by an `Output`.

    Args:
        net: Any block. A shape gets the dtype of the net's first parameter.
        inputs: Shapes, NDArrays, None, lists of them.

    Returns:
        The inputs with their shapes replaced, and a flat list of Outputs, one for each shape and array.

    Raises:
        ValueError: An input is something else.

    >>> read_inputs(mx.gluon.nn.Dense(2), [(1, 3)])[1]
    [Output(shape=(1, 3), dtype='float32', stride=None)]
    """
    dtype = next((dtype_name(one.dtype) for one in parameters_by_path(net).values() if one.dtype), "float32")
    outputs: List[Output] = []

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, mx.nd.NDArray):
            outputs.append(Output(tuple(value.shape), dtype_name(value.dtype), first_stride(value.shape)))
            return value
        if isinstance(value, tuple) and value and all(_whole(size) for size in value):
            shape = tuple(int(size) for size in value)
            if min(shape) < 1:
                raise ValueError(f"layers: a shape has sizes of at least 1, the batch too; received {value!r}")
            outputs.append(Output(shape, dtype, first_stride(shape)))
            return outputs[-1]
        if isinstance(value, (list, tuple)) and value and not any(_whole(one) for one in value):
            return [read(one) for one in value]
        raise ValueError(
            "layers: expected for each input of the net an NDArray or its shape, a tuple of whole numbers like "
            f"(1, 3, 224, 224), or a list of those; received {value!r} ({type(value).__name__})"
        )

    return [read(value) for value in inputs], outputs


def check_count(net: Any, inputs: Sequence[Any]) -> None:
    """Check the number of inputs.

    Raises:
        ValueError: The net takes more or fewer inputs.

    >>> check_count(mx.gluon.nn.Dense(2), [(1, 3), (1, 3)])
    Traceback (most recent call last):
    ValueError: layers: the net (Dense) takes its inputs as (x); received 2 of them
    """
    taken = unfit_inputs(net, inputs)
    if taken is not None:
        names = ", ".join(str(one.replace(annotation=one.empty)) for one in taken)
        raise ValueError(
            f"layers: the net ({type(net).__name__}) takes its inputs as ({names}); received {len(inputs)} of them"
        )


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)
