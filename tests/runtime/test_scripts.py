"""Scripts that know nothing of mxkit run by `mxkit run`, and by Python itself after `mxkit enable`.

The folder `scripts` holds them. On an old NumPy they run without mxkit too.
"""

import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import sysconfig
import venv

import mxkit
from mxkit.errors import MXNetImportError
from mxkit.runtime import startup
from mxkit.runtime.doctor import software
from mxkit.runtime.wheels import release
import numpy as np
import pytest
from sharing import command, long

PACKAGES = Path(mxkit.__file__).parents[1]
SCRIPTS = Path(__file__).parent / "scripts"
HAS_OLD_NAMES = release(np.__version__) < (1, 20)


def run(*command, status=0, folder=SCRIPTS, **variables):
    """Run a command; its output without the lines of MXNet's library, which go to standard error."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGES), **variables}
    variables.pop("MXKIT_RUN", None)
    done = subprocess.run(
        list(map(str, command)), cwd=str(folder), env=variables, timeout=300, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def mxkit_run(*arguments, **settings):
    return run(sys.executable, "-m", "mxkit", "run", *arguments, **settings)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The Python of a virtual environment that has the packages of this one, and in which mxkit is enabled."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(str(folder), symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    others = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    site.joinpath("other.pth").write_text(f"{PACKAGES}\n{others}\n")
    python = folder / "bin" / "python"
    done = run(python, "-m", "mxkit", "enable", folder=folder)
    assert done.stdout.startswith(f"wrote {site / 'mxkit-enabled.pth'}: ")
    return python


def enabled(environment, *arguments, **settings):
    return run(environment, *arguments, PYTHONPATH="", **settings)


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("command_line.py --hybridize --epochs=2 folder", "['--hybridize', '--epochs=2', 'folder'] folder"),
        ("spawn_workers.py", "[2. 2. 2.] [0] 1"),
        long("old_interfaces.py", "[(5, 3, 20, 24), "),
    ],
)
def test_a_script_and_its_processes_run_as_they_are(words, last):
    assert mxkit_run(*words.split()).stdout.splitlines()[-1].startswith(last)


def test_packages_of_an_enabled_environment_run_as_they_are(environment):
    assert enabled(environment, "-m", "captions.train").stdout.startswith("captions captions.model (2, 8)")


def test_old_names_are_lent_to_the_scripts_modules_and_to_those_that_use_mxnet(tmp_path):
    package = tmp_path / "site-packages" / "old_board.py"
    package.parent.mkdir()
    package.write_text(
        "import numpy as np\nfrom mxnet.ndarray import NDArray\nprint(np.float, np.asscalar(np.ones(1)))\n"
    )
    done = mxkit_run("--old-numpy", "-W", "ignore", "old_names.py", PYTHONPATH=f"{PACKAGES}:{package.parent}")
    assert done.stdout == "<class 'float'> 1.0\n[0, 1, 2] <class 'numpy.float64'> True 1.5 2.0 1.0\n"
    assert ("np.int (old_helpers.py, line 5)" in done.stderr) is not HAS_OLD_NAMES
    if release(np.__version__) >= (1, 24):  # before, NumPy has them itself, and warns
        library = "import json; exec('import numpy; numpy.float', vars(json))"
        assert "AttributeError" in mxkit_run("--old-numpy", "-c", library, status=1).stderr


LIBRARY = """
import collections, inspect
from collections import Mapping, OrderedDict
import collections.abc
import numpy as np, numpy.linalg
from numpy import float as real, asscalar

assert issubclass(OrderedDict, Mapping) and collections.Mapping is Mapping is collections.abc.Mapping
assert inspect.getargspec(lambda a, *b: 0).args == ["a"]
assert np.bool is bool and np.float is real is float and isinstance(1.0, float)
ragged = np.array([[1, 2], [3]])
column = np.ones((2, 1))
print(asscalar(np.ones(1)), float(np.array([2.5])), [int(row) for row in column], ragged.dtype, np.linalg.norm(column))
"""
OTHER = """
import numpy as np
import old_library
import collections, inspect
for text in ('np.asscalar', 'collections.Mapping', 'inspect.getargspec', 'np.array([[1, 2], [3]])'):
    try:
        print(eval(text))
    except (AttributeError, ValueError) as error:
        print(type(error).__name__)
"""


@pytest.fixture
def libraries(tmp_path):
    """The folder of a library of an old NumPy's time, and of another that uses it."""
    (tmp_path / "old_library").mkdir()
    (tmp_path / "old_library" / "__init__.py").write_text("from .part import *\n")
    (tmp_path / "old_library" / "part.py").write_text(LIBRARY)
    (tmp_path / "other.py").write_text(OTHER)
    return tmp_path


