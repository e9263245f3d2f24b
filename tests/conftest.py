"""Shared pieces of the tests."""

from collections import Counter
import gc
import os
import platform
import signal

from _pytest.doctest import DoctestModule
from forked import Forks
import hypothesis
import mxkit
import mxnet as mx
import numpy as np
import pytest
from sharing import ONE_OF_EACH, Kind, examples, image_run

# No network, and no capture of what pytest captures.
os.environ.update(WANDB_SILENT="true", WANDB_CONSOLE="off", MLFLOW_DISABLE_TELEMETRY="true")

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: tests of Ctrl-C would
# wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One state of the project gets one answer. To look further: pytest --hypothesis-profile=search
hypothesis.settings.register_profile("check", derandomize=True, deadline=None, max_examples=examples(100))
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("check")


@pytest.hookimpl(hookwrapper=True)
def pytest_collect_file():
    """Look for doctests in mxkit alone: in some hundred files of tests there are none."""
    found = yield
    found.force_result([one for one in found.get_result() if not isinstance(one, DoctestModule)])


# They read files of the project or kill processes: another Python or NumPy shows nothing new.
OF_ANY_VERSION = ("architecture", "benchmark", "containers", "joining", "translations", "kills")


@pytest.hookimpl(trylast=True)  # after the marks have chosen
def pytest_collection_modifyitems(config, items):
    """With MXKIT_ONE_OF_EACH=1 a test keeps one set of parameters, for each kind of arrays.

    Tables of 20 rows and more stay, because their rows call different functions, and so does `runtime/`. Files
    `OF_ANY_VERSION` are left out.
    """
    if not ONE_OF_EACH:
        return
    tests = []
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        tests.append((item.nodeid.split("[")[0], str(parameters.get("kind"))))
    sizes, kept, left_out, seen = Counter(tests), [], [], set()
    for item, test in zip(items, tests):
        of_any = item.path.name.startswith(tuple(f"test_{name}" for name in OF_ANY_VERSION))
        (left_out if test in seen or of_any else kept).append(item)
        whole = sizes[test] >= 20 or test[0].startswith("tests/runtime/")
        if not (whole or item.get_closest_marker("skipif")):
            seen.add(test)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish():
    """Let the garbage collector look at what tests make, not at the tests and the libraries, which stay to the end."""
    # hypothesis asks the collector, once, who refers to its generators of random numbers
    hypothesis.given(hypothesis.strategies.none())(lambda nothing: None)()
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"Python {platform.python_version()}, NumPy {np.__version__}, MXNet {mx.__version__}")


@pytest.fixture(scope="session", autouse=True)
def _short_timings():
    """`optimize` compares the times of two nets for a second; tests give it the speed that they need."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mxkit.serving.optimizing._SECONDS", 0.01)
        yield


@pytest.fixture(scope="session")
def forks():
    """A server that forks processes in which MXNet is loaded."""
    made = Forks()
    yield made
    made.end()


@pytest.fixture(scope="session")
def photo_run(tmp_path_factory):
    """The folder of a run on drawn images; tests leave it as it is."""
    return image_run(tmp_path_factory.mktemp("home"))


@pytest.fixture(params=["nd", "np"])
def kind(request):
    """The kind of arrays of a test; the switches of MXNet stay off, as `mx.nd` has them."""
    return Kind(request.param == "np")


@pytest.fixture
def switched(kind):
    """The kind of arrays of a test, with the switches of MXNet as a script of this kind has them."""
    with kind.switches():
        yield kind


@pytest.fixture
def elsewhere(monkeypatch):
    """Let "auto" be another device than the CPU's first, as on a machine with a GPU: batches are not where nets are."""
    monkeypatch.setattr("mxkit.core.device._automatic", lambda *arguments: [mx.cpu(1)])


@pytest.fixture(autouse=True)
def _seeded():
    """Each test draws from the same start, whatever ran before it."""
    mxkit.seed_all(0)
