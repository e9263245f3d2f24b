"""Events of a training are records of `logging.getLogger("mxkit")`, and nobody sees them who did not ask."""

import logging

import mxkit
import mxnet as mx
import numpy as np


def train(folder, epochs):
    net = mx.gluon.nn.Dense(1, in_units=2)
    mxkit.initialize(net)
    data = mxkit.data.ArrayLoader(np.ones((4, 2)), np.ones((4, 1)), 4, seed=0)
    mxkit.fit(net, data, loss="l2", trainer="sgd", epochs=epochs, progress=False, checkpoint=folder, resume="auto")


def test_checkpoints_and_a_resume_are_records_of_the_level_info(tmp_path, caplog, capfd):
    train(tmp_path, epochs=1)
    assert not caplog.records
    with caplog.at_level(logging.INFO, logger="mxkit"):
        train(tmp_path, epochs=2)
    assert {record.name for record in caplog.records} == {"mxkit"}
    assert [record.getMessage() for record in caplog.records] == [
        f"training resumed after update 1, from {tmp_path / 'step-00000001'}",
        f"checkpoint of step 2 written to {tmp_path}",
    ]
    assert capfd.readouterr() == ("", "")
