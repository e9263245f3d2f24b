"""Conversions of operators for sequences of different lengths."""

from mxkit.exporting.to_onnx.onnx_writer import Operator, Tensor, Writer, converts, integers, like
import numpy as np


def _before_end(data: Tensor, lengths: Tensor, axis: int, writer: Writer) -> str:
    """Write whether each position in time stands before the end of its sequence."""
    ndim = len(data.dims)
    time, batch = [1] * ndim, [1] * ndim
    time[axis] = data.size(axis)
    sizes = (lengths.dims[0], 1) if axis == 1 else (1, lengths.dims[0])
    ends = writer.reshape(writer.cast(lengths, np.int64), (*sizes, *batch[2:]))
    return writer.op("Less", np.arange(data.size(axis), dtype=np.int64).reshape(time), ends)


@converts("SequenceMask")
def sequence_mask(operator: Operator, writer: Writer) -> str:
    data, *lengths = operator.inputs
    if not operator.flag("use_sequence_length"):
        return data.name
    inside = _before_end(data, lengths[0], operator.integer("axis", 0), writer)
    return writer.op("Where", inside, data, like(data, operator.real("value", 0)))


@converts("SequenceLast")
def sequence_last(operator: Operator, writer: Writer) -> str:
    data, *lengths = operator.inputs
    axis = operator.integer("axis", 0)
    if not operator.flag("use_sequence_length"):
        return writer.op("Squeeze", writer.slice(data, -1, 2**62, axis), integers(axis))
    last = writer.op("Sub", writer.cast(lengths[0], np.int64), np.int64(1))
    rest = data.dims[2:]
    sizes = (lengths[0].dims[0], 1) if axis == 1 else (1, lengths[0].dims[0])
    places = writer.reshape(last, (*sizes, *[1] * len(rest)))
    places = writer.op("Expand", places, writer.shape((*sizes, *rest)))
    return writer.op("Squeeze", writer.op("GatherElements", data, places, axis=axis), integers(axis))


@converts("SequenceReverse")
def sequence_reverse(operator: Operator, writer: Writer) -> str:
    data, *lengths = operator.inputs
    if not operator.flag("use_sequence_length"):
        return writer.slice(data, -1, -(2**62), 0, -1)
    return writer.op("ReverseSequence", data, writer.cast(lengths[0], np.int64), batch_axis=1, time_axis=0)
