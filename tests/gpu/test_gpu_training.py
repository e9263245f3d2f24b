"""Training, loaders and files on the GPUs that MXNet sees, against the CPU; in both passes of `make gpu`."""

from gpu_cases import CPU, assert_close, convolutional, data, dense, digits, has_tf32, values
import mxkit
import mxnet as mx
from mxnet import autograd
from mxnet.gluon import nn
import numpy as np
import pytest


def test_kernels_run_on_every_usable_device(accelerators, on_gpu):
    if on_gpu:
        numbers = ",".join(str(device.device_id) for device in accelerators)
        assert mxkit.devices(f"gpu:{numbers}") == mxkit.devices(accelerators) == accelerators
        assert set(mxkit.devices("auto")) == set(accelerators)
    for device in accelerators:
        x = mx.nd.arange(6, ctx=device).reshape((2, 3))
        assert x.context == device
        np.testing.assert_array_equal(mx.nd.dot(x, x.T).asnumpy(), [[5, 14], [14, 50]])


@pytest.mark.parametrize("optimizer", [("sgd", {"learning_rate": 0.1, "momentum": 0.9}), "adam"], ids=["sgd", "adam"])
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_fit_equals_the_cpu(accelerators, on_gpu, several, optimizer):
    if several and len(accelerators) == 1:
        pytest.skip("one usable GPU, no second one")
    where = accelerators if several else accelerators[:1]
    nets = {"there": dense(where), "cpu": dense(CPU)}
    arguments = {"loss": "softmax_ce", "trainer": optimizer, "metrics": ["accuracy"], "accumulate": 2}
    histories = {
        name: mxkit.fit(net, data(90), valid=data(30), epochs=3, clip_norm=1.0, progress=False, **arguments)
        for name, net in nets.items()
    }
    assert nets["there"][0].weight.list_ctx() == where
    # in bfloat16, with 8 times less digits than TF32, it is 4e-3
    assert_close(values(nets["there"]), values(nets["cpu"]), rtol=digits(on_gpu))
    for column in ("train_loss", "valid_loss", "train_accuracy", "valid_accuracy"):
        found, expected = (history.column(column) for history in (histories["there"], histories["cpu"]))
        one_sample = 1.1 / 30 if has_tf32(on_gpu) and "accuracy" in column else 0
        np.testing.assert_allclose(found, expected, rtol=digits(on_gpu), atol=one_sample)


def test_convolutions_and_batch_norm_are_close_to_the_cpus(accelerators, on_gpu):
    nets = [convolutional(accelerators[:1]), convolutional(CPU)]
    for net in nets:
        mxkit.fit(net, data(64, (2, 9, 9)), loss="softmax_ce", trainer="sgd", epochs=3, progress=False)
    found, expected = (values(net) for net in nets)
    assert_close(found, expected, rtol=0.01 if has_tf32(on_gpu) else 1e-4, variance=0.01 if on_gpu else 1e-4)


def test_a_batch_smaller_than_the_devices_leaves_replicas_equal(accelerators, on_gpu):
    net, expected = dense(accelerators), dense(CPU)
    for each in (net, expected):
        mxkit.fit(each, data(17, batch_size=16), loss="softmax_ce", trainer="adam", epochs=2, progress=False)
    assert_close(values(net), values(expected), rtol=digits(on_gpu))


def test_mixed_precision(accelerators, on_gpu, dtype):
    low, full = dense(accelerators[:1]), dense(accelerators[:1])
    arguments = {"loss": "softmax_ce", "trainer": ("sgd", {"learning_rate": 0.1})}
    first = [next(mxkit.updates(net, data(), amp=amp, **arguments)).loss for net, amp in ((low, dtype), (full, None))]
    assert 0 < abs(first[0] - first[1]) < 0.01 * first[1]
    history = mxkit.fit(low, data(), amp=dtype, epochs=20, progress=False, **arguments)
    expected = mxkit.fit(full, data(), epochs=20, progress=False, **arguments)
    # float16 begins with skipped updates, until the loss scale fits
    assert history[-1]["train_loss"] < 0.6 * history[0]["train_loss"]
    np.testing.assert_allclose(history[-1]["train_loss"], expected[-1]["train_loss"], rtol=0.2)
    assert all(array.dtype == np.float32 for array in values(low).values())
    if on_gpu:
        assert history[-1]["skipped_updates"] == 0
        assert history[-1]["loss_scale"] > 1


