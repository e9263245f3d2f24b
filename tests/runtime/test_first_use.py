"""What CUDA's libraries need when a GPU first computes: cuDNN's parts, and NVRTC for fused operators."""

import mmap
from pathlib import Path
import shutil
import sys

from fake_cuda import SONAMES, fakes_nvidia, library, needs_compiler, nvidia_wheels, real_mxnet_for_cuda
from mxkit.runtime.cuda_libraries import REQUIREMENTS, lacking_parts, nvrtc_abilities
from mxkit.runtime.doctor.hardware import accelerator_lines
from mxkit.runtime.doctor.probes import probe
from mxkit.runtime.gpus import CU112, Architectures, Driver, Gpu
from mxnet import libinfo
import pytest

A100 = Gpu(0, "NVIDIA A100", (8, 0), 80 * 2**30, "")
L4 = Gpu(1, "NVIDIA L4", (8, 9), 24 * 2**30, "")
H200 = Gpu(2, "NVIDIA H200", (9, 0), 140 * 2**30, "")

# Of 11.8, which `mxkit install` takes, read from the real one; of 11.2, with which MXNet's wheel was built, what that
# wheel's own kernels are compiled for, and what lies between.
NVRTC_11_2 = {"version": [11, 2], "architectures": [35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86]}
NVRTC_11_8 = {"version": [11, 8], "architectures": [*NVRTC_11_2["architectures"], 87, 89, 90]}

NVRTC = """
int nvrtcVersion(int *major, int *minor) { *major = 11; *minor = 2; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int *found) { found[0] = 80; found[1] = 86; return 0; }
"""


@pytest.fixture
def cudnn(tmp_path):
    """A folder as NVIDIA's wheel of cuDNN has it, whose part for convolutions needs zlib under another name."""
    folder = tmp_path / "nvidia" / "cudnn" / "lib"
    library(folder / "libcudnn_ops_infer.so.8", "libcudnn_ops_infer.so.8", ["libc.so.6"])
    needed = ["libcudnn_ops_infer.so.8", "libz_of_no_machine.so.1", "libc.so.6", "libcublas_of_the_wheel.so.11"]
    flags = ["-Wl,-rpath,$ORIGIN/../../cublas/lib"]
    library(folder / "libcudnn_cnn_infer.so.8", "libcudnn_cnn_infer.so.8", needed, flags=flags)
    library(folder.parents[1] / "cublas" / "lib" / needed[-1], needed[-1])
    return library(folder / "libcudnn.so.8", "libcudnn.so.8")


@needs_compiler
def test_parts_of_cudnn_are_not_loaded_but_what_they_lack_is_told(cudnn):
    assert lacking_parts(str(cudnn)) == {"libcudnn_cnn_infer.so.8": ["libz_of_no_machine.so.1"]}
    assert "libcudnn_cnn_infer" not in Path("/proc/self/maps").read_text()
    (cudnn.parent / "libcudnn_cnn_infer.so.8").write_bytes(b"damaged")
    assert lacking_parts(str(cudnn)) == {}


@needs_compiler
def test_nvrtc_says_what_it_can(tmp_path):
    told = nvrtc_abilities(str(library(tmp_path / "a" / "libnvrtc.so.11.2", "libnvrtc.so.11.2", code=NVRTC)))
    assert told == {"version": [11, 2], "architectures": [80, 86]}
    assert nvrtc_abilities(str(library(tmp_path / "b" / "libnvrtc.so.11.1", "libnvrtc.so.11.1"))) == {}


@pytest.mark.long
@fakes_nvidia
def test_the_doctor_asks_in_mxnets_own_process(site, cudnn, tmp_path, monkeypatch):
    nvidia_wheels(site, {soname: REQUIREMENTS[soname] for soname in SONAMES}, without=["libcudnn.so.8"])
    nvrtc = site / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.11.2"
    library(nvrtc, nvrtc.name, code=NVRTC)
    shutil.copytree(tmp_path / "nvidia", site / "nvidia", dirs_exist_ok=True)
    library(site / "nvidia" / "cublas" / "lib" / "libcublasLt.so.11", "libcublasLt.so.11")
    monkeypatch.setattr("sys.path", [*sys.path, str(site)])
    answer = probe(["mxnet"], {"MXNET_LIBRARY_PATH": str(real_mxnet_for_cuda(tmp_path))}).answers["mxnet"]
    assert answer["error"] == "", answer["text"]
    assert answer["nvrtc"] == {"version": [11, 2], "architectures": [80, 86]}
    found = {line.name: line for line in accelerator_lines(Driver(problem="no NVIDIA driver"), CU112, answer)}
    assert found["fusion"].value == "NVRTC 11.2 compiles fused operators"
    part = found["libcudnn_cnn_infer.so.8"]
    assert part.status == "warning", "no GPU is there to compute on"
    assert part.value.startswith("needs libz_of_no_machine.so.1, not found: the first convolution on a GPU ends")
    assert part.fix == "install the system's package that has libz_of_no_machine.so.1"


def fusion(driver, nvrtc, kernels=CU112):
    (line,) = [line for line in accelerator_lines(driver, kernels, {"nvrtc": nvrtc}) if line.name == "fusion"]
    return line


def test_fused_operators_that_nvrtc_or_the_driver_cannot_take_are_told():
    found = fusion(Driver((12, 4), (A100, L4)), NVRTC_11_2)
    assert (found.status, found.data["architectures"][-1]) == ("warning", "compute_86")
    assert found.value == "NVRTC 11.2 cannot compile fused operators for NVIDIA L4 (sm_89, 24 GiB)"
    assert found.fix.splitlines() == [
        "export MXNET_USE_FUSION=0    operators are not fused then",
        "or: pip install --force-reinstall --no-deps nvidia-cuda-nvrtc-cu11==11.8.89",
    ]
    found = fusion(Driver((11, 4), (A100,)), NVRTC_11_8)
    assert found.status == "warning"
    assert found.value.endswith("to PTX that a driver for CUDA 11.4 does not read")
    assert found.fix.splitlines()[-1] == "or a driver for CUDA 11.8 or newer"


@pytest.mark.parametrize(
    ("cuda", "gpu", "nvrtc", "kernels"),
    [
        ((12, 4), A100, NVRTC_11_2, CU112),
        ((12, 4), L4, NVRTC_11_8, CU112),
        ((11, 8), A100, NVRTC_11_8, CU112),
        ((11, 4), H200, NVRTC_11_2, CU112),  # MXNet has no kernels for it
        ((11, 4), A100, NVRTC_11_8, Architectures()),
    ],
)
def test_fused_operators_that_run_are_fine(cuda, gpu, nvrtc, kernels):
    assert fusion(Driver(cuda, (gpu,)), nvrtc, kernels).status == "ok"


@pytest.mark.parametrize(("value", "off"), [("0", True), ("False", True), ("1", False), ("", False)])
def test_fusion_that_is_off_is_no_warning(monkeypatch, value, off):
    monkeypatch.setenv("MXNET_USE_FUSION", value)
    found = fusion(Driver((12, 4), (L4,)), NVRTC_11_2)
    assert (found.status == "ok", found.value == "off, by MXNET_USE_FUSION") == (off, off)


def test_the_variable_is_one_that_mxnet_reads():
    path = Path(libinfo.find_lib_path()[0])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        assert data.find(b"\0MXNET_USE_FUSION\0") > 0


def test_without_nvrtc_nothing_is_said():
    assert not [line for line in accelerator_lines(Driver((12, 4), (L4,)), CU112, {}) if line.name == "fusion"]
