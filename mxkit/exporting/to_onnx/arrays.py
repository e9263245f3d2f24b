"""Conversions of operators of arrays: arithmetic, reductions, indices, shapes, sequences."""

from typing import Any, List, Tuple

from mxkit.core.operators import known, operators_that
from mxkit.exporting.to_onnx.onnx_writer import END, Batch, Operator, Tensor, Writer, converts, count, integers
import numpy as np


@converts(*operators_that("binary", "swapped"))
def binary(operator: Operator, writer: Writer) -> str:
    row = known(operator.operator)
    first, second = _operands(operator, writer)
    if "swapped" in row.facts:  # "rminus"
        first, second = second, first
    return _remainder(first, second, operator, writer) if row.onnx == "Mod" else writer.op(row.onnx, first, second)


def _operands(operator: Operator, writer: Writer) -> Any:
    """Return both operands in the dtype of the output; the second one may be a number."""
    first, *others = (writer.same(operator, tensor) for tensor in operator.inputs)
    return first, others[0] if others else operator.outputs[0].like(operator.real("scalar"))


def _remainder(first: Any, second: Any, operator: Operator, writer: Writer) -> str:
    out = operator.outputs[0]
    if not np.issubdtype(out.dtype, np.floating):
        return writer.op("Mod", first, second)
    # MXNet's remainder has the sign of the divisor, and is 0 for a divisor of 0; fmod has the sign of the dividend
    zero = out.like(0)
    by_zero = writer.op("Equal", second, zero)
    rest = writer.op("Mod", first, writer.op("Where", by_zero, out.like(1), second), fmod=1)
    other = writer.op("Xor", writer.op("Less", rest, zero), writer.op("Less", second, zero))
    nonzero = writer.op("Not", writer.op("Equal", rest, zero))
    rest = writer.op("Where", writer.op("And", other, nonzero), writer.op("Add", rest, second), rest)
    return writer.op("Where", by_zero, zero, rest)


@converts(*operators_that("compared"))
def comparison(operator: Operator, writer: Writer) -> str:
    first, *others = operator.inputs
    second: Any = others[0] if others else np.float64(operator.real("scalar"))
    if not others and np.issubdtype(first.dtype, np.floating):
        second = first.like(second)
    values: Tuple[Any, ...] = first, second
    if second.dtype != first.dtype:  # a whole number is compared with 2.5, not with 2
        values = tuple(one if one.dtype == np.float64 else writer.cast(one, np.float64) for one in values)
    negated, _, word = known(operator.operator).onnx.rpartition(" ")  # "not Equal"
    made = writer.op(word, *values)
    return writer.cast(writer.op("Not", made) if negated else made, operator.outputs[0].dtype)


@converts(*operators_that("logical"))
def logical(operator: Operator, writer: Writer) -> str:
    first, *others = (writer.cast(tensor, np.bool_) for tensor in operator.inputs)
    second = others[0] if others else np.bool_(operator.real("scalar"))
    return writer.cast(writer.op(known(operator.operator).onnx, first, second), operator.outputs[0].dtype)


