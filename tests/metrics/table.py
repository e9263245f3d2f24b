"""Tables of docs/metrics.md: what `evaluate` does; `python tests/made_tables.py metrics` writes them."""

from functools import lru_cache
import warnings

import mxkit
from mxkit.errors import MxkitError, TrapWarning
from mxkit.metrics import METRICS
from mxnet.gluon import nn
import numpy as np

RANDOM = np.random.RandomState(0)
N = 12
SCORES, CLASS = RANDOM.randn(N, 6).astype("float32"), np.arange(N, dtype="int32") % 6
SHARES = np.exp(SCORES) / np.exp(SCORES).sum(axis=1, keepdims=True)
ONE, YES = RANDOM.randn(N, 1).astype("float32"), np.arange(N).astype("float32") % 2
THREE, TRAITS = RANDOM.randn(N, 3).astype("float32"), RANDOM.randint(0, 2, (N, 3)).astype("float32")
TOKENS, WORDS = RANDOM.randn(N, 4, 6).astype("float32"), RANDOM.randint(0, 6, (N, 4)).astype("int32")
# A user's own may stand there too.
# Of detectors, masks and points: docs/cookbook/boxes.md has them.
OTHERS = {"mxkit.metrics.detection"}
NAMES = [
    name
    for name, kind in METRICS.items()
    if kind.__module__ not in OTHERS and kind.__module__.startswith("mxkit.metrics.")
]
BROKEN = np.where(np.arange(N)[:, None] == 3, np.float32("nan"), SCORES)
ONES_BROKEN = np.where(np.arange(N)[:, None] == 3, np.float32("nan"), ONE)

# heading, loss, outputs, labels
SITUATIONS = [
    ("classes: (B, C), labels (B,), `softmax_ce`", "softmax_ce", SCORES, CLASS),
    ("tokens: (B, T, C), labels (B, T), `softmax_ce`", "softmax_ce", TOKENS, WORDS),
    ("one output: (B, 1), labels 0 and 1, `sigmoid_bce`", "sigmoid_bce", ONE, YES),
    ("one output, labels -1 and 1, `hinge`", "hinge", ONE, 2 * YES - 1),
    ("several labels: (B, K), labels (B, K), `sigmoid_bce`", "sigmoid_bce", THREE, TRAITS),
    ("quantity: (B, 1), labels (B,), `l2`", "l2", ONE, YES * 3.5),
    ("no loss: scores (B, C), labels (B,)", None, SCORES, CLASS),
    ("no loss: probabilities (B, C), labels (B,)", None, SHARES, CLASS),
    ("no loss: (B, 1), labels (B,)", None, ONE, YES),
    ("no loss: (B, K), labels (B, K)", None, THREE, TRAITS),
]
WRONG = [
    ("a class that is not there", None, SHARES, CLASS + 1),
    ("labels of half a class", None, SHARES, CLASS + 0.5),
    ("labels (B, 2) for (B, C)", None, SHARES, np.stack([CLASS, CLASS], axis=1)),
    ("outputs with NaN, classes", "softmax_ce", BROKEN, CLASS),
    ("outputs with NaN, quantity", "l2", ONES_BROKEN, YES),
]


def tried(name, loss, output, labels):
    """What `evaluate` does, in a word: a figure, the error that it raises, or both a figure and a warning."""
    net = nn.HybridLambda("identity")
    batches = [(output[:7], labels[:7]), (output[7:], labels[7:])]
    spec = (name, {"k": 2, "name": name}) if name == "top_k" else name
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            mxkit.evaluate(net, batches, loss=loss, metrics=[spec])
        except MxkitError as error:
            return f"`{type(error).__name__}`", str(error)
    return ("figure, `TrapWarning`" if any(one.category is TrapWarning for one in told) else "figure"), ""


def table(situations):
    texts = {}
    lines = [
        "| metric | " + " | ".join(heading for heading, *_ in situations) + " |",
        "|---|" + "---|" * len(situations),
    ]
    for name in NAMES:
        cells = []
        for _, *situation in situations:
            cell, text = tried(name, *situation)
            cells.append(cell)
            if text:
                texts.setdefault(text.replace(repr(name), "..."), name)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines, list(texts)


def summaries():
    lines = ["| metric | what it says |", "|---|---|"]
    for name in NAMES:
        summary = " ".join((METRICS[name].__doc__ or "").split("\n\n")[0].split()).replace("`", "")
        lines.append(f"| `{name}` | {summary} |")
    return lines


@lru_cache(maxsize=None)
def tables():
    """Both tables, and the texts of the errors in them."""
    (right, refused), (wrong, broken) = table(SITUATIONS), table(WRONG)
    return right, wrong, [f"- {text}" for text in refused + [text for text in broken if text not in refused]]


TABLES = {
    "metrics": summaries,
    "outputs and labels": lambda: tables()[0],
    "wrong ones": lambda: tables()[1],
    "texts": lambda: tables()[2],
}
