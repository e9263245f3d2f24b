"""Operators as PyTorch computes them, against MXNet, at two batch sizes and with gradients."""

import json
from types import SimpleNamespace

from all_rows import ROWS
from mxkit.core.arrays import switches
from mxkit.core.graph import Graph
from mxkit.errors import ExportError
from mxkit.exporting.to_torch.expressions import Node
from mxkit.exporting.to_torch.operators import EXPRESSIONS, HELPERS, expression, helpers_used, layer, names_used
import mxnet as mx
import numpy as np
from operator_rows import drawn, symbol_of
import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def nodes_of(symbol, row, arrays):
    """Yield the operators of a symbol as Nodes."""
    given = {f"x{number}": array for number, array in enumerate(arrays) if f"x{number}" in symbol.list_inputs()}
    internals = symbol.get_internals()
    graph = Graph.of(internals)
    _, shapes, _ = internals.infer_shape(**{name: array.shape for name, array in given.items()})
    _, types, _ = internals.infer_type(**{name: array.dtype for name, array in given.items()})
    shapes, kinds = dict(zip(graph.heads, shapes)), dict(zip(graph.heads, (np.dtype(one).name for one in types)))
    parameters = {f"x{number}": arrays[number] for number in row.parameters}
    for node in graph.nodes:
        if not node.is_variable:
            pairs = zip(graph.sources(node), node.inputs)
            names = [one.name if one.is_variable else f"v_{one.name}_{entry.output}" for one, entry in pairs]
            own = [shape for entry, shape in shapes.items() if entry.node == node.index]
            inputs = [shapes[entry] for entry in node.inputs], own, [parameters.get(name) for name in names]
            yield Node(node.operator, node.attrs, names, *inputs, [kinds[entry] for entry in node.inputs], node.name)


def evaluated(torch, row, symbol, inputs, built, nested):
    """Outputs of a symbol by the expressions of its operators, converted from arrays of another batch size.

    With `nested`, the inputs are no names but expressions that bind weaker than any operator.
    """
    names = {f"x{number}": value for number, value in enumerate(inputs)}
    own = SimpleNamespace(training=row.gradients)
    names.update(torch=torch, F=torch.nn.functional, self=own, device=inputs[0].device, batch_size=None)
    for node in nodes_of(symbol, row, built):
        if nested:
            node = node._replace(inputs=[f"{name} if True else {name}" for name in node.inputs])
        code = expression(node)
        for helper in helpers_used(code):
            exec(HEADER + HELPERS[helper], names)
        assert set(names_used(code)) <= {"device"}
        result = eval(code, names)
        many = result if len(node.outputs) > 1 else [result]
        assert isinstance(many, (list, tuple))
        assert len(many) == len(node.outputs), code
        names.update({f"v_{node.name}_{output}": value for output, value in enumerate(many)})
    graph = Graph.of(symbol)
    return [names[f"v_{graph.nodes[head.node].name}_{head.output}"] for head in graph.heads]


HEADER = "import torch\nimport torch.nn.functional as F\nfrom typing import Sequence\n"


def by_mxnet(symbol, row, arrays, gradients):
    """Outputs of MXNet, and the gradients of their sum of squares."""
    have = {f"x{number}": mx.nd.array(array, dtype=array.dtype) for number, array in enumerate(arrays)}
    values = {name: have[name] for name in symbol.list_arguments() if name in have}
    states = {name: have[name] for name in symbol.list_auxiliary_states()}
    grads = {name: mx.nd.zeros_like(value) for name, value in values.items()}
    kind = {name: "write" if gradients and int(name[1:]) not in row.still else "null" for name in values}
    executor = symbol.bind(mx.cpu(), values, args_grad=grads, grad_req=kind, aux_states=states)
    outputs = executor.forward(is_train=gradients)
    results = [output.asnumpy() for output in outputs]
    if gradients:
        executor.backward([mx.nd.array(result, dtype=result.dtype) for result in results])
    return results, {name: grad.asnumpy() for name, grad in grads.items()}


def assert_close(ours, theirs, what):
    ours = ours.detach().cpu().numpy()
    assert ours.shape == theirs.shape, what
    same = np.isnan(ours) == np.isnan(theirs)
    assert same.all(), what
    np.testing.assert_allclose(
        ours, theirs, rtol=1e-5, atol=1e-5 * max(1, np.nanmax(np.abs(theirs), initial=0)), err_msg=what
    )


BATCHES = (1, 3)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_operator_gives_what_mxnet_gives(torch, row):
    with switches(row.numpy):
        compare(torch, row)


