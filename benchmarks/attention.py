"""Transformers and recurrent nets: an update of `mxkit.fit` beside PyTorch's plain loop.

- encoder: of Vaswani et al. 2017 with 4 layers of width 128 and 4 heads, ReLU, norms after the sums, no dropout; 16
  sequences of 64 tokens, 10 classes, Adam. `fast`: `mxkit.nets.hybridize(net, fast=True)`. `2 devices`: the net on two
  devices of the CPU, one thread each, after `mxkit.threads(devices=2)`.
- wide encoder: 6 layers of width 512 with 8 heads; 8 sequences of 64 tokens.
- layer of BERT-base: the same with one layer of width 768 and 12 heads; 8 sequences of 128 tokens.
- lstm, gru: two layers of 256 units over 32 sequences of 35 words of 5,000, each next word predicted, Adam.

Each way is a process of its own that stays, and takes turns with the others: MXNET_OMP_MAX_THREADS,
`torch.set_num_threads`. The numbers of trained parameters are equal (checked). Bars: 1.05 of PyTorch's time with as
many threads for the encoders, 1 for the recurrent nets.
"""

from contextlib import ExitStack
from functools import lru_cache
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import mxkit  # before mxnet
from mxkit.runtime.engine_settings import SPACES, SPACES_OF_SEVERAL
import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np

from benchmarks.harness import Child, Row, Taken, mxnet_threads, rows_of, take_turns
from benchmarks.peers import pytorch, thread_variables, threads_text

TITLE = "Transformers and recurrent nets"
WORDS = 5000


class Case(NamedTuple):
    """A net, its batch and its bar.

    Attributes:
        bar: The largest ratio to PyTorch's time.
        shape: Sequences and words.
        updates: Of an epoch, a call of `fit`: the first makes the graph.
        width: Of the layers.
        layers: Their number.
        heads: Of an encoder; 0 for recurrent nets.
    """

    bar: float
    shape: Tuple[int, int]
    width: int
    layers: int
    updates: int
    heads: int = 0


CASES = {
    "encoder": Case(1.05, (16, 64), 128, 4, 20, 4),
    "wide encoder": Case(1.05, (8, 64), 512, 6, 4, 8),
    "layer of BERT-base": Case(1.05, (8, 128), 768, 1, 4, 12),
    "lstm": Case(1.0, (32, 35), 256, 2, 8),
    "gru": Case(1.0, (32, 35), 256, 2, 8),
}


def run(quick: bool) -> Iterator[Row]:
    variables, rounds = thread_variables(), 2 if quick else 9
    counts = sorted({1, int(variables["OMP_NUM_THREADS"])})
    with ExitStack() as stack:
        peer, missing = pytorch(stack, variables, "ms/update")
        yield from missing
        ours = {number: stack.enter_context(Child(mxnet_threads(number))) for number in counts}
        several = stack.enter_context(Child({**mxnet_threads(1), SPACES: SPACES_OF_SEVERAL}))
        for name, case in CASES.items():
            updates = 2 if quick else case.updates
            for number in counts:
                spec: Dict[str, Any] = {"name": name, "updates": updates}
                theirs, way = f"PyTorch, {threads_text(number)}", f"mxkit.fit, {threads_text(number)}"
                asked: Dict[str, Any] = {}
                if peer is not None:
                    shown = {**case._asdict(), **spec, "threads": number}
                    asked[theirs] = (peer, "benchmarks.peers_torch:sequence_loop", shown)
                for fast in (False, True) if case.heads else (False,):
                    key = f"{way}, fast" if fast else way
                    asked[key] = (ours[number], "benchmarks.attention:train", {**spec, "fast": fast})
                if case.heads and number > 1:
                    devices = {**spec, "fast": True, "devices": number}
                    asked[f"mxkit.fit, {number} devices, fast"] = (several, "benchmarks.attention:train", devices)
                yield from _rows(name, asked, theirs if peer is not None else way, rounds, updates, case.bar)


