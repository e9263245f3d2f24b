"""Parameter files, checked before MXNet reads a byte of them.

One wrong byte in a file of 1.5 KB can cost `mx.nd.load` 12 GB and 20 seconds, or end the process (T58).
`mxkit.storage.params_format` reads the file's headers first, compares every size with the rest of the file, and
refuses what MXNet does not write.
"""

import json
from pathlib import Path
import struct
import tempfile
from typing import Any, BinaryIO, Dict, Mapping, Tuple, Union

from mxkit.core.arguments import require
from mxkit.core.arrays import legacy
from mxkit.errors import CheckpointError
from mxkit.storage.params_format import (
    BFLOAT16,
    LIST_MAGIC,
    MAX_NAME,
    V3,
    StoredArray,
    Walk,
    describe_file,
    open_file,
    read_bytes,
    widened,
)
import mxnet as mx
import numpy as np

_BUFFER_LIMIT = 2**32  # load_frombuffer cuts the buffer's length to 32 bits without an error


def read_arrays(path: Union[str, Path]) -> Dict[str, Any]:
    """Read a file of `net.save_parameters`, `net.export`, `mx.nd.save` or `npx.save`, safely, under either switch.

    MXNet gets only bytes that were checked, also if the file changes meanwhile. The peak of memory is the size of the
    arrays plus three times the largest one. A file with an array of 4 GiB or more is read by `mx.nd.load` after the
    check.

    Args:
        path: The file. It holds a dict of arrays; old formats are read too.

    Returns:
        NDArrays on the CPU by name, in the order of the file.

    Raises:
        CheckpointError: The file is damaged, cut off, not a parameter file, or a list without names.
        OSError: It does not exist or cannot be read.

    >>> path = getfixture("tmp_path") / "a.params"
    >>> mx.nd.save(str(path), {"x": mx.nd.ones((2, 3))})
    >>> read_arrays(path)["x"].shape
    (2, 3)
    """
    path = Path(path)
    with open_file(path) as file:
        arrays = Walk(file, path).arrays()
        numpy_shapes = any(array.version == V3 for array in arrays.values())
        with mx.util.np_array(False), mx.util.np_shape(numpy_shapes):
            if any(array.size + MAX_NAME >= _BUFFER_LIMIT for array in arrays.values()):
                return {name: array.as_in_context(mx.cpu()) for name, array in mx.nd.load(str(path)).items()}
            return {name: _load(file, path, name, array) for name, array in arrays.items()}


def _load(file: BinaryIO, path: Path, name: str, array: StoredArray) -> Any:
    """Let MXNet read one array from a list of one: its checked header and its bytes."""
    values = read_bytes(file, path, name, array).data
    buffer = b"".join([struct.pack("<3Q", LIST_MAGIC, 0, 1), array.header, values, struct.pack("<Q", 0)])
    del values
    loaded = mx.nd.load_frombuffer(buffer)[0]
    if array.sparse:
        try:
            loaded.check_format(full_check=True)  # an index outside the shape writes outside the memory
        except mx.MXNetError as error:
            text = f"array {name!r}: expected ascending indices inside of shape {array.shape}"
            raise CheckpointError(f"{path} is damaged: {text}") from error
    return loaded


def save_arrays(file: Path, arrays: Mapping[str, Any], numpy_shapes: bool = False) -> None:
    """Write a parameter file with `mx.nd.save`, of arrays of either kind, in a format that MXNet's switches do not set.

    Under `npx.set_np()` MXNet writes the format of NumPy shapes, which it reads only there (T156).

    Args:
        file: The file.
        arrays: By name.
        numpy_shapes: Write the format of NumPy shapes. Arrays without axes or of size 0 always have it.
    """
    numpy_shapes = numpy_shapes or any(array.ndim == 0 or array.size == 0 for array in arrays.values())
    with mx.util.np_array(False), mx.util.np_shape(numpy_shapes):
        mx.nd.save(str(file), {name: legacy(array) for name, array in arrays.items()})


def parameter_bytes(arrays: Mapping[str, Any], numpy_shapes: bool = False) -> bytes:
    """Content of a parameter file of `save_arrays`, checked: MXNet does not report a full disk (T59)."""
    with tempfile.TemporaryDirectory(prefix="mxkit-") as folder:
        file = Path(folder) / "net.params"
        save_arrays(file, arrays, numpy_shapes)
        describe_file(file)
        return file.read_bytes()


def read_any_arrays(path: Union[str, Path]) -> Dict[str, Any]:
    """Read a parameter file or, by its ending, a safetensors file.

    A file of a training that went on in PyTorch says by its metadata `gluon` which path each array has in the net.

    Raises:
        CheckpointError, OSError: As for `read_arrays` and `read_safetensors`.
    """
    if not str(path).endswith(".safetensors"):
        return read_arrays(path)
    arrays, metadata = read_safetensors(Path(path))
    paths = json.loads(metadata.get("gluon", "{}"))
    return {paths[name]: array for name, array in arrays.items() if name in paths} if paths else arrays


def read_safetensors(path: Path) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Read the arrays, on the CPU, and the metadata. bfloat16, which NumPy lacks, becomes float32: the same numbers.

    Raises:
        CheckpointError: The file is damaged, or holds another dtype that MXNet lacks.
        ImportError: safetensors is missing.
        OSError: The file cannot be read.
    """
    library, arrays = require("safetensors", "safetensors"), {}
    raw: Dict[str, Any] = {}
    try:
        with library.safe_open(str(path), "np") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                if file.get_slice(name).get_dtype() == "BF16":
                    raw = raw or dict(library.deserialize(path.read_bytes()))
                    array = np.frombuffer(raw[name]["data"], BFLOAT16).reshape(raw[name]["shape"])
                    array = widened(array)
                else:
                    array = file.get_tensor(name)
                arrays[name] = mx.nd.array(array, dtype=array.dtype)
            return arrays, dict(file.metadata() or {})
    except (library.SafetensorError, ValueError, TypeError, KeyError) as error:
        text = "is damaged, or no safetensors file, or has a dtype that MXNet lacks"
        raise CheckpointError(f"{path} {text}: {str(error)[:300]}") from error
