"""What users meet when MXNet does not import (the numbers are issues of apache/mxnet), and what mxkit answers.

Each is met for real: in a process of its own, with a library that the dynamic linker refuses, or files that are there
twice or not at all.
"""

import fake_cuda
from mxkit.runtime.wheels import load_problem
import pytest

IMPORT = "import mxkit, mxnet"
CPU_INSTEAD = "pip uninstall -y mxnet-cu112 && pip install --no-deps mxnet==1.9.1"
MISSING = [
    "libcudart.so.11.0",
    "libcudnn.so.8",  # 20953, colabtools#5514
    "libnccl.so.2",  # 20279
    "libnvrtc.so.11.2",  # 20218
]
ASK = "int cuInit(int); int ask(void) { return cuInit(0); }"
# Every file of this process is full from the first byte on.
FULL = "import resource, sys; sys.dont_write_bytecode = True; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"


def shortened(path, size):
    path.write_bytes(path.read_bytes()[:size])


def without_libraries(site, folder):
    fake_cuda.mxnet_wheel(site, "mxnet-cu112", [*fake_cuda.SONAMES, "libcuda.so.1"])
    fake_cuda.nvidia_wheels(site, MISSING)


def without_any_library(site, folder):
    fake_cuda.mxnet_wheel(site, "mxnet-cu117", [*fake_cuda.SONAMES, "libcuda.so.1"])
    # colabtools#5514: there is cuDNN, but of another version
    fake_cuda.library(site / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9", "libcudnn.so.9")


def with_a_library_cut_off(size):
    def make(site, folder):  # without mxkit, loading it ends the process: SIGBUS
        fake_cuda.mxnet_wheel(site, "mxnet-cu112", [*fake_cuda.SONAMES, "libcuda.so.1"])
        fake_cuda.nvidia_wheels(site)
        shortened(fake_cuda.nvidia_wheel(site, fake_cuda.WANTED["libnccl.so.2"], "libnccl.so.2", padding=100000), size)

    return make


def cut_off(size):
    def make(site, folder):
        shortened(fake_cuda.mxnet_wheel(site, "mxnet-cu112", [], "const char padding[200000] = {1};"), size)

    return make


def with_driver(calls, size=None, needed=()):
    def make(site, folder):
        fake_cuda.mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], calls)
        shortened(fake_cuda.library(folder / "driver" / "libcuda.so.1", "libcuda.so.1", needed), size)
        return {"LD_LIBRARY_PATH": str(folder / "driver")}

    return make


def with_a_full_disk(site, folder):
    fake_cuda.mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], ASK)
    return {"TMPDIR": str(folder), "code": FULL}


