"""What `import mxkit` and the first update cost beside plain MXNet: fresh interpreters in turns, wall time.

Where NumPy is 1.24 or newer plain `import mxnet` fails. There the names that NumPy dropped are lent by hand before it,
as the net's advice goes, which costs nothing; where that does not do either (NumPy 2, Python 3.12) mxkit's own hook is
in place, and the row says so.

- `import mxkit` does not import MXNet, `mxkit --help` neither. Bar: `import mxkit, mxnet` at most 1.15 x
  `import mxnet`.
- first update: from the interpreter's start until LeNet's first update of a batch of 64 is done, with `mxkit.fit` and
  with a plain Gluon loop, both hybridized.
"""

import subprocess
import sys
from typing import Callable, Dict, Iterator

from benchmarks.harness import ROOT, Row, rows_of, take_turns

TITLE = "Start"
LENT = """
import numpy
for name, value in dict(bool=bool, PZERO=0.0, NZERO=-0.0).items():
    setattr(numpy, name, value)
"""
ROUNDS = {False: 9, True: 2}
PLAIN_WAYS = {
    "import mxnet": "import mxnet",
    "import mxnet, names lent by hand": LENT + "import mxnet",
    "import mxnet, by mxkit's hook": "import mxkit.runtime; mxkit.runtime.install(); import mxnet",
}
IMPORTS = {
    "python": "pass",
    "import mxkit": "import mxkit",
    "mxkit --help": "from mxkit.cli import main; main(['--help'])",
    "import mxkit, mxnet": "import mxkit, mxnet",
    "import mxkit; mxkit.fit": "import mxkit; mxkit.fit",
}
BATCH = """
x = mx.nd.random.uniform(shape=(64, 1, 28, 28)); y = mx.nd.zeros(64)
"""
WITH_MXKIT = """
import mxkit, mxnet as mx
net = mxkit.models.lenet(); mxkit.initialize(net, devices="cpu"); net.hybridize(static_alloc=True)
mxkit.fit(net, [(x, y)], loss="softmax_ce", trainer="sgd", epochs="1 updates", progress=False)
"""
WITH_GLUON = """
import mxnet as mx
from mxnet.gluon import nn
net = nn.HybridSequential()
net.add(nn.Conv2D(20, 5, activation="relu"), nn.MaxPool2D(2, 2), nn.Conv2D(50, 5, activation="relu"))
net.add(nn.MaxPool2D(2, 2), nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(10))
net.initialize(); net.hybridize(static_alloc=True)
loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
with mx.autograd.record():
    losses = loss(net(x), y)
losses.backward()
trainer.step(64)
"""


def run(quick: bool) -> Iterator[Row]:
    rounds, warm_up = ROUNDS[quick], 0 if quick else 1
    plain = plain_way()
    statements = {**IMPORTS, plain: PLAIN_WAYS[plain]}
    taken = take_turns(interpreters(statements), rounds=rounds, warm_up=warm_up)
    yield from (
        row._replace(cpu=None)
        for row in rows_of(
            "imports", taken, against=plain, scale=1e3, unit="ms", bars={"import mxkit, mxnet": 1.15}
        )  # fmt: skip
    )
    before = PLAIN_WAYS[plain]
    updates = {
        "plain Gluon": f"{before}{WITH_GLUON}".replace("net =", f"{BATCH.strip()}\nnet =", 1) + "mx.nd.waitall()",
        "mxkit.fit": WITH_MXKIT.replace("net =", f"{BATCH.strip()}\nnet =", 1) + "mx.nd.waitall()",
    }
    taken = take_turns(interpreters(updates), rounds=rounds, warm_up=warm_up)
    rows = rows_of("LeNet's first update", taken, against="plain Gluon", scale=1e3, unit="ms")
    yield from (row._replace(cpu=None) for row in rows)


def plain_way() -> str:
    """The first of the ways to import MXNet that works here."""
    for way, statement in PLAIN_WAYS.items():
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", statement], stderr=subprocess.DEVNULL)
        if not done.returncode:
            return way
    raise RuntimeError("MXNet cannot be imported here; `mxkit doctor` tells why")


def interpreters(statements: Dict[str, str]) -> Dict[str, Callable[[], object]]:
    """For each name a function that runs its statement in a fresh interpreter."""

    def runs(statement: str) -> Callable[[], object]:
        command = [sys.executable, "-W", "ignore", "-c", statement]
        return lambda: subprocess.run(command, check=True, cwd=str(ROOT), stdout=subprocess.DEVNULL)

    return {name: runs(statement) for name, statement in statements.items()}
