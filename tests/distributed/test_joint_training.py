"""Several workers train like one process over their joint batches."""

import joint_cases
from joint_runs import assert_equal, results
import numpy as np
import pytest


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Results of all cases by (workers, servers): of each worker, and of one process for as many."""
    folder = tmp_path_factory.mktemp("joint")
    found = {}
    for workers, servers, names in ((2, 1, ()), (4, 2, FOR_FOUR)):
        several = results("joint_cases.py", folder / f"{workers}", workers, workers, *names, servers=servers)
        (one,) = results("joint_cases.py", folder / f"{workers}-in-one", 1, workers, *names)
        found[workers] = (several, one)
    return found


FOR_FOUR = [
    "optimizer_momentum", "optimizer_adam", "tail_of_one", "fewer_samples_than_workers", "accumulate", "clip",
    "batch_norm", "list_", "metrics_of", "two_accumulators",
]  # fmt: skip
BOTH = [(2, name) for name in joint_cases.CASES]
BOTH += [(4, name) for name in joint_cases.CASES if any(name.startswith(part) for part in FOR_FOUR)]


@pytest.mark.parametrize(("workers", "name"), BOTH)
def test_workers_are_equal_and_like_one_process(runs, workers, name):
    several, one = (part for part in runs[workers])
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
