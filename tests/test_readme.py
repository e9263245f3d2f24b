"""Every code block of the README runs."""

from pathlib import Path
import re

import mxkit
import mxnet as mx
import numpy as np
from pages import ROOT, blocks, run_commands, run_python
import pytest

README = ROOT / "README.md"


def test_every_block_is_of_a_kind_that_a_test_here_runs():
    assert {language for language, _ in blocks(README)} == {"bash", "diff", "python"}


def test_python_blocks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = run_python(README)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert names["history"][-1]["valid_accuracy"] > 0.9
    assert "'accuracy': 0.9" in capsys.readouterr().out


def test_both_sides_of_the_diff_end_with_the_same_weights():
    ((_, diff),) = blocks(README, "diff")
    lines = diff.splitlines()
    sides = {side: "\n".join(line[1:] for line in lines if line[:1] in (side, " ")) for side in "-+"}
    rng = np.random.RandomState(0)
    train = [(mx.nd.array(rng.rand(8, 5)), mx.nd.array(rng.randint(0, 3, 8))) for _ in range(4)]
    ends = {}
    for side, code in sides.items():
        mxkit.seed_all(3)
        names = {"train": train, "test": train}
        exec(compile(code, f"README diff {side}", "exec"), names)
        weights = [p.list_data() for p in names["net"].collect_params().values()]
        ends[side] = [replica.asnumpy() for replicas in weights for replica in replicas], names["accuracy"]
    assert len(ends["+"][0]) == 8
    for plain, kit in zip(ends["-"][0], ends["+"][0]):
        np.testing.assert_allclose(kit, plain, rtol=1e-6)
    assert ends["+"][1] == pytest.approx(ends["-"][1])


def test_bash_blocks(tmp_path):
    """The commands run one after another in an empty folder; `make` runs in .ci/run, on a fresh clone."""
    commands = [line.split("#")[0].strip() for _, code in blocks(README, "bash") for line in code.splitlines()]
    targets = [command for command in commands if command.startswith("make ")]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert targets == ["make demo", "make test"]
    assert all(target in ci for target in targets)
    printed = run_commands("\n".join(command for command in commands if command not in targets), tmp_path)
    trained, evaluated, _ = re.findall(r"^test accuracy (0\.[89]\d+)$", printed, re.MULTILINE)
    assert trained == evaluated


def test_links_lead_somewhere():
    for page in [README, *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_trap_named_in_the_code_stands_on_the_page_of_traps():
    page = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    named = {
        int(number)
        for path in Path(mxkit.__file__).parent.rglob("*.py")
        for number in re.findall(r"\bT(\d{1,2})\b", path.read_text(encoding="utf-8"))
    }
    explained = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} | {
        57,
        80,
        96,
        *range(84, 93),
    }
    assert named <= explained
    assert all(f"T{number}" in page for number in (57, 80, 84, 92, 96))


def test_every_test_named_on_the_page_of_traps_exists():
    page = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    defined = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in defined, name
