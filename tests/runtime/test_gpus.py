"""Which GPUs MXNet can use, decided from given values."""

from pathlib import Path

from mxkit.runtime.gpus import Driver, Gpu, has_known_kernels, runs_on, unusable_gpus, why_no_gpu
import mxnet as mx
import pytest

FIRST = Gpu(0, "NVIDIA H200", (9, 0), 139 * 2**30, "")
SECOND = Gpu(1, "NVIDIA GeForce RTX 4090", (8, 9), 24 * 2**30, "")
BOTH = Driver((12, 4), (FIRST, SECOND), "")


def test_a_gpu_without_kernels():
    assert list(unusable_gpus(2, BOTH)) == [0]  # the text is an example of the docstring
    for count, driver in ((1, Driver((12, 4), (SECOND, FIRST))), (0, BOTH), (2, Driver(problem="no NVIDIA driver"))):
        assert unusable_gpus(count, driver) == {}


def test_machine_code_runs_within_its_major_number():
    runs, fails = [(5, 0), (5, 2), (6, 1), (7, 5), (8, 0), (8, 6), (8, 9)], [(3, 5), (9, 0), (10, 0), (12, 0)]
    assert [capability for capability in runs + fails if runs_on(capability)] == runs


@pytest.mark.parametrize(("wheel", "known"), [("mxnet_cu112", True), ("mxnet_cu117", True), ("mxnet", False)])
def test_the_kernels_of_a_wheel_are_known_by_its_name(site, wheel, known):
    """T83."""
    assert not has_known_kernels(site / "mxnet" / "libmxnet.so")  # built from source
    (site / f"{wheel}-1.9.1.dist-info").mkdir()
    assert has_known_kernels(site / "mxnet" / "libmxnet.so") == known
    assert has_known_kernels(Path(mx.base._LIB._name)) == mx.runtime.Features().is_enabled("CUDA")


def test_why_there_is_no_gpu():
    failing = Driver(problem="the driver fails")
    assert "built for the CPU alone; `mxkit install` says which wheel fits" in why_no_gpu(False, failing)
    assert why_no_gpu(True, failing, "CUDA: 999") == "the driver fails"
    assert why_no_gpu(True, BOTH, "CUDA: out of memory") == "CUDA: out of memory"
    assert why_no_gpu(True, BOTH) == (
        "the driver has NVIDIA H200 (sm_90, 139 GiB), NVIDIA GeForce RTX 4090 (sm_89, 24 GiB), but MXNet sees none: "
        "run `mxkit doctor`"
    )
