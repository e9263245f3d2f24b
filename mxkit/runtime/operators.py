"""Operators of MXNet that are called in another way, so that they are right: Dropout that a seed reaches on a GPU, and
gradients of what a net computes while it predicts."""

import functools
import json
import sys
from typing import Any, Callable, Dict, Iterator, Tuple

from mxkit.runtime.gpus import is_gpu

Operator = Callable[..., Any]

# Klambauer et al. 2017, arXiv:1706.02515
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
_CUDNN_OFF = 4  # its position among Dropout's arguments


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


def predicting(**arguments: Tuple[int, Any]) -> Callable[[Operator], Operator]:
    """An operator that, recorded in predict mode, runs in training mode with arguments that make it predict.

    Only so does its gradient find what it needs, and belongs to what was computed. BatchNorm's asks whether `backward`
    runs in training mode, which is its default, and takes the batch's statistics then; cuDNN's takes them in either
    case (T130; `cudnn_batch_norm-inl.h` line 196; apache/mxnet#18209). oneDNN's max pooling writes the positions of
    the largest elements in training mode only, and its gradient reads them in either (T137; `mkldnn_pooling.cc` line
    58); so do BatchNorm with ReLU, and recurrent layers on a GPU (`rnn-inl.h`).

    Args:
        arguments: Position and value by name.
    """

    def replacement(operator: Operator) -> Operator:
        @functools.wraps(operator)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not records_prediction():
                return operator(*args, **kwargs)
            for name, (position, value) in arguments.items():
                if len(args) > position:
                    args = (*args[:position], value, *args[position + 1 :])
                else:
                    kwargs[name] = value
            with _autograd().train_mode():
                return operator(*args, **kwargs)

        return run

    return replacement


def right_selu(leaky_relu: Operator) -> Operator:
    """SELU with its own gradient, from ELU (T139): MXNet's is off by a third below 0, in training too."""

    @functools.wraps(leaky_relu)
    def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("act_type") != "selu":
            return leaky_relu(*args, **kwargs)
        return leaky_relu(*args, **{**kwargs, "act_type": "elu", "slope": _SELU_ALPHA}) * _SELU_SCALE

    return run


# Classes of Custom operators by name, as they were registered.
PROPERTIES: Dict[str, Any] = {}


def apart(custom: Operator) -> Operator:
    """A Custom operator whose inputs, outputs and gradients lie in memory of their own (T138).

    It runs in a thread of Python's, and others go on before it ends. What oneDNN keeps of an array in its blocked
    layout is used again by then: the operator reads and writes other numbers, now and then, from 8 channels on.
    `repeat` copies, shares no memory and knows no blocked layout.
    """

    @functools.wraps(custom)
    def run(*args: Any, **kwargs: Any) -> Any:
        property_class = PROPERTIES.get(str(kwargs.get("op_type")))
        base = sys.modules["mxnet.operator"].CustomOpProp.list_auxiliary_states
        # an auxiliary state is written by the operator, and cannot be a copy
        stateless = property_class is not None and property_class.list_auxiliary_states is base
        found = custom(
            *[_copied(one, stateless) for one in args],
            **{name: _copied(one, stateless) for name, one in kwargs.items()},
        )
        symbol = sys.modules["mxnet.symbol"]
        if isinstance(found, symbol.Symbol):
            outputs = [_copied(one, True) for one in found]
            return outputs[0] if len(outputs) == 1 else symbol.Group(outputs)
        if not _autograd().is_recording() or kwargs.get("out") is not None:
            return found
        return [_copied(one, True) for one in found] if isinstance(found, list) else _copied(found, True)

    return run


def _copied(value: Any, stateless: bool) -> Any:
    symbol, ndarray = sys.modules["mxnet.symbol"], sys.modules["mxnet.ndarray"]
    if type(value) is symbol.Symbol and (stateless or value.get_children() is not None):
        return symbol.repeat(value, repeats=1, axis=0)
    if type(value) is ndarray.NDArray and stateless and value.shape:
        return ndarray.repeat(value, repeats=1, axis=0)
    return value


def records_prediction() -> bool:
    """Whether gradients are recorded in predict mode, as in `autograd.record(train_mode=False)`."""
    autograd = _autograd()
    return bool(autograd.is_recording() and not autograd.is_training())


def replace(module: Any, **replacements: Callable[[Any], Any]) -> None:
    """Replace names of a module, and of all modules of MXNet that took them over. A second call changes nothing."""
    for name, replacement in replacements.items():
        upstream = vars(module).get(name)
        if upstream is None or hasattr(upstream, "__wrapped__"):
            continue
        replaced = replacement(upstream)
        holders = [one for full, one in list(sys.modules.items()) if full.partition(".")[0] == "mxnet"]
        for holder in [module, *holders]:
            if getattr(holder, "__dict__", {}).get(name) is upstream:
                setattr(holder, name, replaced)


