"""The benchmarks' harness and pages; and each question runs, at a tiny size. What they measure is not tested."""

import importlib
import json
import os
import sys
import time
import venv

from mxkit.nets import prediction_graphs
import mxnet as mx
import numpy as np
from PIL import Image
import pytest

from benchmarks import (
    amp,
    attention,
    checkpoints,
    detection,
    features,
    folder,
    growth,
    inference,
    kernel_share,
    loaders,
    loops,
    memory,
    operators,
    optimizers,
    pages,
    parts,
    peers,
    processes,
    serving,
    several_workers,
    startup,
    threads,
)
from benchmarks.__main__ import QUESTIONS, main
from benchmarks.harness import Child, Row, Taken, in_child, peak_memory, rows_of, take_turns

in_make_benchmarks = pytest.mark.skipif(
    os.environ.get("MXKIT_BENCHMARKS") != "all", reason="takes long: `make benchmarks` runs every question once"
)


def check(rows):
    """Rows are whole, and are plain JSON."""
    rows = list(rows)
    for row in rows:
        assert np.isfinite(row.value)
        assert row.low is None or row.low <= row.value <= row.high
        assert row.ratio is None or 0 < row.ratio_low <= row.ratio <= row.ratio_high
    assert [Row(**json.loads(json.dumps(row._asdict()))) for row in rows] == rows
    return {(row.case, row.way): row for row in rows}


# The harness.


def test_ways_take_turns_and_each_begins_as_often():
    order = []
    taken = take_turns({one: lambda one=one: order.append(one) for one in "abc"}, rounds=3, warm_up=1)
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert {name: [len(values) for values in both] for name, both in taken.items()} == {one: [3, 3] for one in "abc"}


def test_a_way_may_measure_itself_and_waits_are_inside_the_measure():
    taken = take_turns({"own": lambda: 7.0, "timed": lambda: 7}, rounds=2, wait=lambda: time.sleep(0.01))
    assert taken["own"].wall == [7.0, 7.0]
    assert all(0.01 <= one < 7 for one in taken["timed"].wall)


def test_ratios_are_medians_of_the_rounds_not_ratios_of_medians():
    taken = {"a": Taken([1.0, 4.0, 2.0], [1.0, 1.0, 1.0]), "b": Taken([2.0, 2.0, 20.0], [0.5, 0.5, 0.5])}
    first, second = rows_of("case", taken, against="a", scale=10, unit="us", bars={"b": 1.5})
    assert (first.value, first.low, first.high, first.ratio, first.bar) == (20.0, 10.0, 40.0, 1.0, None)
    assert (second.value, second.cpu, second.against, second.bar) == (20.0, 5.0, "a", 1.5)
    assert (second.ratio_low, second.ratio, second.ratio_high) == (0.5, 2.0, 10.0)
    taken = {"a": Taken([1.0, 1.0], [1.0, 1.0]), "b": Taken([2.0, 4.0], [1.0, 1.0])}
    row = rows_of("case", taken, against="a", scale=100, unit="images/s")[1]  # of rates, those of the rates
    assert (row.value, row.cpu, row.ratio_low, row.ratio_high) == (37.5, None, 0.25, 0.5)


def test_a_childs_peak_is_its_own():
    block = np.ones(300_000_000, np.uint8)
    assert peak_memory() > len(block) / 1e6
    assert in_child("benchmarks.harness:peak_memory") < 100


def test_a_child_that_lasts_is_one_process_with_its_own_environment_and_tells_its_failure(monkeypatch):
    monkeypatch.setenv("BENCHMARK_B", "parent")
    monkeypatch.setenv("BENCHMARK_C", "parent")
    with Child({"BENCHMARK_A": "set", "BENCHMARK_B": None}) as child:
        first, second = child.ask("os:getpid"), child.ask("os:getpid")
        assert first == second != os.getpid()
        assert [child.ask("os:getenv", key=f"BENCHMARK_{one}") for one in "ABC"] == ["set", None, "parent"]
        for _ in range(2):  # one that has ended says so again
            with pytest.raises(RuntimeError, match=r"(?s)json:loads ended with 1: .*JSONDecodeError"):
                child.ask("json:loads", s="{")


# The pages.

