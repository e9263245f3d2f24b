"""What features cost beside a net cut by hand and beside the whole forward pass: resnet18_v1 at 224 px, batch 8.

- Features: `mxkit.Features(net, names)`, of a net that is not hybridized itself.
- cut by hand: a hybridized HybridSequential of `net.features[:5]`, one that returns three of them for three layers.
- hooks: what people write: the unhybridized net runs to its end, hooks keep the outputs.
- forward: the whole net, hybridized.

Then what a call costs without its operators, as processor time of the calling thread: of a net that is one activation,
and of resnet152; and the first call of Features for all layers of resnet152.
"""

import time
from typing import Any, Callable, Dict, Iterator, List, Sequence

import mxkit  # before mxnet
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
from mxnet.gluon.model_zoo import vision

from benchmarks.harness import Row, Taken, rows_of, take_turns

TITLE = "Features beside a net cut by hand"
FULL = {"rounds": 15, "batch": 8, "size": 224, "calls": 30}
QUICK = {"rounds": 2, "batch": 1, "size": 64, "calls": 3}
NAMES = ("features.2", "features.4", "features.5")


def run(quick: bool) -> Iterator[Row]:
    sizes = QUICK if quick else FULL
    x = mx.nd.random.uniform(shape=(sizes["batch"], 3, sizes["size"], sizes["size"]))
    for names in (NAMES[1:2], NAMES):
        taken = take_turns(ways(x, names), rounds=sizes["rounds"], wait=mx.nd.waitall)
        yield from rows_of(", ".join(names), taken, against="cut by hand", scale=1e3, unit="ms")
        both = {way: taken[way] for way in ("Features", "forward")}
        yield rows_of(f"{', '.join(names)}: beside the whole net", both, against="forward", scale=1e3, unit="ms")[0]
    yield from overhead("a call of one activation", nn.Activation("relu"), mx.nd.ones((1, 4)), sizes["calls"])
    deep, small = vision.resnet152_v1(), mx.nd.ones((1, 3, 32, 32))
    yield from overhead("a call of resnet152_v1", deep, small, sizes["calls"])
    deep.hybridize(False)
    features = mxkit.Features(deep, "*")
    begun = time.perf_counter()
    features(small)
    mx.nd.waitall()
    yield Row("first call, all layers of resnet152_v1", "Features", time.perf_counter() - begun, "s")


class Cut(gluon.HybridBlock):
    """Hands out what some of the first parts of a net give."""

    def __init__(self, parts: Any, wanted: Sequence[int]) -> None:
        super().__init__()
        self.parts = parts
        self.wanted = wanted

    def hybrid_forward(self, F: Any, x: Any) -> List[Any]:  # noqa: N803
        outputs = []
        for number, part in enumerate(self.parts):
            x = part(x)
            outputs += [x] if number in self.wanted else []
        return outputs


def with_hooks(net: Any, blocks: Sequence[Any], x: Any) -> List[Any]:
    kept: List[Any] = []
    handles = [block.register_forward_hook(lambda block, inputs, output: kept.append(output)) for block in blocks]
    net(x)
    for handle in handles:
        handle.detach()
    return kept


def fresh(x: Any) -> Any:
    mxkit.seed_all(0)
    net = vision.resnet18_v1()
    mxkit.initialize(net, "xavier")
    net(x)
    return net


def ways(x: Any, names: Sequence[str]) -> Dict[str, Callable[[], object]]:
    """The four ways to the outputs of `names`, each on a net of its own with the same weights."""
    numbers = [int(name.split(".")[1]) for name in names]
    hooked, whole, cut = fresh(x), fresh(x), nn.HybridSequential()
    if len(numbers) > 1:
        cut = Cut(fresh(x).features[: numbers[-1] + 1], numbers)
    else:
        cut.add(*fresh(x).features[: numbers[0] + 1])
    cut.hybridize()
    whole.hybridize()
    features = mxkit.Features(fresh(x), list(names) if len(names) > 1 else names[0])
    blocks = [hooked.features[number] for number in numbers]
    return {
        "Features": lambda: features(x),
        "cut by hand": lambda: cut(x),
        "hooks": lambda: with_hooks(hooked, blocks, x),
        "forward": lambda: whole(x),
    }


def overhead(case: str, net: Any, x: Any, calls: int) -> List[Row]:
    """The processor time of the calling thread; what the engine's threads compute is not in it."""
    net.initialize()
    net.hybridize()
    features = mxkit.Features(net, "")
    passed: Dict[str, List[float]] = {"Features": [], "the hybridized net": []}
    for number in range(calls + 1):
        for way, call in zip(passed, (features, net)):
            begun = time.thread_time()
            call(x)
            if number:
                passed[way].append(time.thread_time() - begun)
            mx.nd.waitall()
    taken = {way: Taken(seconds, seconds) for way, seconds in passed.items()}
    return rows_of(case, taken, against="the hybridized net", scale=1e6, unit="us/call")
