"""What `import mxkit` does to a process, and what it leaves alone."""

import builtins
import copy
import importlib.util
import inspect
import pickle
import pkgutil
import signal
import sys

import mxkit
from mxkit.runtime import loaders
from mxkit.runtime.wheels import release
import mxnet as mx
import numpy
import pytest
from test_thread_choice import COUNTING

# The process before the import, and again after it. cv2 and scikit-learn, which MXNet and gluoncv import if they are
# installed, set some environment variables for themselves.
STATE = """
import locale, logging, os, random, re, signal, sys, threading

def state():
    kind, keys, *rest = numpy.random.get_state()
    return {
        "NumPy's errors": (numpy.geterr(), numpy.geterrcall()),
        "NumPy's printing": numpy.get_printoptions(),
        "NumPy's generator": (kind, keys.tolist(), rest),
        "Python's generator": random.getstate(),
        "warnings": (warnings.showwarning, warnings.formatwarning),
        "locale": [locale.setlocale(getattr(locale, name)) for name in dir(locale) if name.startswith("LC_")],
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.gettrace()),
        "imports": (sys.path[:], sys.path_hooks[:]),
        "finders": [one for one in sys.meta_path if type(one).__module__.partition(".")[0] not in ("mxkit", "six")],
        "linker": sys.getdlopenflags(),
        "interpreter": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "logging": (logging.root.level, logging.root.handlers[:], logging.root.manager.disable),
        "processors": os.sched_getaffinity(0),
        "folder": os.getcwd(),
    }

def caught_signals():
    with open("/proc/self/status") as file:
        return int(re.search(r"SigCgt:\\s*(\\w+)", file.read())[1], 16) & 0x7FFFFFFF  # above: the C library's own

def check_state():
    for name, value in state().items():
        assert value == before[name], (name, before[name], value)
    changed = {name for name in {*environ, *os.environ} if environ.get(name) != os.environ.get(name)}
    assert changed <= {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "QT_QPA_PLATFORM_PLUGIN_PATH", "QT_QPA_FONTDIR",
                       "LD_LIBRARY_PATH"}, changed
    # Libraries add filters for warnings of their own, or for one text; none is for what others warn of.
    for action, message, category, module, line in warnings.filters:
        known = (action, message, category, module, line) in filters
        assert known or message is not None or category.__module__ not in ("builtins", "__main__"), (action, category)
    # MXNet's library takes the crash alone, and only where nobody had taken it before.
    assert caught_signals() & ~caught in (0, 1 << (signal.SIGSEGV - 1)), hex(caught_signals())

before, environ, filters, caught = state(), dict(os.environ), list(warnings.filters), caught_signals()
"""


def test_numpy_and_the_rest_of_the_process_are_untouched(run_python):
    run_python(
        "import warnings, numpy, numpy.testing, numpy.random, numpy.fft, numpy.linalg, numpy.lib\n"
        + STATE
        + """
import builtins, types

names, listed = dict(vars(numpy)), dir(numpy)
builtin_names = dict(vars(builtins))
assigned = []

class Watched(types.ModuleType):
    def __setattr__(self, name, value):
        assigned.append((name, value))
        super().__setattr__(name, value)

numpy.__class__ = Watched
import mxkit
import mxnet as mx
import gluoncv
mx.nd.ones((numpy.int64(2), 3)).asnumpy()
object.__setattr__(numpy, "__class__", types.ModuleType)
check_state()

# Python itself binds a submodule that is imported for the first time; nothing else was ever assigned.
submodules = {name for name, value in assigned if sys.modules.get("numpy." + name) is value}
assert {name for name, _ in assigned} == submodules, assigned
assert sys.modules["numpy"] is numpy
assert {name: value for name, value in vars(numpy).items() if name not in submodules or name in names} == names
assert [name for name in dir(numpy) if name not in submodules or name in listed] == listed
assert {name: vars(builtins)[name] for name in builtin_names} == builtin_names
assert not any("mxkit" in str(getattr(value, "__module__", "")) for value in vars(builtins).values())
assert builtins.__import__.__module__ == "builtins"

for name in ("distutils", "distutils.version"):
    module = sys.modules.get(name)
    assert module is None or not module.__file__.startswith(mxkit.__path__[0]), module
if sys.version_info >= (3, 12):
    import importlib.util
    if importlib.util.find_spec("setuptools") is None:
        assert importlib.util.find_spec("distutils") is None

# What MXNet sees is private, a plain dictionary as the interpreter asks for, and shared by all its modules.
view = mx.base._np
assert view is not numpy and view.bool is bool and mx.numpy.utils.bool is bool
assert type(vars(mx)["__builtins__"]) is dict
assert vars(mx)["__builtins__"] is vars(gluoncv.model_zoo)["__builtins__"]
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("mxnet", "gluoncv"):
        assert not any(value is numpy for value in vars(module).values()), name
    else:
        shown = any(value is view for value in list(vars(module).values()))
        assert not shown or name.startswith(("mxkit", "__main__", "__mp_main__")), name

# Other libraries see the real one.
import sklearn.utils.validation, matplotlib.cbook, pandas
assert sklearn.utils.validation.np is matplotlib.cbook.np is numpy
assert pandas.Series([1]).values.__class__ is numpy.ndarray
"""
    )