@pytest.mark.skipif(release(np.__version__) < (1, 24) or sys.version_info < (3, 11), reason="they have the old names")
def test_old_numpy_reaches_the_named_libraries_and_no_others(libraries):
    path = {"PYTHONPATH": f"{PACKAGES}:{libraries}", "folder": libraries}
    done = mxkit_run("--old-numpy=json,old-library", "-c", "import other", **path)
    *own, absent, mapping, getargspec, ragged = done.stdout.splitlines()
    assert own == ["1.0 2.5 [1, 1] object 1.4142135623730951"]
    assert [absent, mapping, getargspec, ragged] == ["AttributeError"] * 3 + ["ValueError"]
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("mxkit --old-numpy")]
    for lent in ("np.float", "np.asscalar", "collections.Mapping", "inspect.getargspec", "np.array of a ragged list"):
        assert f"{lent} (old_library/part.py, line " in said
    assert "other.py" not in said
    assert "ImportError" in mxkit_run("--old-numpy=json", "-c", "import other", status=1, **path).stderr


@pytest.mark.skipif(release(np.__version__) < (1, 24) or sys.version_info < (3, 11), reason="they have the old names")
def test_an_environment_names_libraries_for_all_its_programs(environment, libraries):
    try:
        run(environment, "-m", "mxkit", "enable", "--old-numpy=keras-mxnet,old_library", folder=libraries)
        done = run(environment, "-c", "import other", folder=libraries, PYTHONPATH=str(libraries))
        assert done.stdout.startswith("1.0 2.5")
        lines = "from mxkit.runtime.doctor import software; print(software._enabled())"
        assert "keras,old_library get what NumPy removed', status='ok'" in enabled(environment, "-c", lines).stdout
    finally:
        run(environment, "-m", "mxkit", "enable", folder=libraries)


def test_a_script_ends_as_it_would_under_python(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv, __name__, sys.path[0])\nsys.exit(int(sys.argv[1]))\n")
    done = mxkit_run("script.py", "7", "--help", "--old-numpy", folder=tmp_path, status=7)
    assert done.stdout == f"['script.py', '7', '--help', '--old-numpy'] __main__ {tmp_path}\n"
    done = mxkit_run("script.py", "no number", folder=tmp_path, status=1)
    plain = run(sys.executable, "script.py", "no number", folder=tmp_path, status=1)
    assert done.stderr == plain.stderr
    code = "import sys; print(sys.argv, sys.flags.optimize)"
    assert mxkit_run("-W", "error", "-Oc", code, "a").stdout == "['-c', 'a'] 1\n"


def test_a_signal_reaches_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    command = [sys.executable, "-m", "mxkit", "run", str(script)]
    variables = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_errors_of_the_script_show_no_frame_of_mxkit(environment, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import mxnet as mx\nmx.nd.ones((2, 3)) + mx.nd.ones(4)\n")
    stderr = enabled(environment, script, status=1).stderr
    lines = [line for line in stderr.splitlines() if line.startswith("  File ")]
    assert lines[0] == f'  File "{script}", line 2, in <module>'
    assert not [line for line in lines if str(Path(mxkit.__file__).parent) in line]


def test_a_process_without_mxnet_loads_nothing_more(environment):
    modules = ["-c", "import json, sys; print(json.dumps(sorted(sys.modules)))"]
    loaded = json.loads(enabled(environment, *modules).stdout)
    assert not [name for name in loaded if name.partition(".")[0] in ("mxkit", "mxnet", "numpy")]


def test_an_environment_without_mxkit_starts_as_before(environment):
    """`mxkit enable`, then `pip uninstall mxkit`."""
    text = (next(environment.parents[1].glob("lib/python*/site-packages")) / "mxkit-enabled.pth").read_text()
    code = f"import sys\nexec({text!r})\nsys.modules['mxkit'] = None\nimport mxnet"
    done = run(environment, "-S", "-c", code, status=1, PYTHONPATH="")
    assert "ModuleNotFoundError: No module named 'mxnet'" in done.stderr


@pytest.fixture
def file(monkeypatch, tmp_path):
    """What `enable` writes, in a folder of the test's own."""
    path = tmp_path / "mxkit-enabled.pth"
    monkeypatch.setattr(startup, "enabling_file", lambda: path)
    monkeypatch.setattr(software, "enabling_file", lambda: path)
    return path


def test_enable_refuses_a_python_outside_virtual_environments_and_off_takes_it_away(file, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(MXNetImportError, match="is in no virtual environment: .* Make an environment"):
        startup.enable()
    assert not file.exists()
    assert command("enable", "--system")[1].startswith(f"wrote {file}: ")
    assert file.read_text() == startup.enabling_text()
    assert command("enable", "--off")[1] == f"removed {file}\n"
    assert not file.exists()
    assert command("enable", "--off")[1] == "mxkit was not enabled here\n"


def test_the_doctor_tells_whether_it_is_on(file):
    def line():
        lines = software.interpreter_lines({"version": np.__version__, "error": ""})
        return next(line for line in lines if line.name == "enabled")

    assert line().data == {"on": False}
    file.write_text(startup.enabling_text())
    assert (line().status, line().data) == ("ok", {"on": True})
    file.write_text("import sys\n")
    assert (line().status, line().fix) == ("warning", "mxkit enable")
