"""Several workers train like one process over their joint batches."""

import importlib.util

import joint_cases
from joint_runs import assert_equal, once, results, results_of
import numpy as np
import pytest


@pytest.fixture
def runs(forks, tmp_path_factory, workers, job, monkeypatch):
    """Results of all cases of a job: of each worker, and of one process for as many."""
    servers, names = JOBS[job]
    monkeypatch.setenv("CASES_KVSTORE", "horovod" if job == "horovod" else "dist_sync")

    def make(folder):
        results("joint_cases.py", folder / "several", workers, workers, *names, servers=servers)
        (folder / "one").mkdir()
        done = forks.run(joint_cases.__file__, str(folder / "one"), str(workers), *names)
        assert done.returncode == 0, done.stdout + done.stderr

    folder = once(tmp_path_factory, f"joint-{job}-{workers}", make)
    return results_of(folder / "several", workers), results_of(folder / "one", 1)[0]


# Beginnings of the cases' names; the others are long.
SHORT = ["optimizer_momentum", "optimizer_adam", "tail_of_one", "accumulate", "clip", "statistics_of", "list_"]
SHORT += ["shared_parameters", "convolutions", "two_devices", "pieces"]
FOUR = [
    "optimizer_momentum", "optimizer_adam", "tail_of_one", "fewer_samples_than_workers", "accumulate", "clip",
    "batch_norm", "list_", "metrics_of", "two_accumulators", "pieces",
]  # fmt: skip
FOR_HOROVOD = [*FOUR, "statistics_of", "shared_parameters", "convolutions", "two_devices"]
EACH = ["optimizer_momentum", "clip", "pieces"]
HOROVOD = [
    pytest.mark.long,
    pytest.mark.skipif(not importlib.util.find_spec("horovod"), reason="Horovod is not built here: make horovod"),
]


def begin(names):
    return [name for name in joint_cases.CASES if name.startswith(tuple(names))]


REST = [name for name in joint_cases.CASES if name not in begin(SHORT)]
JOBS = {"short": (1, SHORT), "rest": (1, REST), "each": ("each", EACH), "four": (2, FOUR), "horovod": (1, FOR_HOROVOD)}
CASES = [(2, "short", name) for name in begin(SHORT)]
CASES += [pytest.param(2, "rest", name, marks=pytest.mark.long) for name in REST]
CASES += [pytest.param(4, "four", name, marks=pytest.mark.long) for name in begin(FOUR)]
CASES += [pytest.param(3, "each", name, marks=pytest.mark.long) for name in begin(EACH)]
CASES += [pytest.param(2, "horovod", name, marks=HOROVOD) for name in begin(FOR_HOROVOD)]
CASES += [pytest.param(3, "horovod", name, marks=HOROVOD) for name in begin(FOR_HOROVOD) if name != "two_devices"]


@pytest.mark.parametrize(("workers", "job", "name"), CASES)
def test_workers_are_equal_and_like_one_process(runs, workers, job, name):
    several, one = runs
    mine = [worker[name] for worker in several]
    for other in mine[1:]:
        assert_equal(mine[0], other)
    expected = one[name]
    assert mine[0]["parameters"].keys() == expected["parameters"].keys()
    for path, values in expected["parameters"].items():
        if "running" not in path or name != "batch_norm":  # see statistics_of_batch_norm
            np.testing.assert_allclose(mine[0]["parameters"][path], values, rtol=1e-5, atol=1e-6, err_msg=path)
    assert len(mine[0]["rows"]) == len(expected["rows"])
    for row, wanted in zip(mine[0]["rows"], expected["rows"]):
        assert row.keys() == wanted.keys()
        for column, value in wanted.items():
            assert (row[column] is None) == (value is None), column
            if value is not None:
                np.testing.assert_allclose(row[column], value, rtol=1e-5, atol=1e-6, err_msg=column)
