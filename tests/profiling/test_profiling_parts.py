"""The pieces of a profile: MXNet's profiler, convolutions' channels, tables, picture, advice."""

import json
import os
import subprocess
import sys

from built_nets import stack
import mxkit
from mxkit.profiling import advice as advice_module
from mxkit.profiling.advice import advice, odd_convolutions
from mxkit.profiling.clock import Span
from mxkit.profiling.operator_times import ONEDNN, Operators, Run, by_onednn, write_trace
from mxkit.profiling.result import Operator, Phase, Profile, Read, Threads
from mxkit.runtime.machine import Processors
import mxnet as mx
from mxnet import gluon
import pytest


def record(count):
    operators = Operators()
    with operators.recorded():
        for _ in range(count):
            mx.nd.FullyConnected(mx.nd.ones((2, 3)), mx.nd.ones((4, 3)), no_bias=True, num_hidden=4)
        mx.nd.waitall()
    return operators


def test_mxnets_profiler_again_and_again():
    """T108."""
    for count in (3, 1, 2):
        operators = record(count)
        calls, seconds = operators.by_name()["FullyConnected"]
        assert calls == count
        assert 0 < seconds <= operators.busy() * 1.001
    with pytest.raises(RuntimeError), Operators().recorded():  # it stops after an error, and forgets
        raise RuntimeError(mx.nd.ones(3).asnumpy())
    mx.nd.FullyConnected(mx.nd.ones((2, 3)), mx.nd.ones((4, 3)), no_bias=True, num_hidden=4).wait_to_read()
    assert record(2).by_name()["FullyConnected"][0] == 2


def test_the_engine_is_busy_where_at_least_one_operator_runs():
    operators = Operators()
    operators.runs = [Run("a", 0, 0, 1, 3), Run("b", 1, 1, 2, 4), Run("c", 0, 0, 2, 2.5), Run("a", 0, 0, 6, 7)]
    assert operators.busy() == 4
    assert operators.by_name() == {"a": (2, 3), "b": (1, 2), "c": (1, 0.5)}


