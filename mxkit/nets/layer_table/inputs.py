"""Inputs of a table of layers: shapes or arrays, and as many as the net takes."""

from numbers import Integral
from typing import Any, List, Sequence, Tuple

from mxkit.core.blocks import parameters_by_path, unfit_inputs
from mxkit.nets.layer_table.graph import Output
from mxkit.nets.layer_table.strides import first_stride
from mxkit.storage.parameter_file import dtype_name
import mxnet as mx


def read_inputs(net: Any, inputs: Sequence[Any]) -> Tuple[List[Any], List[Output]]:
    """Put an `Output` in the place of every shape.

    Args:
        net: Any block; a shape is taken as one of the dtype of its first parameter.
        inputs: Shapes, NDArrays, None, lists of them.

    Returns:
        The inputs so, and the arrays among them, flat and without None, as Outputs all.

    Raises:
        ValueError: There is something else among them.

    >>> read_inputs(mx.gluon.nn.Dense(2), [(1, 3)])[1]
    [Output(shape=(1, 3), dtype='float32', stride=None)]
    """
    dtype = next((dtype_name(one.dtype) for one in parameters_by_path(net).values() if one.dtype), "float32")
    found: List[Output] = []

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, mx.nd.NDArray):
            found.append(Output(tuple(value.shape), dtype_name(value.dtype), first_stride(value.shape)))
            return value
        if isinstance(value, tuple) and value and all(_whole(size) for size in value):
            shape = tuple(int(size) for size in value)
            if min(shape) < 1:
                raise ValueError(f"layers: a shape has sizes of at least 1, the batch too; received {value!r}")
            found.append(Output(shape, dtype, first_stride(shape)))
            return found[-1]
        if isinstance(value, (list, tuple)) and value and not any(_whole(one) for one in value):
            return [read(one) for one in value]
        raise ValueError(
            "layers: expected for each input of the net an NDArray or its shape, a tuple of whole numbers like "
            f"(1, 3, 224, 224), or a list of those; received {value!r} ({type(value).__name__})"
        )

    return [read(value) for value in inputs], found


def check_count(net: Any, inputs: Sequence[Any]) -> None:
    """Refuse other numbers of inputs than the net takes.

    Raises:
        ValueError: It takes more or fewer.

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
