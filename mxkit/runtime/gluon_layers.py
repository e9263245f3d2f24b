"""Repairs of Gluon's layers and of its zoo; `mxkit.runtime.repairs` lists them.

Layers that were written for `mx.nd` compute on views under `npx.set_np()`: MXNet calls them with arrays of `mx.np`,
which operators of `mx.nd` refuse. T200: threads trace in turn.
"""

import functools
import os
import threading
from types import ModuleType
from typing import Any

from mxkit.runtime.graphs import faster_graph
from mxkit.runtime.libraries import PACKAGES
from mxkit.runtime.operators import around, mxnet_module, replace

_tracing = threading.RLock()


def _lock_of_a_child() -> None:
    global _tracing
    _tracing = threading.RLock()  # the thread that held the other one does not live here


os.register_at_fork(after_in_child=_lock_of_a_child)


#: The attribute of a library's block that holds the arguments of its constructor. Gluon does not look for forgotten
#: children in attributes with such names.
LIBRARY_CALL = "__mxkit_call__"
#: The attribute of a block whose graphs compute by faster operators.
FASTER = "__mxkit_faster__"


def library_blocks(module: ModuleType) -> None:
    """Blocks of the `PACKAGES` keep the arguments that they were made with, for `save_net`.

    MXNet keeps a net's parameters alone. `__new__` of Block would hide the constructors' arguments from
    `inspect.signature` before Python 3.13.
    """

    def kept(kind: Any, **options: Any) -> None:
        super(module.Block, kind).__init_subclass__(**options)
        if kind.__module__.partition(".")[0] in PACKAGES:
            kind.__init__ = _recording(own_constructor(kind))

    module.Block.__init_subclass__ = classmethod(kept)  # type: ignore[arg-type]


def own_constructor(kind: Any) -> Any:
    """A class's own constructor; without one, a function that calls that of the next class in an instance's order.

    A class that got its first base's constructor for its own would skip the second base of its subclasses.
    """
    if "__init__" in vars(kind):
        return kind.__init__

    @functools.wraps(kind.__init__)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        super(kind, self).__init__(*args, **kwargs)

    return __init__


