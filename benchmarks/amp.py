"""An update in bfloat16 beside float32: `fit(amp="bfloat16")`, with and without AMX, and PyTorch's autocast.

- resnet18: 64 px, batch 32. resnet50: 128 px, batch 8. vgg11: 64 px, batch 16. SGD with momentum.
- layer of BERT-base: as in the question on transformers.

Each way is a process of its own that stays, and takes turns with the others, with one thread and with one a core. "AMX"
is `DNNL_MAX_CPU_ISA=AVX512_CORE_AMX`, which must stand before MXNet is loaded. Ratios are way / `mxkit.fit` in float32
with the same threads; those of PyTorch are to PyTorch's float32. Bars: 0.8 with AMX, 1.1 without; where bfloat16
takes longer, `fit` says so before the first epoch, with both times (T284).
"""

from contextlib import ExitStack
from functools import lru_cache, partial
import time
from typing import Any, Dict, Iterator, List, Tuple
import warnings

import mxkit  # before mxnet
from mxkit.errors import TrapWarning
from mxkit.runtime.engine_settings import MAX_ISA, WITH_TILES, has_tiles
from mxkit.runtime.machine import processor_flags
import mxnet as mx

from benchmarks import attention
from benchmarks.harness import Child, Row, mxnet_threads, rows_of, take_turns
from benchmarks.peers import built, pytorch, thread_variables, threads_text

TITLE = "Training in 16 bits"
CASES: Dict[str, Dict[str, Any]] = {
    "resnet18": {"batch": 32, "shape": [3, 64, 64], "updates": 8},
    "resnet50": {"batch": 8, "shape": [3, 128, 128], "updates": 4},
    "vgg11": {"batch": 16, "shape": [3, 64, 64], "updates": 6},
    "layer of BERT-base": {"updates": 6},
}


def run(quick: bool) -> Iterator[Row]:
    variables, rounds = thread_variables(), 2 if quick else 5
    counts = sorted({1, int(variables["OMP_NUM_THREADS"])})
    with ExitStack() as stack:
        peer, missing = pytorch(stack, variables, "ms/update")
        yield from missing
        for number in counts:
            plain = stack.enter_context(Child(mxnet_threads(number)))
            tiles = None
            if has_tiles():
                tiles = stack.enter_context(Child({**mxnet_threads(number), MAX_ISA: WITH_TILES}))
            for name, case in CASES.items():
                yield from _rows(name, case, number, rounds, plain, tiles, peer)


def _rows(
    name: str, case: Dict[str, Any], threads: int, rounds: int, plain: Child, tiles: Any, peer: Any
) -> Iterator[Row]:
    text, scale = threads_text(threads), 1e3 / case["updates"]
    ways: Dict[str, Any] = {}
    for dtype in (None, "bfloat16") if {"avx512bw"} <= processor_flags() else (None,):  # T285
        way = f"mxkit.fit, {dtype or 'float32'}, {text}"
        ways[way] = partial(_seconds, plain, "benchmarks.amp:train", name=name, amp=dtype, **case)
    bars = {way: 1.1} if len(ways) > 1 else {}
    if tiles is not None:
        ways[f"{way}, AMX"] = partial(_seconds, tiles, "benchmarks.amp:train", name=name, amp=dtype, **case)
        bars[f"{way}, AMX"] = 0.8
    taken = take_turns(ways, rounds=rounds)
    yield from rows_of(f"{name}, {text}", taken, against=next(iter(ways)), scale=scale, unit="ms/update", bars=bars)
    if peer is None:
        return
    given = {"threads": threads, "name": name, **case}
    function = "benchmarks.peers_torch:loop"
    if "batch" not in case:
        function, given = "benchmarks.peers_torch:sequence_loop", {**attention.CASES[name]._asdict(), **given}
    theirs = {
        f"PyTorch, {'bfloat16' if short else 'float32'}, {text}": partial(_seconds, peer, function, amp=short, **given)
        for short in (False, True)
    }
    taken = take_turns(theirs, rounds=rounds)
    yield from rows_of(f"{name}, {text}", taken, against=next(iter(theirs)), scale=scale, unit="ms/update")


def _seconds(child: Any, function: str, **arguments: Any) -> float:
    return float(child.ask(function, **arguments)["seconds"])


@lru_cache(maxsize=None)
def _built(name: str, amp: Any, updates: int, batch: int, shape: Tuple[int, ...]) -> Tuple[Any, Any, List[Any]]:
    """A net of each precision, its Trainer and the batches."""
    if batch:
        return built.__wrapped__(name, batch, shape, updates)
    return attention.built.__wrapped__(name, updates, True)


def train(name: str, amp: Any, updates: int, batch: int = 0, shape: Any = ()) -> Dict[str, float]:
    """An epoch of `mxkit.fit`, in a child."""
    net, trainer, data = _built(name, amp, updates, batch, tuple(shape))
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)  # T284, of the first call
        begun = time.perf_counter()
        mxkit.fit(net, data, loss=loss, trainer=trainer, epochs=1, progress=False, amp=amp)
        mx.nd.waitall()
    return {"seconds": time.perf_counter() - begun}