_TEMPLATES = {
    "square _npi_square": "Mul(x, x)",
    "rsqrt": "Reciprocal(Sqrt(x))",
    "log10 _npi_log10": "Div(Log(x), 2.302585092994046)",
    "log2 _npi_log2": "Div(Log(x), 0.6931471805599453)",
    "log1p _npi_log1p": "Log(Add(x, 1))",
    "expm1 _npi_expm1": "Sub(Exp(x), 1)",
    "rint _npi_rint": "Ceil(Sub(x, 0.5))",  # MXNet rounds a half down, and in `round` away from zero
    "round": "Mul(Sign(x), Floor(Add(Abs(x), 0.5)))",
    "trunc fix _npi_trunc _npi_fix": "Mul(Sign(x), Floor(Abs(x)))",
    "_copy BlockGrad MakeLoss make_loss _np_copy": "Identity(x)",
    "add_n": "Sum(*inputs)",
    "hard_sigmoid": "HardSigmoid(x, alpha=float(alpha), beta=float(beta))",
    "InstanceNorm": "InstanceNormalization(*inputs, epsilon=float(eps))",
    "LRN": "LRN(x, alpha=float(alpha), beta=float(beta), bias=float(knorm), size=nsize)",
    "depth_to_space": "DepthToSpace(x, blocksize=block_size)",
    "space_to_depth": "SpaceToDepth(x, blocksize=block_size)",
    "_contrib_div_sqrt_dim": "Div(x, x.size(-1) ** 0.5)",
    "logical_not _npi_logical_not": "cast(Not(cast(x, bool)), out.dtype)",
    "Cast amp_cast": "cast(x, out.dtype)",
    "Embedding": "Gather(y, clipped(x, y.size(0)), axis=0)",
    "gather_nd": "GatherND(x, transpose(cast(y, 'int64'), *range(1, len(y.dims)), 0))",
    "broadcast_to broadcast_like broadcast_axis _npi_broadcast_to": "Expand(x, shape(out.dims))",
    "Pad": "Pad(x, integers(*pad_width[::2], *pad_width[1::2]), constant_value, mode=mode)",
    "shape_array": "Shape(x)",
    "size_array": "ReduceProd(Shape(x), axes=[0], keepdims=1)",
    # MXNet documents a softmax over all axes but the first, and computes one over the last axis
    "SoftmaxActivation": "Softmax(x, axis=1 if mode == 'channel' else -1)",
    "_contrib_BilinearResize2D": "Resize(x, '', '', shape(out.dims), mode='linear', "
    "coordinate_transformation_mode='align_corners' if align_corners else 'half_pixel')",
}
_TEMPLATES = {
    **{name: f"{known(name).onnx}(same(x))" for name in operators_that("unary")},
    **{name: text for names, text in _TEMPLATES.items() for name in names.split()},
}
_ACTIVATIONS = {
    "relu": "Relu(x)",
    "sigmoid": "Sigmoid(x)",
    "tanh": "Tanh(x)",
    "softsign": "Softsign(x)",
    "softrelu": "Softplus(x)",
    "leaky": "LeakyRelu(x, alpha=float(slope))",
    "elu": "Elu(x, alpha=float(slope))",
    "selu": "Selu(x, alpha=1.6732632423543772, gamma=1.0507009873554805)",
    "gelu": "Mul(Mul(x, 0.5), Add(Erf(Mul(x, 0.7071067811865476)), 1))",
}


@converts(*_TEMPLATES)
def template(operator: Operator, writer: Writer) -> str:
    return writer.filled(_TEMPLATES[operator.operator], operator)


@converts("Activation", "LeakyReLU")
def activation(operator: Operator, writer: Writer) -> str:
    kind = operator.text("act_type")
    operator.refuse((kind == "rrelu", "act_type='rrelu' draws its slopes"))
    if kind == "prelu":
        return writer.op("PRelu", operator.inputs[0], _slope(operator, writer))
    return writer.filled(_ACTIVATIONS[kind], operator)


def _slope(operator: Operator, writer: Writer) -> str:
    """Lay PReLU's slopes along axis 1, where MXNet applies them; ONNX broadcasts from the last axis."""
    data, slope = operator.inputs
    if len(slope.dims) == 1 and slope.size(0) != 1 and len(data.dims) > 2:
        return writer.reshape(slope, (slope.size(0), *[1] * (len(data.dims) - 2)))
    return slope.name


@converts("clip")
def clip(operator: Operator, writer: Writer) -> str:
    data = operator.inputs[0]
    made: Any = writer.named(data)
    for kind, name in (("Max", "a_min"), ("Min", "a_max")):
        if operator.text(name):
            made = writer.op(kind, made, data.like(operator.real(name)))
    return str(made)


@converts("amp_multicast")
def multicast(operator: Operator, writer: Writer) -> Any:
    return [writer.cast(tensor, output.dtype) for tensor, output in zip(operator.inputs, operator.outputs)]


@converts("where", "_npi_where")
def where(operator: Operator, writer: Writer) -> str:
    condition, first, second = operator.inputs
    made = writer.cast(condition, np.bool_)
    if operator.operator == "where" and len(condition.dims) == 1 and len(first.dims) > 1:  # it chooses rows
        made = writer.reshape(made, (condition.dims[0], *[1] * (len(first.dims) - 1)))
    return writer.op("Where", made, first, second)


