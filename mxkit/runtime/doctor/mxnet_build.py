"""Lines about the installed MXNet: its wheel, whether it imports, and its build."""

from pathlib import Path
import re
import textwrap
from typing import Any, List, Mapping, Tuple

from mxkit.runtime.doctor.findings import Line, judged
from mxkit.runtime.doctor.probes import refused_variables
from mxkit.runtime.wheels import RELEASE, Wheel, foreign_name, installed_wheels, package_spec, release, wheel_problem


def build_lines(mxnet: Mapping[str, Any], noise: str) -> Tuple[Line, ...]:
    """Lines about MXNet, from the answers and the output of its probe."""
    if mxnet["error"]:
        # The first operator can fail too (MXNET_ENGINE_TYPE).
        return (*_wheels(), _failure(mxnet, noise))
    version = mxnet["version"]
    fix = f"mxkit's repairs are written for MXNet {RELEASE}: `mxkit install`"
    numbers = ".".join(map(str, release(version)))
    said = version if version == numbers else f"{version}, a build of its own of {numbers}"
    return (
        *_wheels(),
        judged("version", said, numbers == RELEASE, fix),
        Line("library", mxnet["library"]),
        Line("features", "\n".join(textwrap.wrap(" ".join(mxnet["features"]), 80)), data={"on": mxnet["features"]}),
        *_onednn(mxnet["features"], noise),
    )


def _wheels() -> Tuple[Line, ...]:
    spec = package_spec()
    package = Path(spec.origin).resolve().parent if spec and spec.origin else None
    wheels = installed_wheels()
    if package is None:
        return tuple(map(_wheel, wheels)) or (Line("distribution", "none"),)
    used = [wheel for wheel in wheels if wheel.folder == package.parent]
    if used:
        return tuple(map(_wheel, used))
    hidden = "".join(f"; it hides {wheel} in {wheel.folder}" for wheel in wheels)
    return (Line("distribution", f"none for {package}: built from source, or by another vendor{hidden}"),)


def _wheel(wheel: Wheel) -> Line:
    foreign = foreign_name(wheel.name)
    data = {"name": wheel.name, "version": wheel.version}
    return judged("distribution", f"{wheel} in {wheel.folder}", not foreign, foreign or "", data)


def _failure(mxnet: Mapping[str, Any], noise: str) -> Line:
    error, text = mxnet["error"], mxnet["text"]
    first, *rest = text.splitlines()
    if error == "MXNetImportError":
        return Line("import", first, "problem", "\n".join([*rest, "or let mxkit do it:", "    mxkit install"]))
    refused = [name for name, status in refused_variables(noise).items() if status == "problem"]
    if refused:
        fix = f"MXNet ends the process at a value that it cannot read: unset {' '.join(refused)}"
    elif re.search(r"Cannot find Engine|thread_pool\.h", text):
        first = next((line for line in rest if line.startswith("MXNetError")), first)
        fix = "unset MXNET_ENGINE_TYPE MXNET_CPU_WORKER_NTHREADS, or give them values that MXNet knows: NaiveEngine; 4"
    else:
        fix = wheel_problem() or f"python -m pip install --force-reinstall --no-deps mxnet=={RELEASE}"
    return Line("import", first if first.startswith(error) else f"{error}: {first}", "problem", fix)


def _onednn(features: List[str], noise: str) -> Tuple[Line, ...]:
    if "MKLDNN" not in features:
        return (Line("oneDNN", "not built in: convolutions on the CPU are slow"),)
    version = re.search(r"^dnnl_verbose,info,oneDNN v(\S+)", noise, re.M)
    isa = re.search(r"^dnnl_verbose,info,cpu,isa:(.+)$", noise, re.M)
    if not (version and isa):
        return (Line("oneDNN", "built in, but not used here (MXNET_MKLDNN_ENABLED=0 turns it off)"),)
    data = {"version": version[1], "isa": isa[1]}
    is_fast = "AVX2" in isa[1] or "AVX-512" in isa[1]
    fix = "without AVX2 it is several times slower; DNNL_MAX_CPU_ISA limits it, a virtual machine may hide it"
    return (judged("oneDNN", f"{version[1]}, {isa[1]}", is_fast, fix, data),)
