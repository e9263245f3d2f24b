"""AMX: Linux is asked before oneDNN uses it, and only if the environment wants it."""

import os

from mxkit.errors import TrapWarning
from mxkit.runtime.engine_settings import has_tiles, prepare_tiles
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
    import subprocess
    import sys

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
