"""Reads what `export` wrote, as a block for `predict` and `evaluate`."""

from pathlib import Path
from typing import Any, Optional, Sequence, Union

from mxkit.core.device import DeviceSpec
from mxkit.exporting.foreign_nets import onnx_net, torch_net
from mxkit.exporting.safetensors_files import read_safetensors_net
from mxkit.exporting.symbol_files import GraphPath, read_symbol_files


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
    name = str(path)
    if scores or any(one is not None for one in (epoch, inputs, outputs)):
        raise ValueError(
            f"load_exported: epoch=, inputs=, outputs= and scores= are for graphs of MXNet; received {path}"
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"load_exported: {path} does not exist, or is no file")
    if name.endswith(".safetensors"):
        return read_safetensors_net(Path(path), devices)
    if devices is not None:
        raise ValueError(f"load_exported: {path} is computed on the CPU by another program: leave devices= out")
    return onnx_net(Path(path)) if name.endswith(".onnx") else torch_net(Path(path))
