"""What is used around a training, and figures of speed, as a GPU computes by default."""

from contextlib import nullcontext
import time

from gpu_cases import convolutional, data, dense, equal, resumed
import mxkit
from mxkit.errors import DeviceError
import mxnet as mx
from mxnet import autograd, gluon
import numpy as np
import pytest
from sharing import BFLOAT16

pytestmark = pytest.mark.gpu_pass("default")
TRAINING = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1})}
ARGUMENTS = {**TRAINING, "progress": False}


def test_bfloat16_is_refused_on_a_gpu(device, on_gpu, told):
    with pytest.raises(DeviceError, match="bfloat16") if on_gpu or not BFLOAT16 else nullcontext() as caught:
        mxkit.fit(dense([device]), data(), amp="bfloat16", epochs=1, **ARGUMENTS)
    told(f"bfloat16: {caught.value if caught else 'trains'}")


def test_float16_clips_and_resumes(accelerators, on_gpu, dtype, tmp_path, told):
    expected, whole, found, history = resumed(
        dense, accelerators, tmp_path, amp=dtype, clip_norm=1.0, trainer=ARGUMENTS["trainer"]
    )
    told(f"a resumed run in {dtype} is {'equal' if equal(found, expected) else 'not equal'} to the bit")
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=0.01, atol=0.01, err_msg=path)
    assert not on_gpu or history.column("loss_scale") == whole.column("loss_scale")


def test_profile_has_times_of_operators(accelerators, told):
    found = mxkit.profiling.profile(
        convolutional(accelerators), data(64, (2, 9, 9)), loss="softmax_ce", trainer="sgd", updates=5
    )
    assert found.devices == [str(device) for device in accelerators]
    assert any(operator.ms > 0 for operator in found.operators)
    assert "forward" in str(found)
    told(f"an update takes {found.ms:.2f} ms, of which the engine computes {found.floor_ms:.2f} ms")


def seconds(run):
    mx.nd.waitall()
    started = time.perf_counter()
    run()
    mx.nd.waitall()
    return time.perf_counter() - started


def images(samples, batch_size):
    x = np.random.RandomState(0).rand(samples, 1, 28, 28).astype("float32")
    return mxkit.data.ArrayLoader(x, np.arange(samples) % 10, batch_size)


def lenet(devices):
    mxkit.seed_all(3)
    net = mxkit.models.lenet()
    mxkit.initialize(net, devices=devices)
    net.hybridize(static_alloc=True)
    return net


def test_fit_and_a_loop_by_hand(device, on_gpu, told):
    samples = 20_000 if on_gpu else 128
    loader, loss = images(samples, 64), gluon.loss.SoftmaxCrossEntropyLoss()
    nets = [lenet([device]), lenet([device])]
    trainer = gluon.Trainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.1})

    def by_hand():
        for x, y in loader:
            x, y = x.as_in_context(device), y.as_in_context(device)
            with autograd.record():
                losses = loss(nets[0](x), y)
            losses.backward()
            trainer.step(len(x))

    def by_fit():
        mxkit.fit(nets[1], loader, epochs=1, **ARGUMENTS)

    times = [min(seconds(run) for _ in range(3 if on_gpu else 1)) for run in (by_hand, by_fit)]
    rates = [f"{samples / taken:,.0f} samples/s" for taken in times]
    told(f"LeNet on {device}: by hand {rates[0]}, fit {rates[1]}: {times[1] / times[0]:.2f} of the time")
