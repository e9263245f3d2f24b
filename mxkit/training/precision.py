"""A net computed in 16 bits while its parameters stay in float32, over `mx.contrib.amp`."""

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from mxkit.core.device import is_gpu
from mxkit.core.graphs import graph_replaced
from mxkit.errors import DeviceError, NonFiniteError
import mxnet as mx
from mxnet import gluon
from mxnet.contrib import amp

DTYPES = ("float16", "bfloat16")


class MixedPrecision:
    """Gives a net a 16-bit graph, and its own one back afterwards.

    `mx.contrib.amp.convert_symbol` puts casts into the graph of the hybridized net, by its lists of operators:
    matrix products and convolutions run in 16 bits, what needs range or digits in float32. Parameters,
    gradients, outputs and the loss stay float32. `amp.init`, which would change every operator of the process
    for good, is not called.

    Args:
        dtype: "bfloat16", or "float16", whose small range needs a loss scale: gradients are those of the loss
            times `scale`, so that small ones do not vanish, and an update whose gradients overflow is skipped.

    Attributes:
        dtype: As given.

    Raises:
        ValueError: `dtype` is another one.
    """

    def __init__(self, dtype: str) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"amp: expected {' or '.join(map(repr, DTYPES))}, or None; received {dtype!r}")
        self.dtype = dtype
        self._scaler = amp.loss_scaler.LossScaler() if dtype == "float16" else None

    @property
    def scale(self) -> float:
        """The loss's factor, 1.0 for bfloat16. It changes between updates, never inside a window."""
        return 1.0 if self._scaler is None else float(self._scaler.loss_scale)

    def check_devices(self, devices: Sequence["mx.Context"]) -> None:
        """Refuse bfloat16 on a GPU, for which MXNet has no kernels: it ends in "Unknown type enum 12" (T134).

        Raises:
            DeviceError: `dtype` is "bfloat16" and one of `devices` is a GPU.
        """
        if self.dtype == "bfloat16" and any(map(is_gpu, devices)):
            raise DeviceError(
                f"amp: MXNet computes 'bfloat16' on CPUs only; the net lives on {list(devices)}. Pass amp='float16', "
                "or train on the CPU: mxkit.to(net, 'cpu') before the Trainer is made"
            )

    @contextmanager
    def applied(self, net: Any) -> Iterator[None]:
        """Compute `net` in 16 bits inside `with`, hybridized or not; calls of its children alone stay as they were.

        Raises:
            TypeError: The net is a plain Block, which has no graph.

        Side effects:
            The net is hybridized inside `with`, and again what it was after it; it traces its graph anew.
        """
        if not isinstance(net, gluon.HybridBlock):
            raise TypeError(
                f"amp={self.dtype!r} rewrites the graph of a HybridBlock; received {type(net).__name__}, a plain "
                "Block. Write it with hybrid_forward, put its layers into a HybridSequential, or leave amp out"
            )
        with graph_replaced(net, self._convert):
            yield

    def _convert(self, inputs: Any, outputs: Any) -> Tuple[Any, Any]:
        choice: Dict[str, Any] = {}
        if self.dtype == "bfloat16":
            # MXNet lets it run in any precision, and then refuses inputs of two
            choice["fp32_ops"] = [*amp.list_fp32_ops(amp.amp.bfloat16), "Concat", "concat"]
        names = [one.name for one in inputs]
        low = amp.convert_symbol(outputs, target_dtype=self.dtype, data_names=names, **choice)
        # A cast's gradient ignores grad_req="add" and leaves 0 (T49); a copy's does not.
        parameters = set(low.list_arguments()) - set(names)
        variables = {one.name: one for one in low.get_internals() if one.name in parameters}
        low = low(**{name: mx.sym.identity(variable) for name, variable in variables.items()})
        return inputs, mx.sym.Group([mx.sym.amp_cast(output, dtype="float32") for output in low])

    def overflowed(self, trained: List[Any]) -> bool:
        """Tell whether the reduced gradients overflowed, and adapt the scale for the next window. Waits for them.

        Args:
            trained: Parameters with gradients.

        Raises:
            NonFiniteError: They overflow even without a scale, which no scale can mend.
        """
        scaler = self._scaler
        if scaler is None:
            return False
        overflow = bool(scaler.has_overflow(trained))
        if overflow and scaler.loss_scale <= 1:
            on_gpu = any(is_gpu(device) for parameter in trained for device in parameter.list_ctx())
            way = "leave amp out" if on_gpu else "use amp='bfloat16'"
            raise NonFiniteError(
                "gradients are infinite or NaN even without a loss scale: the net's own numbers overflow float16. "
                f"Lower the learning rate, scale the data, look for NaN in it, or {way}"
            )
        # MXNet lets an update pass before a new scale counts: one more would overflow in vain
        scaler._loss_scale = scaler._next_loss_scale
        return overflow

    def state_dict(self) -> Dict[str, Any]:
        """What a resumed run must restore, as plain JSON values."""
        return {} if self._scaler is None else {"scale": self.scale, "unskipped": self._scaler._unskipped}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        if self._scaler is not None:
            self._scaler._loss_scale = self._scaler._next_loss_scale = float(state["scale"])
            self._scaler._unskipped = int(state["unskipped"])


def get_precision(spec: Any, devices: Sequence["mx.Context"] = ()) -> Optional[MixedPrecision]:
    """Return the precision that `spec` means: "float16", "bfloat16", None, or a `MixedPrecision`, as it is.

    Raises:
        ValueError: `spec` is another name.
        DeviceError: It is "bfloat16" and one of `devices` is a GPU.
    """
    precision = spec if spec is None or isinstance(spec, MixedPrecision) else MixedPrecision(spec)
    if precision is not None:
        precision.check_devices(devices)
    return precision