ROWS = [
    Row("LeNet", "loop", 100.0, "us", low=90.0, high=110.0, against="loop", ratio=1.0, ratio_low=1.0, ratio_high=1.0),
    Row("LeNet", "fit", 0.01234, "us", 0.01, 0.02, None, "loop", 1.1, 0.9, 1.2, bar=1.02),
    Row("LeNet", "share", 80.0, "%", bar=88.0),
    Row("LeNet", "alone", 3.0, "MB"),
]
ABOUT = {
    "title": "A question", "text": "What is compared.", "date": "2026-01-01", "commit": "abc", "seconds": 3,
    "machine": {"processor": "P", "cores": 1, "threads": 2, "mxnet": "1.9.1", "numpy": "1", "python": "3"},
}  # fmt: skip


def test_the_page_tells_question_rows_machine_and_command(tmp_path, monkeypatch, capsys):
    pages.print_table(ROWS)
    assert "1.100 x loop" in capsys.readouterr().out
    assert [pages._misses(row) for row in ROWS] == [False, True, True, False]
    monkeypatch.setattr(pages, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(pages, "PICTURE", tmp_path / "page.png")
    pages.write_pages({"loops": (ABOUT, ROWS)})
    text = (tmp_path / "page.md").read_text()
    assert "## A question\n\nWhat is compared.\n\n| case | way |" in text
    assert "| LeNet | loop | 100 us | 90.0 to 110 |  |  |  |" in text
    assert "| LeNet | fit | 0.0123 us | 0.0100 to 0.0200 | 1.100 x loop | 0.900 to 1.20 | 1.02 |" in text
    assert "`python -m benchmarks loops`, 2026-01-01, commit abc, 3 s, on P, 1 cores, 2 threads, MXNet 1.9.1" in text
    with Image.open(str(tmp_path / "page.png")) as picture:
        assert picture.width == 720
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert (0xC4, 0x4E, 0x52) in colours  # what misses its bar
    assert (0x4C, 0x72, 0xB0) not in colours


def test_an_unknown_question_is_refused_with_the_known_ones(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "lops"])
    with pytest.raises(SystemExit):
        main()
    assert "no question 'lops'; there are loops, kernel_share" in capsys.readouterr().err


# The questions.


def test_all_loops_train_a_net_on_as_many_batches():
    loader = loops.loader_of("softmax_regression", 16, 200)
    for way in (loops.HandTuned, loops.SeedsLoop, loops.Estimated, loops.Moduled):
        loop = way("softmax_regression", loader)
        read = []
        loop.batches = (read.append(one) or one for one in loop.batches)
        if way is loops.Moduled:
            loop(1)
            values = lambda loop=loop: list(loop.module.get_params()[0].values())  # noqa: E731
        else:
            loop.net(next(iter(loader))[0])
            values = lambda loop=loop: [one.data() for one in loop.net.collect_params().values()]  # noqa: E731
        before = [one.asnumpy() for one in values()]
        done = len(read)
        loop(3)
        assert len(read) - done == 3, way
        assert all((one.asnumpy() != old).any() for one, old in zip(values(), before)), way


def test_a_straight_line_has_its_slope_and_no_deviation_whatever_the_sizes():
    line = {size: [3.0 * size + 50] for size in (10, 1_000, 100_000)}
    *_, slope, deviation = growth.growth_rows("case", "tensor", "us/update", "us", line)
    assert (slope.value, slope.unit) == (pytest.approx(3), "us/tensor")
    assert deviation.value == pytest.approx(0, abs=1e-6)
    # errors count as shares: the largest size does not decide alone
    off = {1: [1.0], 10: [10.0], 100: [200.0]}
    assert list(growth.growth_rows("case", "tensor", "us/update", "us", off))[-2].value < 1.9
    bent = {size: [float(size) ** 2] for size in (1, 10, 100)}
    assert list(growth.growth_rows("case", "tensor", "us/update", "us", bent))[-1].value > 20


