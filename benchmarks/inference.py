"""A net's predictions by `mxkit.optimize`, beside PyTorch and onnxruntime: milliseconds an image, and the classes.

A call at a time, each until its numbers are there, two threads (one a core) for all; ratios below 1 are faster.
- static: the float32 net, hybridized with static memory; what the ratios are against.
- optimize: in float32, bfloat16 and int8, with a sample and calibration of the size that is timed. A precision that the
  processor cannot compute is named.
- PyTorch: `mxkit.export(net, format="torch")` in inference mode and channels last, and as a plain call of the net.
- onnxruntime: `mxkit.export(net, format="onnx")` as it is, and in int8 by `onnxruntime.quantization` (static, QDQ),
  after its own folding of BatchNorm, calibrated on the same images. "beside onnxruntime" compares the two directly.

Peers live in .venv/peers, which the first run makes with pip; one that is missing is named. Bars, at 224 px: optimize
in float32 0.909 (1.1 x as fast), in bfloat16 0.769 (1.3 x), in int8 0.303 (3.3 x).

All nets are trained here for a while, on scikit-learn's digits, enlarged, and on drawn shapes of 3 x 32 x 32 (64 px for
all but LeNet); at 224 px the digits stand side by side. Classes are of 360 images that are held out: on 98 % all must
see the same as static, and optimize must be right as often, within one point.
"""

from contextlib import ExitStack
from functools import partial
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

import mxkit  # noqa: F401  before mxnet
from mxkit.nets.prediction_graphs import PRECISIONS, check_processor

from benchmarks.harness import Child, Row, rows_of, take_turns
from benchmarks.peers import Peer, peers_python, started, thread_variables

TITLE = "Predicting: optimized, beside PyTorch and onnxruntime"
STATIC, UNIT = "static", "ms/image"
OPTIMIZED = {f"optimize, {precision}": precision for precision in PRECISIONS}
NETS = "benchmarks.inference_nets"
ROUNDS = {True: 2, False: 7}
# Seconds before each round of a way: the threads of the one before it still wait spinning, on the same cores
REST = 0.2
BARS = {"optimize, float32": 0.909, "optimize, bfloat16": 0.769, "optimize, int8": 0.303}
SAME, POINT = 98.0, 1.0


class Case(NamedTuple):
    """A net, by whose name it is shown, what it is trained on, and how it is timed: images in each round."""

    title: str
    net: str
    data: str
    updates: int
    size: int
    images: Dict[int, int]  # by batch size

    def form(self) -> Dict[str, Any]:
        return {"net": self.net, "data": self.data, "updates": self.updates, "size": self.size}


CASES = [
    Case("LeNet, 28 px", "lenet", "gray digits", 200, 28, {1: 500, 32: 3200}),
    Case("resnet18_v1, 224 px", "zoo:resnet18_v1", "digits", 60, 224, {1: 8, 16: 16}),
    Case("resnet50_v1, 224 px", "zoo:resnet50_v1", "digits", 30, 224, {1: 4, 16: 16}),
    Case("mobilenet1.0, 224 px", "zoo:mobilenet1.0", "digits", 60, 224, {1: 16, 16: 32}),
]
CLASSES = [
    Case("LeNet on digits", "lenet", "gray digits", 200, 28, {}),
    Case("resnet18_v1 on digits", "zoo:resnet18_v1", "large digits", 60, 64, {}),
    Case("mobilenet0.5 on digits", "zoo:mobilenet0.5", "large digits", 200, 64, {}),
    Case("LeNet on shapes", "lenet", "shapes", 400, 32, {}),
    Case("resnet18_v1 on shapes", "zoo:resnet18_v1", "large shapes", 60, 64, {}),
    Case("mobilenet0.5 on shapes", "zoo:mobilenet0.5", "large shapes", 250, 64, {}),
]


class Other(NamedTuple):
    """A peer, what it reads, and its forms by what stands in the table after its name."""

    peer: Peer
    reads: str
    forms: Dict[str, str]


OTHERS = {
    "PyTorch": Other(
        Peer(("torch==2.13.0", "numpy", "safetensors"), "benchmarks.peers_torch:prediction_versions", ""),
        "torch",
        {", channels last": "channels last", ", plain call": "plain call"},
    ),
    "onnxruntime": Other(
        Peer(("onnx", "onnxruntime"), "benchmarks.peers_onnxruntime:versions", ""),
        "onnx",
        {", float32": "float32", ", int8": "int8"},
    ),
}


class Way(NamedTuple):
    """Who computes in which form."""

    ask: Callable[..., Any]
    module: str
    form: str
    reads: str = ""  # a peer's kind of file


