"""Trainings of several workers that are stopped and resumed end like one that was not."""

import shutil

from joint_runs import assert_equal, ended, once, results, results_of, start
import pytest
from sharing import wait_until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return once(tmp_path_factory, "resumed", lambda folder: results("joint_resumes.py", folder, 2))


@pytest.fixture(scope="module")
def runs(folder):
    return results_of(folder)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("shares-stopped", "for now"),
        ("turns-stopped", "for now"),
        ("listed-stopped", "for now"),
        ("dropout-stopped", "for now"),
        ("shares-terminated", "SIGTERM in epoch 1, after update 7"),
        ("dropout-interrupted", "KeyboardInterrupt in epoch 1, after update 25"),
        ("shares-minutes", None),
    ],
)
def test_a_resumed_run_ends_like_an_undisturbed_one(runs, name, reason):
    whole = runs[0][name.split("-")[0]]
    for worker in runs:
        assert_equal(worker[name], whole)
        assert worker[name].get("first") == reason


def test_only_the_first_worker_writes_and_all_need_its_folder(runs):
    for worker in runs:
        assert "worker 0 has step-00000007, worker 1 has None" in worker["elsewhere"]
        assert "is its folder on a disk that all workers share?" in worker["elsewhere"]
        assert not [path for path in worker["files"] if path.startswith("elsewhere")]
    assert runs[0]["files"] == runs[1]["files"]


def test_a_second_launch_into_the_folder_of_a_live_one_is_refused(runs, tmp_path):
    first = start("joint_resumes.py", tmp_path, 2, "locked")
    wait_until(lambda: (tmp_path / "waits").exists() or first.poll() is not None, seconds=120)
    wait_until(lambda: not list(tmp_path.rglob(".writing-*")))  # the checkpoint of update 4 is still being written
    locks = [(path.parent.name, path.read_text().split(" on ")[0]) for path in tmp_path.rglob(".writer")]
    before = sorted(tmp_path.rglob("*"))
    status, output = ended(start("joint_resumes.py", tmp_path, 2, "locked"))
    assert (status != 0, f"{locks[0][1]} on " in output, "two processes would destroy" in output) == (True,) * 3
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "go on").touch()
    status, output = ended(first)
    assert status == 0, output
    for worker in results_of(tmp_path):
        assert_equal(worker, runs[0]["shares"])
    assert locks == [("locked", f"process {results_of(tmp_path)[0]['process']}")]  # worker 0 alone writes
    assert not list(tmp_path.rglob(".writer"))


def test_another_number_of_workers(runs, folder, tmp_path):
    for name in ("inside", "at the end"):
        shutil.copytree(folder / name, tmp_path / name)
    (one,) = results("joint_resumes.py", tmp_path, 1, "of_one")
    assert "lies inside epoch 1" in one["inside"]
    assert "number of workers was 2, is 1" in one["inside"]
    assert any("number of workers was 2, is 1" in text for text in one["at the end"])
