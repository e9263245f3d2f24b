"""Writes NumPy arrays as the content of a safetensors or an npz file."""

import io
import json
import struct
from typing import Callable, Dict, Mapping, Optional, Sequence
import zipfile

from mxkit.core.arguments import require
from mxkit.errors import CheckpointError
from mxkit.storage.params_format import dtype_name, widened
import numpy as np


def safetensors_bytes(arrays: Mapping[str, "np.ndarray"], metadata: Optional[Dict[str, str]] = None) -> bytes:
    """Content of a safetensors file; bfloat16 (`BFLOAT16`) stays bfloat16.

    Args:
        arrays: By name.
        metadata: Texts for the file's header.

    Raises:
        ImportError: The package safetensors is not installed; the text has the command.
        CheckpointError: An array has the name that safetensors keeps for its metadata.
    """
    save = require("safetensors.numpy", "safetensors").save
    if "__metadata__" in arrays:
        raise CheckpointError(
            "an array is named '__metadata__', which safetensors keeps for itself: write an .npz file"
        )
    short = [name for name, array in arrays.items() if dtype_name(array.dtype) == "bfloat16"]
    plain = {name: array["bfloat16"] if name in short else array for name, array in arrays.items()}
    # np.ascontiguousarray makes a vector of an array without dimensions
    content: bytes = save({name: np.asarray(array, order="C") for name, array in plain.items()}, metadata)
    return _as_bfloat16(content, short) if short else content


def _as_bfloat16(content: bytes, names: Sequence[str]) -> bytes:
    """Replace U16 by BF16 in the header: the package writes bfloat16 of PyTorch and JAX only."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    for name in names:
        header[name]["dtype"] = "BF16"
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def npz_bytes(arrays: Mapping[str, "np.ndarray"]) -> bytes:
    """Content of a file for `np.load(path, allow_pickle=False)`; bfloat16 becomes float32.

    Args:
        arrays: By name.

    Raises:
        CheckpointError: Two names differ by ".npy" only, which `np.load` takes for one.
    """
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        for name, array in arrays.items():
            if f"{name}.npy" in arrays:
                raise CheckpointError(f"np.load cannot tell {name!r} from {name + '.npy'!r}: write a .safetensors file")
            # np.savez cannot store an array named "file"
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, widened(array), allow_pickle=False)
    return output.getvalue()


#: Writers by the suffix of the file.
WRITERS: Dict[str, Callable[[Mapping[str, "np.ndarray"]], bytes]] = {
    ".safetensors": safetensors_bytes,
    ".npz": npz_bytes,
}