def _rows(name: str, asked: Dict[str, Any], theirs: str, rounds: int, updates: int, bar: float) -> List[Row]:
    sizes = set()

    def ask(child: Child, function: str, arguments: Dict[str, Any]) -> float:
        answer = child.ask(function, **arguments)
        sizes.add(answer["parameters"])
        return float(answer["seconds"])

    taken: Dict[str, Taken] = take_turns(
        {way: (lambda given=given: ask(*given)) for way, given in asked.items()}, rounds=rounds
    )
    if len(sizes) > 1:
        raise ValueError(f"{name}: nets of {sizes} parameters are compared")
    bars = {way: bar for way in asked if theirs.startswith("PyTorch") and way != theirs}
    return list(rows_of(name, taken, against=theirs, scale=1e3 / updates, unit="ms/update", bars=bars))


class Layer(gluon.HybridBlock):
    """An encoder's layer with norms after the sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        with self.name_scope():
            self.parts = [nn.Dense(width, flatten=False, in_units=width) for _ in range(4)]
            self.wide = nn.Dense(4 * width, activation="relu", flatten=False, in_units=width)
            self.narrow = nn.Dense(width, flatten=False, in_units=4 * width)
            self.first, self.second = nn.LayerNorm(in_channels=width), nn.LayerNorm(in_channels=width)
            for part in self.parts:
                self.register_child(part)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        query, key, value = (self._split(F, part(x)) for part in self.parts[:3])
        shares = F.softmax(F.batch_dot(query * self.scale, key, transpose_b=True), axis=-1)
        mixed = F.batch_dot(shares, value).reshape((-1, self.heads, 0, 0), reverse=True).transpose((0, 2, 1, 3))
        x = self.first(x + self.parts[3](mixed.reshape((0, 0, -3))))
        return self.second(x + self.narrow(self.wide(x)))

    def _split(self, F: Any, x: Any) -> Any:  # noqa: N803
        return x.reshape((0, 0, self.heads, -1)).transpose((0, 2, 1, 3)).reshape((-3, 0, 0))


class Encoder(gluon.HybridBlock):
    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(WORDS, width)
            self.layers = nn.HybridSequential()
            self.layers.add(*(Layer(width, heads) for _ in range(layers)))
            self.head = nn.Dense(10, in_units=width)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return self.head(self.layers(self.words(x)).mean(axis=1))


class LanguageModel(gluon.HybridBlock):
    def __init__(self, kind: str, units: int, layers: int) -> None:
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(WORDS, units)
            self.recurrent = getattr(gluon.rnn, kind.upper())(units, layers, layout="NTC", input_size=units)
            self.head = nn.Dense(WORDS, flatten=False, in_units=units)

    def hybrid_forward(self, F: Any, x: Any) -> Any:  # noqa: N803
        return self.head(self.recurrent(self.words(x)))


@lru_cache(maxsize=None)
def built(name: str, updates: int, fast: bool, devices: int) -> Tuple[Any, Any, List[Any]]:
    """A net, its Trainer and the batches, kept from round to round."""
    mxkit.seed_all(0)
    case = CASES[name]
    sizes = case.width, case.layers
    net = Encoder(*sizes, case.heads) if case.heads else LanguageModel(name, *sizes)
    mxkit.initialize(net, "xavier", devices=f"cpu:{devices}")
    mxkit.nets.hybridize(net, fast=fast, static_alloc=True, static_shape=True)
    rng, shape = np.random.default_rng(0), case.shape
    labels = shape[:1] if case.heads else shape
    data = [
        (
            mx.nd.array(rng.integers(0, WORDS, shape), dtype="int32"),
            mx.nd.array(rng.integers(0, 10, labels), dtype="int32"),
        )
        for _ in range(updates)
    ]
    return net, gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-4}), data


def train(name: str, updates: int, fast: bool, devices: int = 1) -> Dict[str, float]:
    """An epoch of `mxkit.fit`, in a child."""
    net, trainer, data = built(name, updates, fast, devices)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    begun = time.perf_counter()
    mxkit.fit(net, data, loss=loss, trainer=trainer, epochs=1, progress=False)
    mx.nd.waitall()
    passed = time.perf_counter() - begun
    return {"seconds": passed, "parameters": sum(one.list_data()[0].size for one in net.collect_params().values())}
