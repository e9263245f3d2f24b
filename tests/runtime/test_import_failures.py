"""What users meet when MXNet does not import (the numbers are issues of apache/mxnet), and what mxkit answers.

Each is met for real: in a process of its own, with a library that the dynamic linker refuses, or files that are there
twice or not at all.
"""

from fake_cuda import SONAMES, fakes_nvidia, library, mxnet_wheel, needs_compiler, nvidia_wheels, refusal
from mxkit.runtime.cuda_libraries import REQUIREMENTS
from mxkit.runtime.wheels import load_problem
import pytest

IMPORT = "import mxkit, mxnet"
CPU_INSTEAD = "pip uninstall -y mxnet-cu112 && pip install --no-deps mxnet==1.9.1"


def plain_error(done):
    """The last line of what Python says without mxkit."""
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


MISSING = {
    "libcudart.so.11.0": "nvidia-cuda-runtime-cu11==11.8.89",
    "libcudnn.so.8": "nvidia-cudnn-cu11==8.9.6.50",  # 20953, colabtools#5514
    "libnccl.so.2": "nvidia-nccl-cu11==2.21.5",  # 20279
    "libnvrtc.so.11.2": "nvidia-cuda-nvrtc-cu11==11.8.89",  # 20218
}


@needs_compiler
def test_libraries_of_cuda_are_missing(bare_python, site):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, REQUIREMENTS, without=MISSING)
    assert "cannot open shared object file: No such file or directory" in plain_error(
        bare_python("-c", "import mxnet", site=site)
    )
    said = refusal(bare_python("-c", IMPORT, site=site))
    missing = "".join(f"    {soname}: not found\n" for soname in MISSING)
    assert said.startswith(
        f"mxnet-cu112 1.9.1 needs libraries of NVIDIA that are not usable here:\n{missing}Type one of\n"
    )
    assert "    pip install 'mxkit[cu112]' " in said
    assert f"    pip install --force-reinstall --no-deps {' '.join(MISSING.values())} " in said
    assert f"    {CPU_INSTEAD} " in said
    assert "LD_LIBRARY_PATH" in said


@needs_compiler
def test_all_libraries_of_cuda_are_missing(bare_python, site):
    mxnet_wheel(site, "mxnet-cu117", [*SONAMES, "libcuda.so.1"])
    # colabtools#5514: there is cuDNN, but of another version
    library(site / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9", "libcudnn.so.9")
    said = refusal(bare_python("-c", IMPORT, site=site))
    for soname in SONAMES:
        assert f"    {soname}: not found\n" in said
    assert "pip install 'mxkit[cu117]' " in said


@fakes_nvidia
def test_the_driver_is_missing(bare_python, site):  # 6787
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"])
    assert plain_error(bare_python("-c", "import mxnet", site=site)) == (
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory"
    )
    assert bare_python("-c", IMPORT, site=site).stdout == "MXNet is loaded\n", "on the CPU"


@needs_compiler
def test_the_driver_is_older_than_the_library(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], "int cuGraphNodeGetType(void); void *use = cuGraphNodeGetType;")
    driver = library(tmp_path / "driver" / "libcuda.so.1", "libcuda.so.1")
    old = {"LD_LIBRARY_PATH": str(driver.parent)}
    assert "undefined symbol: cuGraphNodeGetType" in plain_error(bare_python("-c", "import mxnet", site=site, **old))
    said = refusal(bare_python("-c", IMPORT, site=site, **old))
    assert "The NVIDIA driver on this machine has no cuGraphNodeGetType: it is older than the CUDA" in said
    assert "`nvidia-smi`" in said
    assert CPU_INSTEAD in said


@needs_compiler
@pytest.mark.parametrize(
    ("wheel", "soname", "answered"),
    [
        ("mxnet", "libopenblas.so.0", "pip install --force-reinstall --no-deps mxnet==1.9.1"),  # 20068
        ("", "libunheard.so.3", "Install the system's package that has libunheard.so.3, or name its folder in LD_LIB"),
    ],
)
def test_a_library_of_the_system_is_missing(bare_python, site, wheel, soname, answered):
    path = mxnet_wheel(site, wheel, [soname])
    said = refusal(bare_python("-c", IMPORT, site=site))
    who = f"{wheel} 1.9.1" if wheel else f"MXNet's library {path}"
    assert said.startswith(f"{who} does not load: {soname}: cannot open shared object file: No such file or directory")
    assert answered in said


@pytest.mark.parametrize(
    ("wheel", "soname", "answered"),
    [
        ("mxnet", "libquadmath.so.0", "apt-get install libquadmath0"),  # images with little in them
        ("mxnet", "libgomp.so.1", "apt-get install libgomp1"),
        ("", "libopenblas.so.0", "apt-get install libopenblas0"),  # a build from source
    ],
)
def test_what_is_said_of_libraries_that_this_machine_may_have(site, wheel, soname, answered):
    if wheel:
        (site / f"{wheel}-1.9.1.dist-info").mkdir()
    error = OSError(f"{soname}: cannot open shared object file: No such file or directory")
    assert load_problem(error, site / "mxnet" / "libmxnet.so").endswith(f"    {answered}")


@needs_compiler
@pytest.mark.parametrize("size", [60, 100000])
def test_the_library_is_cut_off(bare_python, site, size):
    path = mxnet_wheel(site, "mxnet-cu112", [], "const char padding[200000] = {1};")
    path.write_bytes(path.read_bytes()[:size])
    # Without mxkit an error, or the end of the process: SIGBUS
    assert bare_python("-c", "import mxnet", site=site).returncode not in (0, 2)
    said = refusal(bare_python("-c", IMPORT, site=site))
    assert said.startswith(f"mxnet-cu112 1.9.1 does not load: {path} is ")
    assert said.endswith("    pip install --force-reinstall --no-deps mxnet-cu112==1.9.1\n")


@fakes_nvidia
def test_mxnet_was_tried_before_mxkit(bare_python, site):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    first = "try:\n    import mxnet\nexcept OSError as error:\n    print(error)\n"
    done = bare_python("-c", first + IMPORT, site=site)
    assert done.stdout == "libcudnn.so.8: cannot open shared object file: No such file or directory\n"
    assert "libcudnn.so.8: not found" in refusal(done)
    nvidia_wheels(site, REQUIREMENTS)
    done = bare_python("-c", first + IMPORT, site=site)
    assert done.stdout.splitlines()[1:] == ["MXNet is loaded"], done.stderr
