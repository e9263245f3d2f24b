"""safetensors files, read as NDArrays. The package `safetensors` checks every offset against the file's size."""

from pathlib import Path
from typing import Any, Dict, Tuple

from mxkit.core.extras import require
from mxkit.errors import CheckpointError
import mxnet as mx


def read_safetensors(path: Path) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Read the arrays, on the CPU, and the metadata.

    Raises:
        CheckpointError: The file is damaged, or holds a dtype that MXNet lacks.
        ImportError: safetensors is missing.
        OSError: The file cannot be read.
    """
    library, arrays = require("safetensors", "safetensors"), {}
    try:
        with library.safe_open(str(path), "np") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                array = file.get_tensor(name)
                if str(array.dtype) not in _DTYPES:
                    raise CheckpointError(f"{path}: {name!r:.100}: MXNet has no dtype {array.dtype}")
                arrays[name] = mx.nd.array(array, dtype=array.dtype)
            return arrays, dict(file.metadata() or {})
    except (library.SafetensorError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged, or no safetensors file: {str(error)[:300]}") from error


_DTYPES = frozenset(["float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool"])
