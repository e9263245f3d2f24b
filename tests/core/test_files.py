"""Files that are either whole or as they were before."""

from pathlib import Path

from mxkit.core.files import flush_directory, write_atomically
import pytest


def test_a_file_is_written_and_replaced_without_leftovers(tmp_path):
    path = tmp_path / "run.json"
    write_atomically(path, b"first")
    write_atomically(path, b"second" * 1000)
    assert path.read_bytes() == b"second" * 1000
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("broken", ["os.fsync", "pathlib.Path.replace"])
def test_t59_a_failing_write_leaves_the_old_file_whole(tmp_path, monkeypatch, broken):
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


def test_content_is_on_disk_before_the_name_and_the_name_before_the_return(tmp_path, monkeypatch):
    steps = []
    replace = Path.replace
    monkeypatch.setattr("os.fsync", lambda handle: steps.append("flush"))
    monkeypatch.setattr(Path, "replace", lambda self, target: (steps.append("rename"), replace(self, target)))
    write_atomically(tmp_path / "run.json", b"x")
    assert steps == ["flush", "rename", "flush"]


def test_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "run.json", b"x")
    with pytest.raises(FileNotFoundError):
        flush_directory(tmp_path / "missing")
