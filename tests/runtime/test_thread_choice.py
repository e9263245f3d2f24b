"""The threads of MXNet's operators, counted in processes of their own: chosen, set, never changed (T96, T187)."""

import functools
import json
import os
import re

import mxkit
from mxkit.errors import TrapWarning
from mxkit.recipe.run import run_recipe
from mxkit.runtime import engine_settings
from mxkit.runtime.engine_settings import Choice, choose, chosen_threads, local_workers
from mxkit.runtime.machine import Processors, read_processors
import pytest
from sharing import long

MOST = "MXNET_OMP_MAX_THREADS"
LAUNCHED = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "4"}
LOCAL = {**LAUNCHED, "DMLC_JOB_CLUSTER": "local"}
# The number that OpenMP keeps for the engine's thread, told by that thread; and threads that a convolution starts.
COUNTING = """
import ctypes, json, os, sys

class Cpu(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]

def in_engine():
    import mxnet
    base, found = mxnet.base, []
    task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        lambda *_: found.append(base._LIB.omp_get_max_threads())
    )
    where = ctypes.byref(Cpu(1, 0))
    base.check_call(base._LIB.MXEnginePushSync(task, None, None, where, None, 0, None, 0, None, 0, None))
    mxnet.nd.waitall()
    return found[0]

def computing():
    import mxnet
    x, weight = mxnet.nd.ones((16, 16, 64, 64)), mxnet.nd.ones((16, 16, 3, 3))
    mxnet.nd.waitall()
    before = len(os.listdir("/proc/self/task"))
    mxnet.nd.Convolution(x, weight, kernel=(3, 3), num_filter=16, no_bias=True).wait_to_read()
    return 1 + len(os.listdir("/proc/self/task")) - before

def tell(**found):
    print(json.dumps(found), flush=True)
"""
ACTIONS = """
def load():
    import subprocess
    before = dict(os.environ)
    import mxkit, mxnet
    inherited = subprocess.run(["env"], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout.splitlines()
    named = {line.partition("=")[0]: line.partition("=")[2] for line in inherited if "OMP_" in line}
    assert named == {name: value for name, value in before.items() if "OMP_" in name}
    assert named == {name: value for name, value in os.environ.items() if "OMP_" in name}

def threads():
    from mxkit.runtime.engine_settings import in_force
    here = computing()
    inner, outer = os.pipe()
    if os.fork() == 0:
        os.write(outer, str(computing()).encode())
        os._exit(0)
    return dict(engine=in_engine(), computing=here, in_force=in_force(), forked=int(os.read(inner, 9)))

class Counted:
    draws = ()
    def __len__(self):
        return 4
    def __getitem__(self, number):
        import mxkit, numpy
        return numpy.float32(in_engine()), numpy.float32(0)

def in_workers(method):
    from mxkit.data import DatasetLoader
    loader = DatasetLoader(Counted(), 2, workers="process:1", start_method=method)
    return [int(one) for batch in loader for one in batch[0].asnumpy()]

def while_fitting():
    import mxkit, mxnet as mx, numpy as np
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2D(4, 3), mx.gluon.nn.GlobalAvgPool2D(), mx.gluon.nn.Dense(2))
    net.initialize()
    seen = []
    watch = mxkit.callbacks.LambdaCallback(on_update=lambda state, update: seen.append(in_engine()))
    samples = [(np.ones((3, 8, 8), "float32"), number % 2) for number in range(8)]
    arrays = mxkit.data.ArrayLoader(np.ones((8, 3, 8, 8)), np.arange(8) % 2, 4)
    for loader in (mxkit.data.DatasetLoader(samples, 4), arrays):
        mxkit.fit(net, loader, loss="softmax_ce", trainer="sgd", epochs=1, callbacks=[watch], progress=False)
    return seen

def error_of_dense():
    import mxkit, mxnet as mx, numpy as np
    rng = np.random.RandomState(0)
    x, weight = rng.randn(2048, 32).astype("f"), rng.randn(64, 32).astype("f")
    found = mx.nd.FullyConnected(mx.nd.array(x), mx.nd.array(weight), no_bias=True, num_hidden=64).asnumpy()
    return float(np.abs(found - x @ weight.T).max())

def on_two_devices():
    import mxkit
    from mxkit.recipe.reading import set_threads
    set_threads("two_devices")
    assert "mxnet" not in sys.modules
    import mxnet as mx

    def together():  # whether an operator of the second device ends while four of the first wait
        import threading
        first, second = (mx.nd.ones(8, ctx=mx.cpu(number)) for number in (1, 2))  # the wait below needs cpu(0)
        mx.nd.waitall()
        ended, seen = threading.Event(), []
        task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: seen.append(ended.wait(2)))
        written = (ctypes.c_void_p * 1)(first.handle)
        base, where = mx.base, ctypes.byref(Cpu(1, 1))
        base.check_call(base._LIB.MXEnginePushSyncND(task, None, None, where, None, 0, written, 1, None, 0, None))
        waiting = [first.sum() for _ in range(4)]
        second.sum().wait_to_read()
        ended.set()
        mx.nd.waitall()
        return seen[0]

    from mxkit.runtime.engine_settings import in_force
    return dict(in_force=in_force(), together=together())

def set_before(number):
    import mxkit
    mxkit.threads(number)
    assert "mxnet" not in sys.modules
    import mxnet
    said = None
    try:
        mxkit.threads(number + 1)
    except RuntimeError as error:
        said = str(error)
    mxkit.threads(number)
    return said

"""


