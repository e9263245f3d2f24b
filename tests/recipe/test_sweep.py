"""`mxkit sweep`: ranges, several processes of which one is killed, pruning, and Optuna's trials in scripts."""

import json
import os
import signal

import mxkit
from mxkit.recipe.sweeping import Sweep
from mxkit.reports import list_runs
import optuna
from PIL import Image
import pytest
from sharing import command, wait_until

RATE = "optimizer.learning_rate=log:1e-3..1e-1"
LINEAR = ["linear_regression", "--set", RATE, "--set", "initializer.sigma=0.0..1.0", "--quiet"]
# one epoch of 400 updates, with eight checkpoints
LONG = [*LINEAR, *("--set", "epochs=1"), *("--set", "data.samples=8000"), *("--set", "data.batch_size=20")]
LONG += ["--set", "checkpoints.every=50 updates"]
TINY = ["epochs=1", "limit_batches=1"]


def trials_of(*arguments):
    code, out, err = command("sweep", *arguments, "--json")
    assert code == 0, err
    return {one["name"]: one for one in json.loads(out)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory, forks):
    """A sweep of two processes: one is killed in its first trial; the table before, and after the sweep went on."""
    output = tmp_path_factory.mktemp("runs")
    tables = []

    def kill(process):
        try:
            wait_until(lambda: list(output.glob("*/trial-0000/checkpoints/step-*")), seconds=120)
            os.kill(process, signal.SIGSTOP)  # it lives, so its trial is its own
            tables.append(trials_of(*LONG, "--output", output, "--trials", 2))
        finally:
            os.kill(process, signal.SIGKILL)

    forks.run("mxkit.cli:main", ["sweep", *LONG, "--output", str(output), "--trials", "3"], meanwhile=kill)
    tables.append(trials_of(*LONG, "--output", output, "--trials", 3))
    return output / "sweep-linear_regression", tables


def test_a_killed_trial_is_resumed_and_a_running_one_left_alone(killed):
    folder, (before, after) = killed
    assert {name: one["state"] for name, one in before.items()} == {"trial-0000": "running?", "trial-0001": "finished"}
    assert {name: one["state"] for name, one in after.items()} == dict.fromkeys(
        ["trial-0000", "trial-0001", "trial-0002"], "finished"
    )
    assert before["trial-0001"] == after["trial-0001"]
    assert before["trial-0000"]["chosen"] == after["trial-0000"]["chosen"]
    assert "training resumes after update " in (folder / "trial-0000" / "log.txt").read_text()
    values = [one["value"] for one in after.values()]
    assert values == sorted(values)
    for name, one in after.items():  # the value is that of the run's own files
        rows = json.loads((folder / name / "history.json").read_text())["epochs"]
        assert one["value"] == min(row["valid_loss"] for row in rows)
        recipe = mxkit.recipe.load_run(folder / name)[0]
        assert recipe.optimizer.arguments["learning_rate"] == one["chosen"]["optimizer.learning_rate"]
    with Image.open(folder / "sweep.png") as picture:
        assert picture.size[0] > 1000
    assert [one.name for one in list_runs(folder, sort="name")] == sorted(after)
    listed = list_runs(folder.parent, sort="name")
    assert {one.name: one.state for one in listed} == {f"{folder.name}/{name}": "finished" for name in after}


def test_the_seed_decides_the_choices_not_the_processes(killed, tmp_path):
    settings = [RATE, "initializer.sigma=0.0..1.0", *TINY]
    chosen = []
    for seed in (0, 1):
        with Sweep("linear_regression", settings, output=tmp_path, name=f"s{seed}", seed=seed) as sweep:
            sweep.run(2, progress=False, notify=lambda line: None)
            chosen.append({one.name: one.chosen for one in sweep.trials})
    assert chosen[0] == {name: one["chosen"] for name, one in killed[1][0].items()}
    rates = [one["optimizer.learning_rate"] for part in chosen for one in part.values()]
    assert len(set(rates)) == 4
    assert all(1e-3 <= rate <= 1e-1 for rate in rates)


