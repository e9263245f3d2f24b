"""The benchmarks' peers, threads, forms for predictions, loaders, features and checkpoints, at tiny sizes."""

import venv

import mxnet as mx
import pytest
from test_benchmarks import WHOLE, check

from benchmarks import checkpoints, features, inference, loaders, peers, threads

TINY = [
    peers.Case("softmax regression", "softmax_regression", 4, [1, 28, 28], 3),
    peers.Case("LeNet", "lenet", 4, [1, 28, 28], 3),
]
PEERS_ARE_THERE = all(
    list(peers.PEERS_HOME.glob(f"lib/python*/site-packages/{package}/__init__.py"))
    for package in ("torch", "lightning", "keras", "jax", "jaxlib")
)


def test_a_peer_with_another_net_is_refused():
    case = peers.Case("an MLP", "mlp", 4, [1, 28, 28], 3)
    with pytest.raises(ValueError, match=r"an MLP: .* has 17 parameters; mxkit's net has 203530"):
        peers.seconds(lambda **_: {"seconds": 1.0, "parameters": 17}, case, 3)
    assert peers.seconds(lambda **_: {"seconds": 1.5, "parameters": 203530}, case, 3) == 1.5


def test_peers_that_cannot_be_installed_are_told_and_left_out(tmp_path, monkeypatch):
    venv.create(str(tmp_path), with_pip=False)
    monkeypatch.setattr(peers, "PEERS_HOME", tmp_path)
    monkeypatch.setattr(peers, "CASES", TINY[:1])
    rows = list(peers.run(True))
    assert [row.way.partition(" is missing: ")[0] for row in rows] == ["PyTorch", "Lightning", "Keras", "mxkit.fit"]
    assert all("No module named pip" in row.way for row in rows[:3])
    assert rows[3].value > 0


@pytest.mark.skipif(not PEERS_ARE_THERE, reason="`python -m benchmarks peers` makes .venv/peers")
@WHOLE
def test_peers_train_the_same_nets(monkeypatch):
    monkeypatch.setattr(peers, "CASES", TINY)
    rows = check(peers.run(True))
    for case in TINY:
        ways = [way for title, way in rows if title == case.title]
        assert [way.split()[0] for way in ways] == ["mxkit.fit", "PyTorch", "Lightning", "Keras"]
        bars = [rows[case.title, way].bar for way in ways]
        assert bars == [None, None, 1 if case.net == "lenet" else None, 1]


@WHOLE
def test_threads_take_turns(monkeypatch):
    monkeypatch.setattr(threads, "CASES", TINY)
    monkeypatch.setattr(threads, "ROUNDS", {True: 1})
    rows = check(threads.run(True))
    mine, default = (way for _, way in rows)
    assert mine.startswith("mxkit's choice: ")
    assert {row.against for row in rows.values()} == {default}


@WHOLE
def test_forms_of_a_net_agree_with_it(monkeypatch):
    monkeypatch.setattr(inference, "CASES", [inference.Case("LeNet", "lenet", 28, 2, 4)])
    monkeypatch.setattr(inference, "UPDATES", {"lenet": 1000})
    rows = check(inference.run(True))
    assert {way for case, way in rows if case == "LeNet"} >= set(inference.FORMS)
    assert rows["lenet: digits that are right", "eager"].value > 80
    same = {way: row.value for (case, way), row in rows.items() if case == "lenet: digits seen as eager sees them"}
    assert same["fused"] == 100
    assert set(same) >= {"bfloat16", "int8"}
    assert min(same.values()) > 95


@WHOLE
def test_loaders_are_compared_and_measured(monkeypatch):
    monkeypatch.setattr(loaders, "QUICK", {"rounds": 1, "images": 300, "files": 8, "samples": 64, "epochs": 2})
    monkeypatch.setattr(loaders, "MEMORY", loaders.MEMORY[:1])
    rows = check(loaders.run(True))
    for batch in (64, 256):
        case = f"300 arrays of 28x28, batch {batch}"
        assert rows[case, "NumPy loop"].ratio == 1
        assert rows[case, "ArrayLoader"].against == "NumPy loop"
    assert rows["8 JPEGs, batch 32", "gluon, 0 workers"].unit == "images/s"
    assert rows["memory after epoch 2", "ArrayLoader"].value > 50


def test_ways_of_loading_give_the_same_images():
    ways = loaders.array_ways(100, 64)
    assert set(ways) == {"gluon, 0 workers", "NumPy loop", "NumPy loop, without labels", "ArrayLoader"} | {
        "ArrayLoader, prefetch=2"
    }
    assert [len(ways[way]()) for way in ("gluon, 0 workers", "ArrayLoader", "ArrayLoader, prefetch=2")] == [2, 2, 2]


@WHOLE
def test_features_are_compared_with_a_net_cut_by_hand(monkeypatch):
    monkeypatch.setattr(features, "QUICK", {"rounds": 1, "batch": 1, "size": 32, "calls": 1})
    rows = check(features.run(True))
    assert {way for case, way in rows if case == "features.4"} == {"Features", "cut by hand", "hooks", "forward"}
    assert rows["features.4: beside the whole net", "Features"].against == "forward"


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