@converts(*(name for name in operators_that("onto") if known(name).onnx))
def reduction(operator: Operator, writer: Writer) -> str:
    data, output, kind = operator.inputs[0], operator.outputs[0], known(operator.operator).onnx
    axes, made = operator.axes(), writer.same(operator, data)
    if operator.operator == "nansum":
        made = writer.op("Where", writer.op("IsNaN", made), data.like(0), made)
    if kind == "ReduceSum":
        made = writer.op(kind, made, integers(*axes), keepdims=0)
    else:
        made = writer.op(kind, made, axes=axes, keepdims=0)
    # without np shape, MXNet's reduction of all axes has the shape (1,)
    kept = len(output.dims) == len(data.dims) - len(axes)
    return str(made) if kept else writer.reshape(made, output.dims)


@converts("argmax", "argmin", "_npi_argmax", "_npi_argmin")
def argmax(operator: Operator, writer: Writer) -> str:
    output = operator.outputs[0]
    data: Any = operator.inputs[0]
    axis = operator.get("axis")
    if axis is None:
        data, axis = writer.op("Reshape", data, integers(-1)), 0
    made = writer.op("ArgMin" if "argmin" in operator.operator else "ArgMax", data, axis=int(axis), keepdims=0)
    return writer.reshape(writer.cast(made, output.dtype), output.dims)


@converts("topk")
def topk(operator: Operator, writer: Writer) -> List[str]:
    kind = operator.get("ret_typ")
    operator.refuse((kind == "mask", "ret_typ='mask'"))
    values, places = _sorted(operator, writer, operator.integer("k"))
    found = {"value": [values], "both": [values, places]}.get(kind, [places])
    return [one if one == values else writer.cast(one, out.dtype) for one, out in zip(found, operator.outputs)]


@converts("sort", "argsort")
def sort(operator: Operator, writer: Writer) -> str:
    values, places = _sorted(operator, writer, 0)
    return writer.cast(places, operator.outputs[0].dtype) if "argsort" in operator.operator else values


def _sorted(operator: Operator, writer: Writer, count: int) -> List[str]:
    data, axis = operator.inputs[0], operator.get("axis")
    operator.refuse((axis is None, "axis=None sorts across the batch"))
    largest = int(not operator.flag("is_ascend"))
    return writer.ops("TopK", 2, data, integers(count or data.size(axis)), axis=axis, largest=largest, sorted=1)


@converts("_np_cumsum")
def cumsum(operator: Operator, writer: Writer) -> str:
    axis = operator.get("axis")
    operator.refuse((axis is None, "axis=None sums across the batch"))
    return writer.op("CumSum", writer.same(operator, operator.inputs[0]), np.int64(axis))


@converts("take")
def take(operator: Operator, writer: Writer) -> str:
    data, indices = operator.inputs
    axis = operator.axis(0)
    return writer.op("Gather", data, _indices(operator, indices, data.size(axis), writer), axis=axis)


def _indices(operator: Operator, indices: Any, size: int, writer: Writer) -> str:
    mode = operator.get("mode")
    if mode == "clip":
        return writer.clipped(indices, size)
    whole = writer.cast(indices, np.int64)
    return writer.op("Mod", whole, np.int64(size)) if mode == "wrap" else whole


@converts("pick")
def pick(operator: Operator, writer: Writer) -> str:
    data, indices = operator.inputs
    axis = operator.axis()
    made = _indices(operator, indices, data.size(axis), writer)
    made = writer.reshape(made, (*data.dims[:axis], 1, *data.dims[axis + 1 :]))
    return writer.reshape(writer.op("GatherElements", data, made, axis=axis), operator.outputs[0].dims)


@converts("one_hot")
def one_hot(operator: Operator, writer: Writer) -> str:
    indices, output = operator.inputs[0], operator.outputs[0]
    depth = operator.integer("depth")
    # ONNX's OneHot counts negative indices from the end; MXNet gives them no place
    column = writer.reshape(writer.cast(indices, np.int64), (*indices.dims, 1))
    same = writer.op("Equal", column, np.arange(depth, dtype=np.int64))
    values = operator.real("on_value"), operator.real("off_value")
    return writer.op("Where", same, *(output.like(value) for value in values))