NOT_FOUND = "cannot open shared object file: No such file or directory"
CUT_OFF = [
    "mxnet-cu112 1.9.1 does not load: {site}/mxnet/libmxnet.so is cut off or no library",
    "    pip install --force-reinstall --no-deps mxnet-cu112==1.9.1\n",
]
LIBRARY_CUT_OFF = [
    "    libnccl.so.2: {site}/nvidia/nccl/lib/libnccl.so.2 is cut off or no library",
    f"    pip install --force-reinstall --no-deps {fake_cuda.WANTED['libnccl.so.2']} ",
]
BAD_DRIVER = [
    "libcuda.so.1, the library of the NVIDIA driver, is there but does not load:",
    "Install the driver again: `nvidia-smi` must list the GPUs",
]
FAILURES = {
    "libraries of CUDA": (
        without_libraries,
        [
            "mxnet-cu112 1.9.1 needs libraries of NVIDIA that are not usable here:\n"
            + "".join(f"    {soname}: not found\n" for soname in MISSING)
            + "Type one of\n    pip install 'mxkit[cu112]' ",
            f"    pip install --force-reinstall --no-deps {' '.join(fake_cuda.WANTED[soname] for soname in MISSING)} ",
            f"    {CPU_INSTEAD} ",
            "LD_LIBRARY_PATH",
        ],
    ),
    "all libraries of CUDA": (
        without_any_library,
        [*(f"    {soname}: not found\n" for soname in fake_cuda.SONAMES), "pip install 'mxkit[cu117]' "],
    ),
    "a library of CUDA is empty": (with_a_library_cut_off(0), LIBRARY_CUT_OFF),
    "a library of CUDA is cut off": (with_a_library_cut_off(20000), LIBRARY_CUT_OFF),
    "the driver is older than the library": (
        with_driver("int cuGraphNodeGetType(void); void *use = cuGraphNodeGetType;"),
        ["undefined symbol: cuGraphNodeGetType", "like cuX, update the NVIDIA driver"],
    ),
    "the driver is cut off": (with_driver(ASK, 100), BAD_DRIVER),
    "the driver lacks a library": (with_driver(ASK, needed=["libdxcore.so"]), BAD_DRIVER),
    "no driver and a full disk": (
        with_a_full_disk,
        [
            "mxnet-cu112 1.9.1 is built for NVIDIA GPUs and needs libcuda.so.1 of the NVIDIA driver.",
            "the temporary folder takes no stand-in for it ([Errno",
            "name another one in TMPDIR",
            f"    {CPU_INSTEAD}\n",
        ],
    ),
    "OpenBLAS": (  # 20068
        lambda site, folder: fake_cuda.mxnet_wheel(site, "mxnet", ["libopenblas.so.0"]),
        [f"mxnet 1.9.1 does not load: libopenblas.so.0: {NOT_FOUND}", "    apt-get install libopenblas0"],
    ),
    "a library of a build from source": (
        lambda site, folder: fake_cuda.mxnet_wheel(site, "", ["libunheard.so.3"]),
        [f"MXNet's library {{site}}/mxnet/libmxnet.so does not load: libunheard.so.3: {NOT_FOUND}", "LD_LIBRARY_PATH"],
    ),
    "headers cut off": (cut_off(60), CUT_OFF),
    "cut off": (cut_off(100000), CUT_OFF),
}


@fake_cuda.fakes_nvidia
@pytest.mark.parametrize("failure", FAILURES)
def test_what_keeps_mxnet_from_loading_is_told_with_the_way_out(bare_python, site, tmp_path, failure):
    make, words = FAILURES[failure]
    found = make(site, tmp_path)
    variables = found if isinstance(found, dict) else {}
    code = variables.pop("code", "")
    # without mxkit an error, or the end of the process
    assert bare_python("-c", code + "import mxnet", site=site, **variables).returncode not in (0, 2)
    said = fake_cuda.refusal(bare_python("-c", code + IMPORT, site=site, **variables))
    for each in words:
        assert each.format(site=site) in said


@pytest.mark.parametrize("soname", ["libquadmath.so.0", "libgomp.so.1", "libstdc++.so.6"])
def test_what_is_said_of_libraries_that_this_machine_may_have(site, soname):
    said = load_problem(OSError(f"{soname}: {NOT_FOUND}"), site / "mxnet" / "libmxnet.so")
    assert said.endswith(f"    apt-get install {soname.replace('.so.', '')}")


@fake_cuda.fakes_nvidia
def test_mxnet_was_tried_before_mxkit(bare_python, site):
    fake_cuda.mxnet_wheel(site, "mxnet-cu112", [*fake_cuda.SONAMES, "libcuda.so.1"])
    first = "try:\n    import mxnet\nexcept OSError as error:\n    print(error)\n"
    done = bare_python("-c", first + IMPORT, site=site)
    assert done.stdout == f"libcudnn.so.8: {NOT_FOUND}\n"
    assert "libcudnn.so.8: not found" in fake_cuda.refusal(done)
    fake_cuda.nvidia_wheels(site)
    done = bare_python("-c", first + IMPORT, site=site)
    assert done.stdout.splitlines()[1:] == ["MXNet is loaded"], done.stderr
