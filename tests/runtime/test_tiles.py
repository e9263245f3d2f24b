"""What of the processor the libraries use: AMX, for which Linux is asked, and OpenBLAS's kernels."""

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

from mxkit.errors import TrapWarning
from mxkit.runtime import engine_settings
from mxkit.runtime.doctor.software import openblas_line
from mxkit.runtime.engine_settings import has_tiles, kernels_of, load_openblas, prepare_tiles
from mxkit.runtime.machine import processor_flags
from mxkit.runtime.wheels import package_spec
import numpy as np
import pytest


@pytest.fixture
def machine(tmp_path):
    def with_flags(flags):
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n")
        return tmp_path

    return with_flags


AMX = "avx512_bf16 amx_bf16 amx_tile amx_int8"


@pytest.mark.parametrize(
    ("flags", "before", "asked", "after"),
    [
        (AMX, {}, [], {}),
        (AMX, {"DNNL_MAX_CPU_ISA": "AVX2"}, [], {"DNNL_MAX_CPU_ISA": "AVX2"}),
        (AMX, {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}, [1], {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}),
        ("avx512_bf16", {"DNNL_MAX_CPU_ISA": "ALL"}, [], {"DNNL_MAX_CPU_ISA": "ALL"}),  # oneDNN looks itself
    ],
)
def test_linux_is_asked_if_the_environment_wants_amx(machine, flags, before, asked, after):
    found = []
    assert has_tiles(machine(flags)) == (flags == AMX)
    prepare_tiles(before, machine(flags), lambda: found.append(1) or True)
    assert (found, before) == (asked, after)


