"""The report of what MXNet finds here, on this machine and on given ones."""

import json
from pathlib import Path
import re
import sys

import mxkit
from mxkit.runtime import doctor
from mxkit.runtime.doctor.hardware import accelerator_lines
from mxkit.runtime.doctor.probes import probe
from mxkit.runtime.gpus import Driver, Gpu
import mxnet as mx
import numpy as np
import pytest
from sharing import long

SECTIONS = ["python", "mxnet", "machine", "gpu", "variables", "packages", "caches"]


def lines(report, key):
    (section,) = (section for section in report.sections if section.key == key)
    return {line.name: line for line in section.lines}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def report(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OMP_DYNAMIC", "perhaps")
        patch.setenv("DMLC_ROLE", "scheduler")  # import mxnet would wait for its workers
        patch.setenv("MXNET_HOME", str(home))
        patch.setenv("A_SECRET", "hidden")
        return doctor.report()


def test_it_says_what_is_there(report):
    assert report.problems == ()
    assert [section.key for section in report.sections] == SECTIONS
    python, mxnet, machine = (lines(report, key) for key in ["python", "mxnet", "machine"])
    assert python["version"].value == sys.version.split()[0]
    assert python["executable"].value == sys.executable
    assert python["numpy"].value == np.__version__
    assert mxnet["version"].value == mx.__version__ == "1.9.1"
    assert mxnet["library"].value == mx.libinfo.find_lib_path()[0]
    assert mxnet["distribution"].data["name"].startswith("mxnet")
    assert re.match(r"\d+\.\d+\.\d+", mxnet["oneDNN"].data["version"])
    assert mxnet["oneDNN"].value.endswith(f", {mxnet['oneDNN'].data['isa']}")
    assert set(mxnet["features"].data["on"]) == {n for n, f in mx.runtime.Features().items() if f.enabled}
    assert machine["memory"].data["total"] > machine["memory"].data["available"] > 0
    assert lines(report, "gpu")["mx.context"].data == {"gpus": mx.context.num_gpus()}
    packages = lines(report, "packages")
    assert packages["gluoncv"].value.startswith("0.10.5")
    assert packages["cv2"].value[0].isdigit()


def test_the_page_has_every_key_of_its_data(report):
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert {key for line in report.lines for key in line.data or {}} <= set(re.findall(r"`(\w+)`", page))


def test_variables_are_judged(report, home):
    variables = lines(report, "variables")
    assert variables["MXNET_HOME"].value == str(home)
    assert "A_SECRET" not in variables
    assert (variables["OMP_DYNAMIC"].status, variables["OMP_NUM_THREADS"].status) == ("warning", "ok")
    assert "unset OMP_DYNAMIC" in variables["OMP_DYNAMIC"].fix
    assert "never returns" in variables["DMLC_ROLE"].fix
    assert lines(report, "machine")["threads"].value.startswith("MXNet takes 1, with OMP_NUM_THREADS=1, yours; ")
    (disk,) = lines(report, "caches").values()
    assert disk.value.endswith(f" GB for {home}")
    assert disk.data["free"] > 0


def test_the_json_holds_the_same(report):
    read = json.loads(doctor.to_json(report))
    counts = {"problems": 0, "warnings": len(report.warnings)}
    assert read == {"format": 1, "mxkit": mxkit.__version__, **counts, "sections": read["sections"]}
    assert list(read["sections"]) == SECTIONS
    flat = [line for section in read["sections"].values() for line in section]
    assert flat == json.loads(json.dumps([{**vars(line), "data": line.data or {}} for line in report.lines]))


def test_its_text_is_aligned_and_ends_with_what_to_type():
    report = doctor.Report(
        (
            doctor.Section("one", "One", (doctor.Line("a", "fine"), doctor.Line("longer", "first\nsecond"))),
            doctor.Section("two", "Two", (doctor.Line("c", "odd", "warning", "look there"),)),
            doctor.Section("three", "Three", (doctor.Line("b", "bad", "problem", "type this\nand that"),)),
        )
    )
    assert doctor.render(report).splitlines() == [
        "One",
        "    a       fine",
        "    longer  first",
        "            second",
        "",
        "Two",
        "!   c       odd",
        "",
        "Three",
        "X   b       bad",
        "",
        "problem: b: bad",
        "    type this",
        "    and that",
        "warning: c: odd",
        "    look there",
        "1 problem, 1 warning",
    ]
    assert [line.name for line in report.problems] == ["b"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OMP_NUM_THREADS", "abc", "SIGABRT: the import ended the process"),
        long("OMP_NUM_THREADS", "2,1", "SIGABRT: the import ended the process"),
        long("MXNET_ENGINE_TYPE", "Naive", "Cannot find Engine Naive"),  # an MXNetError, or SIGABRT with Python 3.9
    ],
)
def test_variables_that_end_mxnet_do_not_end_the_doctor(monkeypatch, name, value, said):
    from mxkit.runtime.doctor.software import build_lines, variable_lines

    monkeypatch.setenv(name, value)
    found = probe(["mxnet", "tqdm"])
    failure = build_lines(found.answers["mxnet"], found.noise)[-1]
    assert (failure.name, failure.status) == ("import", "problem")
    assert said in failure.value
    assert f"unset {name}" in failure.fix
    assert found.answers["tqdm"]["error"] == "", "what comes after it is imported all the same"
    (variable,) = [line for line in variable_lines(found.noise) if line.name == name]
    assert variable.status == ("problem" if name == "OMP_NUM_THREADS" else "ok")


