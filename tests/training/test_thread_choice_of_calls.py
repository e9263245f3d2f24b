"""Threads that `mxkit.threads` and `fit` set in a running process (T185 to T187).

The suite runs with OMP_NUM_THREADS=1, which decides. So one process without it does everything here, and reports.
"""

import ast
import os
from pathlib import Path
import re
import subprocess
import sys
from threading import Event, Thread
from types import SimpleNamespace

import mxkit
from mxkit.errors import CheckpointWarning, TrapWarning
from mxkit.nets.layer_table.measures import operator_macs
from mxkit.runtime import engine_threads
from mxkit.runtime.machine import Processors
from mxkit.training.thread_choice import MACS_PER_THREAD, batch_shapes, chosen_number
import mxnet as mx
import numpy as np
import pytest
import tqdm

SCRIPT = """
import ctypes, os, sys, warnings
warnings.simplefilter("error", UserWarning)
import mxkit
from mxkit.runtime import engine_threads
from mxkit.runtime.machine import Processors
engine_threads.read_processors = lambda: Processors(2, 2, None)
import mxnet as mx
import numpy as np
from mxkit.training import thread_choice

def ask(device):  # OpenMP's number in the worker of a virtual device
    found = []
    task = engine_threads._Task(lambda *_: found.append(mx.base._LIB.omp_get_max_threads()))
    where = ctypes.byref(engine_threads._Cpu(1, device))
    mx.base.check_call(mx.base._LIB.MXEnginePushSync(task, None, None, where, None, 0, None, 0, None, 0, None))
    mx.nd.waitall()
    return found[0]

class Watch(mxkit.Callback):
    def __init__(self, fail=False):
        self.seen, self.fail = [], fail
    def on_update(self, state, update):
        self.seen.append((engine_threads.in_force(), *map(ask, DEVICES)))
        if self.fail:
            raise KeyError("a callback's")

DEVICES = [0]
x, y = np.random.RandomState(0).rand(40, 1, 8, 8).astype("float32"), np.arange(40) % 3
SMALL, LARGE = [8], [8192, 1024]  # multiply-adds of a product: 4,000 and 47 million

def made(hidden=SMALL, devices="cpu"):
    mxkit.seed_all(3)
    net = mxkit.models.mlp(3, hidden=hidden)
    mxkit.initialize(net, devices=devices)
    net.hybridize()
    return net

def fit(net, callback=None, **options):
    watch = callback or Watch()
    data = options.pop("data", mxkit.data.ArrayLoader(x, y, 16))
    options = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1}), "epochs": 1, **options}
    mxkit.fit(net, data, progress=False, callbacks=[watch], **options)
    return watch.seen

def weights(net):
    return [one.data().asnumpy().tobytes() for one in net.collect_params().values()]

report = {}
ask(3)  # its worker starts with the number of the import
with mxkit.threads(1):
    report["inside"] = [ask(device) for device in (0, 3, 15)]
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    import subprocess
    subprocess.run(["true"])
    report["after forks"] = [ask(device) for device in (0, 3)]
    DEVICES = [0, 40]
    net = made(LARGE, [mx.cpu(0), mx.cpu(40)])
    report["a net on a device that is new"] = fit(net)
    DEVICES = [0]
report["outside"] = [ask(device) for device in (0, 3, 15)]
report["small"] = fit(made())  # batches of 16, 16 and 8
report["large"] = fit(made(LARGE))
try:
    fit(made(), Watch(fail=True))
except KeyError:
    report["after an error"] = [engine_threads.in_force(), ask(0)]
with mxkit.threads(2):
    report["the user's"] = fit(made())
with mxkit.threads():
    report["kept"] = fit(made())
plain = mx.gluon.nn.Sequential()
plain.add(mx.gluon.nn.Lambda(lambda x: x.reshape((0, -1))), mx.gluon.nn.Dense(3))
plain.add(type("Plain", (mx.gluon.Block,), {"forward": lambda self, x: x * 1})())
plain.initialize()
report["a plain Block"] = fit(plain)
softmax = mx.gluon.loss.SoftmaxCrossEntropyLoss()

def forward(net, inputs, labels):
    output = net(*inputs)
    return softmax(output, *labels), output

report["a forward pass of the user's"] = fit(made(), loss=mxkit.losses.BatchLoss(forward=forward))
report["shapes that are not known"] = fit(made(), data=lambda: iter([(mx.nd.array(x[:16]), mx.nd.array(y[:16]))]))

# kernels made with one thread must not run with two: LeNet ends the process (T187)
lenet = mxkit.models.lenet()
mxkit.initialize(lenet)
lenet.hybridize(static_alloc=True)
images = [(mx.nd.ones((64, 1, 28, 28)), mx.nd.zeros(64))] * 2
for number in (1, 2, 1, 2):
    with mxkit.threads(number):
        fit(lenet, data=images)
        mxkit.predict(lenet, images)

# oneDNN's fused operators keep the number of their first call (T187)
fused = mx.gluon.nn.HybridSequential()
fused.add(mx.gluon.nn.Conv2D(32, 3), mx.gluon.nn.BatchNorm(), mx.gluon.nn.Activation("relu"))
fused.initialize()
sample = mx.nd.ones((8, 32, 28, 28))
fast = mxkit.optimize(fused, sample)
fast(sample).wait_to_read()
with mxkit.threads(1):
    mx.nd.ones(3).wait_to_read()
    started = -len(os.listdir("/proc/self/task"))
    fast(sample).wait_to_read()
    report["an optimized net"] = started + len(os.listdir("/proc/self/task"))

# resumed: a small net trained with two threads goes on with two
folder = sys.argv[1]
with mxkit.threads(2):
    whole = made()
    fit(whole, epochs=2, seed=1)
    fit(made(), epochs=1, seed=1, checkpoint=folder)
resumed = made()
report["resumed"] = fit(resumed, epochs=2, seed=1, checkpoint=folder, resume=True)
report["resumed bits"] = weights(resumed) == weights(whole)

# bits: a loop by hand under the number that `fit` chooses
by_fit = made()
fit(by_fit)
by_hand = made()
trainer = mx.gluon.Trainer(by_hand.collect_params(), "sgd", {"learning_rate": 0.1})
with mxkit.threads(1):
    for first in (0, 16, 32):
        batch = mx.nd.array(x[first : first + 16])
        with mx.autograd.record():
            losses = softmax(by_hand(batch), mx.nd.array(y[first : first + 16]))
        losses.backward()
        trainer.step(len(batch))
report["bits of a loop"] = weights(by_fit) == weights(by_hand)
loader = mxkit.data.ArrayLoader(x, y, 16)
found = mxkit.profiling.profile(made(), loader, loss="softmax_ce", trainer="sgd", updates=2)
numbers = [one.number for one in found.threads]
report["profile"] = numbers, engine_threads.in_force(), str(found).count("threads of an operator")
mxkit.threads(1)
report["for ever"] = [ask(0), engine_threads.in_force()]
print(report)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    (folder / "script.py").write_text(SCRIPT)
    said = ("OMP_", "GOMP_", "MXNET_", "DMLC_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(said)}
    paths = [str(Path(mxkit.__file__).parents[1]), variables.get("PYTHONPATH")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "script.py", "checkpoints"]
    done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


def test_t185_threads_reach_every_virtual_device_and_are_restored(report):
    assert report["inside"] == [1, 1, 1]
    assert report["outside"] == [2, 2, 2]
    assert report["a net on a device that is new"] == [(1, 1, 1)] * 3
    assert report["for ever"] == [1, 1]


def test_t187_kernels_are_made_for_the_threads_that_run_them(report):
    assert report  # the process has not ended
    assert report["an optimized net"] == 0  # threads that it started with mxkit.threads(1)


def test_t186_a_fork_keeps_the_number(report):
    assert report["after forks"] == [1, 1]


def test_the_nets_work_chooses_and_the_ragged_tail_does_not(report):
    assert report["small"] == [(1, 1)] * 3
    assert report["large"] == [(2, 2)] * 3
    assert report["shapes that are not known"] == [(2, 2)]
    assert report["a plain Block"] == [(2, 2)] * 3
    assert report["a forward pass of the user's"] == [(2, 2)] * 3
    assert report["bits of a loop"]


def test_a_profile_measures_other_numbers(report):
    assert report["profile"] == ([1, 2], 2, 1)


def test_the_user_decides_and_an_error_restores(report):
    assert report["the user's"] == report["kept"] == [(2, 2)] * 3
    assert report["after an error"] == [2, 2]


def test_a_resumed_run_takes_the_stored_number(report):
    assert report["resumed"] == [(2, 2)] * 3
    assert report["resumed bits"]


@pytest.mark.parametrize(
    ("data", "shapes"),
    [
        (mxkit.data.ArrayLoader((np.ones((9, 3)), np.ones((9, 2))), np.ones(9), 4), [(4, 3), (4, 2)]),
        (mxkit.data.ArrayLoader(np.ones((9, 3)), np.ones(9), 4, transform=lambda x, y, rng: (x, y)), []),
        ([(np.ones((5, 2)), np.ones(5))], [(5, 2)]),
        (mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(mx.nd.ones((5, 2)), mx.nd.ones(5)), 2), [(2, 2)]),
        (mx.io.NDArrayIter(np.ones((5, 2)), np.ones(5), 3), [(3, 2)]),
        (iter([(np.ones((5, 2)), np.ones(5))]), []),
        ([], []),
    ],
)
def test_shapes_that_are_known_without_reading(data, shapes):
    assert batch_shapes(data) == shapes


@pytest.fixture
def loaded(monkeypatch):
    """As after an import of MXNet on two cores without a setting."""
    for name in (engine_threads.obstacle, engine_threads._task):
        name.cache_clear()
    monkeypatch.setattr(engine_threads, "_loaded", engine_threads.choose(Processors(2, 2, None), {}))
    yield
    engine_threads.obstacle.cache_clear()


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (SimpleNamespace(), "MXNet's library lacks MXEnginePushSync. mxkit knows this interface of MXNet 1.9.1"),
        (None, "OpenMP answers [1, 1] where 1 and 2 were set. MXNet uses another OpenMP than libgomp"),
    ],
)
def test_an_unknown_library_keeps_the_number_of_the_import(loaded, monkeypatch, library, said):
    base = SimpleNamespace(_LIB=library)
    if library is not None:
        monkeypatch.setitem(sys.modules, "mxnet.base", base)
    monkeypatch.setattr(engine_threads, "_on_workers", lambda number, devices: [1])
    with engine_threads.choosing() as chosen:
        assert chosen is None
    assert engine_threads.obstacle() == said
    with pytest.raises(ValueError, match=re.escape(f"threads: MXNet takes 2, and 1 cannot be set: {said}")):
        mxkit.threads(1)
    assert engine_threads.in_force() == 2


@pytest.mark.parametrize("number", [0, 1.5, True, "2"])
def test_what_threads_refuses(number, loaded):
    with pytest.raises(ValueError, match=f"threads: expected a whole number of at least 1; received {number!r}"):
        mxkit.threads(number)
    with pytest.raises(
        ValueError, match="threads: at most 2, as many as MXNet was loaded with.*MXNET_OMP_MAX_THREADS=3"
    ):
        mxkit.threads(3)


def test_a_variable_wins():  # the suite's
    with mxkit.threads(1), pytest.raises(
        ValueError, match="MXNet takes 1, and 2 cannot be set: OMP_NUM_THREADS decides"
    ):
        mxkit.threads(2)


def test_the_rule():
    assert chosen_number([]) == chosen_number([0, MACS_PER_THREAD]) == 1
    assert chosen_number([3 * MACS_PER_THREAD, 0, 5 * MACS_PER_THREAD]) == 4
    assert [chosen_number([share * MACS_PER_THREAD]) for share in (0.1, 1.4, 1.6)] == [1, 1, 2]
    lstm = mx.gluon.rnn.LSTM(7, input_size=5)
    lstm.initialize()
    assert operator_macs(lstm, [(3, 2, 5)]).count(2 * 4 * 7 * (5 + 7)) == 3  # its three steps


def test_more_threads_than_a_stopped_run_had_are_told(tmp_path, monkeypatch):
    def fit(**options):
        net = mxkit.models.softmax_regression(3)
        mxkit.initialize(net)
        data = mxkit.data.ArrayLoader(np.ones((8, 4), "float32"), np.arange(8) % 3, 4)
        mxkit.fit(net, data, loss="softmax_ce", trainer="sgd", checkpoint=tmp_path, progress=False, **options)

    with monkeypatch.context() as patch:
        patch.setattr("mxkit.training.resume.in_force", lambda: 7)
        fit(epochs=1)
    said = r"mxkit\.threads\) was '7', is '1' \(MXNet was loaded with at most 1 threads here\)"
    with pytest.warns(CheckpointWarning, match=said):
        fit(epochs=2, resume=True)


def test_other_threads_of_the_program_keep_the_number(monkeypatch):
    monkeypatch.setattr(engine_threads, "obstacle", lambda: "")
    monkeypatch.setattr(engine_threads, "most", lambda: 4)
    monkeypatch.setattr(engine_threads, "_present", 2)
    ended = Event()
    assert "a server's" not in engine_threads._other_threads()
    helper = Thread(target=ended.wait, name="a server's", daemon=True)
    helper.start()
    try:
        assert "a server's" in engine_threads._other_threads()  # threads of earlier tests may end meanwhile
        assert not engine_threads.may_choose()
        said = (
            r"MXNet keeps 2, because other threads of the program run, which may use it: .*a server's\. Set the number"
        )
        with pytest.raises(RuntimeError, match=said):
            mxkit.threads(1)
        with pytest.warns(TrapWarning, match=said):
            engine_threads._restore(None, check=True)
    finally:
        ended.set()
        helper.join()
    bar = Thread(target=ended.wait)
    bar._target = tqdm.tqdm.close  # a function of tqdm
    assert engine_threads._home(bar).partition(".")[0] in engine_threads._WITHOUT_MXNET
