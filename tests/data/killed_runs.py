"""Runs over a loader that die and are resumed, for the tests of each loader."""

import mxkit
import numpy as np
import pytest


class Killed(BaseException):
    """Stands for a death that no handler of mxkit's sees."""


def check_killed_run(tmp_path, make_net, make_data, *, dies, **arguments):
    """A run that was killed after some updates and resumed ends with the losses and weights of one that was not.

    Returns the history of the latter.
    """

    def run(directory, last=None):
        mxkit.seed_all(3)
        net = make_net()
        mxkit.initialize(net)

        def die(state, update):
            if update.step == last:
                raise Killed

        history = mxkit.fit(
            net,
            make_data(),
            seed=5,
            checkpoint=mxkit.Checkpoints(directory, every="16 updates"),
            resume="auto",
            callbacks=[mxkit.callbacks.LambdaCallback(on_update=die)],
            progress=False,
            **arguments,
        )
        return history, [p.data().asnumpy() for p in net.collect_params().values()]

    history, weights = run(tmp_path / "whole")
    for last in dies:
        with pytest.raises(Killed):
            run(tmp_path / "killed", last)
    resumed, found = run(tmp_path / "killed")
    assert resumed.column("train_loss") == history.column("train_loss")
    for one, other in zip(found, weights):
        np.testing.assert_array_equal(one, other)
    return history
