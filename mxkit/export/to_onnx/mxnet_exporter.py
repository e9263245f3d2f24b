"""MXNet's own ONNX exporter (`mxnet.onnx`) with what today's onnx package needs around it."""

from contextlib import contextmanager
import sys
import threading
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple
from unittest import mock

import mxnet as mx
import numpy as np

OPSET = 13  # the newest that MXNet's conversions know
_IR = 8
_LOCK = threading.RLock()
Converter = Callable[..., Any]


def registered() -> Dict[str, Converter]:
    """MXNet's conversions by operator, the newest of each."""
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

    return {**MXNetGraph.registry_.get(12, {}), **MXNetGraph.registry_.get(13, {})}


def convert(
    symbol: Any,
    arrays: Mapping[str, Any],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    own: Mapping[str, Converter],
) -> Any:
    """Convert a graph, with any batch size.

    Args:
        symbol: The graph.
        arrays: By the variable's name.
        shapes: Of the inputs, in their order.
        dtypes: Of the inputs.
        own: Conversions by operator that are used instead of MXNet's.

    Returns:
        An onnx ModelProto.
    """
    from onnx import helper
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

    free = [("N", *shape[1:]) for shape in shapes]
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in dtypes]
    with _todays_onnx(), _conversions(own):
        graph = MXNetGraph().create_onnx_graph_proto(
            symbol, dict(arrays), list(shapes), types, opset_version=OPSET, dynamic=True, dynamic_input_shapes=free
        )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR, producer_name="mxkit"
    )


@contextmanager
def _conversions(own: Mapping[str, Converter]) -> Iterator[None]:
    from mxnet.onnx.mx2onnx._export_onnx import MXNetGraph

    with mock.patch.dict(MXNetGraph.registry_[OPSET], own):
        yield


@contextmanager
def _todays_onnx() -> Iterator[None]:
    """Lend onnx the module `mapping`, gone since 1.19, and leave out the check of the graph by the newest opset."""
    import onnx
    from onnx import checker, helper

    mapping = ModuleType("onnx.mapping")
    numbers = [number for number in onnx.TensorProto.DataType.values() if number]
    known = {}
    for number in numbers:
        try:
            known[number] = helper.tensor_dtype_to_np_dtype(number)
        except (KeyError, ValueError, TypeError):
            continue
    mapping.TENSOR_TYPE_TO_NP_TYPE = known
    mapping.NP_TYPE_TO_TENSOR_TYPE = {dtype: number for number, dtype in reversed(list(known.items()))}
    with _LOCK, mock.patch.dict(sys.modules, {"onnx.mapping": mapping}), mock.patch.object(
        onnx, "mapping", mapping, create=True
    ), mock.patch.object(checker, "check_graph", lambda *_, **__: None):
        yield