def predicting_graphs(cached_op: Any) -> Any:
    """The class of MXNet's compiled graphs, in which operators are as `predicting` makes them."""

    class CachedOp(cached_op):  # type: ignore[misc]
        __slots__ = ("_graph_and_flags", "_hook", "_predicting")
        __wrapped__ = cached_op
        # for pickle, which then says of it what it says of MXNet's
        __module__, __qualname__ = cached_op.__module__, cached_op.__qualname__

        def __init__(self, sym: Any, flags: Any = ()) -> None:
            super().__init__(sym, flags)
            self._graph_and_flags = sym, flags
            self._hook: Any = None
            self._predicting: Dict[bool, Any] = {}

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if not args or not records_prediction():
                return super().__call__(*args, **kwargs)
            on_gpu = is_gpu(args[0].context)
            if on_gpu not in self._predicting:
                graph, in_training_mode = predicting_graph(self._graph_and_flags[0], on_gpu)
                made = None if graph is None else cached_op(graph, self._graph_and_flags[1])
                self._predicting[on_gpu] = made, in_training_mode
            made, in_training_mode = self._predicting[on_gpu]
            if made is None:
                return super().__call__(*args, **kwargs)
            if self._hook is not None:
                made._register_op_hook(*self._hook)
            if not in_training_mode:
                return made(*args, **kwargs)
            with _autograd().train_mode():
                return made(*args, **kwargs)

        def _register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
            super()._register_op_hook(callback, monitor_all)
            self._hook = callback, monitor_all

    return CachedOp


def predicting_graph(graph: Any, on_gpu: bool) -> Tuple[Any, bool]:
    """A graph that predicts and has the gradient of that.

    Args:
        graph: A Symbol.
        on_gpu: Whether it is for a GPU.

    Returns:
        The graph, or None where this one is right; and whether it is to be run in training mode, because an operator
        keeps only there what its gradient needs. What would behave as in training then has got other arguments.

    Raises:
        NotImplementedError: It must run in training mode and holds a Custom operator, which would see that mode.
    """
    content = json.loads(graph.tojson())
    operators = list(operators_in(content))
    needs = sorted({name for name, attributes in operators if _keeps_in_training_only(name, attributes, on_gpu)})
    if needs and any(name == "Custom" for name, _ in operators):
        raise NotImplementedError(
            f"in predict mode MXNet's gradient of {', '.join(needs)} is wrong, and mxkit cannot mend it in a graph "
            "with a custom operator: leave the net without a graph for it, net.hybridize(False) (docs/traps.md, T137)"
        )
    changed = [_predicts(name, attributes) for name, attributes in operators]
    if not needs and not any(changed):
        return None, False
    from mxnet import symbol

    found = symbol.load_json(json.dumps(content))
    return found.as_np_ndarray() if isinstance(graph, symbol.numpy._Symbol) else found, bool(needs)


def operators_in(graph: Any) -> Iterator[Tuple[str, Dict[str, str]]]:
    """Names and attributes of a graph's operators, also in bodies of loops; what is changed there is changed in it.

    Args:
        graph: A Symbol's JSON as Python's values.
    """
    for node in graph["nodes"]:
        if node["op"] != "null":
            yield node["op"], node.setdefault("attrs", {})
        for body in node.get("subgraphs", ()):
            yield from operators_in(body)


def _keeps_in_training_only(name: str, attributes: Dict[str, str], on_gpu: bool) -> bool:
    if name == "RNN":  # oneDNN too: static graphs end in an IndexError of C++ where modes take turns
        return True
    if on_gpu:
        return False
    return name == "_contrib_BatchNormWithReLU" or (name == "Pooling" and attributes.get("pool_type", "max") == "max")


def _predicts(name: str, attributes: Dict[str, str]) -> bool:
    """Have an operator do in either mode what it does in predict mode; say whether that changed it."""
    before = dict(attributes)
    if "BatchNorm" in name:
        attributes["use_global_stats"] = "True"
    elif name in ("Dropout", "RNN") and attributes.get("mode") != "always":
        attributes["p"] = "0"
    elif name == "LeakyReLU" and attributes.get("act_type") == "rrelu":
        bounds = float(attributes.get("lower_bound", 0.125)), float(attributes.get("upper_bound", 0.334))
        attributes.update(act_type="leaky", slope=repr(sum(bounds) / 2))
    return attributes != before


def _autograd() -> Any:
    return sys.modules["mxnet.autograd"]  # an import statement would be a third of the cost
