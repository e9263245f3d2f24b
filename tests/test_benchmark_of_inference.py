"""The question `inference`, at a tiny size, with its peers and without them. What it measures is not tested."""

import os
import venv

from benchmark_rows import check, in_make_benchmarks
from mxkit.nets import prediction_graphs
import numpy as np
import pytest

from benchmarks import inference, inference_nets, peers

LENET = inference.Case("LeNet", "lenet", "gray digits", 200, 28, {2: 4})
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # threads wait for each other beside other tests
INFERENCE = {"CASES": [LENET], "CLASSES": [LENET], "thread_variables": lambda: THREADS}


@in_make_benchmarks
def test_predictions_are_compared_without_peers_and_what_the_processor_cannot_is_told(tmp_path, monkeypatch):
    venv.create(str(tmp_path), with_pip=False)
    monkeypatch.setattr(peers, "PEERS_HOME", tmp_path)
    monkeypatch.setattr(prediction_graphs, "processor_flags", lambda: frozenset(["avx2"]))
    for name, value in INFERENCE.items():
        monkeypatch.setattr(inference, name, value)
    rows = check(inference.run(True))
    told = ["optimize, bfloat16", "optimize, int8", "PyTorch", "onnxruntime"]
    assert [way.partition(" is missing: ")[0] for case, way in rows if case == "every case"] == told
    assert [way for case, way in rows if case == "LeNet, batch 2"] == ["static", "optimize, float32"]
    assert rows["LeNet: right", "static"].value > 80
    assert rows["LeNet: the same as static", "optimize, float32"].value == 100


PREDICTION_PEERS_ARE_THERE = all(
    list(peers.PEERS_HOME.glob(f"lib/python*/site-packages/{package}/__init__.py"))
    for package in ("torch", "safetensors", "onnx", "onnxruntime")
)


@pytest.mark.skipif(
    os.environ.get("MXKIT_BENCHMARKS") != "all" or not PREDICTION_PEERS_ARE_THERE,
    reason="`python -m benchmarks inference` makes .venv/peers",
)
def test_predictions_are_compared_with_those_of_peers(monkeypatch):
    for name, value in INFERENCE.items():
        monkeypatch.setattr(inference, name, value)
    rows = check(inference.run(True))
    ways = {way.split()[0] + way.rpartition(",")[2] for case, way in rows if case == "LeNet, batch 2"}
    assert ways >= {"PyTorch channels last", "PyTorch plain call", "onnxruntime float32", "onnxruntime int8"}
    beside = [row for (case, _), row in rows.items() if case == "LeNet, batch 2: beside onnxruntime"]
    assert beside[0].against.startswith("onnxruntime")
    same = [row.value for (case, way), row in rows.items() if case.endswith("same as static") and "int8" in way]
    assert min(same) > 90


def test_images_of_another_size_stand_side_by_side_and_shapes_have_their_colours():
    small, large = inference_nets.images("digits", 32), inference_nets.images("digits", 80)
    assert large.x.shape == (1797, 3, 80, 80)
    assert (large.x[:, :, 32:64, 32:64] == small.x).all()
    assert (large.x[:, :, 64:, :32] == small.x[:, :, :16]).all()
    x, y = inference_nets.images("shapes", 32)
    assert x.shape[1:] == (3, 32, 32)
    redder = x[:, 0] - x[:, 2]
    warm = np.quantile(redder, 0.95, (1, 2)) > -np.quantile(redder, 0.05, (1, 2))
    assert np.mean(warm == (y % 2 == 1)) > 0.95
