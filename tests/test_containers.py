"""The Dockerfiles take files and extras that exist, and end as a user who is not root; `.ci/containers` builds one."""

from pathlib import Path
import re
import sys

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "docker").glob("*/Dockerfile"))
PAGE = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_dockerfile(file):
    text, name = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
    assert text.startswith(f"# docker build -f {name} -t mxkit:{file.parent.name} .\n")
    assert f"`{name}`" in PAGE
    assert re.search(r"^FROM \S+:(?!latest)\S+$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"/src\[(\w+)\]", text)) <= set(project["optional-dependencies"])
    assert re.findall(r"^USER (.*)", text, re.MULTILINE) == ["mxkit"]
    assert 'CMD ["mxkit", "doctor"]\nCMD ["mxkit", "doctor"]\n' in text
    assert re.findall(r"^COPY (.*)", text, re.MULTILINE) == [". /src"]


def test_the_context_has_what_the_wheel_is_built_from():
    everything, *kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    paths = {line[1:] for line in kept if line.startswith("!")}
    assert everything == "*"
    assert all((ROOT / path).exists() for path in paths)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"pyproject.toml", project["project"]["readme"], *wheel["packages"], *wheel["force-include"]} <= paths
