"""Repairs of MXNet's operators: Dropout that follows the seed on a GPU, correct gradients of predictions and of SELU,
Custom operators with memory of their own, arguments as NumPy 1 writes them. `mxkit.runtime.repairs` applies them."""

import functools
import json
from math import prod
import re
import sys
import threading
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from mxkit.runtime.gpus import is_gpu

Operator = Callable[..., Any]

# Klambauer et al. 2017, arXiv:1706.02515
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
_CUDNN_OFF = 4  # its position among Dropout's arguments

#: Classes of Custom operators by name, as they were registered.
PROPERTIES: Dict[str, Any] = {}


def mxnet_module(name: str) -> Any:
    """A module of MXNet that is imported: an import statement would take a third of a wrapper's time."""
    return sys.modules["mxnet." + name]


def is_recording() -> bool:
    """Whether gradients are recorded."""
    return bool(mxnet_module("autograd").is_recording())


def replace(owner: Any, **wrappers: Callable[[Any], Any]) -> None:
    """Wrap attributes of a module or class, and all references to them in MXNet's modules; a second call does nothing.

    Args:
        owner: The module or class.
        wrappers: For the name of each function or class, a function that takes it and returns its replacement.
    """
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "mxnet"]
    for name, wrapper in wrappers.items():
        upstream = vars(owner).get(name)
        if upstream is None or hasattr(upstream, "__wrapped__"):
            continue
        replacement = wrapper(upstream)
        if not isinstance(upstream, type):
            functools.update_wrapper(replacement, upstream)
        for holder in [owner, *modules]:
            if getattr(holder, "__dict__", {}).get(name) is upstream:
                setattr(holder, name, replacement)


