"""The benchmarks' harness and pages; and each question runs, at a tiny size. What they measure is not tested."""

import importlib
import os
import re
import subprocess
import sys
import time
import venv

from benchmark_rows import check, in_make_benchmarks
from mxkit.data import ArrayLoader
import mxnet as mx
import numpy as np
from PIL import Image
import pytest

from benchmarks import (
    checkpoints,
    features,
    folder,
    growth,
    kernel_share,
    loaders,
    loops,
    memory,
    optimizers,
    pages,
    peers,
    processes,
    serving,
    several_workers,
    startup,
    threads,
)
from benchmarks.__main__ import QUESTIONS, main
from benchmarks.harness import ROOT, Child, Row, Taken, in_child, peak_memory, rows_of, take_turns

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
    assert (row.value, row.low, row.high, row.cpu) == (37.5, 25, 50, None)
    assert (row.ratio_low, row.ratio_high) == (0.25, 0.5)


def test_the_peak_stays_and_the_resident_size_goes_back():
    code = """
import numpy as np
from benchmarks.harness import peak_memory, resident_memory
before = resident_memory()
block = np.ones(300_000_000, np.uint8)
held = resident_memory() - before
del block
print(held, resident_memory() - before, peak_memory() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=str(ROOT), stdout=subprocess.PIPE, text=True, check=True)
    held, left, peak = map(float, done.stdout.split())
    assert held == pytest.approx(300, abs=20)
    assert left < 20
    assert peak > 280


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


@in_make_benchmarks
def test_loops(monkeypatch):
    monkeypatch.setattr(loops, "QUICK_SIZES", {"rounds": 1, "seconds": 0.01, "samples": 500})
    monkeypatch.setattr(loops, "QUICK", ("softmax_regression",))
    rows = check(loops.run(True))
    case = "softmax regression, batch 64"
    assert [way for _, way in rows] == [loops.HAND, loops.FIT, "seeds' loop", "Estimator", "Module.fit"]
    assert (rows[case, loops.FIT].against, rows[case, loops.FIT].bar) == (loops.HAND, 0.5)
    assert rows[case, "Estimator"].against == loops.FIT


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


def test_windows_of_fit_and_of_the_others_are_as_long():
    calls = []
    net, trainer, loss = loops.make("softmax_regression")
    turns = loops.Turns({"other": calls.append}, updates=4, rounds=2)
    given = {"loss": loss, "trainer": trainer, "epochs": "12 updates", "callbacks": [turns], "progress": False}
    loader = ArrayLoader(np.zeros((64, 1, 28, 28), np.uint8), np.zeros(64), 16)
    loops.mxkit.fit(net, loader, **given)
    assert calls == [4, 4, 4]
    assert {name: len(both.wall) for name, both in turns.taken.items()} == {loops.FIT: 2, "other": 2}


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


def test_marks_are_timed_one_by_one_and_the_rest_is_not_waited_for(monkeypatch):
    waits = []
    monkeypatch.setattr(mx.nd, "waitall", lambda: waits.append(0))
    watch = growth.Watch([150, 400])
    for number in range(1, 401):
        watch.on_update(type("State", (), {"updates": number}), None)
    assert len(watch.found) == 2
    assert len(waits) == 2 * 101


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
# Each question at a tiny size, and what some of its rows must be.
QUESTIONS_AT_TINY_SIZES = [
    (kernel_share, {"CASES": {"LeNet, batch 4": ("lenet", (4, 1, 28, 28), 40, 88)}}, {}),
    (memory, {"SIZES": {"net": "lenet", "pixels": 32}}, {}),
    (startup, {"IMPORTS": STARTUP, "ROUNDS": {True: 1}}, {("imports", "import mxkit, mxnet"): ("bar", 1.15)}),
    (growth, {"ROUNDS": {True: 1}, "QUICK_SIZES": GROWTH}, {("updates", "update 200"): ("bar", 1.05)}),
    (optimizers, {"SIZES": {True: (100,)}}, {("SGD, momentum, 100 weights, 1 thread", "mxkit"): AGAINST_GLUON}),
    (threads, {"CASES": TINY, "ROUNDS": {True: 1}}, {}),
    (folder, FOLDER, {("LeNet, 10 files", "of 20 broken files named"): ("value", 20)}),
    (processes, {"CASES": ONE_CASE}, {("LeNet, batch 2", processes.EACH): ("against", processes.ONE)}),
    (loaders, QUICK_LOADERS, {("300 arrays of 28x28, batch 64", "ArrayLoader"): ("against", "NumPy loop")}),
    (features, QUICK_FEATURES, {("features.4: beside the whole net", "Features"): ("against", "forward")}),
    (several_workers, LENET_WORKERS, {WORKERS: ("against", several_workers.ALONE)}),
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


PEERS_ARE_THERE = all(
    list(peers.PEERS_HOME.glob(f"lib/python*/site-packages/{package}/__init__.py"))
    for package in ("torch", "lightning", "keras", "jax", "jaxlib")
)


@pytest.mark.skipif(
    os.environ.get("MXKIT_BENCHMARKS") != "all" or not PEERS_ARE_THERE,
    reason="`python -m benchmarks peers` makes .venv/peers",
)
def test_peers_train_the_same_nets(monkeypatch):
    monkeypatch.setattr(peers, "CASES", TINY)
    rows = check(peers.run(True))
    for case in TINY:
        ways = [way for title, way in rows if title == case.title]
        names = {way: re.split("[ ,]", way)[0] for way in ways}
        assert list(dict.fromkeys(names.values())) == ["mxkit.fit", "hand-tuned", "PyTorch", "Lightning", "Keras"]
        bars = {name: rows[case.title, way].bar for way, name in names.items()}
        assert bars == {"mxkit.fit": None, "hand-tuned": None, "Lightning": None, **peers.BARS[case.title]}


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


def test_ways_of_loading_give_the_same_images():
    ways = loaders.array_ways(100, 64)
    assert set(ways) == {"gluon, 0 workers", "NumPy loop", "NumPy loop, without labels", "ArrayLoader"} | {
        "ArrayLoader, prefetch=2"
    }
    assert [len(ways[way]()) for way in ("gluon, 0 workers", "ArrayLoader", "ArrayLoader, prefetch=2")] == [2, 2, 2]


def test_ways_to_features_give_the_same_arrays():
    image = mx.nd.ones((1, 3, 32, 32))
    ways = features.ways(image, features.NAMES)
    several = ways["Features"]()
    for one, other, third in zip(several.values(), ways["cut by hand"](), ways["hooks"]()):
        assert (one == other).min().asscalar() == 1
        assert abs(one - third).max().asscalar() < 1e-5


def test_checkpoints_are_timed(monkeypatch):
    monkeypatch.setattr(checkpoints, "SIZES", {True: (1, 16)})
    rows = check(checkpoints.run(True))
    assert [(way, row.against) for (_, way), row in rows.items()] == [
        ("nd.save", "nd.save"),
        ("snapshot, until the training may go on", "nd.save"),
        ("snapshot, until it is copied", "nd.save"),
        ("writing beside the training", "nd.save"),
        ("load_parameters + SHA-256", "load_parameters + SHA-256"),
        ("load_checkpoint", "load_parameters + SHA-256"),
    ]


@in_make_benchmarks
def test_serving(monkeypatch):
    monkeypatch.setattr(serving, "QUICK_SIZES", {"rounds": 1, "window": 0.1, "half": 0.2, "minute": 0.5})
    rows = check(serving.run(True))
    (rate,) = [row for row in rows.values() if row.unit == "x"]
    assert rate.bar == 3
    assert rows["LeNet, half load: p99", serving.TOGETHER].bar == 1
    case = "LeNet, 0.5 s with accidents: "
    assert rows[f"{case}answered", serving.TOGETHER].value > 0
    assert rows[f"{case}rows with other bits", serving.TOGETHER].value == 0


def test_serving_sees_a_row_with_other_bits():
    net, taken, answers = serving.lenet(), serving.Taped(), np.ones((serving.NUMBERS, 10), np.float32)
    net.hybridize()
    samples = [(one,) for one in serving.pictures()[:3]]
    for number, (one,) in enumerate(samples):
        one[0, 0, 0] = (number + 1) / serving.NUMBERS
    results = list(net(mx.nd.array(np.stack([*samples, samples[-1]])[:, 0])).asnumpy()[:3])
    for _ in range(serving.EACH):
        taken.tape(samples, results)
    answers[1:4] = results
    assert taken.different(net, 0, answers) == 0
    answers[2] += 1  # another's answer
    assert taken.different(net, 0, answers) == 1
    taken.outputs[0][0, 0] += 1
    assert taken.different(net, 0, answers) == 2
