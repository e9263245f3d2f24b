"""`make gpu` where no GPU can be used, its page from real outcomes, and a suite that does not see GPUs by itself."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
import os
from pathlib import Path
import shutil
import subprocess
import sys

from fake_driver import H200, build
import mxkit
from mxkit.runtime.gpus import Driver, Gpu, read_driver
import pytest

ROOT = Path(mxkit.__file__).parents[1]
A100 = Gpu(0, "NVIDIA A100", (8, 0), 80 * 2**30, "")


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    loader = SourceFileLoader("gpu_script", str(ROOT / ".ci" / "gpu"))
    module = module_from_spec(spec_from_loader("gpu_script", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module, "PAGE", tmp_path / "gpu-page.txt")
    return module


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_without_a_gpu_it_ends_at_once_and_says_what_it_would_have_done():
    before = sorted((ROOT / ".venv").glob("*")), (ROOT / "gpu-page.txt").exists()
    command = ["make", "gpu", f"PYTHON={sys.executable}"]
    # GPUs that are there are hidden from it
    # without what `make test` says to its own children
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "MAKEFLAGS": "", "MAKELEVEL": ""}
    done = subprocess.run(command, cwd=str(ROOT), env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    reason = read_driver().problem if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else "CUDA_VISIBLE_DEVICES=''"
    assert f"Nothing was checked: {reason}" in done.stdout
    for text in ("compute capability 5.0 to 8.x", "'.[cu112,test]'", "MXKIT_EXACT=1 pytest -m gpu", "gpu-page.txt"):
        assert text in done.stdout
    assert before == (sorted((ROOT / ".venv").glob("*")), (ROOT / "gpu-page.txt").exists())


def test_a_gpu_without_kernels_is_named(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment.update(LD_LIBRARY_PATH=str(build(tmp_path)), FAKE_GPUS=H200)
    command = [sys.executable, str(ROOT / ".ci" / "gpu"), "here"]
    done = subprocess.run(command, cwd=str(tmp_path), env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout.startswith("Nothing was checked: MXNet's wheel has kernels for sm_50, sm_60, sm_70, sm_80, ")
    assert "sm_86, and none of them runs on NVIDIA H200 (sm_90, 139 GiB).\n" in done.stdout
    assert not (ROOT / "here").exists()


def test_one_usable_gpu_is_enough(script):
    other = Gpu(1, "NVIDIA H200", (9, 0), 139 * 2**30, "")
    assert script.why_not(Driver((12, 4), (other, A100))) == ""
    assert "none of them runs on NVIDIA H200" in script.why_not(Driver((12, 4), (other,)))


def test_what_did_not_pass_stands_on_the_page(script):
    failed = {"outcome": "failed", "why": "AssertionError: 1 != 2\n" * 9, "told": ["2 MiB"], "seconds": 1.0}
    rows = [
        {"switches": {}},
        *({"begun": f"tests/gpu/a.py::test_{name}[gpu]"} for name in ("x_fails", "x_skips", "x_dies")),
        {"test": "tests/gpu/a.py::test_x_fails[gpu]", **failed},
        {"test": "tests/gpu/a.py::test_x_skips[gpu]", **failed, "outcome": "skipped", "why": "Skipped: no second one"},
        {"warned": "sums in an order that changes", "test": "tests/gpu/a.py::test_x_fails[gpu]"},
        {"ended": "pytest's exit code -11, 3 s"},
    ]
    assert not script.all_passed({"default": rows})
    assert not script.all_passed({"default": [{"switches": {}}]})
    lines = list(script.pass_lines("default", rows))
    assert lines[0] == "default pass: 1 failed, 1 not ended, 1 skipped (pytest's exit code -11, 3 s)"
    assert "  switches: none" in lines
    assert "  warning (1x): sums in an order that changes" in lines
    start = lines.index("  FAILED     tests/gpu/a.py::test_x_fails[gpu]")
    assert lines[start + 1 : start + 3] == ["             2 MiB", "             AssertionError: 1 != 2"]
    assert lines[start + 8] == "             ..."
    assert "  NOT ENDED  tests/gpu/a.py::test_x_dies[gpu]" in lines
    assert lines[-1] == "  1 skipped: no second one"


def test_a_pass_that_hangs_is_ended(script, monkeypatch):
    monkeypatch.setattr(script, "LIMIT", 0.1)
    (*_, last) = script.run_pass(sys.executable, False, "--help")
    assert last["ended"].startswith("ended after 0.1 s, its limit")