def compare(torch, row):
    symbol, built = symbol_of(row), drawn(row, 2)
    for batch in BATCHES:
        arrays = drawn(row, batch)
        theirs, grads = by_mxnet(symbol, row, arrays, row.gradients)
        inputs = [
            torch.tensor(array, requires_grad=row.gradients and array.dtype == "float32" and number not in row.still)
            for number, array in enumerate(arrays)
        ]
        ours = evaluated(torch, row, symbol, inputs, built, nested=batch > 1)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            assert str(one.dtype)[6:] == other.dtype.name
            assert_close(one, other, f"{row.name}, batch {batch}")
        if row.gradients:
            sum((one * one.detach()).sum() for one in ours if one.requires_grad).backward()
            for number, value in enumerate(inputs):
                if value.grad is not None:
                    assert_close(value.grad, grads[f"x{number}"], f"{row.name}: gradient of input {number}")


@pytest.mark.parametrize("row", [row for row in ROWS if row.layer], ids=lambda row: row.name)
def test_a_layer_gives_what_mxnet_gives(torch, row):
    symbol, built = symbol_of(row), drawn(row, 2)
    (node,) = nodes_of(symbol, row, built)
    made = layer(node)
    module = eval(str(made.constructor), {"nn": torch.nn})
    missing, unexpected = module.load_state_dict(
        {key: torch.tensor(value) for key, value in made.state.items()}, strict=False
    )
    assert not unexpected
    assert set(missing) <= {"num_batches_tracked"}
    module.eval()
    for batch in BATCHES:
        arrays = drawn(row, batch)
        theirs, _ = by_mxnet(symbol, row, arrays, gradients=False)
        call = (made.call or "{layer}({0})").format("x", layer="module")
        names = {"module": module, "x": torch.tensor(arrays[0]), "torch": torch}
        for helper in helpers_used(call):
            exec(HEADER + HELPERS[helper], names)
        assert_close(eval(call, names), theirs[0], row.name)


def test_a_dropout_keeps_and_scales(torch):
    for axes, shape in (((), (40, 50)), ((1,), (400, 5)), ((1, 2), (400, 5, 3))):
        node = Node(
            "Dropout", {"p": "0.25", "axes": str(axes)}, ["x"], [shape], [shape], [None], ["float32"], "dropout0"
        )
        x = torch.ones(shape)
        y = eval(
            expression(node), {"x": x, "F": torch.nn.functional, "torch": torch, "self": SimpleNamespace(training=True)}
        )
        kept = y != 0
        assert torch.equal(y[kept], torch.full_like(y[kept], 4 / 3))
        assert 0.65 < kept.float().mean() < 0.85
        if axes:
            assert torch.equal(
                kept, kept[:, :1, ...].expand_as(kept) if len(shape) == 2 else kept[:, :1, :1].expand_as(kept)
            )


def test_batch_norm_keeps_the_momentum_and_leaves_a_fixed_scale(torch):
    (row,) = (row for row in ROWS if row.name == "BatchNorm scale")
    (node,) = nodes_of(symbol_of(row), row, drawn(row, 2))
    module = eval(str(layer(node).constructor), {"nn": torch.nn})
    assert (module.momentum, module.eps) == (0.2, 0.1)
    assert "self.training, momentum=0.2, eps=0.1" in expression(node)
    assert layer(node).frozen == ()
    assert layer(node._replace(attrs={**node.attrs, "fix_gamma": "True"})).frozen == ("weight",)


def refused_node(operator, shapes=((2, 3, 8, 8),), dtypes=("float32",), **attrs):
    inputs = [f"x{number}" for number in range(len(shapes))]
    text = {name: str(value) for name, value in attrs.items()}
    return Node(operator, text, inputs, list(shapes), [shapes[0]], [None] * len(shapes), list(dtypes), "node0")