TINY = [
    peers.Case("softmax regression, batch 64", "softmax_regression", 4, [1, 28, 28], 3),
    peers.Case("LeNet, batch 64", "lenet", 4, [1, 28, 28], 3),
]
FOLDER = {"CASES": [folder.Case("LeNet", "lenet", (28, 28), folder.SMALL, 10, 1, None)], "BATCH": 4}
LOADERS = {"rounds": 1, "images": 300, "files": 8, "samples": 64, "epochs": 2}
GROWTH = {**growth.QUICK_SIZES, "samples": (1_000, 5_000)}
STARTUP = {"python": "pass", "import mxkit, mxnet": "import mxkit, mxnet"}
AGAINST_GLUON = ("against", "Trainer.update")
ONE_CASE = [processes.Case("LeNet", "lenet", (1, 28, 28), (2,))]
QUICK_LOADERS = {"QUICK": LOADERS, "MEMORY": loaders.MEMORY[:1]}
QUICK_FEATURES = {"QUICK": {"rounds": 1, "batch": 1, "size": 32, "calls": 1}}
LENET_WORKERS = {"CASES": [("lenet", (1, 28, 28), 8, 2)]}
WORKERS = ("lenet, 28 px, joint batch 8", several_workers.TOGETHER)
LOOPS = {"QUICK_SIZES": {"rounds": 1, "seconds": 0.01, "samples": 500}, "QUICK": ("softmax_regression",)}
SERVING = {"rounds": 1, "window": 0.1, "half": 0.2, "minute": 0.5}
CHECKPOINT = ("0 MB in 14 arrays", "load_checkpoint")
ACCIDENTS = "LeNet, 0.5 s with accidents: "
DETECTION = ("small_fcn, 96 px, batch 8", detection.FIT)
NORM = "LayerNorm, 1024 x 128"
OF_NORM = f"{NORM}, 1 thread: beside its forward pass", "fast, backward"
# Each question at a tiny size, and what some of its rows must be.
QUESTIONS_AT_TINY_SIZES = [
    (kernel_share, {"CASES": {"LeNet, batch 4": ("lenet", (4, 1, 28, 28), 40, 88)}}, {}),
    (memory, {"SIZES": {"net": "lenet", "pixels": 32}}, {}),
    (startup, {"IMPORTS": STARTUP, "ROUNDS": {True: 1}}, {("imports", "import mxkit, mxnet"): ("bar", 1.15)}),
    (growth, {"ROUNDS": {True: 1}, "QUICK_SIZES": GROWTH}, {("updates", "update 200"): ("bar", 1.05)}),
    (optimizers, {"SIZES": {True: (100,)}}, {("SGD, momentum, 100 weights, 1 thread", "mxkit"): AGAINST_GLUON}),
    (operators, {"CASES": {NORM: operators.CASES[NORM]}}, {OF_NORM: ("bar", 4.0)}),
    (threads, {"CASES": TINY, "ROUNDS": {True: 1}}, {}),
    (folder, FOLDER, {("LeNet, 10 files", "of 20 broken files named"): ("value", 20)}),
    (processes, {"CASES": ONE_CASE}, {("LeNet, batch 2", processes.EACH): ("against", processes.ONE)}),
    (loaders, QUICK_LOADERS, {("300 arrays of 28x28, batch 64", "ArrayLoader"): ("against", "NumPy loop")}),
    (detection, {"QUICK": {"rounds": 1, "files": 16, "images": 8}}, {DETECTION: ("bar", 1.0)}),
    (features, QUICK_FEATURES, {("features.4: beside the whole net", "Features"): ("against", "forward")}),
    (several_workers, LENET_WORKERS, {WORKERS: ("against", several_workers.ALONE)}),
    (loops, LOOPS, {("softmax regression, batch 64", loops.FIT): ("bar", 0.5)}),
    (checkpoints, {"SIZES": {True: (1, 16)}}, {CHECKPOINT: ("against", "load_parameters + SHA-256")}),
    (serving, {"QUICK_SIZES": SERVING}, {(f"{ACCIDENTS}rows with other bits", serving.TOGETHER): ("value", 0)}),
]


