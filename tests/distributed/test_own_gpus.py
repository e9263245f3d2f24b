"""Workers of one machine divide its GPUs; a stand-in for the driver has some."""

from joint_runs import results
from mxkit.distributed.group import own_places
import pytest


@pytest.mark.long  # `test_gpus_of_each_worker` is its short form
def test_each_worker_takes_its_own_gpus(tmp_path):
    workers = results("own_gpus_program.py", tmp_path, 2)
    assert workers[0]["before"] == "{0: 'GPU-0', 2: 'GPU-2', 3: 'GPU-3', 4: 'GPU-4'}"
    assert [one["auto"] for one in workers] == ["[gpu(0), gpu(2)]", "[gpu(3), gpu(4)]"]
    assert [one["gpu"] for one in workers] == [one["auto"] for one in workers]
    assert [one["named"] for one in workers] == ["[gpu(0)]"] * 2
    assert "worker 1 takes gpu(3), gpu(4): 2 workers see the same 4 GPUs. devices=" in workers[1]["told"]


PLACES = [
    ([[], []], [[], []]),
    ([["a"], ["b"]], [[0], [0]]),
    ([["a"], ["a"], ["a"]], [[0], [0], [0]]),
    ([["a", "b"]] * 3, [[0], [1], [0]]),
    ([["a", "b", "c"]] * 2, [[0], [1]]),
    ([["a", "b"], ["b", "a"]], [[0], [0]]),
    ([["a", "b"], ["b", "c"]], [[0, 1], [0, 1]]),
    ([["a", "b"], [], ["a", "b"]], [[0], [], [1]]),
]


def test_gpus_of_each_worker():
    for seen, places in PLACES:
        assert [own_places(seen, rank) for rank in range(len(seen))] == places, seen
