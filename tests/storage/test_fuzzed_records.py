"""Damaged RecordIO files: refused, or read as MXNet reads them, at the cost of their size."""

import sys

import fuzz_files
import fuzz_records
from mxkit.data.records import records
import mxnet as mx
import numpy as np
import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux does")
def test_fuzzed_files_neither_crash_nor_hang_nor_cost_memory():
    outcomes, failures = fuzz_records.run(count=100, seed=7)
    assert failures == []
    assert sum(outcomes.values()) == 100
    assert min(outcomes["refused"], outcomes["read"]) > 10


def test_the_fuzzer_sees_a_reader_that_differs(tmp_path, monkeypatch):
    file = fuzz_records.sources(tmp_path)[0]
    assert fuzz_records.measured(file) == "read"
    monkeypatch.setattr(fuzz_records, "records", lambda path: list(records(path))[:-1])
    assert fuzz_records.measured(file) == "read otherwise"
    mx.nd.save(str(tmp_path / "a.params"), {"x": mx.nd.ones(2)})
    assert fuzz_files.disagreement(tmp_path / "a.params", {"x": np.ones(2, np.float32)}, "read: x") == ""
    assert fuzz_files.disagreement(tmp_path / "a.params", {"x": np.zeros(2, np.float32)}, "read: x") == "'x' differs"
