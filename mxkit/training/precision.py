"""Mixed precision by `mx.contrib.amp`: a net computes in 16 bits, its parameters stay in float32."""

from contextlib import contextmanager
from functools import partial
import json
import os
import time
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple
import warnings
from weakref import WeakSet

from mxkit.core.arrays import is_numpy, legacy, of_kind, switches
from mxkit.core.device import is_gpu
from mxkit.core.graph import Graph
from mxkit.core.graphs import graph_replaced
from mxkit.core.operators import draws_in_training
from mxkit.core.replicas import gradients_of, shape_of
from mxkit.errors import DeviceError, NonFiniteError, TrapWarning
from mxkit.nets.prediction_graphs import all_operators_listed
from mxkit.runtime.engine_settings import MAX_ISA, WITH_TILES, environment, has_tiles
from mxkit.runtime.graphs import operators_in
from mxkit.runtime.machine import processor_flags, processor_model
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.contrib import amp
import numpy as np

DTYPES = ("float16", "bfloat16")
# Nets whose passes were measured
_measured: "WeakSet[Any]" = WeakSet()


class MixedPrecision:
    """Replaces the graph of a net by a 16-bit graph, and restores it afterwards.

    `mx.contrib.amp.convert_symbol` adds casts to the graph of the hybridized net, by its lists of operators:
    matrix products and convolutions run in 16 bits, operators that need range or digits in float32. Parameters,
    gradients, outputs and the loss stay float32. `amp.init` is not called: it changes every operator of the process
    permanently.

    Args:
        dtype: "bfloat16" or "float16". The range of float16 is small: the loss is multiplied by `scale`, so that
            small gradients do not become 0, and an update whose gradients overflow is skipped.

    Attributes:
        dtype: The same.

    Raises:
        ValueError: `dtype` is another name.
    """

    def __init__(self, dtype: str) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"amp: expected {' or '.join(map(repr, DTYPES))}, or None; received {dtype!r}")
        self.dtype = dtype
        self._scaler = amp.loss_scaler.LossScaler() if dtype == "float16" else None

    @property
    def scale(self) -> float:
        """Factor of the loss; 1.0 for bfloat16. It changes between updates, never inside a window."""
        return 1.0 if self._scaler is None else float(self._scaler.loss_scale)

    def check_devices(self, devices: Sequence["mx.Context"]) -> None:
        """Refuse bfloat16 where MXNet has no kernels for it.

        On a GPU it fails with "Unknown type enum 12" (T134), on an x86 processor without AVX-512 with "could not create
        a primitive descriptor iterator" (T285).

        Raises:
            DeviceError: `dtype` is "bfloat16" and one of `devices` is a GPU, or the processor has no AVX-512.
        """
        if self.dtype != "bfloat16" or not devices:
            return
        if any(map(is_gpu, devices)):
            text = f"amp: MXNet computes 'bfloat16' on CPUs only; the net lives on {list(devices)}"
            raise DeviceError(f"{text}. Pass amp='float16', or call mxkit.to(net, 'cpu') before the Trainer is made")
        flags = processor_flags()
        if flags and "avx512bw" not in flags:
            text = f"amp: MXNet computes 'bfloat16' on processors with AVX-512 only, which {processor_model()} lacks"
            raise DeviceError(f"{text}. Leave amp out")

    @contextmanager
    def applied(self, net: Any) -> Iterator[None]:
        """Compute `net` in 16 bits inside `with`, hybridized or not. Direct calls of its children do not change.

        Raises:
            TypeError: The net is a plain Block, which has no graph.

        Warns:
            TrapWarning: bfloat16 takes longer than float32 (T284): both were measured at the net's first call, on
                arrays of their own.

        Side effects:
            The net is hybridized inside `with`; its hybridization is restored afterwards, and its graph traced again.
        """
        if not isinstance(net, gluon.HybridBlock):
            text = f"amp={self.dtype!r} rewrites the graph of a HybridBlock; received {type(net).__name__}"
            raise TypeError(f"{text}, a plain Block. Put its layers into a HybridSequential, or leave amp out")
        with graph_replaced(net, partial(self._convert, net)):
            yield

    def _convert(self, net: Any, inputs: Any, outputs: Any, arrays: Sequence[Any]) -> Tuple[Any, Any]:
        numpy, outputs = is_numpy(outputs), legacy(outputs)
        target = amp.amp.bfloat16 if self.dtype == "bfloat16" else np.float16
        # slopes of PReLU are float32, and it refuses inputs of two dtypes
        conditional = [(*one[:2], [*one[2], "prelu"]) for one in amp.list_conditional_fp32_ops(target)]
        choice: Dict[str, Any] = {"conditional_fp32_ops": conditional}
        names = [variable.name for variable in inputs]
        with all_operators_listed(outputs, self.dtype):
            if self.dtype == "bfloat16":
                # MXNet's lists allow Concat in both precisions, but it refuses inputs of two dtypes
                choice["fp32_ops"] = [*amp.list_fp32_ops(target), "Concat", "concat"]
            # T297: `take` must know the dtype of a Constant, and names of inputs that are not read are refused
            constants = [one.name for one in net.collect_params().values() if isinstance(one, gluon.Constant)]
            known = [name for name in outputs.list_inputs() if name in {*names, *constants}]
            low = amp.convert_symbol(outputs, target_dtype=self.dtype, data_names=known, **choice)
        # the gradient of a cast ignores grad_req="add" and stays 0 (T49); the gradient of a copy does not
        parameters = set(low.list_arguments()) - set(names)
        variables = {node.name: node for node in low.get_internals() if node.name in parameters}
        low = low(**{name: mx.sym.identity(variable) for name, variable in variables.items()})
        low = mx.sym.Group([mx.sym.amp_cast(output, dtype="float32") for output in low])
        if self.dtype == "bfloat16" and net not in _measured:
            _measured.add(net)
            with switches(numpy):
                known_shapes = {one.name: shape_of(one) for one in net.collect_params().values()}
                _warn_if_slower(outputs, low, dict(zip(names, arrays)), known_shapes)
        return inputs, of_kind(low, numpy)

    def overflowed(self, trained: List[Any]) -> bool:
        """Return whether the reduced gradients overflowed, and adapt the scale of the next window. Waits for them.

        Args:
            trained: Parameters with gradients.

        Raises:
            NonFiniteError: They overflow even with the scale 1.
        """
        scaler = self._scaler
        if scaler is None:
            return False
        # MXNet's check reads the attribute `_grad`, and takes only NDArrays
        overflow = bool(scaler.has_overflow([SimpleNamespace(_grad=gradients_of(one)) for one in trained]))
        if overflow and scaler.loss_scale <= 1:
            on_gpu = any(is_gpu(device) for parameter in trained for device in parameter.list_ctx())
            way = "leave amp out" if on_gpu else "use amp='bfloat16'"
            text = "gradients are infinite or NaN even without a loss scale: the net's own numbers overflow float16"
            raise NonFiniteError(f"{text}. Lower the learning rate, scale the data, or {way}")
        # MXNet uses a new scale one update too late: that update would overflow as well
        scaler._loss_scale = scaler._next_loss_scale
        return overflow

    def state_dict(self) -> Dict[str, Any]:
        """The state that a resumed run restores, as plain JSON values."""
        return {} if self._scaler is None else {"scale": self.scale, "unskipped": self._scaler._unskipped}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        if self._scaler is not None:
            self._scaler._loss_scale = self._scaler._next_loss_scale = float(state["scale"])
            self._scaler._unskipped = int(state["unskipped"])


