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


def test_linux_is_asked_if_the_environment_wants_amx(machine):
    asked = []
    ask = lambda: asked.append(1) or True  # noqa: E731
    root = machine("avx512_bf16 amx_bf16 amx_tile amx_int8")
    assert has_tiles(root)
    prepare_tiles({}, root, ask)
    prepare_tiles({"DNNL_MAX_CPU_ISA": "AVX2"}, root, ask)
    assert asked == []
    environment = {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}
    prepare_tiles(environment, root, ask)
    assert asked == [1]
    assert environment == {"DNNL_MAX_CPU_ISA": "AVX512_CORE_AMX"}
    prepare_tiles(environment, machine("avx512_bf16"), ask)  # oneDNN looks itself
    assert asked == [1]


def test_without_linux_onednn_stays_below_amx(machine):
    environment = {"DNNL_MAX_CPU_ISA": "avx512_core_amx"}
    with pytest.warns(TrapWarning, match=r"Linux refuses AMX, which needs Linux 5\.16"):
        prepare_tiles(environment, machine("amx_bf16 amx_tile amx_int8"), lambda: False)
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
