"""safetensors files, read as NDArrays. The package `safetensors` checks every offset against the file's size."""

from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from mxkit.core.arguments import require
from mxkit.errors import CheckpointError
import mxnet as mx
import numpy as np


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
                    array = _widened(**raw[name])
                else:
                    array = file.get_tensor(name)
                if str(array.dtype) not in _DTYPES:
                    raise CheckpointError(f"{path}: {name!r:.100}: MXNet has no dtype {array.dtype}")
                arrays[name] = mx.nd.array(array, dtype=array.dtype)
            return arrays, dict(file.metadata() or {})
    except (library.SafetensorError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged, or no safetensors file: {str(error)[:300]}") from error


def _widened(dtype: str, shape: Sequence[int], data: bytes) -> "np.ndarray":
    """An array of bfloat16 as float32. Its 16 bits are the upper half."""
    del dtype
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)


_DTYPES = frozenset(["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"])
