"""Where the libraries of an MXNet for CUDA come from, and what is said when they come from the wrong place (T81)."""

from pathlib import Path
import sys

from fake_cuda import (
    NEEDED,
    SONAMES,
    fakes_nvidia,
    library,
    mxnet_wheel,
    needs_compiler,
    nvidia_wheel,
    nvidia_wheels,
    real_mxnet_for_cuda,
    refusal,
)
from mxkit.runtime.cuda_libraries import (
    REQUIREMENTS,
    CudaLibrary,
    libraries,
    needs,
    needs_cuda,
    repair_command,
    requirements,
    symbol_names,
)
from mxnet import libinfo
import pytest

WANTED = {soname: REQUIREMENTS[soname] for soname in [*SONAMES, "libcublasLt.so.11"]}

SHOW = """
import sys
import mxkit, mxnet
from mxkit.runtime.cuda_libraries import libraries
for library in libraries():
    print(*library, sep="|")
"""


def shown(done):
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines() if "|" in line]
    return {soname: CudaLibrary(soname, path, provider, problem) for soname, path, provider, problem in lines}


def test_the_cpu_wheel_needs_nothing():
    path = Path(libinfo.find_lib_path()[0])
    assert not needs_cuda(path)
    assert libraries() == ()
    assert "libc.so.6" in needs(path).libraries


@needs_compiler
def test_what_a_library_needs_is_read_from_its_headers(tmp_path):
    code = "int cuFoo(void); int bar(void); int own(void) { return cuFoo() + bar(); }"
    flags = ["-Wl,-rpath,$ORIGIN/../lib:/opt/y"]
    path = library(tmp_path / "libx.so", "libx.so.1", ["libcudart.so.11.0", "liby.so"], code, flags)
    assert needs(path).libraries == ("libcudart.so.11.0", "liby.so")
    assert needs(path).folders == (tmp_path / "../lib", Path("/opt/y"))
    assert {"cuFoo", "bar"} <= set(symbol_names(path))
    assert needs_cuda(path)


@needs_compiler
def test_files_that_are_no_library_are_an_error_and_not_a_crash(tmp_path):
    whole = library(
        tmp_path / "libx.so", "libx.so.1", ["libcudart.so.11.0"], "int cuFoo(void); int a(void) { return cuFoo(); }"
    )
    data, cut = whole.read_bytes(), tmp_path / "cut.so"
    for size in [*range(200), *range(200, len(data), 97)]:
        cut.write_bytes(data[:size])
        try:
            found = needs(cut)
        except ValueError:
            assert not needs_cuda(cut)
        else:  # what is missing are the sections' names, which are not loaded
            assert found.libraries == ("libcudart.so.11.0",)
            assert "cuFoo" in symbol_names(cut)
    cut.write_bytes(data[:100])
    with pytest.raises(ValueError, match=r"cut\.so is cut off or damaged"):
        needs(cut)
    cut.write_bytes(b"no library" * 20)
    with pytest.raises(ValueError, match="no 64-bit little-endian ELF file"):
        needs(cut)
    assert not needs_cuda(tmp_path / "is not there.so")


SPAWNED = """
import multiprocessing
from mxkit.runtime.cuda_libraries import in_use

class Data(mxnet.gluon.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        assert in_use()
        return mxnet.nd.ones(2) * index

if __name__ == "__main__":
    assert mxnet.context.num_gpus() == 0
    multiprocessing.set_start_method("spawn")
    loader = mxnet.gluon.data.DataLoader(Data(), batch_size=6, num_workers=1, timeout=300)
    assert [float(batch.sum().asscalar()) for batch in loader] == [30]
"""


