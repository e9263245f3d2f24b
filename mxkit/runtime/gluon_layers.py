"""Layers of Gluon and its zoo that were written for `mx.nd`: under `npx.set_np()` their operators compute on views.

There MXNet calls layers with arrays of `mx.np`, which operators of `mx.nd` refuse. T200: threads trace in turn.
"""

import os
import threading
from types import ModuleType
from typing import Any

from mxkit.runtime.operators import dropout_layer, replace

_tracing = threading.RLock()


def _lock_of_a_child() -> None:
    global _tracing
    _tracing = threading.RLock()  # the thread that held the other one does not live here


os.register_at_fork(after_in_child=_lock_of_a_child)


def trace_in_turn(module: ModuleType) -> None:
    """T200: two threads that call a new hybridized block, like a DataLoader's with `thread_pool`, trace it at once.

    Upstream: `gluon/block.py` lines 80 to 92, where a block keeps the scope that it has entered, and 1199.
    """

    def call(upstream: Any) -> Any:
        def _call_cached_op(self: Any, *args: Any) -> Any:
            if self._cached_op is None:
                with _tracing:
                    if self._cached_op is None:
                        self._build_cache(*args)
            return upstream(self, *args)

        return _call_cached_op

    def graph(upstream: Any) -> Any:
        def _get_graph(self: Any, *args: Any) -> Any:
            with _tracing:
                return upstream(self, *args)

        return _get_graph

    replace(vars(module)["HybridBlock"], _call_cached_op=call, _get_graph=graph)


def basic_layers(module: ModuleType) -> None:
    """T149: `BatchNormReLU` leaves out its ReLU. T125 as `dropout_layer`.

    Upstream: `gluon/nn/basic_layers.py` line 371.
    """

    def with_relu(upstream: Any) -> Any:
        def hybrid_forward(self: Any, F: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
            output = upstream(self, F, *args, **kwargs)
            return F.npx.relu(output) if self.fuse_relu and _is_numpy() else output

        return hybrid_forward

    dropout_layer(module)
    replace(vars(module)["_BatchNorm"], hybrid_forward=with_relu)
    for name in ("GroupNorm", "InstanceNorm"):
        replace(vars(module)[name], hybrid_forward=_on_views)


def convolution_layers(module: ModuleType) -> None:
    """Repair `ReflectionPad2D`. Upstream: `gluon/nn/conv_layers.py` line 1245."""
    replace(vars(module)["ReflectionPad2D"], hybrid_forward=_on_views)


def _on_views(upstream: Any) -> Any:
    def hybrid_forward(self: Any, F: Any, *inputs: Any, **parameters: Any) -> Any:  # noqa: N803
        if not _is_numpy():
            return upstream(self, F, *inputs, **parameters)
        views = {name: parameter.as_nd_ndarray() for name, parameter in parameters.items()}
        return upstream(self, F, *[one.as_nd_ndarray() for one in inputs], **views).as_np_ndarray()

    return hybrid_forward


def concurrent_layers(module: ModuleType) -> None:
    """Repair `HybridConcurrent`. Upstream: `gluon/contrib/nn/basic_layers.py` line 93."""

    def with_views(upstream: Any) -> Any:
        def hybrid_forward(self: Any, F: Any, x: Any) -> Any:  # noqa: N803
            outputs = [block(x) for block in self._children.values()]
            joined = F.concat(*[output.as_nd_ndarray() for output in outputs], dim=self.axis)
            return joined.as_np_ndarray() if _is_numpy() else joined

        return hybrid_forward

    replace(vars(module)["HybridConcurrent"], hybrid_forward=with_views)
    for name in ("PixelShuffle1D", "PixelShuffle2D", "PixelShuffle3D", "SyncBatchNorm"):
        replace(vars(module)[name], hybrid_forward=_on_views)


def mobilenet_layers(module: ModuleType) -> None:
    """Repair `RELU6` and `LinearBottleneck`. Upstream: `gluon/model_zoo/vision/mobilenet.py` lines 44 and 94."""

    def clipped(upstream: Any) -> Any:
        def hybrid_forward(self: Any, F: Any, x: Any) -> Any:  # noqa: N803
            y = upstream(self, F, x.as_nd_ndarray())
            return y.as_np_ndarray() if _is_numpy() else y

        return hybrid_forward

    def added(upstream: Any) -> Any:
        def hybrid_forward(self: Any, F: Any, x: Any) -> Any:  # noqa: N803
            return self.out(x) + x if _is_numpy() and self.use_shortcut else upstream(self, F, x)

        return hybrid_forward

    replace(vars(module)["RELU6"], hybrid_forward=clipped)
    replace(vars(module)["LinearBottleneck"], hybrid_forward=added)


def _is_numpy() -> bool:
    from mxnet.util import is_np_array

    return bool(is_np_array())
