"""Small real libraries with the names of NVIDIA's, laid out as its wheels and MXNet's lay them out.

They hold no code of NVIDIA's, but the dynamic linker treats them as it treats those.
"""

from functools import lru_cache
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Sequence, Tuple

from mxkit.runtime.cuda_libraries import REQUIREMENTS, opens
import pytest

COMPILER = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")

# What mxnet-cu112 1.9.1 asks for, in its order, and what these ask for themselves (T81).
SONAMES = [
    *("libcudnn.so.8", "libnccl.so.2", "libcudart.so.11.0", "libcufft.so.10", "libcublas.so.11", "libcusolver.so.11"),
    *("libcurand.so.10", "libnvrtc.so.11.2", "libnvToolsExt.so.1"),
]
WANTED = {soname: REQUIREMENTS[soname] for soname in [*SONAMES, "libcublasLt.so.11"]}
NEEDED = {"libcublas.so.11": ["libcublasLt.so.11"], "libcusolver.so.11": ["libcublas.so.11", "libcublasLt.so.11"]}


needs_compiler = pytest.mark.skipif(
    COMPILER is None or not sys.platform.startswith("linux"), reason="small libraries are made with a C compiler here"
)
fakes_nvidia = pytest.mark.skipif(
    needs_compiler.args[0] or opens("libcuda.so.1"), reason="it needs a C compiler, and a machine without a driver"
)


def refusal(done) -> str:
    """The text of the MXNetImportError that ended a process."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert "mxkit.errors.MXNetImportError: " in done.stderr, done.stderr
    return done.stderr.split("mxkit.errors.MXNetImportError: ")[1]


def library(path: Path, soname: str, needed: Sequence[str] = (), code: str = "", flags: Sequence[str] = ()) -> Path:
    """Write a library with a soname, which needs others that need not be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_compiled(soname, tuple(needed), code, tuple(flags)))
    return path


@lru_cache(maxsize=None)
def _compiled(soname: str, needed: Tuple[str, ...] = (), code: str = "", flags: Tuple[str, ...] = ()) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "code.c"), Path(folder, "made.so")
        source.write_text(code)
        arguments = [f"-Wl,-soname,{soname}", *flags] if soname else [*flags]
        arguments += ["-Wl,--no-as-needed", str(source)]
        for name in needed:
            if os.sep in name:
                arguments.append(name)
            else:
                stub = Path(folder, name)
                stub.write_bytes(_compiled(name))
                arguments.append(str(stub))
        command = [COMPILER, "-shared", "-fPIC", "-nostdlib", "-Wl,--allow-shlib-undefined", "-o", str(made)]
        subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
        return made.read_bytes()


def nvidia_wheel(
    site: Path, requirement: str, soname: str, needed: Sequence[str] = (), padding: int = 0, folder: str = ""
) -> Path:
    """Install a wheel of NVIDIA's with one library, as pip does: its file replaces one that is there.

    Returns:
        The library.
    """
    name, _, version = requirement.partition("==")
    folder = folder or re.sub(r"^nvidia-|-cu\d+$", "", name).replace("-", "_")
    padded = f"const char padding[{padding}] = {{1}};" if padding else ""
    path = library(site / "nvidia" / folder / "lib" / soname, soname, needed, padded)
    information = site / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(exist_ok=True)
    line = f"nvidia/{folder}/lib/{soname},sha256=abc,{path.stat().st_size}\n"
    with (information / "RECORD").open("a") as record:
        record.write(f"nvidia/__init__.py,sha256=abc,0\n{line}{information.name}/RECORD,,\n")
    return path


def nvidia_wheels(site: Path, without: Sequence[str] = ()) -> None:
    """Install a wheel for each soname that mxnet-cu112 needs but those left out."""
    for soname, requirement in WANTED.items():
        if soname not in without:
            nvidia_wheel(site, requirement, soname, NEEDED.get(soname, ()))


def mxnet_wheel(site: Path, name: str, needed: Sequence[str], code: str = "", flags: Sequence[str] = ()) -> Path:
    """Install a package `mxnet` that does nothing but load its library, in MXNet's own way.

    Returns:
        The library.
    """
    import mxnet

    package = site / "mxnet"
    package.mkdir(parents=True)
    shutil.copy(Path(mxnet.__file__).parent / "libinfo.py", package)
    (package / "__init__.py").write_text("from . import base\nprint('MXNet is loaded')\n")
    (package / "base.py").write_text(
        "import ctypes\n"
        "from . import libinfo\n"
        "_LIB = ctypes.CDLL(libinfo.find_lib_path()[0], ctypes.RTLD_LOCAL)\n"  # as line 347 of the real one
    )
    if name:
        (site / f"{name.replace('-', '_')}-1.9.1.dist-info").mkdir()
    return library(package / "libmxnet.so", "libmxnet.so", needed, code, flags)


def real_mxnet_for_cuda(folder: Path, driver_functions: Sequence[str] = ("cuLaunchKernel",)) -> Path:
    """Make a library that is the real MXNet, the one of these tests, and asks for CUDA as mxnet-cu112 does.

    Returns:
        What MXNET_LIBRARY_PATH is to be set to.
    """
    from mxnet import libinfo

    real = Path(libinfo.find_lib_path()[0])
    calls = "".join(f"int {name}(void); void *use_{name} = (void *){name};\n" for name in driver_functions)
    path = folder / "engine" / "libmxnet_for_cuda.so"
    return library(
        path, "", [*SONAMES, "libcuda.so.1", str(real)], calls, ["-Wl,-rpath," + str(real.parent), "-Wl,-z,lazy"]
    )