@fakes_nvidia
def test_the_real_mxnet_and_its_workers_compute_with_nvidias_wheels(run_python, site, tmp_path, monkeypatch):
    nvidia_wheels(site, WANTED)
    monkeypatch.setenv("MXNET_LIBRARY_PATH", str(real_mxnet_for_cuda(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = run_python(SHOW + SPAWNED)
    found = shown(done)
    assert list(found)[0] == "libcudart.so.11.0"
    assert list(found)[-1] == "libcuda.so.1"
    assert found["libcuda.so.1"].provider == "mxkit's stand-in"
    for soname, requirement in WANTED.items():
        assert found[soname].provider == requirement.replace("==", " ")
        assert Path(found[soname].path).parent.parent.parent == site / "nvidia"
        assert not found[soname].problem
        for before in NEEDED.get(soname, ()):
            assert list(found).index(before) < list(found).index(soname)
    assert "Warning" not in done.stderr


@fakes_nvidia
def test_who_wins(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"], flags=["-Wl,-rpath,$ORIGIN"])
    nvidia_wheels(site, WANTED)
    own = library(site / "mxnet" / "libcufft.so.10", "libcufft.so.10")
    mine = library(tmp_path / "mine" / "libnccl.so.2", "libnccl.so.2")
    first = library(tmp_path / "first" / "libcudnn.so.8", "libcudnn.so.8")
    code = f"import ctypes; ctypes.CDLL({str(first)!r})\n" + SHOW
    found = shown(bare_python("-c", code, site=site, LD_LIBRARY_PATH=str(mine.parent)))
    assert found["libcudart.so.11.0"].provider == "nvidia-cuda-runtime-cu11 11.8.89"
    assert found["libcufft.so.10"] == ("libcufft.so.10", str(own), "mxnet", "")
    assert found["libnccl.so.2"] == ("libnccl.so.2", str(mine), "LD_LIBRARY_PATH", "")
    assert found["libcudnn.so.8"] == ("libcudnn.so.8", str(first), "system", "")


# The linker reads LD_LIBRARY_PATH once, when the process starts: what is deleted here is as a folder of the system.
AS_SYSTEM = "import os; del os.environ['LD_LIBRARY_PATH']\n"


@fakes_nvidia
def test_a_whole_cuda_11_of_the_system_wins(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, WANTED)
    system = tmp_path / "cuda-11.2" / "lib64"
    paths = [library(system / soname, soname) for soname in ("libcudart.so.11.0", "libcurand.so.10")]
    found = shown(bare_python("-c", AS_SYSTEM + SHOW, site=site, LD_LIBRARY_PATH=str(system)))
    for path in paths:
        assert found[path.name] == (path.name, str(path), "system", "")
    assert found["libcufft.so.10"].provider == "nvidia-cufft-cu11 10.9.0.58"


@fakes_nvidia
def test_another_cuda_of_the_system_does_not(bare_python, site, tmp_path):
    # libcurand.so.10 is the name in CUDA 11, 12 and 13
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, WANTED, without=["libnvToolsExt.so.1"])
    system = tmp_path / "cuda-12.4" / "lib64"
    for soname in ("libcudart.so.12", "libcurand.so.10", "libnvToolsExt.so.1"):
        library(system / soname, soname)
    done = bare_python("-c", AS_SYSTEM + SHOW, site=site, LD_LIBRARY_PATH=str(system))
    found = shown(done)
    assert found["libcurand.so.10"].provider == "nvidia-curand-cu11 10.3.0.86"
    other = system / "libnvToolsExt.so.1"
    assert found["libnvToolsExt.so.1"][1:3] == (str(other), "system")
    assert found["libnvToolsExt.so.1"].problem == f"{other} is of CUDA 12, and MXNet is built for CUDA 11"
    assert "TrapWarning: mxnet-cu112 1.9.1 gets libraries that were made for another version of CUDA" in done.stderr


@fakes_nvidia
def test_wheels_for_cuda_12_that_overwrote_those_for_11_are_told(bare_python, site):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, WANTED)
    path = nvidia_wheel(site, "nvidia-nccl-cu12==2.19.3", "libnccl.so.2", padding=5000)
    done = bare_python("-W", "always", "-c", SHOW, site=site)
    found = shown(done)["libnccl.so.2"]
    assert found.provider == "nvidia-nccl-cu12 2.19.3"
    assert found.problem == f"{path} was written by nvidia-nccl-cu12 2.19.3, for CUDA 12 instead of 11"
    assert found.problem in done.stderr
    assert "    pip install --force-reinstall --no-deps nvidia-nccl-cu11==2.21.5\n" in done.stderr
    assert "PyTorch" in done.stderr
    nvidia_wheel(site, "nvidia-nccl-cu11==2.21.5", "libnccl.so.2")
    done = bare_python("-W", "error", "-c", SHOW, site=site)
    assert shown(done)["libnccl.so.2"].provider == "nvidia-nccl-cu11 2.21.5"


@fakes_nvidia
def test_a_wheel_for_cuda_13_in_its_own_folder_comes_last(bare_python, site):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, WANTED, without=["libcurand.so.10"])
    other = library(site / "nvidia" / "cu13" / "lib" / "libcurand.so.10", "libcurand.so.10")
    information = site / "nvidia_curand-10.4.0.35.dist-info"
    information.mkdir()
    (information / "RECORD").write_text(f"nvidia/cu13/lib/libcurand.so.10,sha256=abc,{other.stat().st_size}\n")
    found = shown(bare_python("-c", SHOW, site=site))["libcurand.so.10"]
    assert found.provider == "nvidia-curand 10.4.0.35"
    assert found.problem.endswith("for CUDA 13 instead of 11")
    nvidia_wheel(site, WANTED["libcurand.so.10"], "libcurand.so.10")
    found = shown(bare_python("-W", "error", "-c", SHOW, site=site))["libcurand.so.10"]
    assert found.provider == "nvidia-curand-cu11 10.3.0.86"


@needs_compiler
@pytest.mark.parametrize("size", [0, 20000])
def test_a_library_that_is_cut_off_is_an_error_and_does_not_end_the_process(bare_python, site, size):
    # Loading it would: SIGBUS
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, WANTED, without=["libnccl.so.2"])
    path = nvidia_wheel(site, WANTED["libnccl.so.2"], "libnccl.so.2", padding=100000)
    path.write_bytes(path.read_bytes()[:size])
    said = refusal(bare_python("-c", SHOW, site=site))
    assert f"    libnccl.so.2: {path} is " in said
    assert "    pip install --force-reinstall --no-deps nvidia-nccl-cu11==2.21.5 " in said