@pytest.fixture
def python(run_python):
    """Run Python in an environment that says nothing of threads but what is given."""
    said = ("OMP_", "GOMP_", "MXNET_", "DMLC_", "MXKIT_EXACT", *engine_settings.SWITCHES)
    return functools.partial(run_python, without=said)


@pytest.fixture
def child(python):
    """Run a script that tells."""

    def run(code, **variables):
        main = f"if __name__ == '__main__':\n    {code}\n"
        done = python(COUNTING + ACTIONS + main, OMP_DISPLAY_ENV="verbose", **variables)
        # what OpenMP itself tells while it is loaded
        return {**json.loads(done.stdout.splitlines()[-1]), "spins": "GOMP_SPINCOUNT = '3000'" in done.stderr}

    return run


def taking(number, spins=True, forked=1):
    return {"engine": number, "computing": number, "in_force": number, "forked": forked, "spins": spins}


@pytest.mark.parametrize(
    ("processors", "variables", "expected"),
    [
        (Processors(2, 2, None), {}, Choice(2, 1)),  # one processor a core: a virtual machine
        (Processors(64, 32, None), {}, Choice(32, 32)),
        (Processors(64, 32, 4.0), {}, Choice(4, 32)),
        (Processors(64, 32, 0.5), {}, Choice(1, 32)),
        (Processors(1, 1, None), {}, Choice(1, 1)),
        (Processors(8, 8, None), LOCAL, Choice(2, 4)),
        (Processors(2, 2, None), LOCAL, Choice(1, 1)),
        (Processors(8, 8, None), LAUNCHED, Choice(8, 4)),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": "2"}, Choice(2, 2, "OMP_NUM_THREADS")),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": "16", **LOCAL}, Choice(16, 16, "OMP_NUM_THREADS")),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": "2", MOST: "3"}, Choice(2, 2, "OMP_NUM_THREADS")),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": "0"}, Choice(8, 8, "OMP_NUM_THREADS")),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": ""}, Choice(8, 4)),
        (Processors(8, 8, None), {MOST: "3"}, Choice(3, 3, MOST)),
        (Processors(8, 8, None), {MOST: "99"}, Choice(8, 8, MOST)),
        (Processors(8, 8, None), {MOST: "0"}, Choice(8, 8, MOST)),
        (Processors(8, 8, None), {MOST: "-3"}, Choice(1, 1, MOST)),
        (Processors(8, 8, None), {"MXNET_CPU_WORKER_NTHREADS": "1"}, Choice(8, 4)),
        (Processors(8, 8, None), {"MXNET_CPU_WORKER_NTHREADS": "2"}, Choice(4, 4, "MXNET_CPU_WORKER_NTHREADS")),
        (Processors(8, 8, None), {"MXNET_ENGINE_TYPE": "NaiveEngine"}, Choice(4, 4, "MXNET_ENGINE_TYPE")),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": "2", MOST: "many"}, Choice(None, None, MOST)),
        (Processors(8, 8, None), {"OMP_NUM_THREADS": "2,1"}, Choice(None, None, "OMP_NUM_THREADS")),
        (Processors(8, 8, None), {"OMP_THREAD_LIMIT": "3"}, Choice(3, 4)),
        (Processors(8, 8, None), {"OMP_DYNAMIC": "TRUE", "OMP_THREAD_LIMIT": "3"}, Choice(1, 4)),
    ],
)
def test_what_is_chosen(monkeypatch, processors, variables, expected):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert choose(processors, variables) == expected


