"""Imports modules, and writes one line of JSON with the result of each.

`probes.py` starts it as a script: an import can end its process (OMP_NUM_THREADS=abc does so in MXNet), hang, or
initialize CUDA, none of which may happen in the doctor's process.
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
    """Import the modules that `sys.argv[1]` lists; only answers go to stdout, all other output goes to stderr."""
    request = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:] = request["path"]
    # With the name of mxkit's command, a fault of the wheel is raised by `import mxnet`, not before.
    sys.argv[:] = ["mxkit"]
    # `mxkit/__init__.py` imports lazy_loader, which may be missing.
    root = types.ModuleType("mxkit")
    root.__path__ = [request["root"]]
    sys.modules.setdefault("mxkit", root)
    importlib.import_module("mxkit.runtime").install()
    for name in request["names"]:
        answers.write(json.dumps({"name": name, **_answer(name)}) + "\n")
        answers.flush()
    with contextlib.suppress(OSError, TypeError):  # Windows has no such C library
        ctypes.CDLL(None).fflush(None)
    os._exit(0)  # without the exit handlers, which can fail: those of a faulty driver, for instance


def _answer(name: str) -> Dict[str, Any]:
    answer: Dict[str, Any] = {"error": "", "text": ""}
    try:
        module = importlib.import_module(name)
        answer["version"] = str(getattr(module, "__version__", ""))
        if name == "mxnet":
            answer.update(_about_mxnet(module))
    except (Exception, SystemExit) as error:
        text = str(error).strip()
        answer.update(error=type(error).__name__, text=text or "no message")
    if name == "mxnet":
        try:
            answer.update(_about_cuda())  # also if they kept MXNet from being imported
        except Exception as error:
            answer["gpus_error"] = f"{type(error).__name__}: {error}"
    return answer


def _about_mxnet(mxnet: Any) -> Dict[str, Any]:
    answer: Dict[str, Any] = {
        "library": mxnet.libinfo.find_lib_path()[0],
        "features": [name for name, feature in mxnet.runtime.Features().items() if feature.enabled],
        "openmp": _openmp_runtimes(),
    }
    try:
        answer["gpus"] = mxnet.context.num_gpus()
    except mxnet.base.MXNetError as error:
        answer["gpus_error"] = str(error)
    dense = mxnet.gluon.nn.Dense(16, in_units=16)
    dense.initialize()
    mxnet.autograd.set_training(False)
    dense(mxnet.nd.ones((4, 16))).asnumpy()  # oneDNN logs its instruction set at its first use
    return answer


def _openmp_runtimes() -> List[str]:
    try:
        with open("/proc/self/maps") as file:  # noqa: PTH123 - pathlib would be one more import that can be broken
            paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/" in line}
    except OSError:
        return []
    return sorted(path for path in paths if os.path.basename(path).startswith(("libgomp", "libiomp", "libomp")))  # noqa: PTH119


def _about_cuda() -> Dict[str, Any]:
    from mxkit.runtime import cuda_libraries

    libraries = cuda_libraries.libraries()
    paths = {library.soname.partition(".so")[0]: library.path for library in libraries if library.path}
    return {
        "cuda_libraries": [[str(value) for value in library] for library in libraries],
        "stand_in": cuda_libraries.in_use(),
        "cudnn_lacks": cuda_libraries.lacking_parts(paths["libcudnn"]) if "libcudnn" in paths else {},
        "nvrtc": cuda_libraries.nvrtc_abilities(paths["libnvrtc"]) if "libnvrtc" in paths else {},
    }


if __name__ == "__main__":
    main()
