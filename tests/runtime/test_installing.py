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

SITE = Path("site-packages")
NONE = Driver(problem="no NVIDIA driver: libcuda.so.1 was not found. Install it")
H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 * 2**30, "")
T4 = Gpu(1, "Tesla T4", (7, 5), 15 * 2**30, "")
BARE = Machine((3, 11), (), False, "1.26.4", (), NONE)


def wheels(*names, version="1.9.1"):
    return tuple(Wheel(name, version, SITE) for name in names)


def commands(machine, kind=None):
    """The commands without those for NVIDIA's libraries, which depend on what is installed here."""
    found = plan(machine, kind).commands
    return [" ".join(one.arguments) for one in found if "nvidia-" not in one.arguments[1]]


def libraries_in(found):
    return [word for command in found.commands for word in command.arguments if word.startswith("nvidia-")]


def test_without_a_driver_it_is_the_cpu():
    assert commands(BARE) == commands(BARE._replace(numpy="")) == ["install mxnet==1.9.1"]
    assert plan(BARE).reason == "no NVIDIA driver: libcuda.so.1 was not found"


@pytest.mark.parametrize(("python", "numpy"), [((3, 13), ""), ((3, 11), "2.0.2"), ((3, 13), "2.5.5")])
def test_the_pin_of_numpy_is_stepped_around(python, numpy):
    machine = BARE._replace(python=python, numpy=numpy)
    assert commands(machine) == ["install --no-deps mxnet==1.9.1"]
    assert "numpy<2" in plan(machine).commands[-1].reason
    lacking = machine._replace(missing=("requests", "graphviz"))
    assert commands(lacking) == ["install requests graphviz", "install --no-deps mxnet==1.9.1"]


def test_a_gpu_that_can_run_gets_the_wheel_for_gpus_and_the_libraries():
    machine = BARE._replace(driver=Driver((12, 4), (H200, T4)))
    found = plan(machine)
    assert found.wheel == "mxnet-cu112==1.9.1"
    assert found.reason == "it has kernels for Tesla T4 (sm_75, 15 GiB)"
    absent = [one for one in requirements("mxnet-cu112") if not installing._has(one)]
    assert libraries_in(found) == absent
    assert commands(machine._replace(wheels=wheels("mxnet"))) == ["uninstall -y mxnet", "install mxnet-cu112==1.9.1"]
    assert "--no-deps" in commands(machine._replace(python=(3, 13)))[0]


def test_cusparse_is_fetched_only_for_the_wheel_that_asks_for_it(monkeypatch):
    monkeypatch.setattr(installing, "_has", lambda requirement: False)
    fetched = {}
    for name in ("mxnet-cu112", "mxnet-cu117"):
        fetched[name] = libraries_in(plan(BARE._replace(wheels=wheels(name)), "cuda"))
        assert fetched[name] == list(requirements(name))
    assert libraries_in(plan(BARE, "cuda")) == fetched["mxnet-cu112"]
    assert set(fetched["mxnet-cu117"]) - set(fetched["mxnet-cu112"]) == {"nvidia-cusparse-cu11==11.7.5.86"}


def test_a_gpu_too_new_for_the_kernels_gets_the_cpu_and_the_reason():
    machine = BARE._replace(driver=Driver((12, 4), (H200,)))
    found = plan(machine)
    assert found.wheel == "mxnet==1.9.1"
    assert found.reason.endswith("sm_80, sm_86, and here is NVIDIA H200 (sm_90, 140 GiB)")
    asked = plan(machine, "cuda")
    assert asked.reason == f"as asked for; mxnet fits this machine: {found.reason}"
    assert asked.wheel == "mxnet-cu112==1.9.1"


def test_a_driver_that_fails_gets_the_cpu():
    machine = BARE._replace(driver=Driver((10, 2), (), "the NVIDIA driver is too old: it knows CUDA 10.2. Update it"))
    assert plan(machine).wheel == "mxnet==1.9.1"
    assert "too old" in plan(machine).reason
    assert "too old" in plan(machine, "cuda").reason


@pytest.mark.parametrize(
    ("there", "kind"),
    [(["mxnet"], None), (["mxnet"], "cpu"), (["mxnet-mkl"], None), (["mxnet-cu112"], "cuda"), (["mxnet-cu117"], None)],
)
def test_what_fits_already_is_left(there, kind):
    machine = BARE._replace(wheels=wheels(*there))
    assert commands(machine, kind) == []
    assert plan(machine, kind).wheel == f"{there[0]}==1.9.1"


CPU = "mxnet==1.9.1"
REPLACED = [
    (BARE._replace(wheels=wheels("mxnet-cu112")), "cpu", ["uninstall -y mxnet-cu112", f"install {CPU}"]),
    (
        BARE._replace(wheels=wheels("mxnet", "mxnet-cu112"), numpy="2.2.6"), None,
        ["uninstall -y mxnet mxnet-cu112", f"install --no-deps {CPU}"],
    ),
    (BARE._replace(wheels=wheels("mxnet", version="1.6.0")), None, ["uninstall -y mxnet", f"install {CPU}"]),
    (BARE._replace(wheels=wheels("mxnet"), damaged=True), None, [f"install --force-reinstall --no-deps {CPU}"]),
    (BARE._replace(wheels=wheels("mxnet-cu112"), damaged=True), None, ["uninstall -y mxnet-cu112", f"install {CPU}"]),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "kind", "expected"), REPLACED, ids=["asked for", "two", "old", "damaged", "other"])
def test_what_does_not_fit_is_replaced(machine, kind, expected):
    assert commands(machine, kind) == expected


def test_a_plan_is_told_with_its_reasons():
    text = describe(plan(BARE._replace(wheels=wheels("mxnet", "mxnet-cu112"))))
    assert text.splitlines() == [
        "mxnet==1.9.1: no NVIDIA driver: libcuda.so.1 was not found",
        "    # all of them own the folder mxnet, and have overwritten each other's files",
        f"    {sys.executable} -m pip uninstall -y mxnet mxnet-cu112",
        "    # MXNet, with what it needs",
        f"    {sys.executable} -m pip install mxnet==1.9.1",
    ]
    assert describe(plan(BARE._replace(wheels=wheels("mxnet")))).endswith("there is nothing to run")


def test_where_pip_is_missing_uv_is_named(monkeypatch):
    monkeypatch.setattr(installing, "has_pip", lambda: False)
    assert (
        command_line(Command(("uninstall", "-y", "mxnet"), "")) == f"uv pip uninstall --python {sys.executable} mxnet"
    )
    text = describe(plan(BARE))
    assert "this Python has no pip: type these" in text
    assert f"    uv pip install --python {sys.executable} mxnet==1.9.1" in text


def test_a_command_that_fails_tells_what_is_left(capfd, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    left = [
        Command(("install", "no-such-package-of-mxkit"), ""),
        Command(("--version",), ""),
    ]
    with pytest.raises(MXNetImportError) as caught:
        run(left)
    assert str(caught.value).splitlines() == [
        "pip ended with exit code 1. What is left to run:",
        f"    {sys.executable} -m pip install no-such-package-of-mxkit",
        f"    {command_line(left[1])}",
    ]
    assert "no-such-package-of-mxkit" in capfd.readouterr().err


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
