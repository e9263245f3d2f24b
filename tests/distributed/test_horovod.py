"""Horovod in place of MXNet's servers; that the sums are right, test_joint_training.py shows."""

import importlib.util
import os
from pathlib import Path
import subprocess
import sys

from joint_runs import assert_equal, ended, results_of, start
import mxkit
import pytest

HERE = Path(__file__).parent
BUILT = importlib.util.find_spec("horovod") is not None
skipped = pytest.mark.skipif(not BUILT, reason="Horovod is not built here: make horovod")


@pytest.fixture(autouse=True)
def _chosen(monkeypatch):
    monkeypatch.setenv("CASES_KVSTORE", "horovod")


@pytest.mark.long
@pytest.mark.skipif(BUILT, reason="Horovod is here")
def test_a_fit_without_horovod_says_how_to_build_it(tmp_path):
    status, output = ended(start("joint_cases.py", tmp_path, 2, 2, "one_batch"))
    assert status == 1
    assert "'horovod' needs Horovod with MXNet, for which no wheel exists" in output
    assert "No module named 'horovod'" in output


@pytest.mark.long
@skipped
def test_horovodrun_starts_the_workers(tmp_path):
    command = [sys.executable, str(HERE / "joint_cases.py"), str(tmp_path), "2", "optimizer_momentum"]
    bin_folder = Path(sys.executable).parent
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}
    own["PATH"] = os.pathsep.join([str(bin_folder), os.environ["PATH"]])
    launcher = [str(bin_folder / "horovodrun"), "--gloo", "-np", "2"]
    subprocess.run([*launcher, *command], env={**os.environ, **own}, check=True, timeout=120)
    one, other = (worker["optimizer_momentum"] for worker in results_of(tmp_path))
    assert_equal(one, other)


@pytest.mark.long
@skipped
def test_a_worker_that_dies_under_horovod_ends_the_others_and_is_named(tmp_path):
    code = """
import os, signal, threading
from mxkit import distributed
import joint_cases, mxkit
distributed.initialize()
class Die(mxkit.Callback):
    def on_update(self, state, update):
        if state.updates == 20 and distributed.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
joint_cases.fitted(callbacks=[Die()], epochs=1000)
"""
    (tmp_path / "program.py").write_text(code)
    status, output = ended(start(tmp_path / "program.py", tmp_path, 2))
    assert status == 137
    assert "worker 1 on " in output
    assert "is lost: its connection is closed: it was killed, or it crashed" in output
    assert "mxkit launch: worker 1 was ended by SIGKILL; all others are ended" in output


def test_words_that_are_no_way_to_add_up():
    for word, text in {"dist_async": "write a loop of your own", "horovd": "expected 'dist_sync' or 'horovod'"}.items():
        with pytest.raises(ValueError, match=text):
            mxkit.distributed.set_kvstore(word)
