"""Fresh interpreters for tests of what an import does to a process."""

import os
from pathlib import Path
import subprocess
import sys
import textwrap

import lazy_loader
import mxkit
import numpy as np
import pytest

PACKAGE = Path(mxkit.__file__).parent


@pytest.fixture
def run_python(tmp_path):
    """Run code, or flags alone, in a new interpreter where mxkit is importable; a failure is an assertion.

    `without`: Beginnings of variables that it does not inherit.
    """

    def run(code, *arguments, flags=(), status=0, timeout=300, without=(), **variables):
        script = tmp_path / "script.py"
        if code is not None:
            script.write_text(textwrap.dedent(code))
            flags = (*flags, str(script))
        command = [sys.executable, *flags, *arguments]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        # The folder of the package comes last: it may be a site-packages folder.
        paths = [str(PACKAGE.parent), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(paths), **variables}
        done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=timeout, capture_output=True, text=True)
        assert status in (None, done.returncode), done.stderr
        return done

    return run


@pytest.fixture
def fork_python(forks, tmp_path):
    """The same in a process in which mxkit, MXNet and gluoncv are imported already."""

    def run(code, *arguments, timeout=300):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        done = forks.run(script, *arguments, folder=tmp_path, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def with_and_without(forks):
    """What a script writes into the file that is its last argument: by itself, and under variables of MXNet's own."""

    def run(folder, script, *arguments, **variables):
        paths = os.pathsep.join([str(PACKAGE.parent), str(script.parent)])
        command = [sys.executable, str(script), *arguments, str(folder / "without.npz")]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        without = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths, **variables}, **streams)
        done = forks.run(script, *arguments, str(folder / "with.npz"))
        assert done.returncode == 0, done.stdout + done.stderr
        text, _ = without.communicate(timeout=600)
        assert without.returncode == 0, text.decode()
        return np.load(folder / "with.npz"), np.load(folder / "without.npz")

    return run


@pytest.fixture
def bare_python(tmp_path):
    """Run code where nothing but the standard library, mxkit and the given folder `site` can be imported."""
    library = tmp_path / "library"
    (library / "mxkit").mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if entry.name not in ("__main__.py", "__pycache__"):
            (library / "mxkit" / entry.name).symlink_to(entry)
    (library / "mxkit" / "__main__.py").write_text("import sys\nprint('mxkit runs', sys.argv[1:])\n")
    (library / "lazy_loader").symlink_to(Path(lazy_loader.__file__).parent)

    def run(*arguments, site=(), **variables):
        paths = os.pathsep.join(map(str, [*([site] if site else []), library]))
        environment = {"PYTHONPATH": paths, "PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), **variables}
        return subprocess.run(
            [sys.executable, "-S", *map(str, arguments)],
            env=environment, cwd=tmp_path, timeout=300, capture_output=True, text=True,
        )  # fmt: skip

    return run


@pytest.fixture
def site(tmp_path):
    """A folder of packages with nothing in it."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder
