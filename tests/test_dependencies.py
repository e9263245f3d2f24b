"""What the library imports and what pyproject.toml asks for are the same packages."""

from pathlib import Path
import re
import sys

from mxkit.runtime.doctor import software
import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
# Where the name of a module is not that of its distribution.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "pydantic_core": "pydantic",  # which needs one version of it and documents its errors there
    "tensorboardX": "tensorboardx",
}
# Asked for by extras, of which a user takes one or none.
OPTIONAL = {
    "pycocotools", "mxnet", "tensorboardx", "optuna", "scikit-learn", "safetensors", "onnx", "onnxruntime", "torch",
}  # fmt: skip
# Users build the first one themselves; it brings the second.
BUILT = {"horovod", "psutil"}
# GluonCV's own need, which mxkit imports only for GluonCV's call of it.
OF_GLUONCV = {"scipy"}
# MXNet's own need, which pip leaves out with --no-deps.
OF_MXNET = {"graphviz"}
# Modules beside an exported `train.py`.
OF_A_TRAINING = {"data", "net"}


def names(requirements):
    return {re.match(r"[\w.-]+", one).group().lower() for one in requirements}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.stdlib_module_names is of Python 3.10")
def test_every_imported_package_is_declared_and_every_declared_one_is_imported():
    statement = re.compile(r"^ *(?:import|from) (\w+)(?:[.\w]*| as \w+|[.\w]* import .*)$", re.MULTILINE)
    files = (ROOT / "mxkit").rglob("*.py")
    imported = {name for file in files for name in statement.findall(file.read_text(encoding="utf-8"))}
    imported -= {"mxkit", *sys.stdlib_module_names, *OF_A_TRAINING}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = {DISTRIBUTIONS.get(name, name) for name in imported}
    assert found - OPTIONAL - BUILT - OF_GLUONCV == names(project["dependencies"]) - OF_MXNET
    assert names(one for extra in project["optional-dependencies"].values() for one in extra) >= OPTIONAL
    assert all(re.search("[>=]=", one) for one in project["dependencies"]), "each has a lower bound"


def test_the_doctor_misses_no_package_that_is_not_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missed = {one.distribution for one in software._PACKAGES if one.status != "ok"}
    assert names(missed) <= names(project["dependencies"])
    offered = {one.distribution for one in software._PACKAGES}
    assert not names(offered) & {"horovod", "scikit-learn"}  # the first has no wheel, the second is needed for a recipe
