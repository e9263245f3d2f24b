"""Where the libraries of an MXNet for CUDA come from, and what is said when they come from the wrong place (T81)."""

from pathlib import Path
import sys

from fake_cuda import (
    NEEDED,
    SONAMES,
    WANTED,
    fakes_nvidia,
    library,
    mxnet_wheel,
    needs_compiler,
    nvidia_wheel,
    nvidia_wheels,
    real_mxnet_for_cuda,
)
from mxkit.runtime.cuda_libraries import CudaLibrary, libraries, needs, requirements, symbol_names
from mxnet import libinfo
import pytest

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
            continue
        else:  # what is missing are the sections' names, which are not loaded
            assert found.libraries == ("libcudart.so.11.0",)
            assert "cuFoo" in symbol_names(cut)
    for damaged in (data[:100], b"no library" * 20, b""):
        cut.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cut\.so is cut off or no library"):
            needs(cut)


@fakes_nvidia
def test_the_real_mxnet_computes_with_nvidias_wheels(run_python, site, tmp_path, monkeypatch):
    nvidia_wheels(site)
    monkeypatch.setenv("MXNET_LIBRARY_PATH", str(real_mxnet_for_cuda(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(site))
    done = run_python(SHOW + "assert (mxnet.context.num_gpus(), mxnet.nd.ones(3).sum().asscalar()) == (0, 3)")
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
    nvidia_wheels(site)
    own = library(site / "mxnet" / "libcufft.so.10", "libcufft.so.10")
    mine = library(tmp_path / "mine" / "libnccl.so.2", "libnccl.so.2")
    first = library(tmp_path / "first" / "libcudnn.so.8", "libcudnn.so.8")
    code = f"import ctypes; ctypes.CDLL({str(first)!r})\n" + SHOW
    found = shown(bare_python("-c", code, site=site, LD_LIBRARY_PATH=str(mine.parent)))
    assert found["libcudart.so.11.0"].provider == "nvidia-cuda-runtime-cu11 11.8.89"
    for path in (own, mine, first):
        assert found[path.name] == (path.name, str(path), "system", "")


# The linker reads LD_LIBRARY_PATH once, when the process starts: what is deleted here is as a folder of the system.
AS_SYSTEM = "import os; del os.environ['LD_LIBRARY_PATH']\n"


@fakes_nvidia
@pytest.mark.parametrize(
    ("cuda", "sonames", "without", "of_the_system"),
    [
        ("cuda-11.2", ["libcudart.so.11.0", "libcurand.so.10"], [], ["libcudart.so.11.0", "libcurand.so.10"]),
        # libcurand.so.10 is the name in CUDA 11, 12 and 13
        ("cuda-12.4", ["libcudart.so.12", "libcurand.so.10", "libnvToolsExt.so.1"], *[["libnvToolsExt.so.1"]] * 2),
    ],
)
def test_the_systems_cuda_wins_if_its_runtime_is_of_cuda_11(
    bare_python, site, tmp_path, cuda, sonames, without, of_the_system
):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, without)
    paths = {soname: str(library(tmp_path / cuda / "lib64" / soname, soname)) for soname in sonames}
    done = bare_python("-c", AS_SYSTEM + SHOW, site=site, LD_LIBRARY_PATH=str(tmp_path / cuda / "lib64"))
    found = shown(done)
    for soname in [*sonames, "libcufft.so.10"]:
        if soname in of_the_system:
            problem = f"{paths[soname]} is of CUDA 12, and MXNet is built for CUDA 11" if cuda == "cuda-12.4" else ""
            assert found[soname] == (soname, paths[soname], "system", problem)
        elif soname in WANTED:
            assert found[soname].provider == WANTED[soname].replace("==", " ")
    warning = "TrapWarning: mxnet-cu112 1.9.1 gets libraries that were made for another version of CUDA"
    assert (warning in done.stderr) == (cuda == "cuda-12.4")


@fakes_nvidia
@pytest.mark.parametrize(
    ("other", "soname", "folder", "cuda"),
    [
        ("nvidia-nccl-cu12==2.19.3", "libnccl.so.2", "", 12),  # it overwrites the file for CUDA 11
        ("nvidia-curand==10.4.0.35", "libcurand.so.10", "cu13", 13),  # it has its own folder
    ],
)
def test_wheels_for_another_cuda_are_told_and_come_last(bare_python, site, other, soname, folder, cuda):
    mxnet_wheel(site, "mxnet-cu112", [*SONAMES, "libcuda.so.1"])
    nvidia_wheels(site, [soname] if folder else [])
    path = nvidia_wheel(site, other, soname, padding=5000, folder=folder)
    done = bare_python("-W", "always", "-c", SHOW, site=site)
    found, name = shown(done)[soname], other.replace("==", " ")
    problem = f"{path} was written by {name}, for CUDA {cuda} instead of 11"
    assert found == (soname, str(path), name, problem)
    for words in (problem, f"    pip install --force-reinstall --no-deps {WANTED[soname]}\n", "PyTorch"):
        assert words in done.stderr
    nvidia_wheel(site, WANTED[soname], soname)
    done = bare_python("-W", "error", "-c", SHOW, site=site)
    assert shown(done)[soname].provider == WANTED[soname].replace("==", " ")


@needs_compiler
def test_what_was_loaded_before_mxkit_is_listed_too(bare_python, site, tmp_path):
    mxnet_wheel(site, "mxnet-cu112", ["libcudart.so.11.0", "libcuda.so.1"])
    system = tmp_path / "system"
    for soname in ("libcudart.so.11.0", "libcuda.so.1"):
        library(system / soname, soname)
    found = shown(bare_python("-c", "import mxnet" + SHOW, site=site, LD_LIBRARY_PATH=str(system)))
    paths = [str(system / name) for name in ("libcudart.so.11.0", "libcuda.so.1")]
    assert [library.path for library in found.values()] == paths


@pytest.mark.parametrize("extra", ["cu112", "cu117"])
def test_the_extras_bring_what_is_loaded(extra):
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = toml.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    opencv = "opencv-python<4.12; python_version >= '3.9' and python_version < '3.13'"
    expected = [f"mxnet-{extra}==1.9.1; python_version < '3.13'", opencv, *requirements(f"mxnet-{extra}")]
    assert sorted(extras[extra]) == sorted(expected)
    assert set(requirements("mxnet-cu112")) == set(WANTED.values())
