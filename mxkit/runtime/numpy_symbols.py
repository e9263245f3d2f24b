"""Repairs of graphs: copies of symbols, SymbolBlocks in graphs, states of recurrent layers, second outputs alone."""

from types import ModuleType
from typing import Any

from mxkit.runtime.gluon_layers import trace_in_turn
from mxkit.runtime.operators import Operator, mxnet_module, replace


def copied_symbols(module: ModuleType) -> None:
    """T164: a copy of a symbol shares its operators, so that composing the copy changes the original.

    Upstream: `symbol/numpy/_symbol.py` line 243.
    """

    def with_own_operators(upstream: Any) -> Any:
        return lambda symbol, _: module.Symbol.__deepcopy__(symbol, None).as_np_ndarray()

    replace(module._Symbol, __deepcopy__=with_own_operators)


def symbol_blocks(module: ModuleType) -> None:
    """T164: a SymbolBlock with one output fails inside a graph, because such a symbol is not iterable. T200, too.

    Upstream: `gluon/block.py` line 1693.
    """
    trace_in_turn(module)
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


def moments_in_graphs(moments: Operator) -> Operator:
    """`moments` whose variance needs its mean (T239): where a graph leaves the mean out, the operator takes 0 for it.

    The variance goes through an operator that reads both; ones that read shapes alone do not count.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        mean, variance = moments(*args, **kwargs)
        symbol = mxnet_module("symbol")
        both = symbol.stack(variance, mean, axis=0)
        return symbol.Group([mean, symbol.squeeze(symbol.slice_axis(both, axis=0, begin=0, end=1), axis=0)])

    return run


def eigenvectors(module: ModuleType) -> None:
    """T239: `np.linalg.eigh` writes no eigenvectors where a graph leaves the eigenvalues out.

    Upstream: `symbol/numpy/linalg.py` line 892.
    """

    def with_both(eigh: Operator) -> Operator:
        def run(*args: Any, **kwargs: Any) -> Any:
            values, vectors = eigh(*args, **kwargs)
            symbol = mxnet_module("symbol")
            column = symbol.expand_dims(values.as_nd_ndarray(), axis=-1)
            both = symbol.concat(vectors.as_nd_ndarray(), column, dim=-1)
            return [values, symbol.slice_axis(both, axis=-1, begin=0, end=-1).as_np_ndarray()]

        return run

    replace(module, eigh=with_both)
