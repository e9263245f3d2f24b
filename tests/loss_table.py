"""Table of docs/losses.md, made by training; `python tests/made_tables.py losses` writes it."""

from typing import Any, Dict, NamedTuple
import warnings

import mxkit
from mxkit.errors import MxkitError, TrapWarning
from mxkit.losses.named_losses import LOSSES
from mxnet import gluon
import numpy as np

B, C, T, L = 6, 3, 4, 2
COLUMNS = {
    "range": "labels out of range",
    "shape": "labels of another shape",
    "dtype": "labels of another dtype",
    "nan": "NaN in the labels",
    "outputs": "outputs of another kind",
}
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(B, 5).astype("float32")
CLASSES = np.array([0, 1, 2, 0, 1, 2], "float32")
SIGNS = np.where(RANDOM.rand(B, C) < 0.5, -1, 1).astype("float32")
NUMBERS = RANDOM.randint(-3, 4, (B, C)).astype("float32")
COUNTS = np.abs(NUMBERS)
SHARES = RANDOM.dirichlet(np.ones(C), B).astype("float32")
ONE_HOT = np.eye(C, dtype="float32")[CLASSES.astype(int)]
SEQUENCES = np.array([[0, 1], [1, -1], [1, 1], [0, 0], [1, 0], [0, -1]], "float32")


class Case(NamedTuple):
    """A loss by name, and labels for it.

    `outputs` and `labels` are the table's words for what it takes; `right` are labels that it takes, and
    `wrong` has others for some columns. `head` ends the net; `other_head` ends one that the loss does not take.
    """

    outputs: str
    labels: str
    right: Any
    wrong: Dict[str, Any]
    head: str = "scores"
    other_head: str = ""
    arguments: Dict[str, Any] = {}


def softmax_case(outputs="scores (B, ..., C), before the softmax", **more):
    wrong = {"range": CLASSES + 1, "shape": ONE_HOT, **more}
    return Case(outputs, "class numbers from 0 to C - 1, (B, ...)", CLASSES, wrong, other_head="softmax")


def elementwise(outputs, labels, right, wrong, **more):
    return Case(outputs, labels, right, {"shape": right[:, :2], **wrong}, **more)


SIGNED = "-1 or 1, of the outputs' shape"
CASES: Dict[str, Case] = {
    "batch_hard_triplet": Case(
        "embeddings (B, D)", "class numbers (B,)", CLASSES, {"range": CLASSES + 0.5, "shape": ONE_HOT}
    ),
    "contrastive": Case(
        "a pair of embeddings (B, D)",
        "1 for a pair of one class, else 0 or -1, (B,)",
        CLASSES % 2,
        {"range": CLASSES, "shape": ONE_HOT},
        head="pair",
    ),
    "cosine_embedding": Case(
        "embeddings (B, D)",
        "(embeddings, same), same 1 or -1, (B,)",
        (NUMBERS, SIGNS[:, 0]),
        {"range": (NUMBERS, CLASSES % 2), "shape": (NUMBERS, SIGNS)},
    ),
    "ctc": Case(
        "scores (B, T, C), the last class for the blank",
        "classes from 0 to C - 2, then -1, (B, L), L at most T",
        SEQUENCES,
        {"range": SEQUENCES + 1, "shape": np.zeros((B, T + 1), "float32")},
        head="steps",
        other_head="steps of a softmax",
    ),
    "distillation": Case(
        "scores (B, C), before the softmax",
        "(teacher's scores, class numbers), (B, C) and (B,)",
        (NUMBERS, CLASSES),
        {"range": (NUMBERS, CLASSES + 1), "shape": (NUMBERS[:, :2], CLASSES)},
        other_head="softmax",
    ),
    "focal": softmax_case(),
    "hinge": elementwise("any numbers", SIGNED, SIGNS, {"range": ONE_HOT}),
    "huber": elementwise("any numbers", "finite, of the outputs' shape", NUMBERS, {}),
    "kl_div": elementwise(
        "log-probabilities (B, ..., C)",
        "a distribution over C, of the outputs' shape",
        ONE_HOT,
        {"range": SHARES * 2},
        head="log_softmax",
        other_head="scores",
    ),
    "l1": elementwise("any numbers", "finite, of the outputs' shape", NUMBERS, {}),
    "l2": elementwise("any numbers", "finite, of the outputs' shape", NUMBERS, {}),
    "label_smoothing": softmax_case(),
    "logistic": elementwise(
        "scores, before the sigmoid", f"{SIGNED}; 0 to 1 under `label_format: binary`", SIGNS, {"range": ONE_HOT},
        other_head="sigmoid",
    ),
    "poisson_nll": elementwise(
        "logarithms of the expected counts",
        "at least 0, of the outputs' shape",
        COUNTS,
        {"range": NUMBERS},
        other_head="scores with from_logits=False",
    ),
    "sigmoid_bce": elementwise(
        "scores, before the sigmoid", "from 0 to 1, of the outputs' shape", ONE_HOT, {"range": ONE_HOT * 9},
        other_head="sigmoid",
    ),
    "softmax_ce": softmax_case(),
    "squared_hinge": elementwise("any numbers", SIGNED, SIGNS, {"range": ONE_HOT}),
    "triplet": Case(
        "embeddings (B, D) of the anchors",
        "(positives, negatives), each (B, D)",
        (NUMBERS, SIGNS),
        {"shape": (NUMBERS[:, :2], SIGNS[:, :2])},
    ),
}  # fmt: skip


