"""`python -m mxkit.exporting.params FILE [--to OUT]`: lists, checks and converts a parameter file, without MXNet."""

import argparse
import io
import json
from pathlib import Path
import re
import struct
import sys
from typing import Any, Callable, Dict, Mapping, Optional, Sequence
import zipfile

from mxkit.core.arguments import require
from mxkit.core.system import aligned, shown, write_atomically, write_lines
from mxkit.errors import CheckpointError
from mxkit.storage.params_format import V1, V2, V3, dtype_name, each_array, widened
import numpy as np

_VERSIONS = {0: "oldest, ndim first", V1: "V1", V2: "V2", V3: "V3, NumPy shapes"}
_SINGLE_LAYER = re.compile(
    r"((l|r)\d+_)?(i2h|h2h|h2r)_(weight|bias)|weight|bias|gamma|beta|alpha|const|running_mean|running_var"
)
_ROLES = ("arg:", "aux:")


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


def naming(names: Sequence[str]) -> str:
    """Return the functions of MXNet that name arrays in this way.

    >>> naming(["arg:fc1_weight", "aux:bn_moving_mean"])
    'arg:/aux: (export, Module)'
    >>> naming(["0.weight", "0.bias"]), naming(["dense0_weight"]), naming(["0", "1"])
    ('structural (save_parameters)', 'prefixed (collect_params)', 'other')
    """
    if names and all(name.startswith(_ROLES) for name in names):
        return "arg:/aux: (export, Module)"
    if any("." in name for name in names) or (names and all(map(_SINGLE_LAYER.fullmatch, names))):
        return "structural (save_parameters)"
    return "prefixed (collect_params)" if names and all("_" in name for name in names) else "other"


def without_roles(arrays: Mapping[str, "np.ndarray"], path: Path) -> Dict[str, "np.ndarray"]:
    """Remove `arg:` and `aux:` from the names.

    Args:
        arrays: By name.
        path: Their file, for the message.

    Raises:
        CheckpointError: An `arg:x` and an `aux:x`, or an `x`, would get one name.
    """
    renamed: Dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        short = name[4:] if name.startswith(_ROLES) else name
        if short in renamed:
            raise CheckpointError(
                f"{path} is not converted: {name!r} and another array would both be named {short!r}. "
                "Rename one of them with MXNet (mx.nd.load, mx.nd.save)"
            )
        renamed[short] = array
    return renamed


def run(path: Path, target: Optional[Path]) -> int:
    """List and check a file, and convert it; return how many arrays are not finite."""
    rows = [["name", "shape", "dtype", "bytes", ""]]
    kept: Dict[str, Any] = {}
    total, version = 0, "no arrays"
    for name, headers, array in each_array(path, unnamed=True):
        numbers = widened(array)
        found = {"NaN": np.isnan, "infinite": np.isinf} if numbers.dtype.kind == "f" else {}
        counts = {what: int(test(numbers).sum()) for what, test in found.items()}
        faults = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        rows.append([shown(name), str(tuple(array.shape)), dtype_name(array.dtype), str(array.nbytes), faults])
        kept[name] = array if target else None
        total, version = total + array.nbytes, _VERSIONS[headers.version]
    faulty = sum(bool(row[-1]) for row in rows)
    names = naming(list(kept))
    total_line = f"{shown(str(path))}: {len(kept)} arrays, {total:,} bytes; format {version}; names: {names}"
    verdict = f"{faulty} arrays have values that are not finite" if faulty else "all values are finite"
    write_lines([*aligned(rows, left=(0, 1, 2, 4)), total_line, verdict])
    if target:
        arrays = without_roles(kept, path)
        content = WRITERS[target.suffix](arrays)
        write_atomically(target, content)
        write_lines([f"wrote {shown(str(target))}: {len(arrays)} arrays, {len(content):,} bytes"])
    return faulty


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run the command.

    Exit codes: 0 success; 1 the file is refused, or has values that are not finite (it is converted all the same);
    2 a wrong command line.
    """
    parser = argparse.ArgumentParser("python -m mxkit.exporting.params", description=__doc__)
    parser.add_argument("file", type=Path, help="a file of save_parameters, export, nd.save or Module")
    parser.add_argument("--to", type=Path, metavar="OUT", help="a .safetensors or .npz file to write")
    options = parser.parse_args(arguments)
    if options.to and options.to.suffix not in WRITERS:
        parser.error(f"--to: expected a file that ends in {' or '.join(WRITERS)}; received {options.to}")
    try:
        faulty = run(options.file, options.to)
    except (CheckpointError, ImportError, OSError) as error:
        sys.exit(f"error: {shown(str(error))}")
    sys.exit(1 if faulty else 0)


if __name__ == "__main__":
    main()
