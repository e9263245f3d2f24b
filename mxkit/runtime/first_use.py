"""What CUDA's libraries load and compile only when a GPU first computes, which `import mxnet` does not tell."""

import ctypes
from pathlib import Path
from typing import Any, Dict, List

from mxkit.runtime.elf import needs, opens


def lacking_parts(cudnn: str) -> Dict[str, List[str]]:
    """Tell which parts of cuDNN 8 will not load: it opens them at the first convolution, and ends the process then.

    Args:
        cudnn: The path of `libcudnn.so.8`; its parts, like `libcudnn_cnn_infer.so.8`, lie beside it.

    Returns:
        For the name of each part that lacks libraries, their sonames. `libz.so.1` of the system is one of those that
        NVIDIA's wheels do not hold.

    Side effects:
        What the parts need of the system is loaded, the parts themselves are not.
    """
    lacks = {}
    for part in sorted(Path(cudnn).parent.glob("libcudnn_*.so.*")):
        try:
            sonames, folders = needs(part)
        except (OSError, ValueError):  # damaged, which the line about the wheel's files is for
            continue
        here = [part.parent, *folders]
        found = [one for one in sonames if not any((folder / one).is_file() for folder in here) and not opens(one)]
        if found:
            lacks[part.name] = found
    return lacks


def nvrtc_abilities(nvrtc: str) -> Dict[str, Any]:
    """Ask NVRTC, which compiles MXNet's fused operators while a net runs, what it is and what it compiles for.

    Args:
        nvrtc: The path of `libnvrtc.so.11.2`.

    Returns:
        `version`, like [11, 8], and `architectures`, like [80, 86]; empty for one older than 11.2, which cannot say.
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
