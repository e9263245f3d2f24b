"""Files that are either whole or as they were before."""

from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
from threading import Barrier

from mxkit.core.system import write_atomically
import pytest


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_a_failing_write_leaves_the_old_file_whole(tmp_path, monkeypatch, broken):
    """T59."""
    path = tmp_path / "run.json"
    write_atomically(path, b"old and whole")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, full)
    with pytest.raises(OSError, match="No space left on device"):
        write_atomically(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old and whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_two_threads_write_one_file_at_the_same_time(tmp_path, monkeypatch):
    path, both, flush = tmp_path / "run.json", Barrier(2), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (both.wait(timeout=60), flush(handle)))
    contents = [b"first" * 1000, b"second" * 1000]
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write_atomically, path, content) for content in contents]:
            done.result()
    assert path.read_bytes() in contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_content_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    steps = []
    replace = Path.replace
    monkeypatch.setattr("os.fsync", lambda handle: steps.append("flush"))
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("rename"), replace(self, target)))
    (tmp_path / "run.json").write_bytes(b"longer than the new content")
    write_atomically(tmp_path / "run.json", b"x")
    assert (tmp_path / "run.json").read_bytes() == b"x"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]
    assert steps == ["flush", "rename", "flush"]