def test_a_trace_holds_phases_and_operators(tmp_path):
    write_trace(tmp_path / "t.json", [Run("a", 0, 1, 5.5, 6.0)], [Span("data", 5.0, 5.25)])
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["Python: phases", "engine: worker 1"]
    timed = [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"]
    assert timed == [("data", 0, 250000), ("a", 500000, 500000)]


# Calls that MXNet computes by the operator they are named after.
CALLS = {
    "Activation": "nd.Activation(x, act_type='relu')",
    "BatchNorm": "nd.BatchNorm(x, *[nd.ones(16, dtype=t)] * 4)",
    "Concat": "nd.concat(x, x, dim=1)",
    "Convolution": "nd.Convolution(x, w, no_bias=True, kernel=(3, 3), num_filter=16)",
    "Deconvolution": "nd.Deconvolution(x, w, no_bias=True, kernel=(3, 3), num_filter=16)",
    "FullyConnected": "nd.FullyConnected(x, nd.ones((4, 1024), dtype=t), no_bias=True, num_hidden=4)",
    "LRN": "nd.LRN(x, nsize=5)",
    "LeakyReLU": "nd.LeakyReLU(x, act_type='leaky')",
    "Pooling": "nd.Pooling(x, kernel=(2, 2), pool_type='max')",
    "RNN": "nd.RNN(x[0], nd.ones(224, dtype=t), nd.zeros((1, 8, 4), dtype=t), nd.zeros((1, 8, 4), dtype=t), "
    "state_size=4, num_layers=1, mode='lstm')",
    "log_softmax": "nd.log_softmax(x)",
    "softmax": "nd.softmax(x)",
    "transpose": "nd.transpose(x)",
    "relu": "nd.relu(x)",
    "tanh": "nd.tanh(x)",
    "sigmoid": "nd.sigmoid(x)",
    "LayerNorm": "nd.LayerNorm(x, nd.ones(8, dtype=t), nd.ones(8, dtype=t))",
    "Dropout": "nd.Dropout(x, p=0.5, mode='always')",
    "broadcast_add": "nd.broadcast_add(x, x)",
    "sum": "nd.sum(x, axis=1)",
    "mean": "nd.mean(x, axis=1)",
}
VERBOSE = """
import ctypes, os, sys
import mxkit
from mxnet import nd
flush = ctypes.CDLL(None).fflush
for t in ("float32", "float64"):
    for name, call in CALLS.items():
        if t == "float64" and name == "LRN":
            continue
        x, w = nd.ones((4, 16, 8, 8), dtype=t), nd.ones((16, 16, 3, 3), dtype=t)
        x = nd.ones((4, 16, 8, 8), dtype=t)
        nd.waitall()
        flush(None)
        os.write(1, f"#{t} {name}\\n".encode())
        eval(call)
        nd.waitall()
        flush(None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="oneDNN's messages pass through the C library's buffer")
def test_what_onednn_computes():
    done = subprocess.run(
        [sys.executable, "-c", f"CALLS = {CALLS!r}\n{VERBOSE}"],
        stdout=subprocess.PIPE,
        env={**os.environ, "DNNL_VERBOSE": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=300,
        text=True,
    )
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("#"):
            call = tuple(line[1:].split())
            found[call] = False
        elif line.startswith("dnnl_verbose,exec"):
            found[call] = True
    assert set(CALLS) > ONEDNN
    assert found == {(dtype, name): by_onednn(name, dtype) for dtype, name in found}


def test_convolutions_that_fit_no_fast_kernel_are_named():
    """T97."""
    nn, net = gluon.nn, gluon.nn.HybridSequential()
    net.add(nn.Conv2D(20, 3), nn.Conv2D(32, 3), nn.Conv2D(64, 3), nn.Conv2D(60, 1, groups=4))
    net.add(nn.Conv2DTranspose(7, 3), nn.Conv2D(16, 3), nn.Conv2D(32, 3))
    mxkit.initialize(net, sample=(2, 3, 30, 33))
    assert odd_convolutions(net, 16) == ["0 3-20", "1 20-32", "5 7-16"]
    net.hybridize()
    assert "slower kernels (T97): 0 3-20" in advice(profile_of(), net)[-1]
    assert "T97" not in advice(profile_of(operators=[Operator("Convolution", 2.0, 0.5, 0.05, True)]), net)[-1]


def profile_of(**figures):
    phases = {"data": 1.0, "forward": 2.0, "backward": 1.0, "update": 1.0, "waiting": 5.0, **figures.pop("phases", {})}
    chosen = {
        "updates": 2,
        "samples": 64.0,
        "devices": ["cpu(0)"],
        "ms": 10.0,
        "busy": 0.9,
        "floor_ms": 9.0,
        "phases": [
            Phase(name, ms, None if name == "waiting" else ms, None if name == "waiting" else (ms / 2, ms * 2))
            for name, ms in phases.items()
        ],
        "operators": [Operator("Convolution", 2.0, 6.0, 0.75, True), Operator("pick", 1.0, 0.5, 0.25, False)],
        "reads": [Read("mxkit/training/record.py:98", 1.0, 3.0)],
        "rows": [{"data": 1.0, "forward": 2.0, "backward": 1.0, "update": 1.0}] * 2,
        "trace": None,
    }
    return Profile(**{**chosen, **figures})


def test_a_profile_as_text_as_json_and_as_a_picture(tmp_path):
    found = profile_of()
    found.advice = ["do less"]
    assert str(found) == (
        "2 updates of 64 samples on cpu(0): 10 ms per update, 6,400 samples/s\n"
        "under MXNet's profiler the engine computed 9 ms per update, 90% of the time\n"
        "\n"
        "phase     as it runs       alone            quartiles\n"
        "data           1.000  10%  1.000  20%  0.500 to 2.000\n"
        "forward        2.000  20%  2.000  40%  1.000 to 4.000\n"
        "backward       1.000  10%  1.000  20%  0.500 to 2.000\n"
        "update         1.000  10%  1.000  20%  0.500 to 2.000\n"
        "waiting        5.000  50%\n"
        "all           10.000       5.000\n"
        "milliseconds per update. As it runs: time of the training's thread, while the engine computes in the "
        "background.\n"
        "Alone: the engine ends each phase before the next begins (median)\n"
        "\n"
        "operator     calls     ms  share  oneDNN\n"
        "Convolution      2  6.000    75%     yes\n"
        "pick             1  0.500    25%      no\n"
        "\n"
        "waits for the engine         calls     ms\n"
        "mxkit/training/record.py:98      1  3.000\n"
        "\n"
        "- do less"
    )
    assert json.loads(json.dumps(found.to_dict()))["reads"][0]["calls"] == 1
    assert set(found.to_dict()) == {*vars(found), "samples_per_second"}
    figure = found.plot(tmp_path / "profile.png")
    assert (tmp_path / "profile.png").read_bytes()[:4] == b"\x89PNG"
    bars, operators = figure.axes
    assert [one.get_text() for one in bars.get_legend().get_texts()] == [
        "as it runs 10 ms",
        *("data 1 ms", "forward 2 ms", "backward 1 ms", "update 1 ms"),
    ]
    assert [one.get_width() for one in operators.patches] == [0.5, 6]


def test_many_operators_are_summed_up():
    operators = [Operator(f"op{number}", 1.0, 1.0, 0.05, False) for number in range(20)]
    (others,) = [line for line in str(profile_of(operators=operators)).splitlines() if line.startswith("8 others  ")]
    assert "8.000" in others


def hybrid(dtype="float32", active=True):
    net = stack(gluon.nn.Dense(2, in_units=3))
    net.cast(dtype)
    net.hybridize(active)
    return net


def running(name, ms):
    return {"operators": [Operator(name, 1.0, ms, 0.5, False)]}


def threads(one, two):
    return {"threads": [Threads(1, one), Threads(2, two)]}


ONLY = "; only less computing"
RULES = [
    ({}, {}, ONLY),
    (
        {"busy": 0.3, "phases": {"data": 6.0, "waiting": 0.0}},
        {},
        "the data takes 6 of 10 ms per update, and the engine idles 70% of the time",
    ),
    ({"busy": 0.9, "phases": {"data": 6.0}}, {}, ONLY),
    ({"reads": [Read("a/b.py:3", 1.0, 4.0)]}, {}, "a/b.py:3 waits for the engine 1 times per update, 4 of 10 ms"),
    ({"phases": {"forward": 6.0, "waiting": 1.0}}, {}, "Python prepares work for 8 of 10 ms per update (80%)"),
    ({}, {"active": False}, "the net is not hybridized: Python calls each layer, 3 ms per update"),
    ({}, {"dtype": "float64"}, "2 parameters are float64, '0.weight' among them"),
    (running("relu", 4.0), {}, "relu 50%. The same to rounding, in less time: relu by nn.Activation('relu')"),
    (running("_backward_npi_tanh", 4.0), {}, "less time: tanh by mxkit.nets.hybridize(net, fast=True)"),
    (running("_backward_LayerNorm", 4.0), {}, "less time: LayerNorm by mxkit.nets.hybridize(net, fast=True)"),
    (running("_backward_sort", 4.0), {}, "_backward_sort 50%"),
    (running("relu", 0.5), {}, ONLY),
    (threads(4.0, 6.0), {}, "4 ms with 1 thread, 6 ms with 2, as here: threads: 1 in a recipe"),
    (threads(5.8, 6.0), {}, ONLY),
]


@pytest.mark.parametrize(("figures", "net", "words"), RULES)
def test_advice_follows_from_the_figures(figures, net, words, monkeypatch):
    monkeypatch.setattr(advice_module, "read_processors", lambda: Processors(2, 2, None))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (line,) = advice(profile_of(**figures), hybrid(**net))
    assert words in line


def test_advice_about_threads(monkeypatch):
    monkeypatch.setattr(advice_module, "read_processors", lambda: Processors(4, 4, None))
    monkeypatch.setenv("OMP_NUM_THREADS", "16")
    (threads,) = advice(profile_of(), hybrid())
    assert threads.startswith("MXNet takes 16, ")
    assert "OMP_NUM_THREADS=4" in threads
    assert advice(profile_of(devices=["gpu(0)"]), hybrid())[0].startswith("the engine computes 90%")


def test_advice_about_several_devices_of_the_cpu(monkeypatch):
    """T292."""
    several = profile_of(devices=["cpu(0)", "cpu(1)"])
    (line,) = advice(several, hybrid())
    assert line.startswith("2 devices of the CPU take turns: mxkit.threads(devices=2) before")
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "64")
    assert advice(several, hybrid())[0].startswith("the engine computes 90%")
