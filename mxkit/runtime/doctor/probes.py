"""Imports modules in other processes, whose crashes and hangs become answers."""

import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

_SECONDS = 180.0

# With DMLC_ROLE=server, `import mxnet` serves and never returns (T72).
_LEFT_OUT = ("DMLC_ROLE",)


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
        names: The modules. If one ends the process, the ones after it are imported in a new one.
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
    request = {"names": names, "path": sys.path, "root": str(here.parents[2])}
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    no_site = ["-S"] if sys.flags.no_site else []
    command = [sys.executable, *no_site, "-Wignore", str(here.parent / "child.py"), json.dumps(request)]
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
