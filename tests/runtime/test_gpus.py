"""Which GPUs MXNet can use, decided from given values, and told by `devices` where a driver reports an H200."""

from pathlib import Path

from fake_driver import H200, RTX_3090, build, run
from mxkit.runtime.gpus import CU112, Architectures, Driver, Gpu, unusable_gpus, why_no_gpu
from mxkit.runtime.wheels import Wheel
import mxnet as mx
import pytest

FIRST = Gpu(0, "NVIDIA H200", (9, 0), 139 * 2**30, "")
SECOND = Gpu(1, "NVIDIA GeForce RTX 4090", (8, 9), 24 * 2**30, "")
BOTH = Driver((12, 4), (FIRST, SECOND), "")
WHEEL = Wheel("mxnet", "1.9.1", Path("here"))


def test_a_gpu_without_kernels():
    assert unusable_gpus(2, CU112, BOTH) == {
        0: "NVIDIA H200 (sm_90, 139 GiB) cannot run this MXNet's kernels, which are compiled for sm_50, sm_60, sm_70, "
        "sm_80, sm_86. Use the CPU, a GPU of compute capability 5.0 to 8.x, NVIDIA's container "
        "nvcr.io/nvidia/mxnet:24.06-py3 (docs/containers.md), or an MXNet built from source for sm_90"
    }
    assert unusable_gpus(1, CU112, Driver((12, 4), (SECOND, FIRST), "")) == {}
    assert unusable_gpus(0, CU112, BOTH) == {}


def test_ptx_is_compiled_for_newer_gpus():
    assert unusable_gpus(2, CU112._replace(ptx=((8, 6),)), BOTH) == {}
    assert unusable_gpus(2, Architectures(exact=((9, 0),)), BOTH).keys() == {1}
    old = Driver((11, 4), (Gpu(0, "Tesla K80", (3, 7), 12 * 2**30, ""),), "")
    assert "a GPU of compute capability 7.0 or higher," in unusable_gpus(1, Architectures(ptx=((7, 0),)), old)[0]


@pytest.mark.parametrize("architectures", [Architectures(), CU112._replace(problem="it ends at byte 7")])
def test_what_is_not_known_is_not_held_against_a_gpu(architectures):
    assert unusable_gpus(2, architectures, BOTH) == {}
    assert unusable_gpus(2, CU112, Driver(problem="no NVIDIA driver")) == {}


def test_why_a_wheel_for_the_cpu_has_no_gpu():
    text = "this MXNet (mxnet 1.9.1) is built for the CPU alone"
    assert why_no_gpu(False, BOTH, wheels=[WHEEL]) == (
        f"{text}; `mxkit install --cuda` installs the wheel for GPUs, which has kernels for NVIDIA GeForce RTX 4090 "
        "(sm_89, 24 GiB)"
    )
    assert why_no_gpu(False, Driver((12, 4), (FIRST,)), wheels=[WHEEL]) == (
        f"{text}; the wheel for GPUs would not help: it is compiled for sm_50, sm_60, sm_70, sm_80, sm_86, and here is "
        "NVIDIA H200 (sm_90, 139 GiB)"
    )
    assert why_no_gpu(False, Driver(problem="no NVIDIA driver")) == (
        "this MXNet is built for the CPU alone (`mxkit install --cuda` installs the wheel for GPUs), and no NVIDIA "
        "driver"
    )


def test_why_a_wheel_for_gpus_has_none():
    assert (
        why_no_gpu(True, Driver(problem="the driver fails"), wheels=[WHEEL], failure="CUDA: 999") == "the driver fails"
    )
    assert why_no_gpu(True, BOTH, failure="CUDA: out of memory") == "CUDA: out of memory"
    assert why_no_gpu(True, BOTH) == (
        "the driver has NVIDIA H200 (sm_90, 139 GiB), NVIDIA GeForce RTX 4090 (sm_89, 24 GiB), but MXNet sees none: "
        "run `mxkit doctor`"
    )


DEVICES = """
import mxkit
import mxnet as mx
for spec in ("auto", "gpu", "gpu:0", mx.gpu(0)):
    try:
        print(mxkit.devices(spec))
    except mxkit.errors.DeviceError as error:
        print(error)
"""


@pytest.mark.long
@pytest.mark.skipif(mx.runtime.Features().is_enabled("CUDA"), reason="it would take the driver made here for real")
def test_devices_explains_with_a_real_driver_library(tmp_path):
    build(tmp_path)
    texts = {
        H200: "it is compiled for sm_50, sm_60, sm_70, sm_80, sm_86, and here is NVIDIA H200 (sm_90, 139 GiB)",
        RTX_3090: "`mxkit install --cuda` installs the wheel for GPUs, which has kernels for NVIDIA GeForce RTX 3090",
    }
    for gpu, text in texts.items():
        automatic, *told = run(tmp_path, DEVICES, FAKE_GPUS=gpu).splitlines()
        assert automatic == "[cpu(0)]"
        assert len(told) == 3
        for line in told:
            assert line.startswith(
                "devices: gpu(0) does not exist: this MXNet (mxnet 1.9.1) is built for the CPU alone; "
            )
            assert text in line
