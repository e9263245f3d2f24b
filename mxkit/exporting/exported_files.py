"""Reads what `export` wrote, as a block; onnxruntime and PyTorch compute files of their own."""

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from mxkit.core.arguments import require
from mxkit.core.arrays import of_kind, to_host
from mxkit.core.device import DeviceSpec
from mxkit.errors import CheckpointError
from mxkit.exporting.symbol_files import GraphPath, read_symbol_files
from mxkit.nets.architecture import build
from mxkit.storage.loading import match_arrays, put_arrays
from mxkit.storage.parameter_file import read_safetensors
import mxnet as mx
from mxnet import gluon


def load_exported(
    path: GraphPath,
    *,
    inputs: Union[str, Sequence[str], None] = None,
    outputs: Union[str, Sequence[str], None] = None,
    epoch: Optional[int] = None,
    scores: bool = False,
    devices: Optional[DeviceSpec] = None,
) -> Any:
    """Read files of `export`, `net.export` or Module, safely: they are checked before another program reads them.

    Module's loss heads (SoftmaxOutput, LinearRegressionOutput, LogisticRegressionOutput, MAERegressionOutput,
    SVMOutput) become the plain operators that they are at inference (T117). The block returns what `Module.predict`
    returns, up to the last bits of a softmax, and needs no label.

    Args:
        path: As for `export` and for `Module.save_checkpoint`, without `-symbol.json`; or two paths, of a graph and of
            its parameters; or a file `.onnx`, which
            onnxruntime computes; `.py` with `.safetensors` beside it, whose code runs and which PyTorch computes; or
            `.safetensors` alone, whose net is built from its description.
        inputs: Names of a graph's inputs in the order of your calls, like Module's `data_names`, which no file holds.
            None is the order in which `export` wrote them; of other files, `data` or `data0` before `data1`, then the
            order of the graph, with a warning. A label stays an input if it is named, and more than
            a loss head reads it.
        outputs: Name or names of internal outputs of a graph, like "fc1_output", which becomes the graph up to there:
            for features, and without what only training needs. None keeps the graph's own.
        epoch: Number in the parameters' file name of a graph; None is the highest.
        scores: Leave out the softmax or sigmoid of the loss head, for further training: "softmax_ce" and
            "sigmoid_bce" apply their own.
        devices: Devices for the parameters; None is the CPU. onnxruntime computes on the CPU.

    Returns:
        A block with the file's dtypes. Its inputs are the variables without parameters. A label that only a loss head
        reads is not an input. The block is a net of `mx.np` if the exported net was one,
        or under `npx.set_np()`.

    Raises:
        CheckpointError: A file is damaged, could harm the process, or does not fit the other file: the weights of a
            layer are missing, or an array belongs to no variable.
        OSError: A file does not exist or cannot be read.
        ValueError: `scores` is True, and the graph has no loss head; `inputs` are not the graph's; or a label is read
            by more than a loss head: the text names outputs that do not need it.
        UnknownNameError: The graph has no such output.

    Warns:
        TrapWarning: Nothing tells the order of several inputs (T264), or the file holds arrays that the graph does not
            read.

    >>> net = mxkit.models.mlp(3, hidden=[4]); mxkit.initialize(net); x = mx.nd.ones((2, 5)); y = net(x)
    >>> _ = mxkit.export(net, getfixture("tmp_path") / "mlp", epoch=7)
    >>> bool((mxkit.load_exported(getfixture("tmp_path") / "mlp")(x) == y).asnumpy().all())
    True
    """
    if isinstance(path, (tuple, list)) or not str(path).endswith((".onnx", ".py", ".safetensors")):
        return read_symbol_files(path, epoch=epoch, scores=scores, devices=devices, inputs=inputs, outputs=outputs)
    file = Path(path)
    of_graphs = scores or any(one is not None for one in (epoch, inputs, outputs))
    if of_graphs or (devices is not None and file.suffix != ".safetensors"):
        raise ValueError(
            "load_exported: epoch=, inputs=, outputs= and scores= are for graphs of MXNet, devices= for what MXNet "
            f"computes; received {file}"
        )
    if file.suffix == ".safetensors":
        return _described_net(file, devices)
    return _onnx_net(file) if file.suffix == ".onnx" else _torch_net(file)


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


def _onnx_net(path: Path) -> ForeignNet:
    """Return a block that onnxruntime computes."""
    require("onnx", "onnx")
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    content = read_onnx(path)
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of several classes, all of them private
        raise CheckpointError(f"{path}: onnxruntime refuses it: {str(error)[:300]}") from error
    inputs = [(one.name, _DTYPES.get(one.type, one.type[7:-1])) for one in session.get_inputs()]

    def compute(arrays: List[Any]) -> Sequence[Any]:
        given = {name: array.astype(dtype, copy=False) for (name, dtype), array in zip(inputs, arrays)}
        outputs: Sequence[Any] = session.run(None, given)
        return outputs

    return ForeignNet(compute, path, [name for name, _ in inputs])


_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


def read_onnx(path: Path) -> bytes:
    """Read a file that onnxruntime can load without harm: onnx's checker accepts it, and it holds all its data.

    Raises:
        CheckpointError: The file is damaged, or refers to other files.
        OSError: It does not exist or cannot be read.
    """
    import onnx

    content = path.read_bytes()
    try:
        onnx.checker.check_model(content, full_check=True)
    except Exception as error:  # of several classes, some of them private
        raise CheckpointError(
            f"{path} is no ONNX file that mxkit reads: onnx refuses it ({' '.join(str(error).split())[:300]}). If it "
            "was copied, copy it again; else export it again with one file for graph and weights"
        ) from error
    return content


def _torch_net(path: Path) -> ForeignNet:
    """Return a block that PyTorch computes; runs the file's code."""
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


def _described_net(path: Path, devices: Optional[DeviceSpec]) -> Any:
    """Build the net that a safetensors file of `export` describes, with its values."""
    arrays, metadata = read_safetensors(path)
    if "description" not in metadata:
        raise CheckpointError(
            f"{path} holds parameters without a description of their net: make the net (a "
            f"{metadata.get('class', 'block')!s:.100}) and call mxkit.load_parameters(net, {str(path)!r})"
        )
    try:
        net = build(json.loads(metadata["description"]))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its description: {str(error)[:300]}") from error
    put_arrays(net, match_arrays(net, arrays), devices)
    return net
