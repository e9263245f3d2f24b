"""`read_driver`, which asks real libraries: a libcuda.so.1 is compiled here and loaded by another process."""

import re

from fake_driver import H200, RTX_3090, build, run
from mxkit.runtime.gpus import Driver, Gpu, read_driver
import pytest

READ = """
import os, sys
from mxkit.runtime.gpus import Driver, Gpu, read_driver
for variables in {cases}:
    os.environ.update(variables)
    print(repr(read_driver()))
    for name in variables:
        del os.environ[name]
assert not {{"mxnet", "numpy"}} & {{*sys.modules}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("driver"))


def reads(folder, *cases, code=READ):
    """What is read in one process with each set of variables."""
    return [eval(line, {"Driver": Driver, "Gpu": Gpu}) for line in run(folder, code.format(cases=cases)).splitlines()]


def test_gpus_as_the_driver_tells(folder):
    (found,) = reads(folder, {"FAKE_GPUS": H200 + RTX_3090})
    first = Gpu(0, "NVIDIA H200", (9, 0), 139 * 2**30, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f")
    second = Gpu(1, "NVIDIA GeForce RTX 3090", (8, 6), 24 * 2**30, "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f")
    assert found == Driver((12, 4), (first, second), "")
    assert str(first) == "NVIDIA H200 (sm_90, 139 GiB)"


ONE = {"FAKE_GPUS": H200}
TOO_OLD = (
    "the NVIDIA driver is too old: it knows CUDA 10.2, MXNet's wheels need CUDA 11.0, which is driver 450.80.02 or "
    "newer (`nvidia-smi` shows yours). Update it"
)
HIDDEN = "CUDA_VISIBLE_DEVICES='' hides every GPU from this process: unset it, or name GPUs of `nvidia-smi -L` in it"
PROBLEMS = [
    ({"FAKE_INIT": "34"}, r"CUDA_ERROR_34 \(34\): .* the CUDA toolkit's stub: take its folder, .*LD_LIBRARY_PATH"),
    ({"FAKE_INIT": "100"}, r"CUDA_ERROR_100 \(100\): it sees no GPU: .* \(`docker run --gpus all`\)"),
    ({"FAKE_INIT": "802"}, r"CUDA_ERROR_802 \(802\): .* nvidia-fabricmanager"),
    ({"FAKE_INIT": "803"}, r"CUDA_ERROR_803 \(803\): .* restart the machine"),
    ({"FAKE_INIT": "804"}, r"CUDA_ERROR_804 \(804\): .* cuda-compat"),
    ({"FAKE_INIT": "999"}, r"CUDA_ERROR_999 \(999\): .* modprobe nvidia_uvm"),
    ({"FAKE_INIT": "719"}, r"CUDA_ERROR_719 \(719\): see that `nvidia-smi` lists the GPUs"),
    ({"FAKE_INIT": "12345"}, r"fails in cuInit: an error without a name \(12345\): see that `nvidia-smi`"),
    ({"FAKE_NAME": "999"}, r"fails in cuDeviceGetName: CUDA_ERROR_999 \(999\)"),
    ({"FAKE_VERSION": "10020"}, re.escape(TOO_OLD)),
    ({"FAKE_GPUS": ""}, "it sees no GPU"),
    ({"CUDA_VISIBLE_DEVICES": ""}, re.escape(HIDDEN)),
    ({"CUDA_VISIBLE_DEVICES": "0"}, "^$"),
]


def test_what_is_wrong_is_told_by_name_with_the_way_out(folder):
    found = reads(folder, *({**ONE, **variables} for variables, _ in PROBLEMS))
    for driver, (variables, text) in zip(found, PROBLEMS):
        assert driver.version == ((10, 2) if "FAKE_VERSION" in variables else (12, 4))
        assert bool(driver.gpus) == (text == "^$")
        assert re.search(text, driver.problem)


def test_libraries_that_are_no_driver(tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")  # so it is in containers built with a driver and run without
    (found,) = reads(tmp_path, {})
    assert found.problem.startswith("no NVIDIA driver: libcuda.so.1 cannot be loaded: ")
    assert "file too short" in found.problem
    assert "docker run --gpus all" in found.problem
    build(tmp_path, source="int f(void) { return 0; }")
    (found,) = reads(tmp_path, {})
    assert found.problem == "libcuda.so.1 is not NVIDIA's driver: it lacks cuDriverGetVersion"


def test_a_driver_that_misses_a_library_of_its_own_is_there(tmp_path):
    build(tmp_path, "-Wl,-soname,libmissing-part.so.7", source="int g;")
    (tmp_path / "libcuda.so.1").rename(tmp_path / "libmissing-part.so.7")
    build(tmp_path, "-Wl,--no-as-needed", "./libmissing-part.so.7")
    (tmp_path / "libmissing-part.so.7").unlink()
    (found,) = reads(tmp_path, {})
    assert found.problem.startswith("no NVIDIA driver: libcuda.so.1 cannot be loaded: libmissing-part.so.7")


def test_no_driver():
    found = read_driver()
    if found.version is None:
        assert found.problem.startswith("no NVIDIA driver: libcuda.so.1 was not found. Install the driver, 450.80.02")
        assert found.gpus == ()
    else:
        assert bool(found.gpus) != bool(found.problem) or "too old" in found.problem


def test_the_stand_in_is_no_driver(folder):
    stand_in = "import ctypes\nfrom mxkit.runtime import cuda_libraries\n"
    stand_in += "cuda_libraries._stand_in = ctypes.CDLL('libcuda.so.1')\n"
    (found,) = reads(folder, {"FAKE_GPUS": H200}, code=stand_in + READ)
    assert found.version is None
    assert found.problem.startswith("no NVIDIA driver: libcuda.so.1 was not found")
