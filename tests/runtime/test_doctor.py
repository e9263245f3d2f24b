"""The report of what MXNet finds here."""

import sys

import mxkit  # noqa: F401 - before mxnet
from mxkit.runtime import doctor
import mxnet as mx
import numpy as np


def lines(report, title):
    (section,) = (section for section in report.sections if section.title == title)
    return {line.name: line for line in section.lines}


def test_it_says_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("MXNET_HOME", str(tmp_path))
    monkeypatch.setenv("A_SECRET", "hidden")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "net.params").write_bytes(b"0" * 1_500_000)
    report = doctor.report()
    assert report.problems == ()
    python, mxnet = lines(report, "Python"), lines(report, "MXNet")
    assert python["version"].value == sys.version.split()[0]
    assert python["executable"].value == sys.executable
    assert python["numpy"].value == np.__version__
    assert mxnet["version"].value == mx.__version__ == "1.9.1"
    assert mxnet["library"].value == mx.libinfo.find_lib_path()[0]
    assert mxnet["distribution"].value.startswith("mxnet")
    assert "OPENMP" in mxnet["features"].value
    devices = lines(report, "Devices")
    assert devices["gpus"].value == str(mx.context.num_gpus())
    assert "OMP_NUM_THREADS=2" in devices["processors"].value
    environment = lines(report, "Environment")
    assert environment["MXNET_HOME"].value == str(tmp_path)
    assert "A_SECRET" not in environment
    assert lines(report, "Caches")["mxnet models"].value == f"{tmp_path / 'models'} (1 files, 1.5 MB)"
    assert "gluoncv models" in lines(report, "Caches")
    packages = lines(report, "Optional packages")
    assert packages["cv2"].value[0].isdigit() or "missing" in packages["cv2"].value


def test_its_text_is_aligned_and_ends_with_what_to_type():
    report = doctor.Report(
        (
            doctor.Section("One", (doctor.Line("a", "fine"), doctor.Line("longer", "first\nsecond"))),
            doctor.Section("Two", (doctor.Line("b", "bad", "problem", "type this\nand that"),)),
            doctor.Section("Three", (doctor.Line("c", "odd", "warning", "look there"),)),
        )
    )
    assert doctor.render(report).splitlines() == [
        "One",
        "    a       fine",
        "    longer  first",
        "            second",
        "",
        "Two",
        "X   b       bad",
        "",
        "Three",
        "!   c       odd",
        "",
        "problem: b: bad",
        "    type this",
        "    and that",
        "warning: c: odd",
        "    look there",
        "1 problem(s), 1 warning(s)",
    ]
    assert [line.name for line in report.problems] == ["b"]


def test_without_mxnet_it_says_what_to_type(bare_python, tmp_path):
    (tmp_path / "mxkit").write_text("from mxkit.runtime import doctor; print(doctor.render(doctor.report()))")
    done = bare_python(tmp_path / "mxkit")
    assert done.returncode == 0, done.stderr
    assert "problem: import: refused by mxkit\n    MXNet is not installed for" in done.stdout
    assert "problem: numpy: ModuleNotFoundError" in done.stdout
    assert done.stdout.endswith("2 problem(s), 0 warning(s)\n")


def test_with_a_library_that_does_not_load_it_says_why(bare_python, tmp_path):
    site = tmp_path / "site"
    (site / "mxnet").mkdir(parents=True)
    (site / "mxnet" / "__init__.py").write_text("import ctypes; ctypes.CDLL('libcudart.so.11.0.of.no.machine')")
    (site / "mxnet" / "libmxnet.so").write_bytes(b"library")
    (site / "mxnet_cu112-1.9.1.dist-info").mkdir()
    (tmp_path / "mxkit").write_text("from mxkit.runtime import doctor; print(doctor.render(doctor.report()))")
    done = bare_python(tmp_path / "mxkit", site=site)
    assert done.returncode == 0, done.stderr
    assert "problem: import: OSError: libcudart.so.11.0.of.no.machine: cannot open shared object file" in done.stdout
    assert f"mxnet-cu112 1.9.1 in {site}" in done.stdout
    assert "LD_LIBRARY_PATH" in done.stdout
