"""What `mxkit install` decides on given machines, and what it does on this one without changing it."""

import io
from pathlib import Path
import sys

from mxkit.cli import main
from mxkit.errors import MXNetImportError
from mxkit.runtime import installing
from mxkit.runtime.cuda_libraries import requirements
from mxkit.runtime.doctor.probes import Probe
from mxkit.runtime.gpus import Driver, Gpu
from mxkit.runtime.installing import Command, Machine, command_line, describe, look, plan, run
from mxkit.runtime.wheels import Wheel
import pytest
from sharing import text_of

SITE = Path("site-packages")
NONE = Driver(problem="no NVIDIA driver: libcuda.so.1 was not found. Install it")
H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 * 2**30, "")
T4 = Gpu(1, "Tesla T4", (7, 5), 15 * 2**30, "")
BARE = Machine((), False, (), NONE)
CPU, CUDA = "mxnet==1.9.1", "mxnet-cu112==1.9.1"


def having(*names, version="1.9.1", **facts):
    """A machine with these wheels."""
    return BARE._replace(wheels=tuple(Wheel(name, version, SITE) for name in names), **facts)


def commands(found):
    """The commands without those for NVIDIA's libraries, which depend on what is installed here."""
    return [" ".join(one.arguments) for one in found.commands if "nvidia-" not in one.arguments[1]]


def libraries_in(found):
    return [word for command in found.commands for word in command.arguments if word.startswith("nvidia-")]


BOTH = Driver((12, 4), (H200, T4))
OLD = Driver((10, 2), (), "the NVIDIA driver is too old: it knows CUDA 10.2. Update it")
NEW = Driver((12, 4), (H200,))
TOO_NEW = "sm_80, sm_86, and here is NVIDIA H200 (sm_90, 140 GiB)"
NO_DRIVER = "no NVIDIA driver: libcuda.so.1 was not found"
TO_CPU, TO_CUDA = f"install --no-deps {CPU}", f"install --no-deps {CUDA}"
LACKING = BARE._replace(missing=("requests", "graphviz"))
# The machine, the kind asked for, the wheel, its reason, and the commands.
PLANS = {
    "no driver": (BARE, None, CPU, NO_DRIVER, [TO_CPU]),
    "missing": (LACKING, None, CPU, NO_DRIVER, ["install requests graphviz", TO_CPU]),
    "a GPU": (having("mxnet", driver=BOTH), None, CUDA, "kernels for Tesla T4", ["uninstall -y mxnet", TO_CUDA]),
    "a GPU too new": (BARE._replace(driver=NEW), None, CPU, TOO_NEW, [TO_CPU]),
    "a GPU too new, asked for": (BARE._replace(driver=NEW), "cuda", CUDA, "asked for; mxnet fits", [TO_CUDA]),
    "an old driver": (BARE._replace(driver=OLD), None, CPU, "too old", [TO_CPU]),
    "an old driver, asked for": (BARE._replace(driver=OLD), "cuda", CUDA, "too old", [TO_CUDA]),
    "there": (having("mxnet"), None, CPU, "", []),
    "there, asked for": (having("mxnet"), "cpu", CPU, "", []),
    "another for the CPU": (having("mxnet-mkl"), None, "mxnet-mkl==1.9.1", "", []),
    "for GPUs, asked for": (having("mxnet-cu112"), "cuda", CUDA, "", []),
    "another for GPUs": (having("mxnet-cu117"), None, "mxnet-cu117==1.9.1", "computes on the CPU too", []),
    "asked for": (having("mxnet-cu112"), "cpu", CPU, "as asked for", ["uninstall -y mxnet-cu112", TO_CPU]),
    "two": (having("mxnet", "mxnet-cu112"), None, CPU, "", ["uninstall -y mxnet mxnet-cu112", TO_CPU]),
    "old": (having("mxnet", version="1.6.0"), None, CPU, "", ["uninstall -y mxnet", TO_CPU]),
    "damaged": (having("mxnet", damaged=True), None, CPU, "", [f"install --force-reinstall --no-deps {CPU}"]),
    "another damaged": (having("mxnet-cu112", damaged=True), None, CPU, "", ["uninstall -y mxnet-cu112", TO_CPU]),
}


