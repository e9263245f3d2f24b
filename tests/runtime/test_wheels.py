"""The texts for an MXNet that is missing, installed twice, damaged or hidden (T80), on real folders."""

import sys

from fake_cuda import refusal
from mxkit.runtime.wheels import wheel_problem
import pytest

IMPORT = "import mxkit; print('fine')"


@pytest.fixture
def problem(site, monkeypatch):
    """`wheel_problem` in a process that has nothing but `site` on its path and has not imported MXNet."""
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.delenv("MXNET_LIBRARY_PATH", raising=False)
    return wheel_problem


def distribution(site, name, version="1.9.1"):
    (site / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()


def package(site, library=b"library"):
    (site / "mxnet").mkdir()
    (site / "mxnet" / "__init__.py").write_text("print('the package runs')")
    if library is not None:
        (site / "mxnet" / "libmxnet.so").write_bytes(library)


def test_none(problem):
    assert problem() == f"MXNet is not installed for {sys.executable}. Type\n    mxkit install"


def test_one_is_accepted_whatever_its_name(bare_python, site):
    package(site)
    distribution(site, "mxnet-cu112")
    distribution(site, "mxnet-model-server", "1.0")  # owns another package
    assert bare_python("-c", IMPORT + "; import mxnet", site=site).stdout == "fine\nthe package runs\n"


@pytest.mark.parametrize("names", [("mxnet", "mxnet-cu112"), ("mxnet-cu102mkl", "mxnet-mkl")])
def test_two(problem, site, names):
    package(site)
    for name in names:
        distribution(site, name)
    assert problem() == (
        f"{names[0]} 1.9.1 and {names[1]} 1.9.1 are both installed in {site}. They overwrite each other's files, so "
        "the folder now holds a mixture. Type, to remove all of them and install the one that fits,\n    mxkit install"
    )


@pytest.mark.parametrize("library", [None, b""], ids=["no library", "empty library"])
def test_a_missing_library(problem, site, library, tmp_path, monkeypatch):
    package(site, library)
    distribution(site, "mxnet-cu112")
    assert problem() == (
        f"mxnet-cu112 1.9.1 is installed, but its library {site / 'mxnet' / 'libmxnet.so'} is missing or empty. Type\n"
        "    mxkit install"
    )
    (tmp_path / "libmxnet.so").write_bytes(b"library")
    monkeypatch.setenv("MXNET_LIBRARY_PATH", str(tmp_path / "libmxnet.so"))
    assert problem() is None


@pytest.mark.parametrize("leftover", [False, True], ids=["no folder", "a folder without __init__.py"])
def test_a_missing_package(problem, site, leftover):
    distribution(site, "mxnet")
    if leftover:
        (site / "mxnet").mkdir()
    said = f"mxnet 1.9.1 is installed, but its package folder {site / 'mxnet'} is missing or empty. Type\n"
    assert problem() == said + "    mxkit install"


def test_one_built_from_source_has_no_metadata_and_another_folder_does_no_harm(problem, site, tmp_path):
    package(site, library=None)
    assert problem() is None
    (tmp_path / "other").mkdir()
    package(tmp_path / "other")
    for folder, name in ((site, "mxnet"), (tmp_path / "other", "mxnet-cu112")):
        distribution(folder, name)
    (site / "mxnet" / "libmxnet.so").write_bytes(b"library")
    sys.path += [str(tmp_path / "other"), str(site)]
    assert problem() is None


def test_a_script_with_the_name_of_mxnet(problem, site):
    (site / "mxnet.py").write_text("")
    assert problem() == (
        f"`import mxnet` would load {site / 'mxnet.py'}, which is a single file and not MXNet. "
        "Rename that file, or run from another folder."
    )


def test_the_command_of_mxkit_may_start_and_then_mxnet_is_refused(bare_python, tmp_path):
    code = """
import importlib.util
import mxkit, mxkit.errors
assert importlib.util.find_spec("mxnet") is None, "asking is allowed"
try:
    import mxnet
except mxkit.errors.MXNetImportError as error:
    assert str(error).startswith("MXNet is not installed for"), error
    assert isinstance(error, ImportError) and error.name == "mxnet"
    print("refused")
"""
    (tmp_path / "mxkit").write_text(code)
    done = bare_python(tmp_path / "mxkit")
    assert done.stdout == "refused\n", done.stderr
    (tmp_path / "train.py").write_text(code)
    assert "MXNet is not installed" in refusal(bare_python(tmp_path / "train.py"))


def test_the_module_of_mxkit_may_start_too(bare_python, tmp_path):
    done = bare_python("-m", "mxkit", "doctor")
    assert done.stdout == "mxkit runs ['doctor']\n", done.stderr
    (tmp_path / "other.py").write_text(IMPORT)
    assert "MXNet is not installed" in refusal(bare_python("-m", "other"))
    # a refused import leaves other programs alone
    code = "import importlib.util as u\ntry:\n    import mxkit\nexcept ImportError:\n    "
    code += "print(u.find_spec('mxnet') is None, u.find_spec('json') is None)"
    assert bare_python("-c", code).stdout == "True False\n"
