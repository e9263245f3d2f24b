"""Which GPUs MXNet can use, decided from given values."""

from pathlib import Path

from mxkit.runtime.gpus import (
    CU112,
    Architectures,
    Driver,
    Gpu,
    kernel_architectures,
    runs_on,
    unusable_gpus,
    why_no_gpu,
)
from mxkit.runtime.wheels import Wheel
import mxnet as mx
import pytest

FIRST = Gpu(0, "NVIDIA H200", (9, 0), 139 * 2**30, "")
SECOND = Gpu(1, "NVIDIA GeForce RTX 4090", (8, 9), 24 * 2**30, "")
BOTH = Driver((12, 4), (FIRST, SECOND), "")
WHEEL = Wheel("mxnet", "1.9.1", Path("here"))


def test_a_gpu_without_kernels():
    assert unusable_gpus(2, CU112, BOTH) == {
        0: "NVIDIA H200 (sm_90, 139 GiB) cannot run MXNet's kernels, which are compiled for sm_50, sm_60, sm_70, "
        "sm_80, sm_86. Use the CPU, a GPU of compute capability 5.0 to 8.x, NVIDIA's container "
        "nvcr.io/nvidia/mxnet:24.06-py3 (docs/containers.md), or an MXNet built from source for sm_90"
    }
    assert unusable_gpus(1, CU112, Driver((12, 4), (SECOND, FIRST), "")) == {}
    assert unusable_gpus(0, CU112, BOTH) == {}


def test_machine_code_runs_within_its_major_number():
    runs, fails = [(5, 0), (5, 2), (6, 1), (7, 5), (8, 0), (8, 6), (8, 9)], [(3, 5), (9, 0), (10, 0), (12, 0)]
    assert [capability for capability in runs + fails if runs_on(CU112, capability)] == runs


@pytest.mark.parametrize(
    ("wheel", "known"), [("mxnet_cu112", CU112), ("mxnet_cu117", CU112), ("mxnet", Architectures())]
)
def test_the_kernels_of_a_wheel_are_known_by_its_name(site, wheel, known):
    """T83."""
    assert kernel_architectures(site / "mxnet" / "libmxnet.so") == Architectures()  # built from source
    (site / f"{wheel}-1.9.1.dist-info").mkdir()
    assert kernel_architectures(site / "mxnet" / "libmxnet.so") == known
    with_cuda = mx.runtime.Features().is_enabled("CUDA")
    assert kernel_architectures(Path(mx.base._LIB._name)) == (CU112 if with_cuda else Architectures())


def test_what_is_not_known_is_not_held_against_a_gpu():
    assert unusable_gpus(2, Architectures(), BOTH) == {}
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
