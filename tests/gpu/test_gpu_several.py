"""Two GPUs against the CPU."""

from gpu_cases import CPU, assert_close, data, dense, digits, values
import mxkit
from mxkit.errors import CheckpointWarning
from mxnet import gluon
import pytest

pytestmark = pytest.mark.gpu_pass("default")
ARGUMENTS = {"loss": "softmax_ce", "progress": False}
SGD = ("sgd", {"learning_rate": 0.1, "momentum": 0.9})


def test_updates_on_the_kvstore_equal_the_cpus(several, on_gpu):
    net, expected = dense(several), dense(CPU)
    trainer = gluon.Trainer(net.collect_params(), *SGD, kvstore="device", update_on_kvstore=True)
    mxkit.fit(net, data(90), trainer=trainer, epochs=2, accumulate=2, **ARGUMENTS)
    assert trainer._update_on_kvstore
    mxkit.fit(expected, data(90), trainer=SGD, epochs=2, accumulate=2, **ARGUMENTS)
    assert_close(values(net), values(expected), rtol=digits(on_gpu))


def test_a_run_of_two_devices_goes_on_with_one(several, on_gpu, tmp_path):
    mxkit.fit(dense(several), data(), trainer=SGD, epochs=1, seed=7, checkpoint=tmp_path, **ARGUMENTS)
    net, expected = dense(several[:1]), dense(CPU)
    with pytest.warns(CheckpointWarning, match="devices"):
        mxkit.fit(net, data(), trainer=SGD, epochs=2, seed=7, checkpoint=tmp_path, resume=True, **ARGUMENTS)
    mxkit.fit(expected, data(), trainer=SGD, epochs=2, seed=7, **ARGUMENTS)
    assert_close(values(net), values(expected), rtol=digits(on_gpu))
