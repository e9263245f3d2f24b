"""Every code block of the README runs."""

from pathlib import Path
import re
import sys

import mxkit
from mxkit.recipe.vocabulary import DATASETS
import mxnet as mx
import numpy as np
from pages import ROOT, blocks, run_commands, run_python
from PIL import Image
import pytest

README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_every_block_is_of_a_kind_that_a_test_here_runs():
    assert {language for language, _ in blocks(README)} == {"bash", "console", "diff", "python"}


@pytest.mark.usefixtures("elsewhere")
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


def draw_photos(root, classes=("cats", "dogs"), count=12):
    """What stands for the reader's own images: dark and bright ones, of differing sizes, modes and formats."""
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(count):
            mode, suffix = (("RGB", "jpg"), ("RGBA", "png"), ("L", "jpg"))[(i + 2) % 3]
            pixels = np.full((40 + i, 60 - i, 3), 40 + 100 * label + i, "uint8")
            Image.fromarray(pixels).convert(mode).save(root / name / f"{i}.{suffix}")
    return root


def test_bash_blocks(tmp_path, forks):
    """The commands run one after another in a folder with images; `make` runs in .ci/run, on a fresh clone."""
    draw_photos(tmp_path / "photos", count=6)
    commands = [line for _, code in blocks(README, "bash") for line in code.splitlines()]
    targets = [command.split("#")[0].strip() for command in commands if command.startswith("make ")]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert targets == ["make demo", "make test"]
    assert all(target in ci for target in targets)
    code = "\n".join(command for command in commands if not command.startswith("make "))
    printed = run_commands(code, tmp_path, forks)
    scores = re.findall(r"^test accuracy ([\d.]+)$", printed, re.MULTILINE)
    trained, evaluated, _, _ = scores
    assert trained == evaluated
    assert float(trained) > 0.8
    assert re.search(r"^photos/cats/1.jpg\t(cats|dogs)\t[01]\.\d{4}$", printed, re.MULTILINE)


# What its reader may get wrong


@pytest.fixture
def _forgets_made_hotdog():
    yield
    sys.modules.pop("made_hotdog", None)
    DATASETS.pop("made_hotdog", None)


@pytest.mark.usefixtures("_forgets_made_hotdog")
def test_photos_that_are_not_read_are_told_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw_photos(Path("photos"), count=1)
    with pytest.raises(mxkit.errors.RecipeError, match="cats; to train on those: --set data.name=image_folder"):
        mxkit.run_recipe("finetune_image_folder", overrides=["data.root=photos"], progress=False)


def test_links_lead_somewhere():
    for page in [README, CONTRIBUTING, *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_files_and_rooms_that_contributing_names_exist():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![/\w])(?:docs|mxkit|tests)/[\w./-]*\w", text))
    assert {name for name in named if not (ROOT / name).exists()} == set()
    picture = set(re.findall(r"\b(\w+)\[\"", text)) - {"errors"}
    assert picture == {path.parent.name for path in (ROOT / "mxkit").glob("*/__init__.py")}


def test_every_trap_named_in_the_code_stands_on_the_page_of_traps():
    page = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    named = {
        int(number)
        for path in Path(mxkit.__file__).parent.rglob("*.py")
        for number in re.findall(r"\bT(\d{1,3})\b", path.read_text(encoding="utf-8"))
    }
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert len(rows) == len(set(rows)), "a number has one row"
    explained = set(rows) | {57, 80, *range(84, 93), 114}
    assert named <= explained
    assert all(f"T{number}" in page for number in (57, 80, 84, 92, 114))


def test_every_test_named_on_the_page_of_traps_exists():
    page = (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")
    defined = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", page):
        assert f"def {name}(" in defined, name
    for name in re.findall(r"`(test_\w+)\*`", page):
        assert f"def {name}" in defined, name
    for path in re.findall(r"`((?:tests/)?(?:\w+/)*test_\w+\.py)`", page):
        assert list((ROOT / "tests").rglob(Path(path).name)) if "/" not in path else (ROOT / path).exists(), path
