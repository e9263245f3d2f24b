"""Checkpoints of format 1 stay readable: `golden/step-00000007` was written once, and is never written again.

`make` wrote it, on Python 3.11 with NumPy 1.26.4, in the middle of the second epoch of a run.
"""

from pathlib import Path
import shutil

from built_nets import ready, stack
import mxkit
from mxkit.storage.directory import find_checkpoint
from mxnet import gluon
from mxnet.gluon import nn
import numpy as np
from oracle import fit
import pytest

GOLDEN = Path(__file__).parent / "golden" / "step-00000007"
X = np.arange(40, dtype="float32").reshape(20, 2) % 7 - 3
Y = np.arange(20) % 3

# what the file holds, and what training on from it gives: weight, bias of the one layer
SAVED = [-0.10960575938224792, -0.3405965566635132, -0.15347068011760712, -0.3601367771625519, -0.07917647063732147]
SAVED += [-0.44159096479415894, 0.002628771588206291, 0.14698587357997894, -0.25920334458351135]
RESUMED = [-0.1599439, -0.3810127, -0.0754867, -0.2325572, -0.1224555]
RESUMED += [-0.4677532, 0.1412841, 0.0482466, -0.2303381]
LOSSES = [1.0992323, 1.1031594, 1.1051151]


def make_net(seed=3):
    mxkit.seed_all(seed)
    return ready(stack(nn.Dense(3, in_units=2)))


def make_trainer(net):
    return gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})


class Stop(mxkit.Callback):
    def on_update(self, state, update):
        if update.step == 8:
            raise KeyboardInterrupt


def train(directory, net, trainer, *callbacks, resume=False):
    """Epochs of 5 updates."""
    ema = mxkit.callbacks.EMA(0.9)
    history = fit(
        net,
        mxkit.data.ArrayLoader(X, Y, 4, shuffle=True, seed=1),
        trainer=trainer,
        epochs=3,
        valid=[(X, Y)],
        metrics=["accuracy"],
        callbacks=[ema, mxkit.callbacks.EarlyStopping("valid_loss", "min", patience=9), *callbacks],
        seed=5,
        checkpoint=mxkit.Checkpoints(directory, every="7 updates", keep_best=("valid_loss", "min")),
        resume=resume,
    )
    return history, ema


def make():
    """How the checkpoint was written."""
    net = make_net()
    train(GOLDEN.parent, net, make_trainer(net), Stop())


def values(net):
    return [number for p in net.collect_params().values() for number in p.data().asnumpy().ravel().tolist()]


def test_a_checkpoint_of_format_1_is_loaded(kind):
    net = kind.net(lambda: make_net(seed=9))
    trainer = make_trainer(net)
    found = mxkit.load_checkpoint(GOLDEN, net, trainer)
    assert (found.step, found.manifest["format"], found.manifest["run"]["epoch"]) == (7, 1, 2)
    assert values(net) == SAVED
    assert trainer.optimizer.num_update == 7
    assert sorted(found.manifest["files"]) == ["net.params", "optimizer.params", "state.params"]


@pytest.mark.filterwarnings("ignore:resumed from .* was '.*', is '", "ignore:resumed from .* was .*not set, ")
def test_a_run_of_format_1_goes_on(kind, tmp_path):
    shutil.copytree(str(GOLDEN), str(tmp_path / "run" / GOLDEN.name))
    net, whole = kind.net(lambda: make_net(seed=9)), make_net()
    with kind.switches():
        history, ema = train(tmp_path / "run", net, make_trainer(net), resume=True)
    assert history.column("updates") == [5, 10, 15]
    np.testing.assert_allclose(values(net), RESUMED, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(history.column("valid_loss"), LOSSES, rtol=1e-5)
    expected, averages = train(tmp_path / "whole", whole, make_trainer(whole))
    np.testing.assert_allclose(values(net), values(whole), rtol=1e-5, atol=1e-6)
    for name in ("train_loss", "valid_loss", "train_accuracy", "valid_accuracy"):
        np.testing.assert_allclose(history.column(name), expected.column(name), rtol=1e-5)
    with ema.applied(net), averages.applied(whole):
        np.testing.assert_allclose(values(net), values(whole), rtol=1e-5, atol=1e-6)
    assert find_checkpoint(tmp_path / "run").step == 15