def test_import_of_mxnet_warns_of_nothing_and_imports_no_more_than_it_must(run_python):
    done = run_python(
        """
import ctypes, faulthandler, sys
faulthandler.enable()
import mxkit
assert "mxnet" not in sys.modules and "numpy" not in sys.modules, "importing mxkit is cheap"
import mxnet as mx
from mxnet.gluon.contrib import estimator
import mxnet.contrib.quantization, mxnet.contrib.onnx, mxnet.test_utils, mxnet.contrib.text
import numpy
for module in (estimator.event_handler, mxnet.contrib.quantization, mxnet.test_utils):
    assert vars(module)["np"] is mx.base._np, module
assert mxnet.test_utils.rnd is numpy.random and mxnet.test_utils.npt is numpy.testing
handler = estimator.EarlyStoppingHandler(mx.metric.Loss(), mode="min")
handler.train_begin(None)
assert abs(handler.best) == float("inf")

import warnings
warnings.simplefilter("ignore")  # SciPy and scikit-learn may warn
assert not [name for name in ("sklearn", "scipy.stats") if name in sys.modules]
assert mx.model.FeedForward.__bases__ == (object,)
assert round(mx.test_utils.ss.norm.cdf(0), 3) == 0.5, "scipy.stats is there at its first use"
assert round(float(mx.contrib.quantization.stats.entropy([0.5, 0.5])), 3) == 0.693
import sklearn.base
from scipy import stats
assert mx.contrib.quantization.stats.entropy is stats.entropy
ctypes.string_at(0)
""",
        flags=("-W", "error"),
        status=-signal.SIGSEGV,
    )
    assert done.stderr.startswith("Fatal Python error: Segmentation fault"), done.stderr
    assert "in string_at" in done.stderr, "who watched for crashes before the import still does"


# Forms of `import` that MXNet, GluonCV or code that they generate may use.
STATEMENTS = """
import numpy, numpy as np, numpy.random as rnd, numpy.lib.stride_tricks
from numpy import bool as b, float32, PZERO, testing
from numpy.lib import stride_tricks
from . import numpy as mx_numpy
from .numpy import random as mx_random
import distutils.version
from distutils.version import LooseVersion, StrictVersion
from distutils import version
def later():
    import numpy
    exec("import numpy as inner", globals())
    return numpy
"""


def test_the_import_statement_of_a_viewed_module(monkeypatch):
    space = {"__builtins__": vars(mx)["__builtins__"], "__name__": "mxnet._test", "__package__": "mxnet"}
    exec(STATEMENTS, space)  # warns of nothing
    view = mx.base._np
    assert space["numpy"] is space["np"] is space["later"]() is space["inner"] is view is not numpy
    assert space["rnd"] is numpy.random
    assert space["stride_tricks"] is numpy.lib.stride_tricks
    assert (space["b"], space["float32"], space["PZERO"]) == (bool, numpy.float32, 0)
    assert (space["mx_numpy"], space["mx_random"]) == (mx.numpy, mx.numpy.random)
    assert space["LooseVersion"]("1.10") > space["LooseVersion"]("1.9")
    assert space["distutils"].version.LooseVersion is space["version"].LooseVersion is space["LooseVersion"]
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        exec("import no_such_module", space)
    calls, original = [], builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest: calls.append(name) or original(name, *rest))
    exec("import numpy, json", space)
    assert calls[:2] == ["numpy", "json"], "a replaced import is obeyed"


def test_a_second_installation_changes_nothing_and_tools_still_read_the_modules():
    before = mx.recordio.pack
    mxkit.runtime.install()
    assert mx.recordio.pack is before
    assert len([finder for finder in sys.meta_path if type(finder).__module__.startswith("mxkit")]) == 1
    assert importlib.util.find_spec("mxnet").origin.endswith("__init__.py")
    assert not type(importlib.util.find_spec("json").loader).__module__.startswith("mxkit")
    assert "def pack_img" in inspect.getsource(mx.recordio)
    assert "class NDArray" in inspect.getsource(mx.nd.NDArray)
    assert pkgutil.get_data("mxnet", "libinfo.py")
    assert mx.__loader__.get_filename("mxnet") == mx.__file__
    assert mx.__spec__.name == "mxnet"
    assert copy.copy(mx.__loader__).path == mx.__file__


WORKS = """
assert mx.nd.zeros((numpy.int64(2), 3)).asnumpy().shape == (2, 3)
assert numpy.asarray(mx.nd.ones(2)).tolist() == [1, 1]
"""


@pytest.fixture
def unset(monkeypatch):
    """No variable says how many threads MXNet takes."""
    for name in ("OMP_NUM_THREADS", "MXNET_OMP_MAX_THREADS"):
        monkeypatch.delenv(name, raising=False)


