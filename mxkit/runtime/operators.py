"""Dropout that a seed reaches on a GPU, and BatchNorm's gradient while a net predicts: two operators called with the
arguments that make them right."""

import functools
import json
import sys
from types import ModuleType
from typing import Any, Callable, Iterator, List

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
    autograd = sys.modules["mxnet.autograd"]  # an import statement would be a third of the cost
    return bool(autograd.is_recording() and not autograd.is_training())


def replace(module: ModuleType, **replacements: Callable[[Operator], Operator]) -> None:
    """Put replacements into a module of operators, once."""
    for name, replacement in replacements.items():
        upstream = vars(module).get(name)
        if upstream is not None and not hasattr(upstream, "__wrapped__"):
            setattr(module, name, replacement(upstream))


def predicting_graphs(cached_op: Any) -> Any:
    """The class of MXNet's compiled graphs, with `predicting` for the BatchNorms inside."""

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
                graph = with_running_statistics(self._made_of[0])
                self._predicting = graph is not None and cached_op(graph, self._made_of[1])
            return self._predicting(*args, **kwargs) if self._predicting else super().__call__(*args, **kwargs)

    return CachedOp


def with_running_statistics(graph: Any) -> Any:
    """A graph whose BatchNorms take their running statistics in training too; None where that changes nothing."""
    content = json.loads(graph.tojson())
    arguments = [node.setdefault("attrs", {}) for node in _batch_norms(content)]
    changed = [one for one in arguments if one.get("use_global_stats", "False").lower() not in ("true", "1")]
    if not changed:
        return None
    for one in changed:
        one["use_global_stats"] = "True"
    from mxnet import symbol

    found = symbol.load_json(json.dumps(content))
    return found if type(graph) is symbol.Symbol else found.as_np_ndarray()


def _batch_norms(graph: Any) -> Iterator[Any]:
    """Nodes of BatchNorm, also in bodies of loops."""
    nodes: List[Any] = graph["nodes"]
    for node in nodes:
        if "BatchNorm" in node["op"]:
            yield node
        for body in node.get("subgraphs", ()):
            yield from _batch_norms(body)
