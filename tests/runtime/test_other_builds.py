"""MXNet of other builds: without a distribution, with a suffix behind its version, older."""

from pathlib import Path
import shutil

from mxkit.cli import main
from mxkit.errors import MXNetImportError
from mxkit.runtime.doctor import software
from mxkit.runtime.installing import wheel_kind
from mxkit.runtime.wheels import Wheel, foreign_name
import mxnet as mx
import pytest

PACKAGE = Path(mx.__file__).parent
TRAINS = """
import sys
import mxkit
import mxnet as mx
import numpy as np

assert mx.__version__ == sys.argv[1], mx.__version__
assert mx.__file__.startswith(sys.argv[2]), mx.__file__
net = mxkit.models.mlp(3, hidden=[8])
loader = mxkit.data.ArrayLoader(np.ones((30, 5), "float32"), np.arange(30) % 3, batch_size=10)
mxkit.initialize(net)
mxkit.fit(net, loader, loss="softmax_ce", trainer="sgd", epochs=1, progress=False)
mxkit.save_net("saved.net", net)
mxkit.load_net("saved.net")
import mxkit.storage.symbol_file  # it reads the version
print("trained")
"""


@pytest.fixture
def build(tmp_path):
    """Make a package `mxnet` that calls itself by a version, with the files of the installed one and no metadata."""

    def make(version):
        package = tmp_path / "packages" / "mxnet"
        package.mkdir(parents=True)
        for entry in PACKAGE.iterdir():
            if entry.name not in ("__init__.py", "libinfo.py", "__pycache__"):
                (package / entry.name).symlink_to(entry)
        shutil.copy(PACKAGE / "__init__.py", package)
        text = (PACKAGE / "libinfo.py").read_text(encoding="utf-8")
        assert f'__version__ = "{mx.__version__}"' in text
        text = text.replace(f'__version__ = "{mx.__version__}"', f'__version__ = "{version}"')
        (package / "libinfo.py").write_text(text, encoding="utf-8")
        return package

    return make


def test_a_build_without_metadata_trains(build, run_python, monkeypatch):
    version = "1.9.1+nv24.06"
    package = build(version)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    assert run_python(TRAINS, version, str(package)).stdout == "trained\n"


@pytest.mark.parametrize("version", ["1.7.0", "2.0.0b1"])
def test_another_release_is_refused_with_the_reason(version, build, run_python, monkeypatch):
    package = build(version)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    said = run_python("import mxkit, mxnet", status=1).stderr
    assert f"MXNetImportError: {package} calls itself MXNet {version}; expected 1.9. " in said
    assert "pip install --no-deps mxnet==1.9.1" in said
    assert "without mxkit (where it is enabled: mxkit enable --off)" in said


def test_the_doctor_says_what_differs(build, monkeypatch):
    answers = {"error": "", "version": "1.9.1+nv24.06", "library": "libmxnet.so", "features": []}
    package = build("1.9.1+nv24.06")
    monkeypatch.syspath_prepend(str(package.parent))
    lines = {line.name: line for line in software.build_lines(answers, "")}
    assert lines["version"].value == "1.9.1+nv24.06, a build of its own of 1.9.1"
    assert lines["version"].status == "ok"
    assert lines["distribution"].value.startswith(f"none for {package}: built from source, or by another vendor")
    older = {line.name: line for line in software.build_lines({**answers, "version": "1.9.0"}, "")}
    assert older["version"].status == "warning"
    foreign = software._wheel(Wheel("mxnet-cu121", "1.9.1", package.parent))
    assert (foreign.status, "no distribution of Apache MXNet" in foreign.fix) == ("warning", True)


def test_names_that_are_not_of_apache_are_refused(capsys):
    for name in ("mxnet", "mxnet-cu112", "mxnet-cu117", "mxnet-cu102mkl", "mxnet-mkl", "mxnet-native", "mxnet-cu80"):
        assert foreign_name(name) is None
    for name in ("mxnet-cu120", "mxnet-cu121", "mxnet-cu12x", "mxnet-cu13", "mxnet-gpu"):
        with pytest.raises(MXNetImportError, match=f"^{name} is no distribution of Apache MXNet"):
            wheel_kind(name)
    assert (wheel_kind("mxnet"), wheel_kind("mxnet-cu112")) == ("cpu", "cuda")
    with pytest.raises(MXNetImportError, match="mxnet-cu117: mxkit installs mxnet or mxnet-cu112"):
        wheel_kind("mxnet-cu117")
    with pytest.raises(SystemExit) as ended:
        main(["install", "mxnet-cu121"])
    assert ended.value.code == 1
    assert "NVIDIA's container nvcr.io/nvidia/mxnet:24.06-py3" in capsys.readouterr().err