def test_elsewhere_mxnet_does_not_halve(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert choose(Processors(8, 8, None), {}) == Choice(8, 8)


@pytest.mark.parametrize(
    ("variables", "workers"),
    [
        ({"DMLC_NUM_WORKER": "4"}, 1),
        (LOCAL, 4),
        (LAUNCHED, None),
        ({**LAUNCHED, "DMLC_JOB_CLUSTER": "ssh", "DMLC_PS_ROOT_URI": "10.0.0.1"}, None),
        ({**LAUNCHED, "DMLC_PS_ROOT_URI": "127.0.0.1"}, 4),
        ({**LOCAL, "DMLC_NUM_WORKER": "1"}, 1),
        ({**LOCAL, "DMLC_NUM_WORKER": "some"}, None),
        ({"DMLC_ROLE": "server", "DMLC_NUM_WORKER": "4", "DMLC_JOB_CLUSTER": "local"}, 4),
    ],
)
def test_workers_that_are_known_to_share_this_host(variables, workers):
    assert local_workers(variables) == workers


def test_everything_takes_the_threads_that_are_chosen_and_no_variable_is_left(child):
    """T96, T186, T187."""
    taken = choose(read_processors(), {}).taken
    late = "os.environ['OMP_NUM_THREADS'] = '7'; found = threads(); del os.environ['OMP_NUM_THREADS']"
    code = f"load(); {late}; tell(fit=while_fitting(), fork=in_workers('fork'), spawn=in_workers('spawn'), **found)"
    workers = {"fork": [1] * 4, "spawn": [1] * 4}
    assert child(code) == {**taking(taken), "fit": [taken] * 4, **workers}


@pytest.mark.parametrize(
    ("variables", "taken"), [({"OMP_NUM_THREADS": "3", MOST: "1"}, 3), long({MOST: "1", **LOCAL}, 1)]
)
def test_a_setting_of_the_users_own_wins_and_stays(child, variables, taken):
    assert child("load(); tell(**threads())", **variables) == taking(taken, forked=taken)


@pytest.mark.long
@pytest.mark.parametrize("variables", [{"MXNET_CPU_WORKER_NTHREADS": "2"}, {"MXNET_ENGINE_TYPE": "NaiveEngine"}])
def test_other_engines_are_left_alone_and_what_is_recorded_is_what_they_take(child, variables):
    found = child("load(); tell(**threads())", **variables)
    assert found["engine"] == found["in_force"] == choose(read_processors(), {}).alone


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "variables", "taken"), [("forkserver", {}, 1), ("spawn", {"OMP_NUM_THREADS": "2"}, 2)]
)
def test_workers_of_a_loader_take_one_thread_however_they_are_started(child, method, variables, taken):
    assert child(f"tell(found=in_workers({method!r}))", **variables)["found"] == [taken] * 4


