"""What cuDNN's parts need when a GPU first computes."""

from pathlib import Path
import shutil
import sys

from fake_cuda import SONAMES, fakes_nvidia, library, needs_compiler, nvidia_wheels, real_mxnet_for_cuda
from mxkit.runtime.cuda_libraries import REQUIREMENTS, lacking_parts
from mxkit.runtime.doctor.hardware import accelerator_lines
from mxkit.runtime.doctor.probes import probe
from mxkit.runtime.gpus import CU112, Driver
import pytest


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


@pytest.mark.long
@fakes_nvidia
def test_the_doctor_asks_in_mxnets_own_process(site, cudnn, tmp_path, monkeypatch):
    nvidia_wheels(site, {soname: REQUIREMENTS[soname] for soname in SONAMES}, without=["libcudnn.so.8"])
    shutil.copytree(tmp_path / "nvidia", site / "nvidia", dirs_exist_ok=True)
    library(site / "nvidia" / "cublas" / "lib" / "libcublasLt.so.11", "libcublasLt.so.11")
    monkeypatch.setattr("sys.path", [*sys.path, str(site)])
    answer = probe(["mxnet"], {"MXNET_LIBRARY_PATH": str(real_mxnet_for_cuda(tmp_path))}).answers["mxnet"]
    assert answer["error"] == "", answer["text"]
    found = {line.name: line for line in accelerator_lines(Driver(problem="no NVIDIA driver"), CU112, answer)}
    part = found["libcudnn_cnn_infer.so.8"]
    assert part.status == "warning", "no GPU is there to compute on"
    assert part.value.startswith("needs libz_of_no_machine.so.1, not found: the first convolution on a GPU ends")
    assert part.fix == "install the system's package that has libz_of_no_machine.so.1"