def seeded(dropout: Operator) -> Operator:
    """Dropout that draws from MXNet's own generator, unless the caller sets `cudnn_off` (T125).

    cuDNN's generator starts from C's `rand()` (`src/operator/nn/dropout-inl.h` line 494), and `mx.random.seed` never
    reaches it (`src/resource.cc` lines 173 to 185; apache/mxnet#15662). The CPU ignores the argument.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= _CUDNN_OFF:
            kwargs.setdefault("cudnn_off", True)
        return dropout(*args, **kwargs)

    return run


def predicting(**arguments: Tuple[int, Any]) -> Callable[[Operator], Operator]:
    """An operator that, recorded in predict mode, runs in training mode with arguments that make it predict.

    Only training mode keeps what the gradient reads, and makes it the gradient of the outputs. BatchNorm's gradient
    depends on the mode of `backward`, by default training, and uses the batch's statistics then; cuDNN's uses them in
    either mode (T130; `cudnn_batch_norm-inl.h` line 196; apache/mxnet#18209). oneDNN's max pooling stores the
    positions of the largest elements in training mode only, and its gradient reads them in either mode (T137;
    `mkldnn_pooling.cc` line 58); BatchNorm with ReLU, and recurrent layers on a GPU (`rnn-inl.h`), do the same.

    Args:
        arguments: Position and value by name.
    """

    def wrapper(operator: Operator) -> Operator:
        def run(*args: Any, **kwargs: Any) -> Any:
            if not records_prediction():
                return operator(*args, **kwargs)
            for name, (position, value) in arguments.items():
                if len(args) > position:
                    args = (*args[:position], value, *args[position + 1 :])
                else:
                    kwargs[name] = value
            with mxnet_module("autograd").train_mode():
                return operator(*args, **kwargs)

        return run

    return wrapper


def differentiable_selu(leaky_relu: Operator) -> Operator:
    """LeakyReLU whose SELU has a gradient (T139): MXNet's is off by a third below 0. The outputs have MXNet's bits."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("act_type") != "selu" or not is_recording():
            return leaky_relu(*args, **kwargs)
        ndarray, data = mxnet_module("ndarray"), args[0] if args else kwargs["data"]
        x = data.as_nd_ndarray()
        found = ndarray.where(x > 0, x, ndarray.expm1(ndarray.minimum(x, 0)) * SELU_ALPHA) * SELU_SCALE
        return found if type(data) is ndarray.NDArray else found.as_np_ndarray()

    return run


def checked_reshape(reshape: Operator) -> Operator:
    """`mx.nd.reshape` that refuses another number of elements (T252): MXNet's writes outside the array.

    Raises:
        ValueError: The shape does not hold the elements.
    """

    def run(data: Any, shape: Any = None, *args: Any, **kwargs: Any) -> Any:
        if shape is not None and not args:
            wanted = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
            before = data.shape
            found = _reshaped(before, wanted, bool(kwargs.get("reverse", False)))
            if found is not None and prod(found) != prod(before):
                raise ValueError(
                    f"reshape: an array of shape {before} has {prod(before)} elements; shape={wanted} would have "
                    f"{prod(found)}, {found}"
                )
        return reshape(data, *([] if shape is None else [shape]), *args, **kwargs)

    return run


@functools.lru_cache(maxsize=4096)
def _reshaped(before: Tuple[int, ...], shape: Tuple[int, ...], reverse: bool) -> Optional[Tuple[int, ...]]:
    """The shape that MXNet infers; None if it refuses, with its own error, or does not know it."""
    if 0 in before:
        return None
    symbol = mxnet_module("symbol")
    try:
        found: Tuple[int, ...] = symbol.reshape(symbol.var("x"), shape=shape, reverse=reverse).infer_shape(x=before)[1][
            0
        ]
        return found
    except mxnet_module("base").MXNetError:
        return None


def copying_custom(custom: Operator) -> Operator:
    """A Custom operator whose inputs, outputs and gradients are copies (T138).

    It runs in a Python thread, and other operators start before it ends. Memory of an array in oneDNN's blocked
    layout is reused by then: from 8 channels on, the operator sometimes reads and writes wrong numbers. `repeat`
    copies, shares no memory and has no blocked layout.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        property_class = PROPERTIES.get(str(kwargs.get("op_type")))
        base = mxnet_module("operator").CustomOpProp.list_auxiliary_states
        # The operator writes its auxiliary states, so they cannot be copies.
        stateless = property_class is not None and property_class.list_auxiliary_states is base
        outputs = custom(
            *[_copy(value, stateless) for value in args],
            **{name: _copy(value, stateless) for name, value in kwargs.items()},
        )
        symbol = mxnet_module("symbol")
        if isinstance(outputs, symbol.Symbol):
            copies = [_copy(output, True) for output in outputs]
            return copies[0] if len(copies) == 1 else symbol.Group(copies)
        if not is_recording() or kwargs.get("out") is not None:
            return outputs
        return [_copy(output, True) for output in outputs] if isinstance(outputs, list) else _copy(outputs, True)

    return run


def _copy(value: Any, stateless: bool) -> Any:
    symbol, ndarray = mxnet_module("symbol"), mxnet_module("ndarray")
    if type(value) is symbol.Symbol and (stateless or value.get_children() is not None):
        if not mxnet_module("util").is_np_shape():
            return symbol.repeat(value, repeats=1, axis=0)
        # shape () has no axis to repeat
        copied = symbol.repeat(symbol.expand_dims(value, axis=0), repeats=1, axis=0)
        return symbol.numpy.squeeze(copied.as_np_ndarray(), axis=0).as_nd_ndarray()
    if type(value) is ndarray.NDArray and stateless and value.shape:
        return ndarray.repeat(value, repeats=1, axis=0)
    return value


def records_prediction() -> bool:
    """Whether gradients are recorded in predict mode, as in `autograd.record(train_mode=False)`."""
    autograd = mxnet_module("autograd")
    return bool(autograd.is_recording() and not autograd.is_training())


def predicting_graphs(cached_op: Any, prepare: Callable[[Any], Any]) -> Any:
    """A subclass of MXNet's compiled graphs that runs a graph of `predicting_graph` while it records predictions.

    Threads call a graph in turn (T200).

    Args:
        cached_op: MXNet's class.
        prepare: Repairs a graph before it is compiled.
    """

    class CachedOp(cached_op):  # type: ignore[misc]
        __slots__ = ("_arguments", "_hook", "_predicting", "_turn")
        __wrapped__ = cached_op
        # pickle then names MXNet's class in its errors
        __module__, __qualname__ = cached_op.__module__, cached_op.__qualname__

        def __init__(self, sym: Any, flags: Any = ()) -> None:
            sym = prepare(sym)
            super().__init__(sym, flags)
            self._arguments = sym, flags
            self._hook: Any = None
            self._predicting: Dict[bool, Any] = {}
            self._turn = threading.RLock()

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with self._turn:  # T200: `CheckDynamicShapeExists` infers new shapes in the shared graph, without a lock
                return self._call(*args, **kwargs)

        def __getstate__(self) -> Any:
            return self.handle  # which pickle and copy.deepcopy refuse, as without mxkit

        def _call(self, *args: Any, **kwargs: Any) -> Any:
            if not args or not records_prediction():
                return super().__call__(*args, **kwargs)
            on_gpu = is_gpu(args[0].ctx)
            if on_gpu not in self._predicting:
                symbol, flags = self._arguments
                graph, in_training_mode = predicting_graph(symbol, on_gpu)
                self._predicting[on_gpu] = None if graph is None else cached_op(graph, flags), in_training_mode
            graph, in_training_mode = self._predicting[on_gpu]
            if graph is None:
                return super().__call__(*args, **kwargs)
            if self._hook is not None:
                graph._register_op_hook(*self._hook)
            if not in_training_mode:
                return graph(*args, **kwargs)
            with mxnet_module("autograd").train_mode():
                return graph(*args, **kwargs)

        def _register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
            super()._register_op_hook(callback, monitor_all)
            self._hook = callback, monitor_all

    return CachedOp


def predicting_graph(graph: Any, on_gpu: bool) -> Tuple[Any, bool]:
    """Build a graph that predicts and has the gradient of its predictions.

    Args:
        graph: A Symbol.
        on_gpu: Whether the graph runs on a GPU.

    Returns:
        The new graph, or None if `graph` is right; and whether it must run in training mode, because only there an
        operator keeps what its gradient reads. The arguments of other operators then make them predict.

    Raises:
        NotImplementedError: It must run in training mode and holds a Custom operator, which would see that mode.
    """
    content = json.loads(graph.tojson())
    operators: List[Tuple[str, Dict[str, str]]] = list(operators_in(content))
    needs = sorted({name for name, attributes in operators if _needs_training_mode(name, attributes, on_gpu)})
    if needs and any(name == "Custom" for name, _ in operators):
        raise NotImplementedError(
            f"in predict mode MXNet's gradient of {', '.join(needs)} is wrong, and mxkit cannot repair it in a graph "
            "with a custom operator: leave the net without a graph for it, net.hybridize(False) (docs/traps.md)"
        )
    changed = [_predict_in_every_mode(name, attributes) for name, attributes in operators]
    if not needs and not any(changed):
        return None, False
    from mxnet import symbol

    predicting = symbol.load_json(json.dumps(content))
    return predicting.as_np_ndarray() if isinstance(graph, symbol.numpy._Symbol) else predicting, bool(needs)


def operators_in(graph: Any) -> Iterator[Tuple[str, Dict[str, str]]]:
    """Iterate over names and attributes of a graph's operators, those in bodies of loops included.

    Args:
        graph: The decoded JSON of a Symbol. A change of the attributes changes it.
    """
    for node in graph["nodes"]:
        if node["op"] != "null":
            yield node["op"], node.setdefault("attrs", {})
        for body in node.get("subgraphs", ()):
            yield from operators_in(body)


_DRAWING = re.compile(
    "_(npi_)?(random|sample)_(?!pdf)|_(npi_)?shuffle$|_(npx__)?image_random_|.*_uniform_sample$|"
    "_npi_(bernoulli|choice|exponential|gamma|gumbel|laplace|logistic|multinomial|normal|pareto|powerd|rayleigh|uniform"
    "|weibull)"
)


def draws_numbers(name: str, attributes: Mapping[str, str]) -> bool:
    """Whether an operator of a graph draws random numbers in prediction too."""
    return bool(_DRAWING.match(name)) or (name == "Dropout" and attributes.get("mode") == "always")


def _needs_training_mode(name: str, attributes: Dict[str, str], on_gpu: bool) -> bool:
    if name == "RNN":  # on a CPU too: a static graph that changes the mode ends in an IndexError of C++
        return True
    if on_gpu:
        return False
    return name == "_contrib_BatchNormWithReLU" or (name == "Pooling" and attributes.get("pool_type", "max") == "max")


def _predict_in_every_mode(name: str, attributes: Dict[str, str]) -> bool:
    """Change attributes so that the operator predicts in training mode too; return whether any changed."""
    before = dict(attributes)
    if "BatchNorm" in name:
        attributes["use_global_stats"] = "True"
    elif name in ("Dropout", "RNN") and attributes.get("mode") != "always":
        attributes["p"] = "0"
    elif name == "LeakyReLU" and attributes.get("act_type") == "rrelu":
        bounds = float(attributes.get("lower_bound", 0.125)), float(attributes.get("upper_bound", 0.334))
        attributes.update(act_type="leaky", slope=repr(sum(bounds) / 2))
    return attributes != before


# Positions of the arguments that a caller may pass without their names.
_BATCH_NORM = predicting(use_global_stats=(8, True))
_RNN = predicting(p=(9, 0))
_POOLING = predicting()
_NAMED = {"Dropout": seeded, "Custom": copying_custom}


def eager_operators(module: ModuleType) -> None:
    """T125, T130, T137 to T139, T252 in `mx.nd` and `mx.nd.contrib`. Upstream: `ndarray/register.py` line 277."""
    operators = mxnet_module("ndarray.op")
    replace(operators, BatchNorm=_BATCH_NORM, Pooling=_POOLING, RNN=_RNN, **_NAMED)
    replace(operators, LeakyReLU=differentiable_selu, reshape=checked_reshape, Reshape=checked_reshape)
    replace(mxnet_module("ndarray.contrib"), SyncBatchNorm=_BATCH_NORM, BatchNormWithReLU=_BATCH_NORM)


def symbolic_operators(module: ModuleType) -> None:
    """T125, T138 in `mx.sym`. Upstream: `symbol/register.py` line 281."""
    replace(mxnet_module("symbol.op"), **_NAMED)


def extension_operators(module: ModuleType) -> None:
    """T125, T130, T137, T139 in `mx.npx`.

    Upstream: `numpy_extension/_register.py`, and the same file of `mxnet.ndarray` and `mxnet.symbol`, fill `_op`.
    """
    extension = sys.modules[module.__name__.replace("._register", "._op")]
    replace(extension, dropout=seeded)
    if "symbol" not in module.__name__:
        replace(extension, leaky_relu=differentiable_selu, batch_norm=_BATCH_NORM, pooling=_POOLING, rnn=_RNN)


def dropout_layer(module: ModuleType) -> None:
    """T125: the layer selects cuDNN's generator explicitly. Upstream: `gluon/nn/basic_layers.py` line 271."""

    def with_own_generator(upstream: Any) -> Any:
        def hybrid_forward(self: Any, F: Any, x: Any) -> Any:  # noqa: N803
            if self._rate <= 0:
                return upstream(self, F, x)
            dropout = F.npx.dropout if module.is_np_array() else F.Dropout
            return dropout(x, p=self._rate, axes=self._axes, name="fwd", cudnn_off=True)

        return hybrid_forward

    replace(module.Dropout, hybrid_forward=with_own_generator)


# Types whose `repr` is the same in every NumPy.
_PLAIN = (int, float, str, bool, type(None))


class _Verbatim:
    """An object whose `repr` is a text without quotes."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _as_numpy_1(value: Any) -> Any:
    import numpy

    if isinstance(value, numpy.generic):
        # `str` gives the shortest text in the scalar's precision: float32(0.1) is "0.1". `item` would lose that.
        return value.item() if isinstance(value, (numpy.str_, numpy.bytes_)) else _Verbatim(str(value))
    if type(value) is tuple:
        return tuple(map(_as_numpy_1, value))
    if type(value) is list:
        return list(map(_as_numpy_1, value))
    return value


def operator_text(value: Any = "") -> str:
    """Return `str(value)`, with NumPy scalars inside tuples and lists written as NumPy 1 did.

    MXNet passes the arguments of an operator to C++ as text. NumPy 2 writes a scalar inside a tuple as "np.int64(2)",
    which the C++ parser rejects (T86).

    >>> operator_text((np.int64(2), [np.float32(0.1)])), operator_text((2, None, "x")), operator_text(2.5)
    ('(2, [0.1])', "(2, None, 'x')", '2.5')
    """
    kind = type(value)
    if kind is tuple or kind is list:
        for item in value:
            if type(item) not in _PLAIN:
                return str(_as_numpy_1(value))
    return str(value)


class _OperatorTextType(type):
    """Makes `OperatorText(x)` return text and `isinstance(x, OperatorText)` test for `str`."""

    __call__: Any = staticmethod(operator_text)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, str)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, str)


class OperatorText(metaclass=_OperatorTextType):
    """Replaces `str` in modules that call it and also evaluate `isinstance(x, str)`."""