def _recording(init: Any) -> Any:
    """A constructor that keeps the arguments of the outermost call."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if type(self).__module__.partition(".")[0] in PACKAGES:
            vars(self).setdefault(LIBRARY_CALL, snapshot((args, kwargs)))
        init(self, *args, **kwargs)

    return __init__


def snapshot(value: Any) -> Any:
    """Copy the containers of a value.

    >>> sizes = [1]; copied = snapshot({"sizes": sizes}); sizes.append(2); copied
    {'sizes': [1]}
    """
    if type(value) is dict:
        return {name: snapshot(one) for name, one in value.items()}
    return type(value)(map(snapshot, value)) if type(value) in (list, tuple) else value


def trace_in_turn(module: ModuleType) -> None:
    """T200: two threads that call a new hybridized block, like a DataLoader's with `thread_pool`, trace it at once.

    Blocks with the attribute `FASTER` get the graphs of `faster_graph`, but not those that amp replaces: its lists
    know the operators of the net. Upstream: `gluon/block.py` lines 80 to 92, where a block keeps the scope that it has
    entered, and 1199.
    """

    def call(upstream: Any, self: Any, *args: Any) -> Any:
        if self._cached_op is None:
            with _tracing:
                if self._cached_op is None:
                    self._build_cache(*args)
        return upstream(self, *args)

    def graph(upstream: Any, self: Any, *args: Any) -> Any:
        with _tracing:
            before, own = self._cached_graph, vars(self)
            inputs, output = upstream(self, *args)
            if FASTER in own and not before and "_get_graph" not in own:
                self._cached_graph = inputs, faster_graph(output)
            return self._cached_graph

    replace(vars(module)["HybridBlock"], _call_cached_op=around(call), _get_graph=around(graph))


def basic_layers(module: ModuleType) -> None:
    """T149: `BatchNormReLU` leaves out its ReLU.

    Upstream: `gluon/nn/basic_layers.py` line 371.
    """

    def with_relu(upstream: Any, self: Any, F: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
        output = upstream(self, F, *args, **kwargs)
        return F.npx.relu(output) if self.fuse_relu and _is_numpy() else output

    replace(vars(module)["_BatchNorm"], hybrid_forward=around(with_relu))


#: By module: its layers that were written for `mx.nd`.
_FOR_ND = {
    "mxnet.gluon.nn.basic_layers": ("GroupNorm", "InstanceNorm"),
    "mxnet.gluon.nn.conv_layers": ("ReflectionPad2D",),
    "mxnet.gluon.contrib.nn.basic_layers": ("PixelShuffle1D", "PixelShuffle2D", "PixelShuffle3D", "SyncBatchNorm"),
    "mxnet.gluon.model_zoo.vision.mobilenet": ("RELU6",),
}


def layers_for_nd(module: ModuleType) -> None:
    """Let the layers of `_FOR_ND` compute on views. Upstream: for example `gluon/nn/conv_layers.py` line 1245."""
    for name in _FOR_ND[module.__name__]:
        replace(vars(module)[name], hybrid_forward=around(_on_views))


def _on_views(upstream: Any, self: Any, F: Any, *inputs: Any, **parameters: Any) -> Any:  # noqa: N803
    if not _is_numpy():
        return upstream(self, F, *inputs, **parameters)
    views = {name: parameter.as_nd_ndarray() for name, parameter in parameters.items()}
    return upstream(self, F, *[one.as_nd_ndarray() for one in inputs], **views).as_np_ndarray()


def concurrent_layers(module: ModuleType) -> None:
    """Repair `HybridConcurrent`. Upstream: `gluon/contrib/nn/basic_layers.py` line 93."""

    def with_views(upstream: Any, self: Any, F: Any, x: Any) -> Any:  # noqa: N803
        outputs = [block(x) for block in self._children.values()]
        joined = F.concat(*[output.as_nd_ndarray() for output in outputs], dim=self.axis)
        return joined.as_np_ndarray() if _is_numpy() else joined

    replace(vars(module)["HybridConcurrent"], hybrid_forward=around(with_views))


def mobilenet_layers(module: ModuleType) -> None:
    """Repair `LinearBottleneck`. Upstream: `gluon/model_zoo/vision/mobilenet.py` line 94."""

    def added(upstream: Any, self: Any, F: Any, x: Any) -> Any:  # noqa: N803
        return self.out(x) + x if _is_numpy() and self.use_shortcut else upstream(self, F, x)

    replace(vars(module)["LinearBottleneck"], hybrid_forward=around(added))


def _is_numpy() -> bool:
    return bool(mxnet_module("util").is_np_array())


def dropout_layer(module: ModuleType) -> None:
    """T125: the layer selects cuDNN's generator explicitly. Upstream: `gluon/nn/basic_layers.py` line 271."""

    def with_own_generator(upstream: Any, self: Any, F: Any, x: Any) -> Any:  # noqa: N803
        if self._rate <= 0:
            return upstream(self, F, x)
        dropout = F.npx.dropout if module.is_np_array() else F.Dropout
        return dropout(x, p=self._rate, axes=self._axes, name="fwd", cudnn_off=True)

    replace(module.Dropout, hybrid_forward=around(with_own_generator))


def symbol_blocks(module: ModuleType) -> None:
    """T164: a SymbolBlock with one output fails inside a graph, because such a symbol is not iterable.

    Upstream: `gluon/block.py` line 1693.
    """
    block: Any = module

    def with_one_output(upstream: Any, self: Any, x: Any, *args: Any) -> Any:
        inputs, graph = self._cached_graph
        values, form = block._flatten([x, *args], "input")
        of_numpy = type(x) is type(graph) is not block.Symbol
        if not of_numpy or len(graph.list_outputs()) > 1 or form != self._in_format:
            return upstream(self, x, *args)
        composed = block.copy.copy(graph)
        composed._compose(**{variable.name: value for variable, value in zip(inputs, values)})
        return block._regroup([composed], self._out_format)

    replace(block.SymbolBlock, forward=around(with_one_output))


def recurrent_states(module: ModuleType) -> None:
    """T165: a recurrent layer that makes its own states fails in a graph: 0 samples are a size there, not unknown.

    Upstream: `gluon/rnn/rnn_layer.py` line 235.
    """
    layers: Any = module

    def with_unknown_samples(
        upstream: Any, self: Any, batch_size: int = 0, func: Any = layers.ndarray.zeros, **kwargs: Any
    ) -> Any:
        unknown = batch_size == 0 and func is layers.symbol.zeros and layers.is_np_array()
        return upstream(self, -1 if unknown else batch_size, func, **kwargs)

    replace(layers._RNNLayer, begin_state=around(with_unknown_samples))