@converts("Reshape", "_np_reshape", "_npx_reshape", "reshape_like")
@converts("Flatten", "expand_dims")
def reshape(operator: Operator, writer: Writer) -> str:
    sizes = [[count(tensor.dims, batch) for tensor in (operator.inputs[0], operator.outputs[0])] for batch in (2, 3)]
    operator.refuse(
        (any(old != new for old, new in sizes), "the new shape fits one batch size only; use 0 or -1 for it")
    )
    return writer.reshape(operator.inputs[0], operator.outputs[0].dims)


@converts("squeeze", "_np_squeeze")
def squeeze(operator: Operator, writer: Writer) -> str:
    unclear = operator.get("axis") is None and any(isinstance(size, Batch) for size in operator.inputs[0].dims)
    operator.refuse((unclear, "without axis it removes the batch's axis too at batch size 1; give it an axis"))
    return writer.reshape(operator.inputs[0], operator.outputs[0].dims)


@converts("transpose", "_np_transpose")
def transpose(operator: Operator, writer: Writer) -> str:
    ndim = operator.rank
    axes = operator.get("axes") or range(ndim - 1, -1, -1)
    return writer.transpose(operator.inputs[0], *(axis % ndim for axis in axes))


@converts("SwapAxis")
def swap_axis(operator: Operator, writer: Writer) -> str:
    ndim = operator.rank
    first, second = (int(operator.get(name, 0)) % ndim for name in ("dim1", "dim2"))
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return writer.transpose(operator.inputs[0], *order)


@converts("slice")
def slice_(operator: Operator, writer: Writer) -> str:
    begins, ends = _listed(operator.get("begin")), _listed(operator.get("end"))
    steps = _listed(operator.get("step", ())) or [None] * len(begins)
    starts, stops, strides = [], [], []
    for begin, end, step in zip(begins, ends, steps):
        back = (step or 1) < 0
        starts.append((END if back else 0) if begin is None else begin)
        stops.append((-END if back else END) if end is None else end)
        strides.append(step or 1)
    return writer.slice(operator.inputs[0], starts, stops, list(range(len(begins))), strides)


