"""Blocks whose outputs onnxruntime or PyTorch computes from an exported file, for `predict` and `evaluate`."""

from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from mxkit.core.arguments import require
from mxkit.core.arrays import of_kind, to_host
from mxkit.errors import CheckpointError
import mxnet as mx
from mxnet import gluon


class ForeignNet(gluon.Block):  # type: ignore[misc]
    """A net that another program computes, on the CPU and without gradients.

    Args:
        compute: Returns the outputs for the inputs, both as NumPy's arrays.
        path: The file, for errors.
        names: Of the inputs; empty if the other program checks their number.
    """

    def __init__(self, compute: Callable[[List[Any]], Sequence[Any]], path: Path, names: Sequence[str]) -> None:
        super().__init__()
        self._compute, self._path, self._names = compute, path, list(names)

    def forward(self, *inputs: Any) -> Any:
        """Return what the other program computes, as NDArrays of the inputs' kind; one alone is not a tuple."""
        if self._names and len(inputs) != len(self._names):
            raise ValueError(
                f"{self._path}: expected {len(self._names)} inputs ({', '.join(self._names)}), received {len(inputs)}"
            )
        numpy = isinstance(inputs[0], mx.np.ndarray)
        found = [mx.nd.array(one, dtype=one.dtype) for one in self._compute([to_host(one) for one in inputs])]
        outputs = of_kind(found, numpy)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def __repr__(self) -> str:
        return f"ForeignNet({self._path})"


def onnx_net(path: Path) -> ForeignNet:
    """Return a block that onnxruntime computes.

    Raises:
        CheckpointError: The file is damaged, or onnxruntime refuses it.
        ImportError: onnxruntime is missing.
    """
    from mxkit.exporting.to_onnx.onnx_reading import onnx_session

    session = onnx_session(path)
    inputs = session.get_inputs()

    def compute(arrays: List[Any]) -> Sequence[Any]:
        given: Dict[str, Any] = {}
        for one, array in zip(inputs, arrays):
            given[one.name] = array.astype(_DTYPES.get(one.type, array.dtype), copy=False)
        outputs: Sequence[Any] = session.run(None, given)
        return outputs

    return ForeignNet(compute, path, [one.name for one in inputs])


_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
}


def torch_net(path: Path) -> ForeignNet:
    """Return a block that PyTorch computes with the code and the weights of `export`.

    Raises:
        CheckpointError: The weights do not fit the code.
        ImportError: torch or safetensors is missing.

    Side effects:
        Runs the file's code.
    """
    torch = require("torch", "torch")
    namespace: Dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
    try:
        net = namespace["load"](str(path.with_suffix(".safetensors")))
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} and its weights do not belong together: {str(error)[:300]}") from error

    def compute(arrays: List[Any]) -> Sequence[Any]:
        with torch.no_grad():
            outputs = net(*map(torch.from_numpy, arrays))
        flat = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [one.numpy() for one in flat]

    return ForeignNet(compute, path, ())
