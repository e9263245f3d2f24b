"""Operators as PyTorch computes them, against MXNet, at two batch sizes and with gradients."""

import json
from types import SimpleNamespace

from mxkit.export.to_torch.functional import HELPERS, expression, helpers_used, names_used
from mxkit.export.to_torch.layers import layer
from mxkit.export.to_torch.node import Node
import mxnet as mx
import numpy as np
from operator_rows import ROWS
import pytest

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def shapes_of(row, batch):
    return [tuple({"B": batch, "2B": 2 * batch}.get(size, size) for size in shape) for shape in row.shapes]


def drawn(row, batch, seed=0):
    """Inputs of a row; the parameters do not depend on the batch size."""
    arrays = []
    for number, shape in enumerate(shapes_of(row, batch)):
        random = np.random.default_rng(1000 * seed + number)
        draw = (row.draw or {}).get(number)
        arrays.append(draw(random, shape) if draw else random.normal(size=shape).astype("float32"))
    return arrays


def variables(row):
    return [mx.sym.var(f"x{number}") for number in range(len(row.shapes))]


def nodes_of(symbol, row, arrays):
    """Yield the operators of a symbol as Nodes, with the number of each in the symbol and its inputs' entries."""
    given = {f"x{number}": array for number, array in enumerate(arrays)}
    internals = symbol.get_internals()
    described = json.loads(internals.tojson())
    have = set(symbol.list_inputs())
    shapes, auxiliary = {}, internals.list_auxiliary_states()
    known = {name: array.shape for name, array in given.items() if name in have}
    _, outputs, _ = internals.infer_shape(**known)
    types = {name: array.dtype for name, array in given.items() if name in have}
    _, dtypes, _ = internals.infer_type(**types)
    kinds = {}
    for (number, output, *_), shape, dtype in zip(described["heads"], outputs, dtypes):
        shapes[number, output], kinds[number, output] = shape, np.dtype(dtype).name
    assert auxiliary is not None
    for number, one in enumerate(described["nodes"]):
        if one["op"] != "null":
            entries = [(source, output) for source, output, *_ in one["inputs"]]
            names = [described["nodes"][source]["name"] for source, _ in entries]
            own = [shapes[key] for key in sorted(shapes) if key[0] == number]
            parameters = [f"x{place}" for place in row.parameters]
            values = [given[name] if name in parameters else None for name in names]
            expressions = [name if name in given else f"v{entry[0]}_{entry[1]}" for name, entry in zip(names, entries)]
            yield number, Node(
                one["op"], one.get("attrs", {}), expressions, [tuple(shapes[entry]) for entry in entries],
                [tuple(shape) for shape in own], values, [kinds[entry] for entry in entries], one["name"],
            )  # fmt: skip


def evaluated(torch, row, symbol, inputs, built):
    """Outputs of a symbol by the expressions of its operators, converted from arrays of another batch size."""
    nn = torch.nn.functional
    names = {f"x{number}": value for number, value in enumerate(inputs)}
    names.update(torch=torch, F=nn, self=SimpleNamespace(training=False), device=inputs[0].device, batch_size=None)
    described = json.loads(symbol.tojson())
    results = {}
    for number, node in nodes_of(symbol, row, built):
        code = expression(node)
        for helper in helpers_used(code):
            exec(HEADER + HELPERS[helper], names)
        assert set(names_used(code)) <= {"device"}
        result = eval(code, names)
        many = result if len(node.outputs) > 1 else [result]
        assert isinstance(many, (list, tuple))
        assert len(many) == len(node.outputs), code
        for output, value in enumerate(many):
            results[number, output] = names[f"v{number}_{output}"] = value
    internals = json.loads(symbol.get_internals().tojson())
    order = {node["name"]: place for place, node in enumerate(internals["nodes"])}
    return [results[order[described["nodes"][number]["name"]], output] for number, output, *_ in described["heads"]]


HEADER = "import torch\nimport torch.nn.functional as F\nfrom typing import Optional, Sequence\n"


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
    symbol, built = row.make(*variables(row)), drawn(row, 2)
    for batch in BATCHES:
        arrays = drawn(row, batch)
        theirs, grads = by_mxnet(symbol, row, arrays, row.gradients)
        inputs = [torch.tensor(array, requires_grad=row.gradients and array.dtype == "float32") for array in arrays]
        ours = evaluated(torch, row, symbol, inputs, built)
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
    symbol, built = row.make(*variables(row)), drawn(row, 2)
    ((_, node),) = nodes_of(symbol, row, built)
    made = layer(node)
    module = eval(made.constructor, {"nn": torch.nn})
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
        assert_close(eval(call, {"module": module, "x": torch.tensor(arrays[0])}), theirs[0], row.name)
