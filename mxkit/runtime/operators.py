"""Dropout that a seed reaches on a GPU; gradients of BatchNorm and max pooling while a net predicts: operators called
in the way that makes them right."""

import functools
import json
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, Tuple

Operator = Callable[..., Any]

# Positions of arguments that may be given without their names.
_CUDNN_OFF = 4
_USE_GLOBAL_STATS = 8


def seeded(dropout: Operator) -> Operator:
    """Dropout from MXNet's own generator, where `cudnn_off` is not given (T125).

    cuDNN's generator starts from C's `rand()` (`src/operator/nn/dropout-inl.h` line 494), and `mx.random.seed` never
    reaches it (`src/resource.cc` lines 173 to 185; apache/mxnet#15662). The CPU ignores the argument.
    """

    @functools.wraps(dropout)
    def run(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= _CUDNN_OFF:
            kwargs.setdefault("cudnn_off", True)
        return dropout(*args, **kwargs)

    return run


def predicting(batch_norm: Operator) -> Operator:
    """BatchNorm that, recorded while it predicts, has the gradient of what it computed (T130).

    `backward` asks whether *it* runs in training, which is its default, and takes the statistics of the batch then; on
    a GPU it takes them in either case (`src/operator/nn/cudnn/cudnn_batch_norm-inl.h` line 196; apache/mxnet#18209).
    """

    @functools.wraps(batch_norm)
    def run(*args: Any, **kwargs: Any) -> Any:
        if records_prediction():
            if len(args) > _USE_GLOBAL_STATS:
                args = (*args[:_USE_GLOBAL_STATS], True, *args[_USE_GLOBAL_STATS + 1 :])
            else:
                kwargs["use_global_stats"] = True
        return batch_norm(*args, **kwargs)

    return run


def records_prediction() -> bool:
    """Whether gradients are recorded outside of training mode, as in `autograd.record(train_mode=False)`."""
    autograd = _autograd()
    return bool(autograd.is_recording() and not autograd.is_training())


def replace(module: ModuleType, **replacements: Callable[[Operator], Operator]) -> None:
    """Put replacements into a module of operators, once."""
    for name, replacement in replacements.items():
        upstream = vars(module).get(name)
        if upstream is not None and not hasattr(upstream, "__wrapped__"):
            setattr(module, name, replacement(upstream))


def with_workspace(pooling: Operator) -> Operator:
    """Pooling that, recorded while it predicts, keeps what its gradient needs (T137).

    oneDNN writes down which element was the largest in training mode only, and `backward` reads it in either case
    (`src/operator/nn/mkldnn/mkldnn_pooling.cc` line 58). The mode changes nothing else of a pooling.
    """

    @functools.wraps(pooling)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not records_prediction():
            return pooling(*args, **kwargs)
        with _autograd().train_mode():
            return pooling(*args, **kwargs)

    return run


def predicting_graphs(cached_op: Any) -> Any:
    """The class of MXNet's compiled graphs, with `predicting` and `with_workspace` for the operators inside."""

    class CachedOp(cached_op):  # type: ignore[misc]
        __slots__ = ("_made_of", "_predicting")

        def __init__(self, sym: Any, flags: Any = ()) -> None:
            super().__init__(sym, flags)
            self._made_of = sym, flags
            self._predicting: Any = None

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not records_prediction():
                return super().__call__(*args, **kwargs)
            if self._predicting is None:
                graph, trains = predicting_graph(self._made_of[0])
                self._predicting = (cached_op(graph, self._made_of[1]), trains) if graph is not None else ()
            if not self._predicting:
                return super().__call__(*args, **kwargs)
            graph, trains = self._predicting
            if not trains:
                return graph(*args, **kwargs)
            with _autograd().train_mode():
                return graph(*args, **kwargs)

    return CachedOp


def predicting_graph(graph: Any) -> Tuple[Any, bool]:
    """A graph that predicts and has the gradient of that.

    Args:
        graph: A Symbol.

    Returns:
        The graph, or None where this one is right; and whether it is to be run in training mode, for the sake of max
        pooling: what would behave as in training then has got other arguments.

    Raises:
        NotImplementedError: There is max pooling beside a Custom operator, which is told the mode.
    """
    content = json.loads(graph.tojson())
    nodes = list(_nodes(content))
    trains = any(name == "Pooling" and given.get("pool_type", "max") == "max" for name, given in nodes)
    if trains and any(name == "Custom" for name, _ in nodes):
        raise NotImplementedError(
            "the gradient of max pooling in predict mode is wrong in MXNet (T137), and mxkit cannot mend it in a graph "
            "with a custom operator: leave the net without a graph for it, net.hybridize(False)"
        )
    changed = [_predicts(name, given, trains) for name, given in nodes]
    if not trains and not any(changed):
        return None, False
    from mxnet import symbol

    found = symbol.load_json(json.dumps(content))
    return found if type(graph) is symbol.Symbol else found.as_np_ndarray(), trains


def _nodes(graph: Any) -> Iterator[Tuple[str, Dict[str, str]]]:
    """Operators and their arguments, which may be changed, also in bodies of loops."""
    for node in graph["nodes"]:
        yield node["op"], node.setdefault("attrs", {}) if node["op"] != "null" else {}
        for body in node.get("subgraphs", ()):
            yield from _nodes(body)


def _predicts(name: str, given: Dict[str, str], trains: bool) -> bool:
    """Have an operator do in either mode what it does in predict mode; say whether that changed it."""
    before = dict(given)
    if "BatchNorm" in name:
        given["use_global_stats"] = "True"
    elif trains and name in ("Dropout", "RNN") and given.get("mode") != "always":
        given["p"] = "0"
    elif trains and name == "LeakyReLU" and given.get("act_type") == "rrelu":
        bounds = float(given.get("lower_bound", 0.125)), float(given.get("upper_bound", 0.334))
        given.update(act_type="leaky", slope=repr(sum(bounds) / 2))
    return given != before


def _autograd() -> Any:
    return sys.modules["mxnet.autograd"]  # an import statement would be a third of the cost
