"""The library that stands in for the NVIDIA driver: what it answers, and when it is taken (T82)."""

import ctypes
from pathlib import Path
import struct
import sys

from fake_cuda import fakes_nvidia, library, mxnet_wheel, needs_compiler
from mxkit.runtime import cuda_libraries
from mxkit.runtime.cuda_libraries import needs
import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="MXNet for CUDA is for Linux here")

# T82: what mxnet-cu112 and mxnet-cu117 ask of the driver.
FUNCTIONS = [
    *("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuGetErrorString", "cuGraphKernelNodeGetParams"),
    *("cuGraphNodeGetType", "cuLaunchKernel", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleLoadDataEx"),
    "cuModuleUnload",
]
CALLS = "".join(f"int {name}(void); void *use_{name} = (void *){name};\n" for name in FUNCTIONS)

SHOW = """
import ctypes
import mxkit, mxnet
from mxkit.runtime.cuda_libraries import libraries
from mxkit.runtime.cuda_libraries import in_use
print("in use:", in_use())
print(*libraries()[-1], sep="|")
print(mxnet.base._LIB.ask())
"""
ASK = "int cuInit(int); int ask(void) { return cuInit(0); }"


def written(folder, *functions):
    # Not the driver's own name: it would stay loaded in the process of the tests.
    path = folder / f"written{len(functions)}.so"
    path.write_bytes(cuda_libraries.shared_object(f"libnodriver{len(functions)}.so.1", functions))
    return path


def test_every_function_answers_that_there_is_no_device(tmp_path):
    path = written(tmp_path, *FUNCTIONS, "cuGetErrorName", "cuInit")
    loaded = ctypes.CDLL(str(path))
    for name in ("cuGetErrorString", "cuGetErrorName"):
        text = ctypes.c_char_p()
        assert getattr(loaded, name)(100, ctypes.byref(text)) == 0
        assert text.value.startswith(b"no NVIDIA driver on this machine")
    with pytest.raises(AttributeError):
        loaded.cuOther  # noqa: B018
    assert needs(path) == ((), ())
    for count in (1, 2, 300):
        names = [f"cuFunction{number}" for number in range(count)]
        loaded = ctypes.CDLL(str(written(tmp_path, *names)))
        assert [getattr(loaded, name)(0, 0, 0) for name in names] == [100] * count


def test_no_memory_is_both_written_and_run(tmp_path):
    data = written(tmp_path, *FUNCTIONS).read_bytes()
    kinds = dict(struct.unpack_from("<II", data, 64 + 56 * number) for number in range(4))
    assert kinds[0x6474E551] == 6, "the stack is read and written"
    assert 7 not in [struct.unpack_from("<I", data, 68 + 56 * number)[0] for number in range(4)]


@fakes_nvidia
def test_it_has_whatever_the_library_asks_for_and_leaves_no_file(bare_python, site, tmp_path):
    more = CALLS + ASK + "int cuOfTheFuture(void); void *future = (void *)cuOfTheFuture;"
    more += "int my_cuOfTheFuture(void) { return 0; }"  # the linker writes both names as one string
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], more)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    # What CUDA's runtime looks up by name.
    asked = (
        "print(*[getattr(ctypes.CDLL('libcuda.so.1'), name)() for name in ('cuDriverGetVersion', 'cuGetProcAddress')])"
    )
    done = bare_python("-c", SHOW + asked, site=site, TMPDIR=str(temporary))
    assert done.stdout == "MXNet is loaded\nin use: True\nlibcuda.so.1||mxkit's stand-in|\n100\n100 100\n", done.stderr
    assert list(temporary.iterdir()) == []


@fakes_nvidia
def test_a_second_try_does_not_take_it_for_a_driver(bare_python, site):
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1", "libopenblas.so.0"], ASK)
    code = """
import mxkit
from mxkit.runtime.cuda_libraries import libraries
for _ in range(2):
    try:
        import mxnet
    except ImportError:
        print(*libraries()[-1], sep="|")
"""
    done = bare_python("-c", code, site=site)
    assert done.stdout == "libcuda.so.1||mxkit's stand-in|\n" * 2, done.stderr


@needs_compiler
def test_a_driver_is_taken_though_it_fails(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], ASK)
    code = "int cuInit(int x) { return 999; }"
    driver = library(tmp_path / "driver" / "libcuda.so.1", "libcuda.so.1", code=code)
    done = bare_python("-c", SHOW, site=site, LD_LIBRARY_PATH=str(driver.parent))
    expected = f"MXNet is loaded\nin use: False\nlibcuda.so.1|{driver}|system|\n999\n"
    assert done.stdout == expected, done.stderr


@fakes_nvidia
def test_a_driver_where_the_linker_does_not_look(tmp_path, monkeypatch):
    driver = library(
        tmp_path / "wsl" / "libcuda.so.1", "libcuda_of_windows.so.1", code="int cuInit(int x) { return 7; }"
    )
    monkeypatch.setattr(cuda_libraries, "DRIVER_FOLDERS", ("/not/there", str(driver.parent)))
    assert cuda_libraries.provide_driver(Path("unused")).cuInit(0) == 7
    assert not cuda_libraries.in_use()