def make_net(head):
    mxkit.seed_all(3)
    net = gluon.nn.HybridSequential()
    if head == "pair":
        net = mxkit.models.Siamese(gluon.nn.Dense(C, in_units=5))
    else:
        net.add(gluon.nn.Dense(C, in_units=5, flatten="steps" not in head))
    if "softmax" in head or "sigmoid" in head:
        last = head.split(" ")[-1]
        net.add(gluon.nn.Activation(last) if last == "sigmoid" else gluon.nn.HybridLambda(last))
    mxkit.initialize(net, ("normal", {"sigma": 1.0}), devices="cpu")
    return net


def outcome(loss, head, labels):
    """What `fit` and `evaluate` make of a batch: the loss, or the text of what was raised or warned of."""
    x = {"pair": (X, X[::-1].copy())}.get(head, X)
    if "steps" in head:
        x = RANDOM.__class__(1).randn(B, T, 5).astype("float32")
    results = []
    for run in (
        lambda net: mxkit.evaluate(net, [(x, labels)], loss=loss)["loss"],
        lambda net: mxkit.fit(net, [(x, labels)], loss=loss, trainer="sgd", epochs=1, progress=False)[0]["train_loss"],
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                result = run(make_net(head))
            except MxkitError as error:
                result = f"{type(error).__name__}: {error}"
        traps = [str(one.message) for one in told if issubclass(one.category, TrapWarning)]
        results.append(f"TrapWarning: {traps[0]}" if traps else result)
    one, other = results
    assert one == other if isinstance(one, str) else abs(one - other) < 1e-5 * abs(one), (loss, head, results)
    return one


def changed(labels, change, place=-1):
    """The labels with one array of them changed."""
    if not isinstance(labels, tuple):
        return change(labels)
    return tuple(change(one) if number == place % len(labels) else one for number, one in enumerate(labels))


def with_nan(labels):
    labels = labels.copy()
    labels.reshape(-1)[1] = np.nan
    return labels


def cell(name, column):
    """One cell of the table: what was raised, or why the number that came out is the right one."""
    case = CASES[name]
    loss = (name, dict(case.arguments))
    right = outcome(loss, case.head, case.right)
    assert not isinstance(right, str), right
    if column == "outputs":
        if not case.other_head:
            return "any are taken"
        if "from_logits" in case.other_head:
            loss = (name, {"from_logits": False})
        found = outcome(loss, case.other_head.split(" with")[0], case.right)
    elif column == "dtype":
        found = outcome(loss, case.head, changed(case.right, lambda one: one.astype("int32")))
        if found == right:
            return "int32: as float32"
    elif column == "nan":
        found = outcome(loss, case.head, changed(case.right, with_nan))
    elif column in case.wrong:
        found = outcome(loss, case.head, case.wrong[column])
    else:
        return "all are in range"
    assert isinstance(found, str), f"{name}, {column}: a number without meaning: {found}"
    return shortened(found)


def shortened(text):
    kind, _, text = text.partition(": ")
    first = text.partition(". ")[0].partition("; received")[0]
    if "labels must be" not in first and "; received" in text:
        first = text.partition(". ")[0]
    return f"`{kind}` {first}".replace("|", "\\|")


def losses():
    assert CASES.keys() == LOSSES.keys(), "each loss by name has its line"
    heads = ["loss", "outputs that it takes", "labels that it takes", *COLUMNS.values()]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, case in CASES.items():
        cells = [cell(name, column) for column in COLUMNS]
        lines.append(f"| {' | '.join([f'`{name}`', case.outputs, case.labels, *cells])} |")
    return lines


TABLES = {"losses": losses}
