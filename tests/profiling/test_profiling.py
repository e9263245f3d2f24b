"""`profile`: what it charges to which phase, and that nothing of it stays."""

from contextlib import closing, nullcontext
import json
import random
import threading
import time

from built_nets import ready
import mxkit
from mxkit.core.blocks import parameters_by_path
from mxkit.errors import DataError
from mxkit.metrics import get_metric, get_metrics
from mxkit.profiling.clock import PHASES, Clock
from mxkit.profiling.operator_times import Operators
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest
from sharing import command

PAUSE = 0.01


def made(samples=20, batch_size=10):
    x = np.random.RandomState(0).rand(samples, 6).astype("float32")
    return mxkit.data.ArrayLoader(x, np.arange(samples) % 3, batch_size=batch_size)


def without_end():
    while True:
        yield from made()


def make_net(**arguments):
    return ready(mxkit.models.mlp(hidden=[8], classes=3), **arguments)


def profiled(net=None, data=None, **arguments):
    chosen = {"loss": "softmax_ce", "trainer": "sgd", **arguments}
    return mxkit.profiling.profile(net or make_net(), data or made(), **chosen)


def losses_of(net, inputs, labels):
    return gluon.loss.SoftmaxCELoss()(net(*inputs), *labels)


def slow(call):
    """The function, which now takes longer."""

    def slowed(*arguments):
        time.sleep(PAUSE)
        return call(*arguments)

    return slowed


class SlowBackward(autograd.Function):
    forward, backward = (lambda self, x: x + 0), slow(lambda self, gradient: gradient)


class SlowSGD(mx.optimizer.SGD):
    update = update_multi_precision = slow(mx.optimizer.SGD.update)


class SlowMetric(mx.metric.Loss):
    update = slow(lambda self, labels, preds: None)


def slow_backward(*batch):
    return SlowBackward()(losses_of(*batch))


SLOW = {
    "data": {"data": lambda: map(slow(tuple), made())},
    "forward": {"loss": mxkit.losses.BatchLoss(forward=slow(losses_of))},
    "backward": {"loss": mxkit.losses.BatchLoss(forward=slow_backward)},
    "metrics": {"metrics": [SlowMetric(name="slow")]},
    "update": {"trainer": SlowSGD()},
}


@pytest.mark.parametrize("phase", list(SLOW))
def test_what_is_slow_is_charged_to_its_phase(phase):
    found = profiled(updates=2, **SLOW[phase]).phase(phase)
    assert found.alone_ms >= PAUSE * 1e3
    # SlowBackward sleeps in a thread of the engine, while Python goes on
    assert found.python_ms >= PAUSE * 1e3 or phase == "backward"


@pytest.mark.parametrize("devices", ["cpu", "cpu:2"])
def test_phases_add_up_to_the_time_that_passed(devices):
    found = profiled(make_net(devices=devices), trainer="adam", updates=4, metrics=["accuracy"], accumulate=2)
    assert [phase.name for phase in found.phases] == list(PHASES)
    assert sum(phase.python_ms for phase in found.phases) == pytest.approx(found.ms, rel=1e-9)
    assert len(found.rows) == 4
    assert all(set(row) <= set(PHASES[:-1]) for row in found.rows)
    assert found.samples == 20
    assert found.samples_per_second == pytest.approx(20 / found.ms * 1e3)
    assert 0 < found.busy <= 1
    assert found.phase("waiting").alone_ms is None


def test_operators_are_those_of_the_update(kind):
    net = kind.net(lambda: make_net(sample=(1, 6)))
    net.hybridize(static_alloc=True)
    found = profiled(net, trainer="adam", updates=3, accumulate=2).operators
    calls = {operator.name: operator.calls for operator in found}
    assert "ImperativeBulk" not in calls
    assert calls["FullyConnected"] == calls["_backward_FullyConnected"] == 2 * 2  # layers x batches
    assert calls["adam_update"] == 4
    assert sum(operator.share for operator in found) == pytest.approx(1)
    assert [operator.ms for operator in found] == sorted((operator.ms for operator in found), reverse=True)
    onednn = {operator.name: operator.onednn for operator in found}
    assert onednn["FullyConnected"] is onednn["_backward_FullyConnected"] is True
    assert onednn["adam_update"] is onednn["pick"] is False


def test_who_waits_for_the_engine_is_named(kind):
    def reading(net, inputs, labels):
        losses = losses_of(net, inputs, labels)
        losses.mean().item() if kind.numpy else losses.mean().asscalar()
        return losses

    net = kind.net(lambda: make_net(sample=(1, 6)))
    found = profiled(net, loss=mxkit.losses.BatchLoss(forward=reading), updates=3)
    (read,) = [one for one in found.reads if one.calls >= 1]
    line = reading.__code__.co_firstlineno + 2
    assert read.place == f"profiling/test_profiling.py:{line}"
    assert read.calls == 1
    assert read.ms <= found.phase("waiting").python_ms
    assert any(line.startswith(read.place) for line in found.advice)


def test_waits_of_mxkit_itself_give_no_advice():
    net = ready(mx.gluon.nn.Embedding(9, 4), mx.gluon.nn.Dense(2))  # the tokens of each batch are checked
    data = mxkit.data.ArrayLoader(np.arange(48).reshape(12, 4) % 9, np.arange(12) % 2, batch_size=4)
    found = profiled(net, data, updates=3)
    assert [one.place.partition(":")[0] for one in found.reads if one.calls >= 1] == ["mxkit/core/arrays.py"]
    assert not any("waits for the engine" in line for line in found.advice)


