"""Lines that a user may get wrong: the exit code, and a text without a traceback. Nothing is written."""

import mxkit
import pytest
from sharing import command

TRAIN = "train digits_lenet --set data.size=8 --set model=mlp --set epochs=1 --quiet --output"
ROWS = [
    (f"{TRAIN} HERE/file", 1, "Not a directory"),
    (f"{TRAIN} HERE --set loss=l2", 1, "error: "),
    (f"{TRAIN} HERE --set epoch=1", 2, "epoch: unknown key; received 1"),
    (f"{TRAIN} HERE --set checkpoints.every=often", 2, "checkpoints: Checkpoints: every: expected a length like"),
    ("train", 2, "pass a RECIPE, or --resume RUN"),
    ("train digits_lenet --resume x", 2, "pass a RECIPE, or --resume RUN"),
    ("show --diff digits_lenet", 2, "--diff RECIPE OTHER"),
    ("show digits_lenet digits_lenet", 2, "--diff RECIPE OTHER"),
    ("evaluate HERE", 2, "is no folder of a run"),
    ("evaluate HERE --which newest", 2, "expected last or best; received 'newest'"),
    ("report HERE/nowhere", 2, "is no folder of a run"),
    ("predict HERE/file HERE/file", 2, "is no folder of a run"),
    ("runs HERE/nowhere", 2, "is no folder"),
    ("checkpoints HERE/file", 1, "is no folder of a run, and no directory of checkpoints"),
    ("checkpoints verify HERE step-00000001", 2, "step-00000001'"),
    ("checkpoints look HERE", 2, "expected verify, prune or nothing before RUN; received 'look"),
    ("cache clean --name nothing", 2, "there is no"),
    ("init HERE", 2, "not an empty folder"),
    ("init HERE/two/wo:rds", 2, "expected a name"),
]


@pytest.mark.parametrize(("line", "code", "text"), ROWS, ids=[line for line, _, _ in ROWS])
def test_a_wrong_line_is_refused_without_a_traceback(line, code, text, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    (tmp_path / "file").write_text("")
    found, out, err = command(*(word.replace("HERE", str(tmp_path)) for word in line.split()))
    assert (found, out, "Traceback" in err) == (code, "", False)
    assert text in " ".join(err.split())
    assert code == 1 or [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_version_is_printed():
    assert command("--version") == (0, f"mxkit {mxkit.__version__}\n", "")
