"""Logs of a recipe's run: what they are given, and under which id a resumed run goes on."""

import json

import mxkit
from mxkit.recipe.run import load_run, resume_run, run_recipe
import numpy as np
import pytest
from recipe_parts import SMALL
from run_logs import summaries, wandb_records
from sharing import command

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of the libraries, while they are imported
TEXTS = {"recipe.yaml", "environment.json", "scores.json", "history.csv", "curves.png", "net.json", "log.txt"}


def logged(store):
    return {
        **SMALL,
        "callbacks": [
            {"name": "tensorboard", "folder": "board"},
            {"name": "wandb", "project": "tests", "mode": "offline"},
            {"name": "mlflow", "experiment": "tests", "tracking_uri": store},
        ],
        "checkpoints": {"every": "2 updates", "keep_best": ["valid_loss", "min"]},
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The address of MLflow's store, and a client of it; making its tables takes seconds."""
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("store")
    address = f"sqlite:///{folder / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)  # a client decides where its store puts files
        return address, MlflowClient(tracking_uri=address)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MLflow puts files there


def test_a_recipes_logs_get_its_files_and_best_checkpoint(tmp_path, store):
    for name in ("tensorboardX", "wandb"):
        pytest.importorskip(name)
    address, client = store
    run = run_recipe(logged(address), output=tmp_path / "runs", progress=False)

    (experiment,) = client.search_experiments(filter_string="name = 'tests'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == (run.folder.name, "FINISHED")
    assert (found.data.params["optimizer.learning_rate"], found.data.params["model.hidden"]) == ("0.1", "[16]")
    assert found.data.metrics["test_accuracy"] == run.scores["accuracy"]
    copy = client.download_artifacts(found.info.run_id, "", str(tmp_path))
    _, net = load_run(copy, "best")  # the attached files are a run's folder
    x = mxkit.data.digits().test.x
    assert (np.asarray(mxkit.predict(net, x)) == np.asarray(mxkit.predict(run.net, x))).all()

    (kept,) = (run.folder / "wandb").glob("offline-run-*/files")
    names = {path.relative_to(kept).as_posix() for path in kept.rglob("*")}
    assert {*TEXTS, "checkpoints/step-00000004/net.params"} <= names
    texts = {tag: one for tag, _, one in summaries(run.folder / "board")}
    assert b"learning_rate: 0.1" in texts["recipe.yaml/text_summary"].tensor.string_val[0]
    assert texts["test_accuracy"].simple_value == pytest.approx(run.scores["accuracy"])

    resumed = resume_run(run.folder, overrides=["updates=6"], progress=False)
    (again,) = client.search_runs([experiment.experiment_id])
    steps = [one.step for one in client.get_metric_history(again.info.run_id, "update/loss")]
    assert steps == list(range(1, 7))
    assert again.data.metrics["test_accuracy"] == resumed.scores["accuracy"]
    both = wandb_records(run.folder)
    ids = {one.run.run_id for records in both for one in records if one.HasField("run")}
    assert (len(both), len(ids)) == (2, 1)


def test_the_report_is_attached_and_a_failed_run_is_told(tmp_path, store):
    address, client = store
    callbacks = [{"name": "mlflow", "experiment": "failing", "tracking_uri": address}]
    (tmp_path / "small.yaml").write_text(json.dumps({**SMALL, "callbacks": callbacks}))
    command("train", "small.yaml", "--quiet")
    with pytest.raises(mxkit.errors.NonFiniteError):
        run_recipe("small.yaml", overrides=["optimizer.learning_rate=1e30", "updates=9"], progress=False)
    (experiment,) = client.search_experiments(filter_string="name = 'failing'")
    failed, whole = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
    assert (whole.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert "report.html" in {one.path for one in client.list_artifacts(whole.info.run_id)}
    assert {"log.txt", "recipe.yaml"} <= {one.path for one in client.list_artifacts(failed.info.run_id)}
