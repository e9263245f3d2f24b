"""Imports modules in a process of its own, and tells what came of it, one line of JSON each.

`probes.py` starts it as a script. An import can end the process (OMP_NUM_THREADS=abc does so in MXNet), hang, or
change it for good (CUDA); none of that may happen to whoever asks.
"""

import contextlib
import ctypes
import importlib
import json
import os
import sys
import types
from typing import Any, Dict, List


def main() -> None:
    """Import what `sys.argv[1]` asks for; only the answers go to the standard output, other noise to the error one."""
    request = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:] = request["path"]
    # As in mxkit's own command, what is wrong with the wheel is raised by `import mxnet`, not before.
    sys.argv[:] = ["mxkit"]
    stand_for_the_root(request["root"])
    importlib.import_module("mxkit.runtime").install()
    for name in request["names"]:
        answers.write(json.dumps({"name": name, **_tell(name)}) + "\n")
        answers.flush()
    with contextlib.suppress(OSError, TypeError):  # no C library by that way on Windows
        ctypes.CDLL(None).fflush(None)
    os._exit(0)  # what happens at the end of a process, with a driver that is not well for instance, is not asked


def stand_for_the_root(folder: str) -> None:
    """Make `mxkit.runtime` importable without `mxkit/__init__.py`, which needs the package lazy_loader."""
    root = types.ModuleType("mxkit")
    root.__path__ = [folder]
    sys.modules.setdefault("mxkit", root)


def _tell(name: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {"error": "", "text": ""}
    try:
        module = importlib.import_module(name)
        found["version"] = str(getattr(module, "__version__", ""))
        if name == "mxnet":
            found.update(_about_mxnet(module))
    except (Exception, SystemExit) as error:
        text = str(error).strip()
        found.update(error=type(error).__name__, text=text or "no message")
    if name == "mxnet":
        try:
            found.update(_about_cuda())  # also of what kept MXNet from being imported
        except Exception as error:
            found["gpus_error"] = f"{type(error).__name__}: {error}"
    return found


def _about_mxnet(mxnet: Any) -> Dict[str, Any]:
    found: Dict[str, Any] = {
        "library": mxnet.libinfo.find_lib_path()[0],
        "features": [name for name, feature in mxnet.runtime.Features().items() if feature.enabled],
        "openmp": _openmp_runtimes(),
    }
    try:
        found["gpus"] = mxnet.context.num_gpus()
    except mxnet.base.MXNetError as error:
        found["gpus_error"] = str(error)
    dense = mxnet.gluon.nn.Dense(16, in_units=16)
    dense.initialize()
    mxnet.autograd.set_training(False)
    dense(mxnet.nd.ones((4, 16))).asnumpy()  # oneDNN tells its instruction set when it is first used
    return found


def _openmp_runtimes() -> List[str]:
    try:
        with open("/proc/self/maps") as file:  # noqa: PTH123 - one import fewer where everything may be broken
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/" in line}
    except OSError:
        return []
    return sorted(path for path in paths if os.path.basename(path).startswith(("libgomp", "libiomp", "libomp")))  # noqa: PTH119


def _about_cuda() -> Dict[str, Any]:
    from mxkit.runtime import cuda_libraries, driver_stand_in, first_use

    found = cuda_libraries.libraries()
    paths = {library.soname.partition(".so")[0]: library.path for library in found if library.path}
    return {
        "cuda_libraries": [[str(value) for value in library] for library in found],
        "stand_in": driver_stand_in.in_use(),
        "cudnn_lacks": first_use.lacking_parts(paths["libcudnn"]) if "libcudnn" in paths else {},
        "nvrtc": first_use.nvrtc_abilities(paths["libnvrtc"]) if "libnvrtc" in paths else {},
    }


if __name__ == "__main__":
    main()