def test_another_sweep_of_this_name_is_refused(killed):
    output = killed[0].parent
    arguments = [*LONG, "--output", output]
    code, _, err = command("sweep", *[one.replace("1e-3", "1e-4") for one in map(str, arguments)])
    assert code == 2
    assert "optimizer.learning_rate: log:1e-3..1e-1 -> log:1e-4..1e-1" in err
    code, _, err = command("sweep", *arguments, "--set", "optimizer.momentum=0.5")
    assert code == 2
    assert "optimizer.momentum: (not said) -> 0.5. Repeat its own settings to continue it, or name the new sweep" in err


def test_bad_trials_are_lines_and_pruned_ones_end_early(tmp_path):
    """The values come from processes that died before they made a folder: 5 good ones, a rate of nothing, too high."""
    key, good, bad = "optimizer.learning_rate", ["0.03"] * 5, ["1e-6", "1e30"]
    settings = [f"{key}=1e-6,0.03,1e30", "epochs=2", "data.batch_size=50"]
    with Sweep("linear_regression", settings, output=tmp_path) as sweep:
        for rate in (*good, *bad):
            sweep._study.enqueue_trial({key: rate})
            sweep._study.ask()
    arguments = [part for setting in settings for part in ("--set", setting)]
    arguments = ["linear_regression", *arguments, "--quiet", "--prune", "--trials", 7, "--output", tmp_path]
    code, out, err = command("sweep", *arguments)
    folder, lines = tmp_path / "sweep-linear_regression", [line.split() for line in out.splitlines()]
    assert (code, lines[0]) == (0, ["trial", "state", "valid_loss", "epoch", key])
    assert [(line[0], line[1], line[-1]) for line in lines[1:6]] == [
        (f"trial-000{number}", "finished", "0.03") for number in range(5)
    ]
    assert " ".join(lines[6]).startswith("trial-0005 pruned in epoch 1: valid_loss ")
    assert " ".join(lines[7]).startswith("trial-0006 diverged: epoch 1, update 2: the loss is inf")
    assert lines[8:] == [["picture", str(folder / "sweep.png")], ["best", str(folder / "trial-0000")]]
    assert "trial 7 diverged: epoch 1, update 2" in err
    state = json.loads((folder / "trial-0005" / "state.json").read_text())
    assert (state["state"], state["epoch"]) == ("stopped", 1)
    states = {one.name.partition("/")[2]: one.state for one in list_runs(tmp_path)}
    assert (states["trial-0005"], states["failed-trial-0006"]) == ("stopped", "failed")


@pytest.mark.filterwarnings("ignore:the losses of data hold NaN")
def test_a_trial_that_stops_at_nan_has_diverged(tmp_path):
    settings = ["optimizer.learning_rate=0.03,1e30", "epochs=2", "check_finite=stop"]
    with Sweep("linear_regression", settings, output=tmp_path) as sweep:
        sweep._study.enqueue_trial({"optimizer.learning_rate": "1e30"})
        sweep._study.ask()
        sweep.run(1, progress=False, notify=lambda line: None)
        (trial,) = sweep.trials
    assert (trial.state, trial.value) == ("diverged", None)
    assert "the loss is inf" in trial.reason


def test_a_value_that_the_data_refuses_fails_its_trial_only(tmp_path):
    settings = [*TINY, "model=lenet", "data.size=8,28", "optimizer.learning_rate=0.01..0.1"]
    lines = []
    with Sweep("digits_lenet", settings, output=tmp_path) as sweep:
        optuna_trial = sweep._study.ask()  # a process that died before it chose
        assert optuna_trial.number == 0
        sweep.run(4, progress=False, notify=lines.append)
        states = {one.chosen["data.size"]: one.state for one in sweep.trials}
        assert len(sweep.trials) == 4
        failed = next(one for one in sweep.trials if one.state == "failed")
    assert states == {"8": "failed", "28": "finished"}
    assert "the net takes 16 x 16 and larger" in failed.reason
    assert any("failed: " in line for line in lines)


