"""`mxkit cache` through the real command, on a folder of its own."""

import os

import pytest
from sharing import command


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("MXNET_HOME", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    (folder / "datasets" / "own").mkdir(parents=True)
    (folder / "datasets" / "own" / "a.bin").write_bytes(b"x" * 2_000_000)
    (folder / "models").mkdir()
    leftover = folder / "models" / ".net.params.part"
    leftover.write_bytes(b"y" * 10)
    os.utime(str(leftover), (1e9, 1e9))  # one that was written to just now may still be running
    return folder


def test_lists_and_cleans(home):
    code, out, err = command("cache")
    assert (code, err) == (0, "")
    assert [word in out for word in ("own", "2.0 MB", "unknown", "partial")] == [True] * 4
    assert out.splitlines()[-1].endswith(f"new files go to {home}")

    code, out, _ = command("cache", "clean", "--dry-run")
    assert code == 0
    assert "would delete" in out
    assert (home / "models" / ".net.params.part").exists()
    code, out, _ = command("cache", "clean")
    assert code == 0
    assert ".net.params.part" in out
    assert not (home / "models" / ".net.params.part").exists()
    assert (home / "datasets" / "own" / "a.bin").exists()


def test_brackets_in_paths_are_shown_as_they_are(monkeypatch, tmp_path):
    """rich would read `[old]` as a style, and `[/x]` would end the command with an error."""
    folder = tmp_path / "[old]" / "[" / "x]"
    (folder / "datasets" / "[bold]own").mkdir(parents=True)
    (folder / "datasets" / "[bold]own" / "a.bin").write_bytes(b"x")
    monkeypatch.setenv("MXNET_HOME", str(folder))
    code, out, err = command("cache")
    assert (code, err) == (0, "")
    row = next(line for line in out.splitlines() if "[bold]own" in line)
    assert row.endswith(f"{tmp_path}/[old]/[/x]/datasets")
