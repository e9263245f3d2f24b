"""The library that stands in for the NVIDIA driver: what it answers, and when it is taken (T82)."""

import ctypes
from pathlib import Path
import struct
import sys

from fake_cuda import fakes_nvidia, library, mxnet_wheel, needs_compiler, needs_no_driver, refusal
from mxkit.errors import MXNetImportError
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


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "written.so"
    # Not the driver's own name: it would stay loaded in the process of the tests.
    path.write_bytes(cuda_libraries.shared_object("libnodriver.so.1", [*FUNCTIONS, "cuGetErrorName", "cuInit"]))
    return path


def test_every_function_answers_that_there_is_no_device(written):
    loaded = ctypes.CDLL(str(written))
    for name in [*FUNCTIONS, "cuInit"]:
        if name != "cuGetErrorString":
            assert getattr(loaded, name)(0, 0, 0) == 100
    for name in ("cuGetErrorString", "cuGetErrorName"):
        text = ctypes.c_char_p()
        assert getattr(loaded, name)(100, ctypes.byref(text)) == 0
        assert text.value.startswith(b"no NVIDIA driver on this machine")
    with pytest.raises(AttributeError):
        loaded.cuOther  # noqa: B018
    assert needs(written) == ((), ())


def test_no_memory_is_both_written_and_run(written):
    data = written.read_bytes()
    kinds = dict(struct.unpack_from("<II", data, 64 + 56 * number) for number in range(4))
    assert kinds[0x6474E551] == 6, "the stack is read and written"
    assert 7 not in [struct.unpack_from("<I", data, 68 + 56 * number)[0] for number in range(4)]


def test_any_number_of_functions(tmp_path):
    for count in (1, 2, 300):
        names = [f"cuFunction{number}" for number in range(count)]
        path = tmp_path / f"many{count}.so"
        path.write_bytes(cuda_libraries.shared_object(f"libmany{count}.so.1", names))
        loaded = ctypes.CDLL(str(path))
        assert [getattr(loaded, name)() for name in names] == [100] * count


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
    expected = f"MXNet is loaded\nin use: False\nlibcuda.so.1|{driver}|LD_LIBRARY_PATH|\n999\n"
    assert done.stdout == expected, done.stderr


@fakes_nvidia
def test_a_driver_where_the_linker_does_not_look(tmp_path, monkeypatch):
    driver = library(
        tmp_path / "wsl" / "libcuda.so.1", "libcuda_of_windows.so.1", code="int cuInit(int x) { return 7; }"
    )
    monkeypatch.setattr(cuda_libraries, "DRIVER_FOLDERS", ("/not/there", str(driver.parent)))
    assert cuda_libraries.provide_driver(Path("unused")).cuInit(0) == 7
    assert not cuda_libraries.in_use()


@fakes_nvidia
@pytest.mark.parametrize("size", [100, 4000])
def test_a_damaged_driver_is_told(bare_python, site, tmp_path, size):
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], ASK)
    driver = library(tmp_path / "driver" / "libcuda.so.1", "libcuda.so.1", ["libdxcore.so"])
    if size < 4000:
        driver.write_bytes(driver.read_bytes()[:size])
    done = bare_python("-c", SHOW, site=site, LD_LIBRARY_PATH=str(driver.parent))
    said = refusal(done)
    assert said.startswith("libcuda.so.1, the library of the NVIDIA driver, is there but does not load:")
    assert "Install the driver again: `nvidia-smi` must list the GPUs" in said


@fakes_nvidia
def test_nowhere_to_write(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", ["libcuda.so.1"], ASK)
    # Every file of this process is full from the first byte on.
    full = "import resource, sys; sys.dont_write_bytecode = True; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    done = bare_python("-c", full + SHOW, site=site, TMPDIR=str(tmp_path))
    said = refusal(done)
    assert said.startswith("mxnet-cu112 1.9.1 is built for NVIDIA GPUs and needs libcuda.so.1 of the NVIDIA driver.")
    assert "the temporary folder takes no stand-in for it ([Errno" in said
    assert "name another one in TMPDIR" in said
    assert said.endswith("    pip uninstall -y mxnet-cu112 && pip install --no-deps mxnet==1.9.1\n")


@needs_no_driver
def test_other_processors_than_those_of_the_wheels(monkeypatch):
    monkeypatch.setattr(cuda_libraries.platform, "machine", lambda: "aarch64")
    with pytest.raises(MXNetImportError, match="mxkit has no stand-in for it on aarch64\nInstall a driver or"):
        cuda_libraries.provide_driver(Path("/nowhere/libmxnet.so"))