@needs_compiler
def test_what_was_loaded_before_mxkit_is_listed_too(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", ["libcudart.so.11.0", "libcuda.so.1"])
    system = tmp_path / "system"
    for soname in ("libcudart.so.11.0", "libcuda.so.1"):
        library(system / soname, soname)
    found = shown(bare_python("-c", "import mxnet" + SHOW, site=site, LD_LIBRARY_PATH=str(system)))
    assert [(library.soname, library.provider) for library in found.values()] == [
        ("libcudart.so.11.0", "LD_LIBRARY_PATH"),
        ("libcuda.so.1", "LD_LIBRARY_PATH"),
    ]


def test_the_command_that_repairs():
    fine = CudaLibrary("libcudnn.so.8", "/x/libcudnn.so.8", "system", "")
    missing = CudaLibrary("libnccl.so.2", "", "", "not found")
    unknown = CudaLibrary("libcudart.so.12", "", "", "not found")
    assert repair_command([fine, unknown]) == ""
    command = "pip install --force-reinstall --no-deps nvidia-nccl-cu11==2.21.5"
    assert repair_command([fine, missing, unknown]) == command


@pytest.mark.parametrize("extra", ["cu112", "cu117"])
def test_the_extras_bring_what_is_loaded(extra):
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = toml.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    opencv = "opencv-python<4.12; python_version >= '3.9' and python_version < '3.13'"
    expected = [f"mxnet-{extra}==1.9.1; python_version < '3.13'", opencv, *requirements(f"mxnet-{extra}")]
    assert sorted(extras[extra]) == sorted(expected)
    assert set(requirements("mxnet-cu112")) == set(WANTED.values())