def _warn_if_slower(plain: Any, low: Any, data: Dict[str, Any], parameters: Dict[str, Any]) -> None:
    """Measure a net's passes in float32 and in bfloat16, and warn if bfloat16 takes longer (T284).

    Graphs that draw random numbers are measured without dropout, or not at all: MXNet's generator has no state to
    restore (T67).

    Args:
        plain: The graph in float32.
        low: In bfloat16.
        data: Its inputs by name.
        parameters: Shapes of parameters by name, () where they are unknown: a recurrent layer does not infer them.
    """
    try:
        seconds = _pass_seconds([_without_dropout(plain), _without_dropout(low)], data, parameters)
    except (RuntimeError, AttributeError) as error:  # MXNet does not bind it; nested inputs have no shape
        reason = str(error).strip().rpartition("\n")[2]
        text = f"amp='bfloat16' takes longer than float32 on most CPUs (T284); it was not measured: {reason:.200}"
        warnings.warn(text, TrapWarning, stacklevel=2)
        return
    if seconds[1] > seconds[0]:
        text = "amp='bfloat16': forward and backward of a batch take {1:.3g} ms, in float32 {0:.3g} ms (T284)"
        way = f"set {MAX_ISA}={WITH_TILES}, or " if has_tiles() and not os.environ.get(MAX_ISA) else ""
        warnings.warn(f"{text.format(*(1e3 * one for one in seconds))}: {way}leave amp out", TrapWarning, stacklevel=2)


def _without_dropout(graph: Any) -> Any:
    content = json.loads(graph.tojson(remove_amp_cast=False))
    for _, attributes in operators_in(content):
        attributes.update({"p": "0"} if "p" in attributes else {})
    graph = mx.sym.load_json(json.dumps(content))
    if any(map(draws_in_training, Graph.of(graph).operators())):
        raise RuntimeError("the net draws random numbers")
    return graph


def _pass_seconds(graphs: Sequence[Any], data: Dict[str, Any], parameters: Dict[str, Any]) -> List[float]:
    """Shortest of three forward and backward passes of each graph, which take turns."""
    first = next(iter(data.values()))
    shapes, types = ({name: getattr(one, kind) for name, one in data.items()} for kind in ("shape", "dtype"))
    bound, taken = [], [float("inf")] * len(graphs)
    with autograd.pause(), environment({"MXNET_SUBGRAPH_VERBOSE": "0"}):
        for graph in graphs:
            requests = {name: "null" if name in data else "write" for name in graph.list_arguments()}
            known = {name: parameters[name] for name in graph.list_inputs() if parameters.get(name)}
            bound.append(graph.simple_bind(first.ctx, requests, types, **{**known, **shapes}))
            for name, array in {**bound[-1].arg_dict, **bound[-1].aux_dict}.items():
                array[:] = data[name].as_nd_ndarray() if name in data else 0.01
        for number in range(4):  # the first prepares the operators
            for at, executor in enumerate(bound):
                mx.nd.waitall()
                begun = time.perf_counter()
                executor.forward(is_train=True)
                executor.backward([mx.nd.ones(one.shape) for one in executor.outputs])
                mx.nd.waitall()
                taken[at] = min(taken[at], time.perf_counter() - begun if number else taken[at])
    return taken


def get_precision(spec: Any, devices: Sequence["mx.Context"] = ()) -> Optional[MixedPrecision]:
    """Return the precision of `spec`: "float16", "bfloat16", None, or a `MixedPrecision`, which is returned unchanged.

    Raises:
        ValueError: `spec` is another name.
        DeviceError: It is "bfloat16", and one of `devices` is a GPU or the processor has no AVX-512.
    """
    precision = spec if spec is None or isinstance(spec, MixedPrecision) else MixedPrecision(spec)
    if precision is not None:
        precision.check_devices(devices)
    return precision