def test_checkpoints_go_to_the_cpu_and_back_to_the_bit(accelerators, on_gpu, tmp_path):
    def trained(devices, epochs):
        net = dense(devices)
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05}, update_on_kvstore=False)
        if epochs:
            mxkit.fit(net, data(), loss="softmax_ce", trainer=trainer, epochs=epochs, progress=False)
        return net, trainer

    def states(trainer):
        return [array.asnumpy() for state in trainer._updaters[0].states.values() for array in state]

    first, first_trainer = trained(accelerators, 2)
    mxkit.save_checkpoint(tmp_path / "a", first, first_trainer, step=12)
    second, second_trainer = trained(CPU, 0)
    mxkit.load_checkpoint(tmp_path / "a", second, second_trainer)
    mxkit.save_checkpoint(tmp_path / "b", second, second_trainer, step=12)
    third, third_trainer = trained(accelerators, 1)
    mxkit.load_checkpoint(tmp_path / "b", third, third_trainer)
    for net, trainer in ((second, second_trainer), (third, third_trainer)):
        for path, value in values(first).items():
            np.testing.assert_array_equal(values(net)[path], value, err_msg=path)
        for found, expected in zip(states(trainer), states(first_trainer)):
            np.testing.assert_array_equal(found, expected)
        assert trainer._optimizer.num_update == first_trainer._optimizer.num_update == 12
    for net, trainer in ((first, first_trainer), (second, second_trainer), (third, third_trainer)):
        mxkit.fit(net, data(), loss="softmax_ce", trainer=trainer, epochs=1, progress=False)
    for net in (second, third):
        assert_close(values(net), values(first), digits(on_gpu))


def test_nets_move_to_the_bit(accelerators, tmp_path):
    net = convolutional(CPU)
    before = values(net)
    mxkit.to(net, accelerators)
    assert net[0].weight.list_ctx() == accelerators
    mxkit.save_net(tmp_path / "net", net)
    for other in (net, mxkit.load_net(tmp_path / "net")):
        mxkit.to(other, "cpu")
        for path, value in values(other).items():
            np.testing.assert_array_equal(value, before[path], err_msg=path)


def test_features_evaluation_and_prediction(accelerators, on_gpu):
    here, there = convolutional(CPU), convolutional(accelerators)
    loader = data(20, (2, 9, 9), batch_size=8)
    x = mx.nd.array(loader.x[:5], ctx=accelerators[0])
    found = mxkit.Features(there, ["1", "3"])(x)
    expected = mxkit.Features(here, ["1", "3"])(x.as_in_context(CPU))
    assert found["1"].context == accelerators[0]
    tolerance = {"rtol": 0.01, "atol": 0.01} if has_tf32(on_gpu) else {"rtol": 1e-4, "atol": 1e-5}
    for path in ("1", "3"):
        np.testing.assert_allclose(found[path].asnumpy(), expected[path].asnumpy(), **tolerance)
    np.testing.assert_allclose(
        mxkit.predict(there, loader).asnumpy(), mxkit.predict(here, loader).asnumpy(), **tolerance
    )
    scores = [mxkit.evaluate(net, loader, loss="softmax_ce") for net in (there, here)]
    np.testing.assert_allclose(scores[0]["loss"], scores[1]["loss"], rtol=tolerance["rtol"])


def brighter(image, rng):
    return image * np.float32(0.5 + rng.random())


def noisy(image):
    return image + mx.nd.random.uniform(shape=image.shape).asnumpy()


@pytest.mark.parametrize(
    ("workers", "transform"),
    [("arrays", None), (0, brighter), ("thread:2", brighter), ("process:2", brighter), ("process:2", noisy)],
)
def test_batches_of_loaders_arrive_whole(accelerators, workers, transform):
    x, y = np.random.RandomState(1).rand(50, 3, 16, 16).astype("float32"), np.arange(50)
    device = accelerators[0]
    # a generator on the device, which worker processes must leave alone: CUDA does not survive a fork
    mx.nd.Dropout(mx.nd.ones((8, 8), ctx=device), p=0.5, mode="always").wait_to_read()
    if workers == "arrays":
        loader = mxkit.data.ArrayLoader(x, y, 8, prefetch=2)
    else:
        dataset = mx.gluon.data.ArrayDataset(x, y)
        loader = mxkit.data.DatasetLoader(dataset, 8, workers=workers, transform=transform, seed=5)
        one_by_one = mxkit.data.DatasetLoader(dataset, 8, transform=transform, seed=5)
        x = np.concatenate([images.asnumpy() for images, _ in one_by_one])
    arrived, kinds = [], set()
    for images, labels in loader:
        kinds.add(images.context.device_type)
        arrived.append((images.as_in_context(device), labels.as_in_context(device)))
    np.testing.assert_array_equal(np.concatenate([images.asnumpy() for images, _ in arrived]), x)
    np.testing.assert_array_equal(np.concatenate([labels.asnumpy() for _, labels in arrived]), y)
    assert kinds == {"cpu"}


def test_a_seed_decides_each_devices_numbers(accelerators):
    drawn = []
    for _ in range(2):
        mxkit.seed_all(11)
        for device in accelerators:
            drawn.append(mx.nd.random.uniform(shape=(3,), ctx=device).asnumpy())
            with autograd.train_mode():
                drawn.append(nn.Dropout(0.5)(mx.nd.ones((100,), ctx=device)).asnumpy())
    assert {0, 2} == set(drawn[1])
    for first, second in zip(drawn, drawn[len(drawn) // 2 :]):
        np.testing.assert_array_equal(first, second)
