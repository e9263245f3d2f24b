"""`mxkit.fit` beside a hand-tuned Gluon loop, PyTorch's plain loop, Lightning and Keras 3 on JAX: images a second.

The nets have the same layers and the same number of trainable parameters (checked), float32, SGD with momentum, batches
that lie in memory: lists of arrays for MXNet, PyTorch and Lightning, one array for Keras (images as N, H, W, C, its
default), drawn at random. Each way is one call for an epoch, with neither progress bar, metric, log nor checkpoint:
`mxkit.fit` of a statically hybridized net (its checks for NaN on), `record, backward, step` of that net and a
hybridized loss in the hand-tuned loop, `zero_grad, forward, backward, step` in PyTorch, `lightning.Trainer.fit`,
`Model.fit`. So the fixed costs of a call are in it.

Each way is a process of its own that stays, builds and warms up its nets once, and takes turns with the others.
`mxkit.fit`, the hand-tuned loop and PyTorch's run with one thread and with one a core, `mxkit.fit` by default with one
a core: MXNET_OMP_MAX_THREADS, `torch.set_num_threads`. Lightning and Keras have one thread a core (`NPROC` sizes XLA's
pool; JAX has no other setting). The peers live in .venv/peers, which the first run makes with pip. The table names a
peer that pip cannot install there.

Ratios are way / `mxkit.fit`: below 1 the way is slower. Bars, for PyTorch's loop with either number of threads: 0.77 on
softmax regression (mxkit is 1.3 x as fast), 1.11 on the MLP, 1 on LeNet and on ResNet-18 at 32 px (0.87 on processors
of Intel's), 0.91 at 64 px. Lightning: 1 on LeNet. Keras: 1, and 1.43 on the MLP.
"""

from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import mxkit  # before mxnet
from mxkit.runtime.engine_settings import choose
from mxkit.runtime.machine import read_processors
import mxnet as mx
import numpy as np

from benchmarks.harness import ROOT, Child, Row, mxnet_threads, rows_of, take_turns

TITLE = "Training beside a hand-tuned loop, PyTorch, Lightning and Keras"
PEERS_HOME = ROOT / ".venv" / "peers"
ROUNDS = {True: 2, False: 7}


class Case(NamedTuple):
    title: str
    net: str
    batch: int
    shape: List[int]
    updates: int


CASES = [
    Case("softmax regression, batch 64", "softmax_regression", 64, [1, 28, 28], 500),
    Case("MLP, batch 64", "mlp", 64, [1, 28, 28], 500),
    Case("LeNet, batch 64", "lenet", 64, [1, 28, 28], 100),
    Case("ResNet-18, 32 px, batch 32", "resnet18", 32, [3, 32, 32], 12),
    Case("ResNet-18, 64 px, batch 32", "resnet18", 32, [3, 64, 64], 6),
]
BARS: Dict[str, Dict[str, float]] = {
    "softmax regression, batch 64": {"PyTorch": 0.77, "Keras": 1.0},
    "MLP, batch 64": {"PyTorch": 1.11, "Keras": 1.43},
    "LeNet, batch 64": {"PyTorch": 1.0, "Lightning": 1.0, "Keras": 1.0},
    "ResNet-18, 32 px, batch 32": {"PyTorch": 1.0, "Keras": 1.0},
    "ResNet-18, 64 px, batch 32": {"PyTorch": 0.91, "Keras": 1.0},
}


class Peer(NamedTuple):
    """Who is compared: what pip installs, and the functions that tell its versions and train an epoch."""

    packages: Tuple[str, ...]
    versions: str
    train: str


PEERS = {
    "PyTorch": Peer(
        ("torch==2.13.0",),  # a CPU build is found beside pip's index; the index's own brings gigabytes of CUDA
        "benchmarks.peers_torch:versions",
        "benchmarks.peers_torch:loop",
    ),
    "Lightning": Peer(
        ("torch==2.13.0", "lightning"),
        "benchmarks.peers_torch:lightning_versions",
        "benchmarks.peers_torch:with_lightning",
    ),
    "Keras": Peer(
        ("keras", "jax==0.10.2", "jaxlib==0.10.2"),
        "benchmarks.peers_keras:versions",
        "benchmarks.peers_keras:train",
    ),
}