def _listed(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


@converts("slice_axis")
def slice_axis(operator: Operator, writer: Writer) -> str:
    end = operator.get("end")
    return writer.slice(
        operator.inputs[0], operator.integer("begin"), END if end is None else int(end), operator.integer("axis")
    )


@converts("slice_like")
def slice_like(operator: Operator, writer: Writer) -> str:
    data, output = operator.inputs[0], operator.outputs[0]
    axes = [axis for axis, (old, new) in enumerate(zip(data.dims, output.dims)) if old != new]
    if not axes:
        return data.name
    ends = writer.shape(tuple(output.dims[axis] for axis in axes))
    return writer.op("Slice", data, integers(*[0] * len(axes)), ends, integers(*axes))


@converts("SliceChannel", "_split_v2")
def split(operator: Operator, writer: Writer) -> List[str]:
    data = operator.inputs[0]
    axis = operator.axis(1)
    squeezed = operator.flag("squeeze_axis")
    count = len(operator.outputs)
    sizes = [1] * count if squeezed else [output.dims[axis] for output in operator.outputs]
    if count == 1:
        made = [data.name]
    elif all(isinstance(size, int) for size in sizes):
        made = writer.ops("Split", count, data, np.array(sizes, np.int64), axis=axis)
    else:
        made = writer.ops("Split", count, data, axis=axis)
    if not squeezed:
        return made
    return [writer.reshape(part, output.dims) for part, output in zip(made, operator.outputs)]


@converts("Concat", "_rnn_param_concat", "_npi_concatenate")
def concat(operator: Operator, writer: Writer) -> str:
    axis = operator.get("axis") if operator.operator == "_npi_concatenate" else operator.get("dim")
    operator.refuse((axis is None, "axis=None joins across the batch"))
    return writer.op("Concat", *operator.inputs, axis=int(axis))


@converts("stack", "_npi_stack")
def stack(operator: Operator, writer: Writer) -> str:
    axis = operator.integer("axis") % len(operator.outputs[0].dims)
    parts = [writer.reshape(tensor, (*tensor.dims[:axis], 1, *tensor.dims[axis:])) for tensor in operator.inputs]
    return writer.op("Concat", *parts, axis=axis)


@converts("tile")
def tile(operator: Operator, writer: Writer) -> str:
    data, repeats = operator.inputs[0], _listed(operator.get("reps"))
    more = len(repeats) - len(data.dims)
    made = writer.reshape(data, (*[1] * more, *data.dims)) if more > 0 else data.name
    return writer.op("Tile", made, integers(*[1] * -more, *repeats))


@converts("repeat")
def repeat(operator: Operator, writer: Writer) -> str:
    data, count = operator.inputs[0], operator.integer("repeats")
    axis = operator.get("axis") if len(data.dims) > 1 else 0
    operator.refuse((axis is None, "axis=None repeats across the batch"))
    place = axis % len(data.dims) + 1
    made = writer.reshape(data, (*data.dims[:place], 1, *data.dims[place:]))
    repeats = [count if number == place else 1 for number in range(len(data.dims) + 1)]
    return writer.reshape(writer.op("Tile", made, integers(*repeats)), operator.outputs[0].dims)


@converts("reverse", "_npi_flip")
def reverse(operator: Operator, writer: Writer) -> str:
    axes = _listed(operator.get("axis"))
    return writer.slice(operator.inputs[0], [-1] * len(axes), [-END] * len(axes), axes, [-1] * len(axes))


@converts("_zeros", "_ones", "_full", "zeros_like", "ones_like", "_npi_zeros", "_npi_ones")
@converts("_npi_full_like", "_zeros_without_dtype")
def filled(operator: Operator, writer: Writer) -> str:
    from onnx import numpy_helper

    output = operator.outputs[0]
    number = 1.0 if "ones" in operator.operator else 0.0
    if "full" in operator.operator:
        number = operator.real("value" if "value" in operator.attrs else "fill_value", 0)
    value = numpy_helper.from_array(np.array([number]).astype(output.dtype))
    return writer.op("ConstantOfShape", writer.shape(output.dims), value=value)


@converts("_arange", "_npi_arange", "_contrib_arange_like")
def arange(operator: Operator, writer: Writer) -> str:
    """Write what MXNet computes from constants and shapes as a constant."""
    output = operator.outputs[0]
    sizes = [output.size(axis) for axis in range(len(output.dims))]
    alone = "like" not in operator.operator and operator.get("stop") is None
    start = 0.0 if alone else operator.real("start")  # arange(20) ends at 20
    places = np.arange(int(np.prod(sizes)), dtype=np.float64) // operator.integer("repeat")
    return writer.constant((start + places * operator.real("step")).reshape(sizes).astype(output.dtype))


def _before_end(data: Tensor, lengths: Tensor, axis: int, writer: Writer) -> str:
    """Write whether each position in time stands before the end of its sequence."""
    rest = [1] * (len(data.dims) - 2)
    ends = (lengths.dims[0], 1) if axis == 1 else (1, lengths.dims[0])
    time = np.arange(data.size(axis), dtype=np.int64).reshape([*((1, -1) if axis == 1 else (-1, 1)), *rest])
    return writer.op("Less", time, writer.reshape(writer.cast(lengths, np.int64), (*ends, *rest)))


@converts("SequenceMask")
def sequence_mask(operator: Operator, writer: Writer) -> str:
    data, *lengths = operator.inputs
    if not operator.flag("use_sequence_length"):
        return data.name
    inside = _before_end(data, lengths[0], operator.integer("axis"), writer)
    return writer.op("Where", inside, data, data.like(operator.real("value")))


@converts("SequenceReverse")
def sequence_reverse(operator: Operator, writer: Writer) -> str:
    data, *lengths = operator.inputs
    if not operator.flag("use_sequence_length"):
        return writer.slice(data, -1, -(2**62), 0, -1)
    return writer.op("ReverseSequence", data, writer.cast(lengths[0], np.int64), batch_axis=1, time_axis=0)