@pytest.mark.parametrize("name", PLANS)
def test_what_is_planned(name):
    machine, kind, wheel, reason, expected = PLANS[name]
    found = plan(machine, kind)
    assert (found.wheel, commands(found)) == (wheel, expected)
    assert reason in found.reason


def test_cusparse_is_fetched_only_for_the_wheel_that_asks_for_it(monkeypatch):
    absent = [one for one in requirements("mxnet-cu112") if not installing._has(one)]
    assert libraries_in(plan(BARE._replace(driver=BOTH))) == absent
    monkeypatch.setattr(installing, "_has", lambda requirement: False)
    for name in ("mxnet-cu112", "mxnet-cu117"):
        assert libraries_in(plan(having(name), "cuda")) == list(requirements(name))
    assert libraries_in(plan(BARE, "cuda")) == list(requirements("mxnet-cu112"))


def test_a_plan_is_told_with_its_reasons(monkeypatch):
    text = describe(plan(having("mxnet", "mxnet-cu112")))
    assert text.splitlines() == [
        "mxnet==1.9.1: no NVIDIA driver: libcuda.so.1 was not found",
        "    # all of them own the folder mxnet, and have overwritten each other's files",
        f"    {sys.executable} -m pip uninstall -y mxnet mxnet-cu112",
        "    # MXNet; --no-deps, because its metadata asks for numpy<2; mxkit repairs what newer ones change",
        f"    {sys.executable} -m pip install --no-deps mxnet==1.9.1",
    ]
    assert describe(plan(having("mxnet"))).endswith("there is nothing to run")
    monkeypatch.setattr(installing, "has_pip", lambda: False)
    uninstall = f"uv pip uninstall --python {sys.executable} mxnet"
    assert command_line(Command(("uninstall", "-y", "mxnet"), "")) == uninstall
    text = describe(plan(BARE))
    assert "this Python has no pip: type these" in text
    assert f"    uv pip install --python {sys.executable} --no-deps mxnet==1.9.1" in text


def test_a_command_that_fails_tells_what_is_left(capfd):
    left = [Command(("no-command-of-pip",), ""), Command(("--version",), "")]
    assert text_of(MXNetImportError, run, left).splitlines() == [
        "pip ended with exit code 1. What is left to run:",
        f"    {sys.executable} -m pip no-command-of-pip",
        f"    {command_line(left[1])}",
    ]
    assert "no-command-of-pip" in capfd.readouterr().err


def test_a_file_in_the_way_is_told(monkeypatch, tmp_path):
    (tmp_path / "mxnet.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    with pytest.raises(MXNetImportError, match="^`import mxnet` would load .*Rename that file"):
        look()


def test_the_command_changes_nothing_without_a_yes(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("PIP_PYTHON", "/nowhere")  # pip refuses to do anything, should it be run by mistake

    def mxkit(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["install", *arguments])
        return caught.value.code, *capsys.readouterr()

    before = installing.installed_wheels()
    here, other = ("--cuda", "--cpu") if before[0].name.startswith("mxnet-cu") else ("--cpu", "--cuda")
    code, shown, _ = mxkit(other, "--dry-run")
    assert code == 0
    assert f"-m pip uninstall -y {before[0].name}\n" in shown
    code, again, error = mxkit(other)
    assert (code, again) == (2, shown)
    assert "nothing was run" in error
    assert mxkit("--cpu", "--cuda")[0] == 2
    assert installing.installed_wheels() == before
    code, shown, _ = mxkit(here)
    assert code == 0
    assert "there is nothing to run" in shown


@pytest.mark.parametrize(("gpus", "seen"), [(0, "0 GPUs"), (1, "1 GPU")])
def test_what_was_installed_is_tried(monkeypatch, gpus, seen):
    answer = {"error": "", "text": "", "version": "1.9.1", "gpus": gpus}
    monkeypatch.setattr(installing, "probe", lambda names: Probe({"mxnet": answer}, ""))
    assert installing.verify() == f"MXNet 1.9.1 imports and computes; it sees {seen}"
    answer.update(error="OSError", text="libgomp.so.1: cannot open")
    with pytest.raises(MXNetImportError, match="does not import: OSError: libgomp.so.1: cannot open$"):
        installing.verify()
