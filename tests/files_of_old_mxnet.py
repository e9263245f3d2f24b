"""Parameter files of old MXNet, byte for byte, and a place where MXNet does not load."""

import os
from pathlib import Path
import struct
import subprocess
import sys

import mxkit
import numpy as np

NUMBERS = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}
MAGICS = {"V1": 0xF993FAC8, "V2": 0xF993FAC9, "V3": 0xF993FACA}

# A module that takes MXNet's place, and one that Python runs when it starts.
NO_MXNET = 'raise OSError("libmxnet.so: wrong ELF class")\n'
NO_PICKLE = """
import pickle
def refuse(*arguments, **options):
    raise OSError("nothing is unpickled here")
pickle.load = pickle.loads = refuse
"""


def array_bytes(version, array):
    """An array as MXNet wrote it: "oldest" until 0.8, "V1" in 0.11, "V2" from 1.0, "V3" under `npx.set_np()` of 1.9."""
    if version == "oldest":
        start = struct.pack(f"<I{array.ndim}I", array.ndim, *array.shape)
    else:
        start = struct.pack("<I", MAGICS[version]) + (b"" if version == "V1" else struct.pack("<i", 0))
        start += struct.pack(f"<i{array.ndim}q", array.ndim, *array.shape)
    return start + struct.pack("<3i", 1, 0, NUMBERS[array.dtype.name]) + array.tobytes()


def file_bytes(version, arrays, named=True):
    """A list of arrays, with their names."""
    names = [name.encode() for name in arrays] if named else []
    return b"".join([
        struct.pack("<3Q", 0x112, 0, len(arrays)),
        *(array_bytes(version, array) for array in arrays.values()),
        struct.pack("<Q", len(names)),
        *(struct.pack("<Q", len(name)) + name for name in names),
    ])  # fmt: skip


def some_arrays(version):
    """Arrays of every dtype that a version of the format holds; "V3" has arrays without axes and without elements."""
    dtypes = [name for name in NUMBERS if version in ("V2", "V3") or name not in ("int64", "int8", "bool")]
    arrays = {f"arg:{name}": np.array([[0, 1, 2], [3, 4, 5]]).astype(name) for name in dtypes}
    arrays["aux:bn_moving_mean"] = np.array([np.nan, np.inf, -0.5], np.float32)
    if version == "V3":
        arrays.update({"arg:scalar": np.array(7, np.float32), "arg:empty": np.zeros((0, 3), np.float32)})
    return arrays


def run_without_mxnet(folder, code_or_module, *arguments):
    """Run `python -m MODULE`, or code, in a fresh interpreter that neither imports MXNet nor unpickles."""
    place = Path(folder) / "no mxnet"
    place.mkdir(exist_ok=True)
    (place / "mxnet.py").write_text(NO_MXNET)
    (place / "sitecustomize.py").write_text(NO_PICKLE)
    path = os.pathsep.join([str(place), str(Path(mxkit.__file__).parents[1])])
    option = "-m" if code_or_module.startswith("mxkit.") else "-c"
    command = [sys.executable, option, code_or_module, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=str(folder))