def run(quick: bool) -> Iterator[Row]:
    cases = [case for case in CASES if not quick or case.shape[1] < 64]
    with ExitStack() as stack:
        python, variables = str(peers_python()), thread_variables()
        unset = dict.fromkeys(variables)
        counts = sorted({1, int(variables["OMP_NUM_THREADS"])})
        ours = {"mxkit.fit": ("train", None), "mxkit.fit, 1 thread": ("train", 1)}
        ours.update({f"hand-tuned, {threads_text(threads)}": ("train_by_hand", threads) for threads in counts})
        ask = {
            way: stack.enter_context(Child({**unset, **mxnet_threads(threads)})).ask
            for way, (_, threads) in ours.items()
        }
        ask = {way: partial(ask[way], f"benchmarks.peers:{train}") for way, (train, _) in ours.items()}
        peers = {}
        for name, peer in PEERS.items():
            try:
                child, versions = started(peer, python, variables)
            except RuntimeError as error:
                yield Row("every case", f"{name} is missing: {error}", 0.0, "images/s")
                continue
            stack.enter_context(child)
            title = " on ".join(f"{package} {version}" for package, version in versions.items())
            for threads in counts if name == "PyTorch" else [0]:
                way = f"{title}, {threads_text(threads)}" if threads else title
                ask[way] = partial(child.ask, peer.train, **({"threads": threads} if threads else {}))
                peers[way] = name
        for case in cases:
            updates = max(2, case.updates // 10) if quick else case.updates
            ways = {way: partial(seconds, train, case, updates) for way, train in ask.items()}
            expected = BARS.get(case.title, {})
            bars = {way: expected[name] for way, name in peers.items() if name in expected}
            yield from rows_of(
                case.title, take_turns(ways, rounds=ROUNDS[quick]), against="mxkit.fit", bars=bars,
                scale=case.batch * updates, unit="images/s",
            )  # fmt: skip


def threads_text(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"


def thread_variables() -> Dict[str, str]:
    """As many threads for all as mxkit chooses."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"), str(choose(read_processors(), {}).taken))


def seconds(train: Callable[..., Dict[str, float]], case: Case, updates: int) -> float:
    """Have an epoch trained; the net must have as many parameters as mxkit's."""
    answer = train(name=case.net, batch=case.batch, shape=case.shape, updates=updates)
    expected = parameters(case.net, tuple(case.shape))
    if answer["parameters"] != expected:
        raise ValueError(f"{case.title}: {train} has {answer['parameters']} parameters; mxkit's net has {expected}")
    return float(answer["seconds"])


@lru_cache(maxsize=None)
def parameters(name: str, shape: Tuple[int, ...]) -> int:
    net = mxkit.models.get_model(name)
    mxkit.initialize(net)
    net(mx.nd.zeros((1, *shape)))
    return sum(one.data().size for one in net.collect_params().values() if one.grad_req != "null")


@lru_cache(maxsize=None)
def built(name: str, batch: int, shape: Tuple[int, ...], updates: int) -> Tuple[Any, Any, Any]:
    """A net, its Trainer and the batches, kept from round to round."""
    mxkit.seed_all(0)
    net = mxkit.models.get_model(name)
    mxkit.initialize(net, "xavier")
    net.hybridize(static_alloc=True, static_shape=True)
    rng = np.random.RandomState(0)
    different = [
        (mx.nd.array(rng.rand(batch, *shape)), mx.nd.array(rng.randint(0, 10, batch), dtype="int32")) for _ in range(8)
    ]
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01, "momentum": 0.9})
    return net, trainer, [different[number % 8] for number in range(updates)]


def train(name: str, batch: int, shape: List[int], updates: int) -> Dict[str, float]:
    """An epoch of `mxkit.fit`, in a child: its seconds, and the number of trainable parameters."""
    net, trainer, batches = built(name, batch, tuple(shape), updates)
    begun = time.perf_counter()
    mxkit.fit(net, batches, loss="softmax_ce", trainer=trainer, epochs=1, progress=False)
    mx.nd.waitall()
    return {"seconds": time.perf_counter() - begun, "parameters": parameters(name, tuple(shape))}


def train_by_hand(name: str, batch: int, shape: List[int], updates: int) -> Dict[str, float]:
    """The same of a hand-tuned Gluon loop."""
    net, trainer, batches = built(name, batch, tuple(shape), updates)
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize(static_alloc=True)
    begun = time.perf_counter()
    for x, y in batches:
        with mx.autograd.record():
            losses = loss(net(x), y)
        losses.backward()
        trainer.step(batch)
    mx.nd.waitall()
    return {"seconds": time.perf_counter() - begun, "parameters": parameters(name, tuple(shape))}


def peers_python() -> Path:
    """The interpreter of the peers' own environment, which is made where it is not there."""
    python = PEERS_HOME / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS_HOME)], check=True)
    return python


def started(peer: Peer, python: str, variables: Dict[str, str]) -> Tuple[Child, Dict[str, str]]:
    """A peer's process and its versions; what it needs is installed first where it is not there.

    Raises:
        RuntimeError: It cannot be installed, or does not start; the last line of why.
    """
    first = Child(variables, python=python)
    try:
        return first, first.ask(peer.versions)
    except RuntimeError:
        first.close()
    command = [python, "-m", "pip", "install", "--quiet", *peer.packages]
    said = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if said.returncode:
        raise RuntimeError(last_line(said.stderr))
    second = Child(variables, python=python)
    try:
        return second, second.ask(peer.versions)
    except RuntimeError as error:
        second.close()
        raise RuntimeError(last_line(str(error))) from error


def pytorch(stack: ExitStack, variables: Dict[str, str], unit: str) -> Tuple[Optional[Child], List[Row]]:
    """PyTorch's process, which ends with `stack`; or None, and a row that says why it is missing."""
    try:
        child, _ = started(PEERS["PyTorch"], str(peers_python()), variables)
    except RuntimeError as error:
        return None, [Row("every case", f"PyTorch is missing: {last_line(str(error))}", 0.0, unit)]
    return stack.enter_context(child), []


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