def test_modules_that_crash_hang_or_write_are_told(monkeypatch, tmp_path):
    (tmp_path / "crashing.py").write_text("import os; os.kill(os.getpid(), 11)")
    (tmp_path / "leaving.py").write_text("import sys; print('bye', file=sys.stderr); sys.exit('no')")
    (tmp_path / "talking.py").write_text("import os; os.write(1, b'{noise}\\n'); __version__ = '7'")
    (tmp_path / "sleeping.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    answers = probe(["talking", "crashing", "sleeping", "leaving"], seconds=2).answers
    assert (answers["talking"]["error"], answers["talking"]["version"]) == ("", "7")
    assert answers["crashing"]["error"] == "SIGSEGV"
    assert answers["sleeping"]["text"] == "the import did not end within 2 s"
    assert (answers["leaving"]["error"], answers["leaving"]["text"]) == ("SystemExit", "no")


H200 = Gpu(0, "NVIDIA H200", (9, 0), 140 * 2**30, "GPU-1")
A100 = Gpu(1, "NVIDIA A100", (8, 0), 80 * 2**30, "GPU-2")
BOTH, ONE = Driver((12, 4), (H200, A100)), Driver((12, 4), (A100,))
NO_DRIVER = Driver(problem="no NVIDIA driver: libcuda.so.1 was not found. Install it")
ERROR = 'Traceback (most recent call last):\n  File "base.h", line 1\nCUDA: Check failed: e == cudaSuccess\n'
STAND_IN = "a stand-in without GPUs lets MXNet compute on the CPU"
# Driver, whether the kernels are Apache's (None without MXNet), what MXNet says; name, status, value and fix of a line.
GPU_LINES = [
    (BOTH, True, {}, "kernels", "ok", "sm_50, sm_60, sm_70, sm_80, sm_86, and no PTX, which newer", ""),
    (BOTH, True, {}, "driver", "ok", "CUDA 12.4", ""),
    (BOTH, True, {}, "gpu 0", "warning", "NVIDIA H200 (sm_90, 140 GiB): MXNet has no kernels", "sm_80, sm_86. Use"),
    (BOTH, True, {}, "gpu 1", "ok", "NVIDIA A100 (sm_80, 80 GiB): MXNet has kernels for it", ""),
    (BOTH, True, {}, "exact", "ok", "off: bits differ from run to run, float32 products have 10 bits of digits", ""),
    (BOTH, None, {}, "gpu 1", "warning", "this MXNet is built for the CPU", "mxkit install --cuda"),
    (BOTH, False, {}, "gpu 1", "warning", "this MXNet is built for the CPU", "mxkit install --cuda"),
    (BOTH, False, {}, "gpu 0", "warning", "MXNet's wheel for GPUs would have no kernels for it", "built from source"),
    (BOTH, False, {"features": ["CUDA"]}, "gpu 0", "ok", "MXNet was built from source", ""),
    (BOTH, False, {"features": ["CUDA"]}, "kernels", "ok", "not known: this MXNet is not Apache's wheel", ""),
    (ONE, True, {"gpus_error": ERROR}, "mx.context", "warning", "CUDA: Check failed: e == cudaSuccess", "nvidia-smi"),
    (BOTH, True, {"gpus": 1}, "mx.context", "warning", "1 GPUs, while the driver has 2", "CUDA libraries below"),
    (BOTH, True, {"gpus": 2}, "mx.context", "ok", "2 GPUs", ""),
    (NO_DRIVER, False, {}, "driver", "ok", "no NVIDIA driver: libcuda.so.1 was not found", ""),
    (NO_DRIVER, True, {"stand_in": True, "gpus": 0}, "driver", "warning", STAND_IN, "mxkit install --cpu"),
]


@pytest.mark.parametrize(("driver", "is_known", "mxnet", "name", "status", "value", "fix"), GPU_LINES)
def test_lines_about_gpus(monkeypatch, driver, is_known, mxnet, name, status, value, fix):
    monkeypatch.delenv("MXKIT_EXACT", raising=False)
    found = {line.name: line for line in accelerator_lines(driver, is_known, mxnet)}
    line = found[name]
    assert (line.status, value in line.value, fix in line.fix) == (status, True, True)
    assert "\n" not in line.value
    assert ("exact" in found) == bool((is_known or "features" in mxnet) and driver.gpus)
    if name.startswith("gpu"):
        assert line.data["usable"] == (status == "ok")


def test_cuda_libraries_are_listed_with_their_providers():
    rows = [
        ("libcudart.so.11.0", "/x/libcudart.so.11.0", "nvidia-cuda-runtime-cu11 11.8.89", ""),
        ("libnccl.so.2", "/y/libnccl.so.2", "system", "made for CUDA 12"),
        ("libcudnn.so.8", "", "", "not found"),
        ("libcuda.so.1", "", "mxkit's stand-in", ""),
    ]
    found = accelerator_lines(ONE, True, {"cuda_libraries": rows})
    assert [(line.name, line.value, line.status, line.fix) for line in found if line.name.startswith("lib")] == [
        ("libcudart.so.11.0", "/x/libcudart.so.11.0 (nvidia-cuda-runtime-cu11 11.8.89)", "ok", ""),
        ("libnccl.so.2", "/y/libnccl.so.2 (system)", "warning", "made for CUDA 12"),
        ("libcudnn.so.8", "not found", "problem", "mxkit install --cuda"),
        ("libcuda.so.1", "mxkit's stand-in", "ok", ""),
    ]


def test_a_broken_package_is_told_with_what_mends_it(monkeypatch, tmp_path):
    from mxkit.runtime.doctor.software import package_lines

    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    (tmp_path / "pydantic.py").write_text("raise ImportError('pydantic_core is of another version')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    answers = {"mxnet": {"error": "ImportError"}, **probe(["cv2", "pydantic"]).answers}
    found = {line.name: line for line in package_lines(answers)}
    assert found["cv2"].status == "warning"
    assert "apt-get install libgl1" in found["cv2"].fix
    assert "opencv-python-headless" in found["cv2"].fix
    fix = "python -m pip install --force-reinstall pydantic"
    assert (found["pydantic"].status, found["pydantic"].fix) == ("problem", fix)
    assert found["gluoncv"].value.endswith("not tried without MXNet")


def test_libraries_are_told_with_the_versions_that_they_need():
    from mxkit.runtime.doctor.software import library_lines

    def lines(enabled="", **versions):
        installed = {"mxboard": "0.1.0", "gluonts": "0.13.2", "pandas": "2.1.4", "pydantic": "2.5"}
        return {
            line.name: (line.value, line.status, line.fix)
            for line in library_lines(lambda name: {**installed, **versions}.get(name, ""), enabled)
        }

    fix = "python -m pip install 'protobuf<4'"
    assert lines(protobuf="7.36.2")["mxboard"] == ("0.1.0; needs protobuf<4, here 7.36.2", "warning", fix)
    assert lines()["mxboard"] == ("0.1.0; needs protobuf<4, here missing", "warning", fix)
    run = "0.1.0; run its programs with mxkit run --old-numpy=mxboard"
    assert lines(protobuf="3.20.3")["mxboard"] == (run, "ok", "")
    assert lines("dgl,mxboard", protobuf="3.20.3")["mxboard"] == ("0.1.0", "ok", "")
    assert lines()["gluonts"][0] == "0.13.2; needs pydantic<2, here 2.5"
    assert set(lines()) == {"gluonts", "mxboard"}


def test_the_module_runs_with_the_standard_library_alone(bare_python, site):
    # a package that has the name of one of the doctor's files is not hidden by it
    (site / "probes.py").write_text("__version__ = '1'")
    (site / "tqdm.py").write_text("import probes; __version__ = probes.__version__")
    done = bare_python("-m", "mxkit.runtime.doctor", site=site)
    assert [line.split() for line in done.stdout.splitlines() if " tqdm " in line][0] == ["tqdm", "1"]
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert "problem: import: MXNet is not installed for" in done.stdout
    assert "    mxkit install\n" in done.stdout
    assert "problem: numpy: ModuleNotFoundError" in done.stdout
    assert "problem: typer: missing" in done.stdout


def test_with_a_library_that_does_not_load_it_says_why(bare_python, site):
    (site / "mxnet").mkdir()
    (site / "mxnet" / "__init__.py").write_text("import ctypes; ctypes.CDLL('libcudart.so.11.0.of.no.machine')")
    (site / "mxnet" / "libmxnet.so").write_bytes(b"library")
    (site / "mxnet_cu112-1.9.1.dist-info").mkdir()
    read = json.loads(bare_python("-m", "mxkit.runtime.doctor", "--json", site=site).stdout)
    assert list(read["sections"]) == SECTIONS
    assert read["problems"] >= 3
    found = {line["name"]: line for line in read["sections"]["mxnet"]}
    assert found["import"]["value"].startswith("OSError: libcudart.so.11.0.of.no.machine: cannot open shared object")
    assert found["import"]["status"] == "problem"
    assert found["distribution"]["value"] == f"mxnet-cu112 1.9.1 in {site}"
