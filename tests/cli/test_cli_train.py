"""The exit code of `mxkit train`."""

from mxkit.cli import main
import pytest


@pytest.mark.filterwarnings("ignore::mxkit.errors.TrapWarning")
def test_scores_that_are_not_finite_end_the_command_with_1(capsys, tmp_path):
    settings = ["optimizer.learning_rate=1e+30", "check_finite=stop", "epochs=1"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    with pytest.raises(SystemExit) as ended:
        main(["train", "linear_regression", *arguments, "--quiet", "--output", str(tmp_path)])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "test loss nan" in printed.out  # the run is there, and its scores are shown
    assert "error: the scores are not finite. epoch 1, update 2: the loss is inf" in printed.err