@pytest.mark.parametrize("waits", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY", None])
@pytest.mark.parametrize("before", [None, ""])
def test_a_library_that_does_not_load_leaves_the_environment_as_it_was(monkeypatch, before, waits):
    for name in ("OMP_NUM_THREADS", MOST, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(MOST, before)
    if waits is not None:  # who says how threads wait is obeyed
        monkeypatch.setenv(waits, "1234")
    spins = {"GOMP_SPINCOUNT": "1234", None: "3000"}.get(waits)
    monkeypatch.setattr(engine_settings, "read_processors", lambda: Processors(64, 32, 4.0))
    loaded, variables = engine_settings._loaded, dict(os.environ)

    def load():
        with chosen_threads():
            assert (os.environ[MOST], os.environ.get("GOMP_SPINCOUNT")) == ("4", spins)
            raise OSError("libcudart.so.11.0: cannot open shared object file")

    with pytest.raises(OSError, match="libcudart"):
        load()
    assert os.environ == variables
    assert engine_settings._loaded is loaded


def test_the_user_sets_the_number_before_mxnet_is_loaded_and_never_after(child):
    """T187."""
    found = child("said = set_before(1); tell(said=said, **threads())")
    assert found == {**taking(1), "said": found["said"]}
    for words in ("MXNet is loaded and takes 1; 2 cannot be set any more", "MXNET_OMP_MAX_THREADS=2 before Python"):
        assert words in found["said"]


@pytest.mark.parametrize(("variables", "together"), [({}, True), ({"MXNET_CPU_TEMP_COPY": "4"}, False)])
def test_two_devices_share_the_cores_and_compute_at_the_same_time(child, variables, together):
    """T292: with four temporary spaces, MXNet's default and here the user's own setting, the second device waits."""
    found = child("tell(**on_two_devices())", **variables)
    assert found["together"] is together
    assert found["in_force"] == max(1, choose(read_processors(), {}).taken // 2)


LIMITS = [{"OMP_THREAD_LIMIT": "1"}, long({"OMP_DYNAMIC": "true"}), long({"OMP_MAX_ACTIVE_LEVELS": "0"})]


@pytest.mark.parametrize("variables", LIMITS)
def test_numbers_are_right_where_openmp_gives_fewer_threads(child, variables):
    """T300."""
    found = child("tell(dense=error_of_dense())", **variables)
    assert found["dense"] < 1e-3


def test_more_threads_than_openmp_gives_are_refused(python):
    """T300."""
    done = python("import mxkit, mxnet", OMP_NUM_THREADS="2", OMP_THREAD_LIMIT="1", status=1)
    words = "OMP_NUM_THREADS=2 asks for 2 threads, of which OMP_THREAD_LIMIT=1 may give fewer: .* wrong numbers"
    assert re.search(words, done.stderr)


def test_devices_cannot_be_set_after_mxnet_is_loaded(monkeypatch):
    monkeypatch.delenv("MXNET_CPU_TEMP_COPY", raising=False)
    with pytest.raises(RuntimeError, match=r"on 2 devices .* take turns. Call it before .* MXNET_CPU_TEMP_COPY=64"):
        mxkit.threads(devices=2)
    with pytest.raises(ValueError, match="threads: devices: expected a whole number of at least 1; received 0"):
        mxkit.threads(devices=0)


@pytest.mark.parametrize("number", [0, 1.5, True, "2"])
def test_what_threads_refuses(number):
    with pytest.raises(ValueError, match=f"threads: expected a whole number of at least 1; received {number!r}"):
        mxkit.threads(number)


def test_a_variable_of_the_users_wins(monkeypatch, tmp_path):  # the suite's
    """T280."""
    monkeypatch.setattr(engine_settings, "read_processors", lambda: Processors(4, 4, None))
    with pytest.raises(ValueError, match="threads: OMP_NUM_THREADS=1 decides. Unset it before Python starts, to set 2"):
        mxkit.threads(2)
    mxkit.threads(1)
    with pytest.warns(TrapWarning, match="MXNet takes 1, not the 2 of the recipe: OMP_NUM_THREADS=1 decides"):
        run_recipe("linear_regression", overrides=["epochs=1", "threads=2"], output=tmp_path, progress=False)
    monkeypatch.setattr(engine_settings, "read_processors", lambda: Processors(1, 1, None))
    mxkit.threads(99)  # as many as there are


def test_a_resumed_run_takes_its_number_and_switches_before_mxnet_is_loaded(python, tmp_path):
    """T187, T131, T132."""
    run = run_recipe("linear_regression", overrides=["epochs=1"], output=tmp_path, progress=False).folder
    (stopped,) = json.loads((run / "environment.json").read_text())
    words = ("train", "--exact", "--quiet", "--resume", str(run), "--set", "epochs=2")
    assert "threads" not in python(None, flags=("-m", "mxkit", *words)).stderr
    resumed = json.loads((run / "environment.json").read_text())[-1]
    assert resumed["threads"] == stopped["threads"] == 1  # by OMP_NUM_THREADS, which the other process does not have
    assert resumed["bits"] == engine_settings.SWITCHES != stopped["bits"]
    assert {name: resumed["variables"].get(name) for name in resumed["bits"]} == resumed["bits"]