LEND = """
import types, numpy
# What users without mxkit write at the top of a script.
lent = ("bool PZERO NZERO NINF PINF NAN NaN Inf alltrue sometrue product round_ msort in1d trapz mirr npv pmt ppmt pv "
        "rate").split()
lent = [name for name in lent if name not in vars(numpy)]
for name in lent:
    setattr(numpy, name, bool if name == "bool" else type("stand_in", (), {}))
version = types.ModuleType("distutils.version")
version.LooseVersion = version.StrictVersion = lambda text: tuple(int(n) for n in text.split("."))
sys.modules["distutils"], sys.modules["distutils.version"] = types.ModuleType("distutils"), version
import mxnet as mx
for name in lent:
    delattr(numpy, name)
del sys.modules["distutils"], sys.modules["distutils.version"]
"""


@pytest.mark.long
@pytest.mark.skipif(sys.version_info < (3, 9), reason="one row of the matrix is enough for the oldest")
def test_mxnet_imported_before_mxkit_is_mended_in_place(run_python, unset):
    run_python(
        COUNTING
        + LEND
        + """
recordio, moveaxis = mx.recordio, mx.nd.moveaxis
import mxkit
from mxkit.runtime.machine import read_processors
from mxkit.runtime.engine_settings import choose, in_force
assert in_engine() == in_force() == choose(read_processors(), {}).alone
assert mx.recordio is recordio and mx.nd.moveaxis is moveaxis, "no module is loaded twice"
assert mx.base._np is not numpy and mx.base._np.bool is bool
assert vars(mx.nd)["__builtins__"]["__import__"].__module__.startswith("mxkit.")
assert mx.recordio.unpack(mx.recordio.pack((0, [1, 2], 0, 0), b"x"))[1] == b"x"
assert mx.gluon.data.dataloader._worker_initializer.func.__module__ == "mxkit.runtime.loaders"
for operator in (mx.nd.Dropout, mx.sym.Dropout, mx.nd.LeakyReLU, mx.nd.concat, mx.sym.Symbol.bind, mx.npx.dropout):
    assert hasattr(operator, "__wrapped__")  # T125, T139, T250
x = mx.nd.array([[[[1.0, 2.0], [4.0, 3.0]]]])
for hybridize in (False, True):  # T137
    pool = mx.gluon.nn.MaxPool2D(2)
    pool.hybridize(hybridize)
    x.attach_grad()
    with mx.autograd.record(train_mode=False):
        y = pool(x)
    y.backward()
    assert x.grad.asnumpy().tolist() == [[[[0, 0], [1, 0]]]]
"""
        + WORKS
    )


@pytest.mark.skipif(release(numpy.__version__) < (1, 24), reason="MXNet imports by itself before NumPy 1.24")
def test_an_import_that_failed_before_mxkit_does_no_harm(run_python, unset):  # 21165
    run_python(
        COUNTING
        + """
import warnings
ctypes.CDLL("libgomp.so.1").omp_get_max_threads()
os.environ["OMP_NUM_THREADS"] = "7"
warnings.simplefilter("ignore")
import sklearn.base, scipy.stats
try:
    import mxnet
except (AttributeError, ImportError) as error:  # numpy.bool or, with NumPy 2, numpy.PZERO
    assert isinstance(error, AttributeError) or str(error) == "No module named 'distutils'", error
else:
    raise AssertionError("it imports without mxkit: this test is of no use")
left = [name for name in sys.modules if name.startswith("mxnet.")]
assert left, "modules stay behind"
import numpy
import mxkit
import mxnet as mx
assert all(value is not numpy for name in left for value in vars(sys.modules[name]).values())
assert mx.util is sys.modules["mxnet.util"], "what was left behind is imported again, and bound to its package"
# OpenMP read its variable before it was set
from mxkit.runtime.machine import read_processors
from mxkit.runtime.engine_settings import in_force
assert in_engine() == in_force() == read_processors().usable
# scikit-learn and SciPy's statistics, imported before, are used as ever
import mxnet.contrib.quantization
assert issubclass(mx.model.FeedForward, sklearn.base.BaseEstimator)
assert mx.contrib.quantization.stats is scipy.stats
"""
        + WORKS
    )


@pytest.mark.filterwarnings("ignore")  # of what GluonCV imports
def test_gluoncv_runs():
    # T90: np.float in the anchors of Faster R-CNN, np.int in HRNet; T92: distutils while it is imported
    from gluoncv.data import dataloader
    from gluoncv.model_zoo import hrnet
    from gluoncv.model_zoo.rcnn.rpn.anchor import RPNAnchorGenerator
    import gluoncv.utils.metrics.coco_detection as late

    anchors = RPNAnchorGenerator(stride=16, base_size=16, ratios=(0.5, 1), scales=(8,), alloc_size=(4, 4))
    anchors.initialize()
    assert anchors(mx.nd.ones((1, 3, 4, 4))).shape == (1, 32, 4)
    assert late.np.float is float
    assert hrnet.np.int is int
    assert dataloader._worker_initializer.func is loaders._call_upstream
    pickle.loads(pickle.dumps(dataloader._worker_initializer))("the dataset")
    assert dataloader._worker_dataset == "the dataset"
