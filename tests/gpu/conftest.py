"""Devices of the GPU checks, their limits, and what `.ci/gpu` makes its page of.

Every check runs on virtual devices of the CPU in `make test` where that has a meaning: on a machine without a GPU its
code runs all the same. `pytest -m gpu` is the default pass; with MXKIT_EXACT=1 it is the exact pass.
"""

import json
import os
from pathlib import Path
import signal
import warnings

import mxkit
from mxkit.errors import DeviceError, TrapWarning
from mxkit.runtime import engine_settings
import mxnet as mx
import pytest
from sharing import BFLOAT16

PASS = "exact" if os.environ.get("MXKIT_EXACT") == "1" else "default"
SWITCHES = (engine_settings.EXACT, *engine_settings.SWITCHES)
LIMIT = 240  # seconds for one check


def usable_gpus():
    """Every GPU that MXNet has kernels for; skips, with the reason, where there is none."""
    if os.environ.get("MXKIT_TESTS_GPU") != "1":
        pytest.skip("tests do not see GPUs: `make gpu` shows them, or MXKIT_TESTS_GPU=1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)  # of a GPU without kernels beside usable ones
        found = [device for device in mxkit.devices("auto") if device.device_type == "gpu"]
    if not found:
        try:
            mxkit.devices("gpu")
        except DeviceError as error:
            pytest.skip(f"no usable GPU: {error}")
    return found


@pytest.fixture(params=[pytest.param("gpu", marks=pytest.mark.gpu), "rehearsal"])
def accelerators(request):
    """Every usable GPU, or two virtual devices of the CPU."""
    return [mx.cpu(1), mx.cpu(2)] if request.param == "rehearsal" else usable_gpus()


@pytest.fixture
def dtype(on_gpu):
    """The 16-bit precision that MXNet computes there: it has no float16 products on the CPU."""
    if not (on_gpu or BFLOAT16):
        pytest.skip("the processor has no AVX-512 (T285)")
    return "float16" if on_gpu else "bfloat16"


@pytest.fixture
def gpus():
    """Every usable GPU, for what runs on the CPU elsewhere."""
    return usable_gpus()


@pytest.fixture
def elsewhere():
    """What the ordinary suite plays, GPUs are."""


@pytest.fixture
def device(accelerators):
    """The first of them."""
    return accelerators[0]


@pytest.fixture
def several(accelerators):
    """The first two of them."""
    if len(accelerators) < 2:
        pytest.skip("one usable GPU, no second one")
    return accelerators[:2]


@pytest.fixture
def on_gpu(accelerators):
    return accelerators[0].device_type == "gpu"


@pytest.fixture
def told(record_property):
    """Put a line on the page of `make gpu`."""
    return lambda line: record_property("told", line)


@pytest.fixture(autouse=True)
def _limit():
    def end(number, frame):
        pytest.fail(f"not done after {LIMIT} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_collection_modifyitems(config, items):
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    for item in gpu:  # what nobody could rehearse is reported, and fails nothing
        item.add_marker(pytest.mark.filterwarnings("default"))
    others = [item for item in gpu if any(mark.args != (PASS,) for mark in item.iter_markers("gpu_pass"))]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def _record(**row):
    """Append a line at once: whatever ends the process, the page says how far it came."""
    path = os.environ.get("MXKIT_GPU_RECORDS")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def pytest_collection_finish(session):
    _record(switches={name: os.environ[name] for name in SWITCHES if name in os.environ})


def pytest_collectreport(report):
    if report.failed:
        last = str(report.longrepr).strip().splitlines()[-1]
        _record(test=report.nodeid, outcome="failed", why=last, told=[], seconds=0)


def pytest_runtest_logstart(nodeid):
    _record(begun=nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        why = report.longrepr[2] if report.skipped else getattr(report.longrepr, "reprcrash", report.longrepr)
        told = [value for name, value in report.user_properties if name == "told"]
        why = "" if report.passed else str(getattr(why, "message", why))
        _record(test=report.nodeid, outcome=report.outcome, why=why, told=told, seconds=report.duration)


def pytest_warning_recorded(warning_message, nodeid):
    _record(warned=str(warning_message.message), test=nodeid)
