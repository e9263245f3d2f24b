"""Logs for TensorBoard, Weights & Biases and MLflow, with the real libraries."""

import json
import sys

from callback_runs import BATCHES, VALID, Failing, fail, run
import mxkit
from mxkit.training import ledger
from mxkit.training.callbacks import LambdaCallback, MLflowLog, TensorBoardLog, WandbLog
from oracle import make_net
import pytest
from run_logs import events, scalars, summaries, wandb_history, wandb_records

pytestmark = [
    pytest.mark.filterwarnings("ignore:a device got a batch of one sample"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),  # of the libraries, while they are imported
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of MLflow; one for the module, because making the tables takes a second."""
    pytest.importorskip("mlflow")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def client(store):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store)


def losses(store, log, name="update/loss"):
    return [(one.step, one.value) for one in client(store).get_metric_history(log.id, name)]


def noted(seen):
    """Losses of all updates, read after the training."""
    return LambdaCallback(on_update=lambda state, update: seen.append(update))


def test_tensorboard_gets_numbers_settings_figures_and_histograms(tmp_path):
    pytest.importorskip("tensorboardX")
    seen = []

    def figure(state):
        from mxkit.plots.plotting import new_figure

        return new_figure()

    log = TensorBoardLog(tmp_path / "run", histograms=True, figures={"own": figure})
    how = {"clip_norm": 1.0, "metrics": ["accuracy", "confusion"], "seed": 3}
    history = run(make_net(hybridize=True), noted(seen), log, valid=VALID, epochs=2, **how)
    found = scalars(tmp_path / "run")
    for row in history:
        for name in ("train_loss", "valid_loss", "valid_accuracy", "updates", "learning_rate"):
            assert found[name, row["epoch"]] == pytest.approx(row[name])
    found = scalars(tmp_path / "run" / "updates")
    assert len(found) == 3 * len(seen)
    for update in seen:
        assert found["update/loss", update.step] == pytest.approx(update.loss)
        assert found["update/grad_norm", update.step] == pytest.approx(update.grad_norm)
        assert found["update/learning_rate", update.step] == pytest.approx(0.1)
    values = summaries(tmp_path / "run")
    kinds = {(tag, step): one.WhichOneof("value") for tag, step, one in values}
    for epoch in (1, 2):
        assert {kinds[name, epoch] for name in ("own", "train_confusion", "valid_confusion")} == {"image"}
        assert kinds["0/weight", epoch] == "histo"
    settings = b"".join(one.metadata.plugin_data.content for _, _, one in values if one.metadata.plugin_data.content)
    for part in (b"learning_rate", b"SoftmaxCrossEntropyLoss", b"sgd", b"valid_accuracy", b"seed"):
        assert part in settings


@pytest.mark.long
def test_a_resumed_run_goes_on_under_its_id_and_hides_what_was_lost(tmp_path, store):
    for name in ("tensorboardX", "wandb"):
        pytest.importorskip(name)

    def train(*more, resume, epochs=3):
        wandb = WandbLog("tests", mode="offline", folder=tmp_path)
        logs = [TensorBoardLog(tmp_path / "board"), wandb, MLflowLog("resumed", tracking_uri=store)]
        made = mxkit.Checkpoints(tmp_path / "made", every="1 epoch")
        run(make_net(hybridize=True), *logs, *more, checkpoint=made, resume=resume, epochs=epochs, seed=1)
        return logs

    def late(state, update):
        if update.step == 5:
            fail()

    seen = []
    with pytest.raises(Failing):
        train(noted(seen), LambdaCallback(on_update=late), resume=False)
    expected = [(one.step, pytest.approx(one.loss)) for one in seen]
    assert [step for step, _ in expected] == [1, 2, 3, 4, 5]
    found = scalars(tmp_path / "board" / "updates")
    assert sorted((step, value) for (name, step), value in found.items() if name == "update/loss") == expected
    (records,) = wandb_records(tmp_path)
    assert [(step, float(row["update/loss"])) for step, row in wandb_history(records).items()] == expected
    assert [one.exit.exit_code for one in records if one.HasField("exit")] == [1]
    (experiment,) = client(store).search_experiments(filter_string="name = 'resumed'")
    (before,) = client(store).search_runs([experiment.experiment_id])
    assert before.info.status == "FAILED"
    history = client(store).get_metric_history(before.info.run_id, "update/loss")
    assert [(one.step, one.value) for one in history] == expected
    _, wandb_log, mlflow_log = train(resume=True)

    assert mlflow_log.id == before.info.run_id
    info = client(store).get_run(mlflow_log.id)
    assert info.info.status == "FINISHED"
    assert (info.data.params["learning_rate"], info.data.params["optimizer"]) == ("0.1", "sgd")
    assert [step for step, _ in losses(store, mlflow_log)] == list(range(1, 10))
    assert [step for step, _ in losses(store, mlflow_log, "train_loss")] == [1, 2, 3]

    first, second = wandb_records(tmp_path)
    ids = [next(one.run.run_id for one in records if one.HasField("run")) for records in (first, second)]
    assert ids == [wandb_log.id] * 2
    rows = {**wandb_history(first), **wandb_history(second)}
    assert sorted(rows) == list(range(1, 10))
    assert float(rows[7]["update/loss"]) == dict(losses(store, mlflow_log))[7]
    assert [step for step, row in rows.items() if "epoch" in row] == [3, 6, 9]

    for folder, first in ((tmp_path / "board", 2), (tmp_path / "board" / "updates", 4)):
        assert [event.step for event in events(folder) if event.HasField("session_log")] == [first]
    assert {step for _, step in scalars(tmp_path / "board" / "updates")} == set(range(1, 10))


@pytest.mark.long
def test_a_log_waits_for_the_device_no_more_often(tmp_path, store, monkeypatch):
    """Each read of the numbers of updates is one of `fit`."""
    pytest.importorskip("tensorboardX")
    reads, settle = [], ledger.settle
    monkeypatch.setattr(ledger, "settle", lambda updates: reads.append(len(updates)) or settle(updates))
    counted = []
    for logs in ([], [TensorBoardLog(tmp_path), MLflowLog("waits", tracking_uri=store)]):
        reads.clear()
        run(make_net(hybridize=True), *logs, data=BATCHES * 50, epochs=1)
        counted.append(list(reads))
    assert counted[0] == counted[1]
    assert len(losses(store, logs[1])) == 150


@pytest.mark.long
def test_a_store_of_mlflow_that_fails_costs_a_warning(store):
    log = MLflowLog("failing", tracking_uri=store)
    gone = LambdaCallback(on_epoch=lambda state, row: client(store).delete_run(log.id))
    with pytest.warns(UserWarning, match="MLflowLog: the training continues, but MLflow refused its numbers or files"):
        history = run(make_net(hybridize=True), log, gone, epochs=2)
    assert len(history) == 2


@pytest.mark.long
def test_an_object_for_two_trainings_makes_two_runs_of_mlflow(store):
    log = MLflowLog("twice", tracking_uri=store)
    ids = []
    for _ in range(2):
        run(make_net(hybridize=True), log, epochs=1)
        ids.append(log.id)
    assert len(set(ids)) == 2


def test_a_run_of_the_users_is_not_logged_to(tmp_path):
    wandb = pytest.importorskip("wandb")
    own = wandb.init(project="own", mode="offline", dir=str(tmp_path))
    with pytest.raises(ValueError, match=f"the run {own.id} of W&B is open in this process"):
        run(make_net(hybridize=True), WandbLog("tests", mode="offline", folder=tmp_path), epochs=1)
    own.log({"still": 1})
    own.finish()


def test_settings_of_a_run_without_a_recipe_reach_wandb(tmp_path):
    pytest.importorskip("wandb")
    log = WandbLog("tests", run_name="mine", mode="offline", folder=tmp_path, updates=False)
    run(make_net(hybridize=True), log, epochs=1, seed=7)
    (records,) = wandb_records(tmp_path)
    begun = next(one.run for one in records if one.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (begun.display_name, begun.project) == ("mine", "tests")
    assert (config["seed"], config["net"], config["length"]) == (7, "HybridSequential", "1 epochs")
    assert list(wandb_history(records)) == [3]


@pytest.mark.parametrize("name", ["tensorboardX", "wandb", "mlflow"])
def test_a_missing_package_is_named_before_the_training(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    logs = {"tensorboardX": TensorBoardLog(tmp_path), "wandb": WandbLog("x"), "mlflow": MLflowLog("x")}
    with pytest.raises(ImportError, match=r"is not installed: pip install 'mxkit\[(tensorboard|wandb|mlflow)\]'"):
        run(make_net(), logs[name])
