"""The files that a forge and newcomers read agree with the rest of the repository."""

from pathlib import Path
import re

import mxkit
import yaml

ROOT = Path(__file__).parent.parent


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_names_this_version():
    assert read("CITATION.cff")["version"] == mxkit.__version__


def test_the_workflow_calls_what_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for part in read(".github/workflows/check.yml")["jobs"]["parts"]["strategy"]["matrix"]["include"]:
        target = re.search(r"make (\w+)|(\.ci/\w+)", part["run"])
        assert f"\n{target[1]}:" in makefile if target[1] else (ROOT / target[2]).is_file(), part["run"]


def test_the_hooks_are_the_first_checks_of_make_test():
    (repo,) = read(".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {f"$(BIN)/{one['entry']}" for one in repo["hooks"]} <= {
        line.strip().replace(" .", "") for line in makefile.splitlines()
    }
