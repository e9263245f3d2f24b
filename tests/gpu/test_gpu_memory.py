"""Memory of a GPU's process: peaks, and what remains of a run that asked for too much."""

from contextlib import contextmanager
import ctypes
import gc
import os
from pathlib import Path
import re
import resource
import subprocess

from gpu_cases import CPU, data, dense, values
import mxkit
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
import pytest

MIB = 2**20


def used(device):
    """MiB that this process holds: nvidia-smi's figure, or the whole card's where it cannot see processes (Docker)."""
    if device.device_type != "gpu":
        return int(re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True).stdout
    except FileNotFoundError:
        listed = ""
    own = re.findall(rf"^{os.getpid()}, (\d+)$", listed, re.MULTILINE)
    free, total = mx.context.gpu_memory_info(device.device_id)
    return float(sum(map(int, own))) if own else (total - free) / MIB


def growth(device, run):
    """MiB by which `run` raises what this process holds, at its peak.

    On a GPU, MXNet's pool holds what was freed until its cache is emptied, so that the end shows the peak. On a CPU
    the kernel keeps the peak.
    """
    gc.collect()
    mx.nd.waitall()
    if device.device_type == "gpu":
        device.empty_cache()
        before = used(device)
        run()
        mx.nd.waitall()
        return used(device) - before
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the peak of this process cannot be reset: {error}")
    before = used(device)
    run()
    mx.nd.waitall()
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024 - before


def wide(device):
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Conv2D(32, 3, padding=1, activation="relu"))
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(10))
    mxkit.initialize(net, devices=[device])
    net.hybridize()
    return net


def pixels(samples, batch_size):
    return mxkit.data.ArrayLoader(np.zeros((samples, 3, 32, 32), "uint8"), np.arange(samples) % 10, batch_size)


def train(net, samples, batch_size, accumulate=1):
    loader = pixels(samples, batch_size)
    mxkit.fit(net, loader, loss="softmax_ce", trainer="sgd", epochs=1, accumulate=accumulate, progress=False)


@pytest.mark.gpu_pass("exact")  # where autotune tries no workspaces of its own
def test_accumulation_takes_the_memory_of_a_micro_batch(device, on_gpu, told):
    net, samples = wide(device), 256 if on_gpu else 128
    train(net, 4, 2, 2)  # what the libraries take for themselves
    grown = {n: growth(device, lambda n=n: train(net, samples, samples // n, n)) for n in (8, 1)}
    told(f"memory of an update of {samples} samples: {grown[1]:.0f} MiB at once, {grown[8]:.0f} MiB in 8 parts")
    assert grown[8] < grown[1] / 2


@contextmanager
def little_memory(device):
    """Leave less than 1 GiB on the device, inside `with`."""
    held = []
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        if device.device_type == "gpu":
            device.empty_cache()
            while mx.context.gpu_memory_info(device.device_id)[0] > 768 * MIB:
                held.append(mx.nd.empty((256 * MIB,), device, "uint8"))
        else:
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + 768 * MIB, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        held.clear()
        mx.nd.waitall()
        device.empty_cache()


class Huge(mx.gluon.HybridBlock):
    """Needs 1.5 GiB for an input of (16, 6)."""

    def hybrid_forward(self, F, x):
        return F.mean(F.repeat(x, repeats=2**22, axis=1).reshape((0, 6, -1)), axis=2)


@pytest.mark.gpu_pass("default")
def test_a_process_outlives_being_out_of_memory(device, told):
    net = dense([device])
    too_large = nn.HybridSequential()
    too_large.add(Huge(), nn.Dense(3, in_units=6))
    mxkit.initialize(too_large, devices=[device])
    arguments = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1}), "epochs": 1, "progress": False}
    with little_memory(device), pytest.raises(Exception, match="(?i)memory") as caught:
        mxkit.fit(too_large, data(), **arguments)
    told(f"out of memory: {type(caught.value).__name__}: {str(caught.value).strip().splitlines()[0]:.300}")
    expected = dense(CPU)
    for one in (net, expected):
        mxkit.fit(one, data(), **arguments)
    for path, value in values(expected).items():
        np.testing.assert_allclose(values(net)[path], value, rtol=0.01, atol=0.01, err_msg=path)
