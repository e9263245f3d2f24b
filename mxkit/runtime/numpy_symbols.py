"""Repairs of graphs of `mx.np`: copies of symbols, SymbolBlocks inside graphs, and states of recurrent layers."""

from types import ModuleType
from typing import Any

from mxkit.runtime.operators import replace


def copied_symbols(module: ModuleType) -> None:
    """T164: a copy of a symbol shares its operators, so that composing the copy changes the original.

    Upstream: `symbol/numpy/_symbol.py` line 243.
    """

    def with_own_operators(upstream: Any) -> Any:
        return lambda symbol, _: module.Symbol.__deepcopy__(symbol, None).as_np_ndarray()

    replace(module._Symbol, __deepcopy__=with_own_operators)


def symbol_blocks(module: ModuleType) -> None:
    """T164: a SymbolBlock with one output fails inside a graph, because such a symbol is not iterable.

    Upstream: `gluon/block.py` line 1693.
    """
    block: Any = module

    def with_one_output(upstream: Any) -> Any:
        def forward(self: Any, x: Any, *args: Any) -> Any:
            inputs, graph = self._cached_graph
            values, form = block._flatten([x, *args], "input")
            of_numpy = type(x) is type(graph) is not block.Symbol
            if not of_numpy or len(graph.list_outputs()) > 1 or form != self._in_format:
                return upstream(self, x, *args)
            composed = block.copy.copy(graph)
            composed._compose(**{variable.name: value for variable, value in zip(inputs, values)})
            return block._regroup([composed], self._out_format)

        return forward

    replace(block.SymbolBlock, forward=with_one_output)


def recurrent_states(module: ModuleType) -> None:
    """T165: a recurrent layer that makes its own states fails in a graph: 0 samples are a size there, not unknown.

    Upstream: `gluon/rnn/rnn_layer.py` line 235.
    """
    layers: Any = module

    def with_unknown_samples(upstream: Any) -> Any:
        def begin_state(self: Any, batch_size: int = 0, func: Any = layers.ndarray.zeros, **kwargs: Any) -> Any:
            unknown = batch_size == 0 and func is layers.symbol.zeros and layers.is_np_array()
            return upstream(self, -1 if unknown else batch_size, func, **kwargs)

        return begin_state

    replace(layers._RNNLayer, begin_state=with_unknown_samples)
