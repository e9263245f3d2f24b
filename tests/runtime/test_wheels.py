"""What is said when MXNet is missing, twice there, damaged or hidden (T80), on real folders."""

import sys

import pytest

NEW_PYTHON = sys.version_info >= (3, 13)

IMPORT = "import mxkit; print('fine')"


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def distribution(site, name, version="1.9.1", kind="dist-info"):
    folder = site / f"{name.replace('-', '_')}-{version}.{kind}"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def package(site, library=b"library"):
    (site / "mxnet").mkdir()
    (site / "mxnet" / "__init__.py").write_text("print('the package runs')")
    if library is not None:
        (site / "mxnet" / "libmxnet.so").write_bytes(library)


def message(done):
    assert done.returncode == 1, done.stdout
    assert "mxkit.errors.MXNetImportError: " in done.stderr, done.stderr
    return done.stderr.split("mxkit.errors.MXNetImportError: ")[1]


def test_none(bare_python, site):
    said = message(bare_python("-c", IMPORT, site=site))
    assert said.startswith(f"MXNet is not installed for {sys.executable}.")
    if NEW_PYTHON:
        assert "pip install --no-deps mxnet==1.9.1 " in said
        assert "pip install --no-deps mxnet-cu112==1.9.1 " in said
        assert "numpy<2" in said
    else:
        assert "pip install 'mxkit[cpu]' " in said
        assert "pip install 'mxkit[cu112]' " in said


def test_one_is_accepted_whatever_its_name(bare_python, site):
    package(site)
    distribution(site, "mxnet-cu112")
    distribution(site, "mxnet-model-server", "1.0")  # owns another package
    assert bare_python("-c", IMPORT + "; import mxnet", site=site).stdout == "fine\nthe package runs\n"


@pytest.mark.parametrize("names", [("mxnet", "mxnet-cu112"), ("mxnet-cu102mkl", "mxnet-mkl")])
def test_two(bare_python, site, names):
    package(site)
    for name in names:
        distribution(site, name)
    said = message(bare_python("-c", IMPORT, site=site))
    assert said.startswith(f"{names[0]} 1.9.1 and {names[1]} 1.9.1 are both installed in {site}.")
    assert "overwrite each other's files" in said
    assert f"pip uninstall -y {names[0]} {names[1]} && pip install --no-deps {names[0]}==1.9.1" in said


@pytest.mark.parametrize("library", [None, b""], ids=["no library", "empty library"])
def test_a_missing_library(bare_python, site, library):
    package(site, library)
    distribution(site, "mxnet-cu112")
    said = message(bare_python("-c", IMPORT, site=site))
    missing = site / "mxnet" / "libmxnet.so"
    assert said.startswith(f"mxnet-cu112 1.9.1 is installed, but its library {missing} is missing")
    assert "pip install --force-reinstall --no-deps mxnet-cu112==1.9.1" in said


@pytest.mark.parametrize("leftover", [False, True], ids=["no folder", "a folder without __init__.py"])
def test_a_missing_package(bare_python, site, leftover):
    distribution(site, "mxnet")
    if leftover:
        (site / "mxnet").mkdir()
    said = message(bare_python("-c", IMPORT, site=site))
    assert said.startswith(f"mxnet 1.9.1 is installed, but its package folder {site / 'mxnet'} is missing")
    assert "pip install --force-reinstall --no-deps mxnet==1.9.1" in said


def test_a_library_named_by_the_environment(bare_python, site, tmp_path):
    package(site, library=None)
    distribution(site, "mxnet")
    own = tmp_path / "libmxnet.so"
    own.write_bytes(b"library")
    assert bare_python("-c", IMPORT, site=site, MXNET_LIBRARY_PATH=str(own)).stdout == "fine\n"


def test_one_built_from_source_has_no_metadata(bare_python, site):
    package(site, library=None)
    assert bare_python("-c", IMPORT, site=site).stdout == "fine\n"


def test_two_in_two_folders_hide_but_do_not_damage_each_other(bare_python, site, tmp_path):
    package(site)
    distribution(site, "mxnet")
    other = tmp_path / "other"
    other.mkdir()
    package(other)
    distribution(other, "mxnet-cu112")
    code = f"import sys; sys.path.append({str(other)!r}); sys.path.append({str(site)!r}); " + IMPORT
    assert bare_python("-c", code, site=site).stdout == "fine\n"


def test_a_script_with_the_name_of_mxnet(bare_python, site):
    (site / "mxnet.py").write_text("")
    said = message(bare_python("-c", IMPORT, site=site))
    assert f"`import mxnet` would load {site / 'mxnet.py'}" in said
    assert "Rename that file" in said


def test_the_command_of_mxkit_may_start_and_then_mxnet_is_refused(bare_python, tmp_path):
    code = """
import importlib.util
import mxkit
assert importlib.util.find_spec("mxnet") is None, "asking is allowed"
try:
    import mxnet
except mxkit.errors.MXNetImportError as error:
    assert str(error).startswith("MXNet is not installed for"), error
    assert isinstance(error, ImportError) and error.name == "mxnet"
    print("refused")
"""
    code = code.replace("import mxkit\n", "import mxkit, mxkit.errors\n", 1)
    (tmp_path / "mxkit").write_text(code)
    done = bare_python(tmp_path / "mxkit")
    assert done.stdout == "refused\n", done.stderr
    (tmp_path / "train.py").write_text(code)
    assert "MXNet is not installed" in message(bare_python(tmp_path / "train.py"))


def test_the_module_of_mxkit_may_start_too(bare_python, tmp_path):
    done = bare_python("-m", "mxkit", "doctor")
    assert done.stdout == "mxkit runs ['doctor']\n", done.stderr
    (tmp_path / "other.py").write_text(IMPORT)
    assert "MXNet is not installed" in message(bare_python("-m", "other"))


def test_a_refused_import_leaves_other_programs_alone(bare_python):
    done = bare_python(
        "-c",
        """
import importlib.util
try:
    import mxkit
except ImportError as error:
    print(type(error).__name__)
assert importlib.util.find_spec("mxnet") is None
assert importlib.util.find_spec("json") is not None
""",
    )
    assert done.stdout == "MXNetImportError\n", done.stderr
