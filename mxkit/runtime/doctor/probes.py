"""Imports modules in other processes, whose crashes and hangs become answers.

A process runs this file as a script: it imports the modules, and writes one line of JSON with the result of each. An
import can end its process (OMP_NUM_THREADS=abc does so in MXNet), hang, or initialize CUDA, none of which may happen in
the doctor's process.
"""

import contextlib
import ctypes
import importlib
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

_SECONDS = 180.0


class Probe(NamedTuple):
    """Results of some imports.

    Attributes:
        answers: By module: `error` (a type of exception, or how the process ended; "" if it was imported), `text`
            of the error, `version`, and more facts about MXNet.
        noise: The other output of the processes.
    """

    answers: Dict[str, Dict[str, Any]]
    noise: str


def probe(names: Sequence[str], variables: Optional[Mapping[str, str]] = None, seconds: float = _SECONDS) -> Probe:
    """Import modules one after the other in another process.

    Args:
        names: The modules, in order. If importing one ends the process, a new process imports the next ones.
        variables: Additional environment variables of the process.
        seconds: Limit for each process.

    Returns:
        An answer for each name.
    """
    answers: Dict[str, Dict[str, Any]] = {}
    noise: List[str] = []
    left = list(names)
    while left:
        code, output, errors = _run(left, variables or {}, seconds)
        answers.update(_parse(output))
        noise.append(errors)
        left = [name for name in left if name not in answers]
        if left:
            answers[left.pop(0)] = _ended(code, errors, seconds)
    return Probe(answers, "".join(noise))


def _run(names: List[str], variables: Mapping[str, str], seconds: float) -> Tuple[Optional[int], bytes, str]:
    here = Path(__file__).resolve()
    request = {"names": names, "path": sys.path}
    # With DMLC_ROLE=server, `import mxnet` serves and never returns (T72).
    environment = {name: value for name, value in os.environ.items() if name != "DMLC_ROLE"}
    no_site = ["-S"] if sys.flags.no_site else []
    command = [sys.executable, *no_site, "-Wignore", str(here), json.dumps(request)]
    environment.update(variables)
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return None, error.stdout or b"", (error.stderr or b"").decode(errors="replace")
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def _parse(output: bytes) -> Dict[str, Dict[str, Any]]:
    # A process that was killed can leave half a line.
    lines = [line for line in output.decode(errors="replace").split("\n")[:-1] if line.startswith("{")]
    answers = [json.loads(line) for line in lines]
    return {answer["name"]: answer for answer in answers}


def _ended(code: Optional[int], errors: str, seconds: float) -> Dict[str, Any]:
    if code is None:
        return {"error": "no answer", "text": f"the import did not end within {seconds:.0f} s"}
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last = [line.strip() for line in errors.splitlines() if line.strip() and "dnnl_verbose" not in line]
    return {"error": name, "text": "the import ended the process: " + " ".join(last[-2:] or ["without a word"])}


def refused_variables(noise: str) -> Dict[str, str]:
    """Environment variables that OpenMP or MXNet could not read, with "warning" or "problem".

    >>> refused_variables("libgomp: Invalid value for environment variable OMP_DYNAMIC")
    {'OMP_DYNAMIC': 'warning'}
    >>> refused_variables("  what():  Invalid Parameter format for OMP_NUM_THREADS expect int but value='abc'")
    {'OMP_NUM_THREADS': 'problem'}
    """
    found = dict.fromkeys(re.findall(r"^libgomp: Invalid value for environment variable (\w+)", noise, re.M), "warning")
    found.update(dict.fromkeys(re.findall(r"Invalid Parameter format for (\w+) expect", noise), "problem"))
    return found


def main() -> None:
    """Import the modules that `sys.argv[1]` lists; only answers go to stdout, all other output goes to stderr."""
    request = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:] = request["path"]
    # With the name of mxkit's command, a fault of the wheel is raised by `import mxnet`, not before.
    sys.argv[:] = ["mxkit"]
    importlib.import_module("mxkit")
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
        answer.update(error=type(error).__name__, text=str(error).strip() or "no message")
    if name == "mxnet":
        try:
            answer.update(_about_cuda())  # also if they kept MXNet from being imported
        except Exception as error:
            answer["gpus_error"] = f"{type(error).__name__}: {error}"
    return answer


def _error_of_dot(mxnet: Any) -> float:
    """Largest difference of a product of MXNet's from one in double precision, relative to its largest number."""
    rows, columns = (mxnet.nd.random.uniform(-1, 1, shape=(129, 129), ctx=mxnet.cpu()) for _ in range(2))
    expected = rows.asnumpy().astype("float64") @ columns.asnumpy().astype("float64")
    return float(abs(mxnet.nd.dot(rows, columns).asnumpy() - expected).max() / abs(expected).max())


def _about_mxnet(mxnet: Any) -> Dict[str, Any]:
    answer: Dict[str, Any] = {
        "library": mxnet.libinfo.find_lib_path()[0],
        "features": [name for name, feature in mxnet.runtime.Features().items() if feature.enabled],
    }
    try:
        answer["gpus"] = mxnet.context.num_gpus()
    except mxnet.base.MXNetError as error:
        answer["gpus_error"] = str(error)
    kernels = importlib.import_module("mxkit.runtime.engine_settings").kernels()
    if kernels:
        answer["openblas"] = {"kernels": kernels, "error": _error_of_dot(mxnet)}
    dense = mxnet.gluon.nn.Dense(16, in_units=16)
    dense.initialize()
    mxnet.autograd.set_training(False)
    dense(mxnet.nd.ones((4, 16))).asnumpy()  # oneDNN logs its instruction set at its first use
    return answer


def _about_cuda() -> Dict[str, Any]:
    from mxkit.runtime import cuda_libraries

    return {"cuda_libraries": cuda_libraries.libraries(), "stand_in": cuda_libraries.in_use()}


if __name__ == "__main__":
    main()