RARE = (
    "_contrib_DeformableConvolution",
    *("amp_multicast", "im2col", "GridGenerator", "SpatialTransformer", "BilinearSampler", "Crop", "Pooling_v1"),
    *("batch_take", "argmax_channel", "nanprod", "gamma", "depth_to_space", "SequenceLast", "SoftmaxOutput"),
    *("_contrib_quadratic", "_contrib_MultiBoxDetection", "_contrib_MultiBoxPrior", "_linalg_potrf", "_linalg_det"),
)
TWO = ((2, 3, 8, 8), (3, 4, 3, 3))
REFUSED = [
    (refused_node("Custom", op_type="mine"), "a custom operator is Python code of its author"),
    (refused_node("_random_uniform"), "draws random numbers"),
    (refused_node("_sample_normal"), "draws random numbers"),
    (refused_node("_contrib_count_sketch"), "mxkit knows no equivalent"),
    (refused_node("_foreach"), "a loop over a subgraph"),
    (refused_node("RNN", mode="lstm"), "nn.LSTM"),
    (refused_node("Convolution", TWO, kernel=(3, 3), num_filter=4, layout="NHWC"), "layout=NHWC"),
    (refused_node("Pooling", kernel=(2, 2), pooling_convention="same"), "pooling_convention=same"),
    *((refused_node("Pooling", kernel=(2, 2), pool_type=kind), f"pool_type={kind}") for kind in ("sum", "lp")),
    (refused_node("Pooling", kernel=(2, 2), layout="NHWC"), "layout=NHWC"),
    (refused_node("Pooling", kernel=(3, 3), pad=(2, 2), pool_type="avg", count_include_pad=False), "above half"),
    (refused_node("_contrib_BilinearResize2D", mode="odd_scale"), "mode=odd_scale"),
    (refused_node("Deconvolution", TWO, kernel=(3, 3), num_filter=4, adj=(1, 1)), "output padding of (1, 1)"),
    (refused_node("LayerNorm", output_mean_var=True), "output_mean_var=True"),
    (refused_node("LeakyReLU", act_type="rrelu"), "draws its slopes"),
    (refused_node("pick", TWO, axis=None), "axis=None"),
    (refused_node("_contrib_box_iou", TWO, format="center"), "format=center"),
    (refused_node("_contrib_box_nms", in_format="center"), "in_format=center"),
    (refused_node("Pooling", kernel=(2, 2), stride=(3, 3), pooling_convention="full"), "torch drops windows"),
    (refused_node("_npi_norm", axis=(1, 2), flag=2, ord=2), "nuclear norm"),
    (refused_node("mean", dtypes=("int32",), axis=1), "the mean of int32; cast it to float32 before"),
    (refused_node("norm", dtypes=("int32",), axis=1), "the norm of int32"),
    (refused_node("RNN", mode="lstm", projection_size=3), "projection_size"),
    (refused_node("norm", out_dtype="float64"), "out_dtype"),
    (refused_node("_np_sum", initial=2.0), "initial"),
    (refused_node("Reshape", target_shape=(0, 6), keep_highest=True), "keep_highest=True"),
    (refused_node("Reshape", shape=(0, -4, 2, 3), reverse=True), "reverse=True with a split axis"),
    (refused_node("Cast", dtype="float8"), "dtype=float8 has no equivalent"),
    (refused_node("topk", ret_typ="mask"), "ret_typ=mask"),
    (refused_node("UpSampling", TWO, sample_type="bilinear", scale=2), "sample_type=bilinear"),
    *((refused_node(name), "mxkit knows no equivalent") for name in RARE),
    (refused_node("dot", shapes=((2, 3, 4), (4, 3)), transpose_b=True), "a transposed array of 3 dimensions"),
]


@pytest.mark.parametrize(
    ("node", "reason"), REFUSED, ids=lambda value: value.operator if isinstance(value, Node) else ""
)
def test_what_has_no_equivalent_is_refused_by_name(node, reason):
    with pytest.raises(ExportError, match=f"node0: operator {node.operator} cannot be converted") as raised:
        expression(node)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ({"projection_size": 3}, "projection_size"),
        ({"use_sequence_length": True}, "use_sequence_length=True"),
        ({"lstm_state_clip_min": -1.0}, "torch does not clip states"),
    ],
)
def test_an_rnn_that_torch_has_not_is_refused(attrs, reason):
    with pytest.raises(ExportError, match=reason):
        layer(refused_node("RNN", mode="lstm", **attrs))


def test_every_operator_of_the_table_is_compared():
    compared = set()
    for row in ROWS:
        with switches(row.numpy):
            compared |= {node["op"] for node in json.loads(symbol_of(row).tojson())["nodes"]}
    assert set(EXPRESSIONS) - {"_random_uniform"} <= compared  # that of Faster R-CNN's training


def test_regions_of_no_image_are_zeros(torch):
    """T272: MXNet's CPU leaves them unset, its GPU writes zeros."""
    names = {"torch": torch}
    for helper in helpers_used("roi_align()"):
        exec(HEADER + HELPERS[helper], names)
    boxes = torch.tensor([[0, 1, 1, 5, 5], [-1, 1, 1, 5, 5], [1, 1, 1, 5, 5]], dtype=torch.float32)
    assert names["roi_align"](torch.ones(1, 2, 8, 8), boxes, (2, 2), 1).mean(dim=(1, 2, 3)).tolist() == [1, 0, 0]


def test_helpers_are_named_by_the_expressions_that_call_them():
    assert helpers_used("box_nms(x) + cut_to(y.gamma(1))") == ["cut_to", "kept_boxes", "box_nms"]
    assert helpers_used("F.pad(x, (1, 1)) + self.box_nms(x)") == []
    assert names_used("torch.zeros((batch_size, 2), device=device)") == ["batch_size", "device"]
    assert names_used("x.device") == []