def state_of(net):
    mx.nd.waitall()
    functions = mx.nd.NDArray.asnumpy, mx.nd.NDArray.wait_to_read, mx.nd.waitall, autograd.record, autograd.backward
    parameters = {
        path: ([one.asnumpy().tobytes() for one in parameter.list_data()], parameter.grad_req, parameter._trainer)
        for path, parameter in parameters_by_path(net).items()
    }
    return functions, parameters, random.getstate(), np.random.get_state()[1].tolist()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays(fails):
    net = ready(gluon.nn.Dense(8), gluon.nn.BatchNorm(), gluon.nn.Dense(3), sample=(1, 6))
    data = made(12, batch_size=4)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    metric = get_metric("accuracy")
    metric.update([mx.nd.array([0, 1])], mx.nd.array([[1, 0], [1, 0]]))
    random.seed(1)
    np.random.seed(1)
    before, calls = state_of(net), []

    def forward(net, inputs, labels):
        calls.append(1)
        if fails and len(calls) > 7:
            raise RuntimeError("broken")
        random.random()
        np.random.rand()
        output = net(*inputs)
        return gluon.loss.SoftmaxCELoss()(output, *labels), output

    chosen = {"loss": mxkit.losses.BatchLoss(forward=forward), "trainer": trainer, "metrics": [metric]}
    with pytest.raises(mxkit.errors.TrainingError) if fails else nullcontext():
        profiled(net, data, updates=3, **chosen)
    assert state_of(net) == before
    assert trainer.optimizer.num_update == 0
    assert metric.get() == 0.5
    assert data.epoch == 0


def test_the_training_is_that_of_updates():
    seen = []

    def watched(net, inputs, labels):
        losses = losses_of(net, inputs, labels)
        seen.append(float(losses.mean().asscalar()))
        return losses

    loss = mxkit.losses.BatchLoss(forward=watched)
    chosen = {"loss": loss, "trainer": ("sgd", {"learning_rate": 0.1}), "clip_norm": 0.1}
    net = make_net()
    profiled(net, updates=2, **chosen)
    assert len(seen) == 3 * 7
    told, seen = seen[:7], []  # five that are not counted, and two
    with closing(mxkit.updates(net, without_end, **chosen)) as stream:
        for _ in zip(range(7), stream):
            pass
    assert told == seen


def test_sources_of_all_kinds():
    iterator = mx.io.NDArrayIter(np.random.rand(20, 6).astype("float32"), np.arange(20.0) % 3, batch_size=10)
    for data in (list(made()), made, iterator):
        assert profiled(data=data, updates=1).samples == 10


def test_operators_are_those_that_updates_runs_without_being_timed():
    chosen = {"loss": "softmax_ce", "trainer": "adam"}
    nets = make_net(), make_net()
    for net in nets:
        net.hybridize(static_alloc=True)
    found = profiled(nets[0], metrics=["accuracy"], updates=2, **chosen)
    operators = Operators()
    with closing(mxkit.updates(nets[1], without_end, metrics=get_metrics(["accuracy"]), **chosen)) as stream:
        for _ in zip(range(5), stream):
            mx.nd.waitall()
        with operators.recorded():
            for _ in zip(range(2), stream):
                mx.nd.waitall()
    expected = {name: calls / 2 for name, (calls, _) in operators.by_name().items()}
    told = {operator.name: operator.calls for operator in found.operators}
    for counts in (expected, told):
        counts.pop("DeleteVariable", None)  # memory that Python lets go, at some moment
    assert told == expected


def never(net, inputs, labels):
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (DataError, "only once", {"data": iter(made())}),
        (ValueError, "updates", {"updates": 0}),
        (FileNotFoundError, "no directory", {"trace": "none/trace.json"}),
        (TypeError, "accumulates", {"accumulates": 2}),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(error, text, arguments):
    with pytest.raises(error, match=text):
        profiled(loss=mxkit.losses.BatchLoss(forward=never), **arguments)


def test_a_clock_counts_only_between_begin_and_finish():
    clock = Clock(alone=False)
    clock.enter("data")
    time.sleep(PAUSE)
    clock.begin()
    clock.end_update(5)
    clock.finish()
    assert sum(map(sum, (row.values() for row in clock.rows))) + clock.tail == pytest.approx(clock.wall)
    assert clock.spans[0].begin <= clock.spans[0].end <= time.time() + 1
    assert "data" not in clock.rows[0]


def test_waits_of_other_threads_are_not_the_trainings():
    clock = Clock(alone=False)
    with clock.watching():
        clock.begin()
        thread = threading.Thread(target=lambda: mx.nd.ones(3).asnumpy())
        thread.start()
        thread.join()
        assert clock.reads == {}
        mx.nd.ones(3).wait_to_read()
        clock.end_update(1)
        clock.finish()
    assert [place.split(":")[0] for place in clock.reads] == ["profiling/test_profiling.py"]


def test_the_command_writes_table_picture_figures_and_trace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--updates", "3", "--set", "data.batch_size=20", "--no-threads", "--out", "there"]
    code, told, _ = command("profile", "linear_regression", *words)
    assert (code, told.splitlines()[0].startswith("3 updates of 20 samples on cpu(0)")) == (0, True)
    assert "backward" in told
    assert sorted(map(str, tmp_path.rglob("*.*"))) == [
        str(tmp_path / "there" / name) for name in ("profile.json", "profile.png", "trace.json")
    ]
    figures = json.loads((tmp_path / "there" / "profile.json").read_text())
    assert (figures["samples"], len(figures["rows"])) == (20, 3)
    events = json.loads((tmp_path / "there" / "trace.json").read_text())["traceEvents"]
    assert {event["name"] for event in events} > {"forward", "backward", "FullyConnected", "_backward_FullyConnected"}
    code, _, err = command("profile", "linear_regression", "--out", "there/trace.json")
    assert (code, "--out: expected a folder" in err) == (2, True)
