"""MXNet's pickled states are read on an explicit word only."""

import os
import pickle

from comparing import assert_equal, make_net, step, values
import mxkit
from mxkit.core.arrays import switches
from mxkit.errors import CheckpointError
from mxkit.storage.optimizer_state import load_trainer_states
import mxnet as mx
from mxnet import gluon
import pytest
from sharing import pairs

PLACES = [("cpu", None), ("cpu:2", True), ("cpu:2", False)]


@pytest.mark.parametrize("switch", [False, True])
@pytest.mark.parametrize(("place", "optimizer"), pairs(PLACES, ["adam", "sgd", "nag"]))
def test_a_trusted_file_is_gone_on_from_whatever_the_switch_was(place, optimizer, switch, kind, tmp_path):
    """T157."""
    devices, on_kvstore = place
    settings = {"learning_rate": 0.05, "wd": 0.1, **({} if optimizer == "adam" else {"momentum": 0.9})}
    nets = []
    for seed in (3, 4):
        with mx.name.NameManager():  # numbers of layers begin at 0 again: MXNet matches by the order of names (T60a)
            nets.append(kind.net(lambda seed=seed: make_net(devices, seed=seed)))
    net, other = nets
    with kind.switches():
        trainer, new = (
            gluon.Trainer(one.collect_params(), optimizer, settings, update_on_kvstore=on_kvstore)
            for one in (net, other)
        )
    step(net, trainer, 5, kind=kind)
    with kind.switches():
        trainer.save_states(str(tmp_path / "states"))
    mxkit.save_checkpoint(tmp_path, net, step=5)
    step(net, trainer, 5, 5, kind)
    before = new.optimizer
    with switches(switch):
        mxkit.load_checkpoint(tmp_path, other)
        load_trainer_states(new, tmp_path / "states", trusted=True)
    assert new.optimizer is before
    step(other, new, 5, 5, kind)
    assert_equal(values(other), values(net))
    if switch != kind.numpy and not on_kvstore:  # where MXNet leaves the file open
        with switches(switch), pytest.raises(mx.MXNetError, match="saved in np shape semantics"):
            new.load_states(str(tmp_path / "states"))


def test_the_optimizer_keeps_its_own_numbers(tmp_path):
    """T50."""
    net = make_net("cpu")
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    step(net, trainer, 2)
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