WRONG_RANGES = [
    ("epochs=log:0..5", "epochs: this is no range; received 'log:0..5'; expected 0.1..0.5"),
    ("epochs=5..5", "epochs: this is no range; received '5..5'"),
    ("epochs=log:5", "nothing to try: no --set has a range; received ['epochs=log:5']; expected KEY=0.1..0.5"),
    ("optimizer.name=sgd,sgd", "optimizer.name: this is no range; received 'sgd,sgd'"),
    ("epochs=3", "nothing to try: no --set has a range; received ['epochs=3']"),
    ("epochs=0..5", "epochs: expected a length like '2 epochs' or '500 updates', or a number of epochs; received 0"),
    ("epoch=1..5", "epoch: unknown key; received 1"),
    ("epochs=0.5..2.5", "received 0.5"),
    ("optimizer.name=sgd,admn", "optimizer.name: unknown; received 'admn'"),
    ("devices=gpu:0,2", "Quote a value that contains a comma"),
    ("seed=1..2 & seed=3..4", "seed has a range already"),
]


@pytest.mark.parametrize(("setting", "expected"), WRONG_RANGES)
def test_a_wrong_range_is_refused_before_anything_is_made(tmp_path, setting, expected):
    settings = [f"--set={one}" for one in setting.split(" & ")]
    code, out, err = command("sweep", "linear_regression", *settings, "--output", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert expected in err
    assert not (tmp_path / "runs").exists()


def test_a_sweep_needs_something_to_compare(tmp_path):
    (tmp_path / "trained_only.py").write_text(
        "import mxkit\n@mxkit.register('data')\ndef trained_only():\n"
        "    digits = mxkit.data.digits(8)\n    return digits._replace(valid=None)\n"
    )
    (tmp_path / "one.yaml").write_text(
        "imports: [trained_only]\ndata: trained_only\nmodel: softmax_regression\nloss: softmax_ce\noptimizer: sgd\n"
        "updates: 1\n"
    )
    code, _, err = command("sweep", tmp_path / "one.yaml", "--set", "seed=1..9", "--output", tmp_path / "runs")
    assert code == 2
    assert "compared by valid_loss, and the data has no validation part" in err
    run = [tmp_path / "one.yaml", "--set", "seed=1..9", "--set", "checkpoints.keep_best=[train_accuracy,max]"]
    found = trials_of(*run, "--set", "metrics=[accuracy]", "--trials", 2, "--quiet", "--output", tmp_path / "runs")
    values = [one["value"] for one in found.values()]
    assert values == sorted(values, reverse=True)


def test_the_callback_prunes_a_study_of_a_script():
    digits = mxkit.data.digits(8)
    train = mxkit.data.ArrayLoader(*digits.train, batch_size=64)
    valid = mxkit.data.ArrayLoader(*digits.valid, batch_size=256)
    epochs = []

    def objective(trial, column="valid_loss"):
        net = mxkit.models.softmax_regression(10)
        mxkit.initialize(net)
        rate = trial.suggest_float("rate", 1e-5, 1, log=True)
        watched = [mxkit.callbacks.OptunaPruning(trial, column)]
        watched.append(mxkit.callbacks.LambdaCallback(on_epoch=lambda state, row: epochs.append(row["epoch"])))
        options = {"epochs": 3, "valid": valid, "callbacks": watched, "progress": False}
        return mxkit.fit(net, train, loss="softmax_ce", trainer=("sgd", {"learning_rate": rate}), **options)[-1][column]

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    for rate in (0.5, 1e-5):
        study.enqueue_trial({"rate": rate})
    study.optimize(objective, n_trials=2)
    assert [one.state.name for one in study.trials] == ["COMPLETE", "PRUNED"]
    assert epochs == [1, 2, 3, 1]
    assert list(study.trials[0].intermediate_values) == [1, 2, 3]
    with pytest.raises(mxkit.errors.UnknownNameError, match="valid_los"):
        objective(optuna.trial.FixedTrial({"rate": 0.5}), "valid_los")
