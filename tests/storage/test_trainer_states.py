"""MXNet's pickled states are read on an explicit word only."""

import os
import pickle

from comparing import make_net, values
import mxkit
from mxkit.errors import CheckpointError
from mxkit.storage.optimizer_state import load_trainer_states
from mxnet import autograd, gluon
import numpy as np
import pytest
from sharing import pairs


def train(net, trainer, updates):
    for number in range(updates):
        batch = np.full((4, 5), number / 3), np.arange(4) % 3
        parts = mxkit.data.split_batch(batch, net.collect_params().list_ctx())
        with autograd.record():
            losses = [gluon.loss.SoftmaxCrossEntropyLoss()(net(*part.inputs), *part.labels) for part in parts]
        autograd.backward(losses)
        trainer.step(4)


PLACES = [("cpu", None), ("cpu:2", True), ("cpu:2", False)]


@pytest.mark.parametrize(("place", "optimizer"), pairs(PLACES, ["adam", "sgd", "nag"]))
def test_a_trusted_file_is_gone_on_from(optimizer, place, tmp_path):
    devices, on_kvstore = place
    settings = {"learning_rate": 0.05, "wd": 0.1, **({} if optimizer == "adam" else {"momentum": 0.9})}
    net = make_net(devices)
    trainer = gluon.Trainer(net.collect_params(), optimizer, settings, update_on_kvstore=on_kvstore)
    train(net, trainer, 5)
    net.save_parameters(str(tmp_path / "net.params"))
    trainer.save_states(str(tmp_path / "trainer.states"))
    train(net, trainer, 5)

    other = make_net(devices)
    other.load_parameters(str(tmp_path / "net.params"))
    fresh = gluon.Trainer(other.collect_params(), optimizer, settings, update_on_kvstore=on_kvstore)
    before = fresh.optimizer
    load_trainer_states(fresh, tmp_path / "trainer.states", trusted=True)
    assert fresh.optimizer is before
    train(other, fresh, 5)
    for name, expected in values(net).items():
        # Gluon's own mean over replicas, in save_parameters, may round (T59)
        np.testing.assert_allclose(values(other)[name], expected, rtol=1e-6, atol=1e-7)


def test_the_optimizer_keeps_its_own_numbers(tmp_path):
    """T50."""
    net = make_net("cpu")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    train(net, trainer, 2)
    trainer.save_states(str(tmp_path / "trainer.states"))
    careful = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.001, "wd": 0.5, "momentum": 0.9})
    load_trainer_states(careful, tmp_path / "trainer.states", trusted=True)
    assert (careful.learning_rate, careful.optimizer.wd, careful.optimizer.num_update) == (0.001, 0.5, 2)
    other = gluon.Trainer(net.collect_params(), "adam")
    with pytest.raises(CheckpointError, match="holds the states of SGD; the Trainer's optimizer is Adam"):
        load_trainer_states(other, tmp_path / "trainer.states", trusted=True)
    few = gluon.Trainer(list(net.collect_params().values())[:1], "sgd", {"momentum": 0.9})
    with pytest.raises(CheckpointError, match=r"states of parameters \[1, 2, 3\]; the Trainer has 1 parameters"):
        load_trainer_states(few, tmp_path / "trainer.states", trusted=True)


class Program:
    """What a crafted file would do: anything."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_is_unpickled_without_the_word_and_other_files_are_told(tmp_path):
    """T50."""
    trainer, file = gluon.Trainer(make_net("cpu").collect_params(), "sgd"), tmp_path / "file"
    file.write_bytes(pickle.dumps(Program(str(tmp_path / "made"))))
    for word in (False, None, 1, "yes"):
        with pytest.raises(ValueError, match="is a pickle.*If you know the writer, pass trusted=True"):
            load_trainer_states(trainer, file, trusted=word)
    assert not (tmp_path / "made").exists()
    for content in (b"", b"text", pickle.dumps(3), pickle.dumps(({}, None))):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"is no file of trainer.save_states|holds the states of NoneType"):
            load_trainer_states(trainer, file, trusted=True)
