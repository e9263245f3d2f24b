"""Checks what CUDA's libraries load and compile only when a GPU first computes: `import mxnet` does not show it."""

import ctypes
from pathlib import Path
from typing import Any, Dict, List

from mxkit.runtime.elf import needs, opens


def lacking_parts(cudnn: str) -> Dict[str, List[str]]:
    """Find the parts of cuDNN 8 that will not load: cuDNN opens them at the first convolution, and then aborts.

    Args:
        cudnn: The path of `libcudnn.so.8`; its parts, like `libcudnn_cnn_infer.so.8`, lie beside it.

    Returns:
        By the name of each such part, the sonames that it lacks: `libz.so.1`, for example, which NVIDIA's wheels do not
        contain.

    Side effects:
        Libraries of the system that the parts need are loaded; the parts are not.
    """
    lacking = {}
    for part in sorted(Path(cudnn).parent.glob("libcudnn_*.so.*")):
        try:
            sonames, folders = needs(part)
        except (OSError, ValueError):  # a damaged part, which the doctor reports in the line about the wheel's files
            continue
        places = [part.parent, *folders]
        absent = [name for name in sonames if not any((place / name).is_file() for place in places) and not opens(name)]
        if absent:
            lacking[part.name] = absent
    return lacking


def nvrtc_abilities(nvrtc: str) -> Dict[str, Any]:
    """Ask NVRTC, which compiles MXNet's fused operators at run time, for its version and architectures.

    Args:
        nvrtc: The path of `libnvrtc.so.11.2`.

    Returns:
        `version`, like [11, 8], and `architectures`, like [80, 86]; empty before NVRTC 11.2, which reports neither.
    """
    library = ctypes.CDLL(nvrtc)
    if not hasattr(library, "nvrtcGetSupportedArchs"):
        return {}
    major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    architectures = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(architectures)
    return {"version": [major.value, minor.value], "architectures": list(architectures)}