def run(quick: bool) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        variables = thread_variables()
        ask = stack.enter_context(Child(variables)).ask
        ways = {STATIC: Way(ask, NETS, STATIC)}
        for way, precision in OPTIMIZED.items():
            try:
                check_processor(precision)
            except ValueError as error:
                yield Row("every case", f"{way} is missing: {error}", 0.0, UNIT)
            else:
                ways[way] = Way(ask, NETS, precision)
        for name, other in OTHERS.items():
            try:
                child, versions = started(other.peer, str(peers_python()), variables)
            except RuntimeError as error:
                yield Row("every case", f"{name} is missing: {error}", 0.0, UNIT)
                continue
            stack.enter_context(child)
            module = other.peer.versions.partition(":")[0]
            for words, form in other.forms.items():
                ways[f"{name} {versions[name]}{words}"] = Way(child.ask, module, form, other.reads)
        for case in CASES:
            if not quick or case.size < 64:
                yield from timed(case, ways, folder, quick)
        for case in CLASSES[:1] if quick else CLASSES:
            yield from agreeing(case, ways, folder)


def timed(case: Case, ways: Dict[str, Way], folder: str, quick: bool) -> Iterator[Row]:
    """Rows of a case's batch sizes."""
    usable, given, rows = prepared(case, ways, folder)
    yield from rows
    for batch, images in case.images.items():
        calls = 1 if quick else images // batch
        asked = {}
        for name, way in usable.items():
            shape = {"shape": given["shape"][batch]} if way.reads else {"batch": batch, **case.form()}
            form = {**({"base": given["base"]} if way.reads else {}), **shape}
            asked[name] = partial(way.ask, f"{way.module}:seconds", form=way.form, calls=calls, **form)
        taken = take_turns({name: partial(rested, ask) for name, ask in asked.items()}, rounds=ROUNDS[quick])
        title = f"{case.title}, batch {batch}"
        scale = 1e3 / (calls * batch)
        yield from rows_of(title, taken, against=STATIC, scale=scale, unit=UNIT, bars=BARS if case.size == 224 else {})
        for precision in ("float32", "int8"):
            mine = f"optimize, {precision}"
            peer = [name for name in taken if name.startswith("onnxruntime") and name.endswith(precision)]
            if mine in taken and peer:
                both = {name: taken[name] for name in (mine, peer[0])}
                yield rows_of(f"{title}: beside onnxruntime", both, against=peer[0], scale=scale, unit=UNIT)[0]


def rested(ask: Callable[[], float]) -> float:
    time.sleep(REST)
    return ask()


def prepared(case: Case, ways: Dict[str, Way], folder: str) -> Any:
    """The ways that can be used, what peers are given, and rows of what cannot be done or stays in float32."""
    ask = ways[STATIC].ask
    base, failed, shape = ask(f"{NETS}:write", folder=folder, **case.form())
    usable, rows = {}, []
    for name, way in ways.items():
        error, kept = (
            (failed.get(way.reads, ""), 0) if way.reads else ask(f"{NETS}:prepare", form=way.form, **case.form())
        )
        if error:
            rows.append(Row(case.title, f"{name} is missing: {error}", 0.0, UNIT))
        else:
            usable[name] = way
        if kept:
            rows.append(Row(case.title, f"{name}: layers that stay in float32", float(kept), "layers"))
    return usable, {"base": base, "shape": {batch: [batch, *shape] for batch in case.images}}, rows


def agreeing(case: Case, ways: Dict[str, Way], folder: str) -> Iterator[Row]:
    """Rows of the classes that the ways see in what is held out."""
    usable, given, rows = prepared(case, ways, folder)
    yield from rows
    truth = ways[STATIC].ask(f"{NETS}:truth", data=case.data)
    classes = {}
    for name, way in usable.items():
        form = {"base": given["base"]} if way.reads else case.form()
        classes[name] = way.ask(f"{way.module}:classes", form=way.form, **form)
    expected = percent(classes[STATIC], truth)
    yield Row(f"{case.title}: right", STATIC, expected, "%")
    for name, found in classes.items():
        same = percent(found, classes[STATIC])
        if name != STATIC:
            yield Row(f"{case.title}: the same as static", name, same, "%", bar=SAME)
        if name in OPTIMIZED or usable[name].reads and usable[name].form == "int8":
            least = round(expected - POINT, 1) if name in OPTIMIZED else None
            yield Row(f"{case.title}: right", name, percent(found, truth), "%", bar=least)


def percent(one: Sequence[int], other: List[int]) -> float:
    return 100 * sum(first == second for first, second in zip(one, other)) / len(other)