@in_make_benchmarks
@pytest.mark.parametrize(("module", "sizes", "expected"), QUESTIONS_AT_TINY_SIZES)
def test_a_question(module, sizes, expected, monkeypatch):
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)
    rows = check(module.run(True))
    for place, (field, value) in expected.items():
        assert getattr(rows[place], field) == value
    values = {way: row.value for (_, way), row in rows.items()}
    if module is kernel_share:
        assert 0 < values["oneDNN's kernels"] < 100
    elif module is memory:
        assert values[memory.IDLE] < values[memory.SMALL] < values[memory.FLOOR]


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_has_a_title_and_says_what_it_compares(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.TITLE
    assert 5 <= len(module.__doc__.strip().splitlines()) <= 20


def test_a_peer_with_another_net_is_refused():
    case = peers.Case("an MLP", "mlp", 4, [1, 28, 28], 3)
    with pytest.raises(ValueError, match=r"an MLP: .* has 17 parameters; mxkit's net has 203530"):
        peers.seconds(lambda **_: {"seconds": 1.0, "parameters": 17}, case, 3)
    assert peers.seconds(lambda **_: {"seconds": 1.5, "parameters": 203530}, case, 3) == 1.5


@in_make_benchmarks
def test_peers_that_cannot_be_installed_are_told_and_left_out(tmp_path, monkeypatch):
    venv.create(str(tmp_path), with_pip=False)
    monkeypatch.setattr(peers, "PEERS_HOME", tmp_path)
    monkeypatch.setattr(peers, "CASES", TINY[:1])
    rows = list(peers.run(True))
    ways = [row.way.partition(" is missing: ")[0] for row in rows]
    assert ways[:4] == ["PyTorch", "Lightning", "Keras", "mxkit.fit"]
    assert all(way.startswith(("mxkit.fit, ", "hand-tuned, ")) for way in ways[4:])
    assert all("No module named pip" in row.way for row in rows[:3])
    assert rows[3].value > 0
    rows = check(attention.run(True))
    assert ("encoder", "mxkit.fit, 1 thread, fast") in rows
    assert rows["lstm", "mxkit.fit, 1 thread"].bar is None
    monkeypatch.setattr(parts, "CASES", {"encoder": 1})
    rows = check(parts.run(True))
    assert rows["encoder, 1 thread: dense layers", "MXNet"].value > 0
    monkeypatch.setattr(amp, "CASES", {"lenet": {"batch": 2, "shape": [1, 28, 28], "updates": 1}})
    rows = check(amp.run(True))
    assert rows["lenet, 1 thread", "mxkit.fit, float32, 1 thread"].value > 0


def test_serving_sees_a_row_with_other_bits():
    net, taken, answers = serving.lenet(), serving.Taped(), np.ones((serving.NUMBERS, 10), np.float32)
    net.hybridize()
    images = serving.pictures()[:3]
    images[:, 0, 0, 0] = np.arange(1, 4) / serving.NUMBERS
    samples = [((one,), None) for one in images]  # as a Predictor holds its requests
    results = list(net(mx.nd.array(np.concatenate([images, images[-1:]]))).asnumpy()[:3])
    for _ in range(serving.EACH):
        taken.tape(samples, results)
    answers[1:4] = results
    assert taken.different(net, 0, answers) == 0
    answers[2] += 1  # another's answer
    assert taken.different(net, 0, answers) == 1
    taken.outputs[0][0, 0] += 1
    assert taken.different(net, 0, answers) == 2


LENET = inference.Case("LeNet", "lenet", "gray digits", 200, 28, {2: 4})
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # threads wait for each other beside other tests
INFERENCE = {"CASES": [LENET], "CLASSES": [LENET], "thread_variables": lambda: THREADS}


@in_make_benchmarks
def test_predictions_are_compared_without_peers_and_what_the_processor_cannot_is_told(tmp_path, monkeypatch):
    venv.create(str(tmp_path), with_pip=False)
    monkeypatch.setattr(peers, "PEERS_HOME", tmp_path)
    monkeypatch.setattr(prediction_graphs, "processor_flags", lambda: frozenset(["avx2"]))
    for name, value in INFERENCE.items():
        monkeypatch.setattr(inference, name, value)
    rows = check(inference.run(True))
    told = ["optimize, bfloat16", "optimize, int8", "PyTorch", "onnxruntime"]
    assert [way.partition(" is missing: ")[0] for case, way in rows if case == "every case"] == told
    assert [way for case, way in rows if case == "LeNet, batch 2"] == ["static", "optimize, float32"]
    assert rows["LeNet: right", "static"].value > 80
    assert rows["LeNet: the same as static", "optimize, float32"].value == 100