def test_without_linux_onednn_stays_below_amx(machine):
    environment = {"DNNL_MAX_CPU_ISA": "avx512_core_amx"}
    with pytest.warns(TrapWarning, match=r"Linux refuses AMX, which needs Linux 5\.16"):
        prepare_tiles(environment, machine(AMX), lambda: False)
    assert environment == {"DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@pytest.mark.skipif(not has_tiles(), reason="this processor lacks AMX")
def test_int8_on_amx(tmp_path):
    code = """
import mxkit, mxnet as mx
net = mx.gluon.nn.Dense(64)
net.initialize()
x = mx.nd.random.uniform(shape=(64, 64))
net(x)
print(mxkit.optimize(net, x, precision="int8", calibration=[x], limit=0.5).report.measured.relative)
"""
    variables = {**os.environ, "DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}
    done = subprocess.run([sys.executable, "-c", code], env=variables, check=True, capture_output=True, text=True)
    assert float(done.stdout) < 0.1


BLAS = """
import json, os, sys
if "alone" in sys.argv:
    import pathlib
    from mxkit.runtime.engine_settings import kernels_of
    from mxkit.runtime.wheels import package_spec
    print(json.dumps([kernels_of(pathlib.Path(package_spec().origin)), os.environ.get("OPENBLAS_CORETYPE")]))
else:
    import mxkit, mxnet as mx
    from mxkit.runtime.engine_settings import kernels
    inherited = os.popen("echo $OPENBLAS_CORETYPE").read().strip()
    rows = mx.nd.random.uniform(shape=(65, 65))
    assert abs(mx.nd.dot(rows, rows).asnumpy() - rows.asnumpy() @ rows.asnumpy()).max() < 1e-4
    print(json.dumps([kernels(), os.environ.get("OPENBLAS_CORETYPE"), inherited]))
"""


def kernels_with(value, *arguments):
    variables = {**os.environ, "OPENBLAS_CORETYPE": value}
    command = [sys.executable, "-c", BLAS, *arguments]
    return json.loads(subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not processor_flags() >= {"avx2", "fma"}, reason="this processor lacks AVX2")
def test_openblas_takes_kernels_for_avx2_on_a_processor_that_it_does_not_know():
    # the name "" is one that OpenBLAS does not know, like a new processor's
    assert kernels_with("", "alone") == ["Prescott", ""]
    assert kernels_with("") == ["Haswell", "", ""]
    assert kernels_with("Nehalem") == ["Nehalem", "Nehalem", "Nehalem"]


ANOTHER = """
import mxkit, mxnet as mx
from mxkit.runtime.engine_settings import kernels
rows = mx.nd.random.uniform(shape=(65, 65))
assert abs(mx.nd.dot(rows, rows).asnumpy() - rows.asnumpy() @ rows.asnumpy()).max() < 1e-4
print(kernels(), *{line.split()[-1] for line in open("/proc/self/maps") if "/libopenblas.so.0" in line}, sep="\\n")
"""


def with_openblas(path):
    variables = {**os.environ, "OPENBLAS_CORETYPE": "Nehalem", "MXKIT_OPENBLAS": str(path)}
    return subprocess.run([sys.executable, "-c", ANOTHER], env=variables, capture_output=True, text=True)


def test_mxnet_computes_by_the_users_openblas(tmp_path):
    """T288."""
    for one in ("libopenblas.so.0", "libgfortran.so.3"):
        shutil.copy(Path(package_spec().origin).with_name(one), tmp_path)
    done = with_openblas(tmp_path / "libopenblas.so.0")
    assert done.stdout.split("\n")[:-1] == ["Nehalem of OpenBLAS 0.3.13", str(tmp_path / "libopenblas.so.0")]
    assert done.returncode == 0  # also of the interpreter's end


@pytest.mark.parametrize("file", ["missing.so", "libm.so.6"])
def test_another_library_is_no_openblas(file):
    """T288."""
    said = with_openblas(file).stderr
    assert f"MXNetImportError: MXKIT_OPENBLAS={file}: " in said
    assert "Expected the libopenblas.so.0 of an OpenBLAS with OpenMP" in said


@pytest.mark.parametrize(("flags", "expected"), [("avx2 fma", ["Haswell"]), ("avx fma", []), ("avx2", [])])
def test_kernels_are_chosen_by_what_the_processor_can_do(machine, monkeypatch, flags, expected):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "")
    monkeypatch.setattr(engine_settings, "kernels_of", lambda library: "Prescott")
    chosen, loaded = [], engine_settings.ctypes.CDLL

    def load(path, **options):
        if Path(path).is_absolute():
            chosen.append(os.environ["OPENBLAS_CORETYPE"])
        return loaded(path, **options)

    monkeypatch.setattr(engine_settings.ctypes, "CDLL", load)
    load_openblas(Path(package_spec().origin), machine(flags))
    assert chosen == expected
    assert os.environ["OPENBLAS_CORETYPE"] == ""


NUMPY = """
import ctypes, glob, os, sys
if "mxnet" in sys.argv:
    import mxkit, mxnet
import numpy
[path] = glob.glob(os.path.dirname(numpy.__file__) + ".libs/libscipy_openblas64*")
name = ctypes.CDLL(path).scipy_openblas_get_corename64_
name.restype = ctypes.c_char_p
print(name().decode())
"""


@pytest.mark.skipif(
    not list(Path(np.__file__).parent.parent.glob("numpy.libs/libscipy_openblas64*")), reason="of NumPy 2"
)
def test_numpy_keeps_its_kernels():
    """T288: MXNet imports NumPy while it is loaded."""
    said = [subprocess.check_output([sys.executable, "-c", NUMPY, word], text=True) for word in ("alone", "mxnet")]
    assert said[0] == said[1]


def test_another_build_of_mxnet_may_lack_openblas(tmp_path):
    assert kernels_of(tmp_path / "libmxnet.so") == ""


def test_the_doctor_judges_openblas():
    judged = [openblas_line(*one).status for one in (("Zen", 1e-7, {"avx2"}), ("Prescott", 1e-7, {"avx"}))]
    assert judged == ["ok", "ok"]
    assert openblas_line("Zen", float("nan"), {"avx2"}).status == "problem"
    assert "OPENBLAS_CORETYPE" in openblas_line("Nehalem", 1e-7, {"avx2"}).fix
