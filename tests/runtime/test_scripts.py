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
from sharing import long

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


@pytest.mark.parametrize("words", ["command_line.py --hybridize --epochs=2 folder", long("old_interfaces.py")])
def test_a_script_runs_as_it_is(environment, words):
    by_run = mxkit_run(*words.split()).stdout
    assert by_run
    assert enabled(environment, *words.split()).stdout == by_run


def test_processes_and_packages_of_a_script_get_mxkit_too(environment):
    assert mxkit_run("spawn_workers.py").stdout == "[2. 2. 2.] [0] 1\n"
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


def test_a_script_ends_as_it_would_under_python(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv, __name__, sys.path[0])\nsys.exit(int(sys.argv[1]) or 'no')\n")
    done = mxkit_run("script.py", "7", "--help", "--old-numpy", folder=tmp_path, status=7)
    assert done.stdout == f"['script.py', '7', '--help', '--old-numpy'] __main__ {tmp_path}\n"
    assert mxkit_run("script.py", "0", folder=tmp_path, status=1).stderr == "no\n"
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


def test_off_takes_it_away(environment):
    try:
        assert run(environment, "-m", "mxkit", "enable", "--off").stdout.startswith("removed ")
        assert run(environment, "-m", "mxkit", "enable", "--off").stdout == "mxkit was not enabled here\n"
        status = 0 if release(np.__version__) < (1, 24) else 1
        known = "import sys, mxnet; print('mxkit' in sys.modules)"
        assert "True" not in enabled(environment, "-c", known, status=status).stdout
    finally:
        run(environment, "-m", "mxkit", "enable")


def test_an_environment_without_mxkit_starts_as_before(environment):
    """`mxkit enable`, then `pip uninstall mxkit`."""
    text = (next(environment.parents[1].glob("lib/python*/site-packages")) / "mxkit-enabled.pth").read_text()
    code = f"import sys\nexec({text!r})\nsys.modules['mxkit'] = None\nimport mxnet"
    done = run(environment, "-S", "-c", code, status=1, PYTHONPATH="")
    assert "ModuleNotFoundError: No module named 'mxnet'" in done.stderr


def test_enable_refuses_a_python_outside_virtual_environments(monkeypatch, tmp_path):
    monkeypatch.setattr(startup, "enabling_file", lambda: tmp_path / "mxkit-enabled.pth")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(MXNetImportError, match="is in no virtual environment: .* Make an environment"):
        startup.enable()
    assert not list(tmp_path.iterdir())
    assert startup.enable(system=True).read_text() == startup.enabling_text()


def test_the_doctor_tells_whether_it_is_on(monkeypatch, tmp_path):
    file = tmp_path / "mxkit-enabled.pth"
    monkeypatch.setattr(software, "enabling_file", lambda: file)

    def line():
        lines = software.interpreter_lines({"version": np.__version__, "error": ""})
        return next(line for line in lines if line.name == "enabled")

    assert line().data == {"on": False}
    file.write_text(startup.enabling_text())
    assert (line().status, line().data) == ("ok", {"on": True})
    file.write_text("import sys\n")
    assert (line().status, line().fix) == ("warning", "mxkit enable")
