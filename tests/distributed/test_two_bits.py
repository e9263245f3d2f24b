"""Workers that send 2 bits of each number make the updates of a model in NumPy."""

from joint_cases import fitted, made, mlp
from joint_runs import assert_equal, once, results, results_of
import mxkit
import mxnet as mx
import numpy as np
import pytest
from sharing import long
from two_bits import EPOCHS, THRESHOLD, TURN, WORKERS, shares, twins, two_bits


@pytest.fixture(scope="module", params=[long("a job")])
def workers(tmp_path_factory):
    make = lambda folder: results("two_bits.py", folder, WORKERS)  # noqa: E731
    return results_of(once(tmp_path_factory, "two-bits", make), WORKERS)


def shares_of(epoch_loader):
    """The batches of an epoch, of each worker."""
    parts = []
    for rank in range(WORKERS):
        epoch_loader.share = (rank, WORKERS)
        epoch_loader.epoch = 0
        parts.append([list(epoch_loader) for _ in range(EPOCHS)])
    return [list(zip(*epoch)) for epoch in zip(*parts)]


def model_of(net, turned=None):
    """Parameters after updates whose gradients lose what is below the threshold, worker by worker; losses by epoch."""
    net(mx.nd.zeros((1, 6)))
    loss, losses = mx.gluon.loss.SoftmaxCrossEntropyLoss(), []
    parameters, rests, step = net._collect_params_with_prefix(), {}, 0
    for epoch in shares_of(shares()):
        total, samples = 0.0, 0
        for batches in epoch:
            count = sum(len(y) for _, y in batches)
            sent = {}
            for rank, (x, y) in enumerate(batches):
                with mx.autograd.record():
                    values = loss(net(x), y)
                values.backward()
                total += float(values.sum().asscalar())
                for path, parameter in parameters.items():
                    if parameter.grad_req != "null":
                        rest = rests.get((rank, path), 0) + parameter.grad().asnumpy() * (WORKERS / count)
                        bits = (rest >= THRESHOLD) * 1.0 - (rest <= -THRESHOLD)
                        rests[rank, path] = rest - bits * THRESHOLD
                        sent[path] = sent.get(path, 0) + bits * THRESHOLD / WORKERS
            for path, gradient in sent.items():
                parameters[path].set_data(parameters[path].data() - 0.1 * mx.nd.array(gradient))
            samples, step = samples + count, step + 1
            if step == turned:
                mxkit.freeze(net, "0.*")
                mxkit.unfreeze(net, "1.*")
                rests = {}
        losses.append(total / samples)
    return {path: one.data().asnumpy() for path, one in parameters.items()}, losses


@pytest.mark.parametrize(
    ("name", "make", "turned"),
    [("compressed", mlp, None), ("pieces on two devices", mlp, None), ("twins", twins, TURN)],
)
def test_updates_are_those_of_the_model(workers, name, make, turned):
    expected, losses = model_of(made(make()) if turned is None else make(), turned)
    for worker in workers:
        for path, values in expected.items():
            np.testing.assert_allclose(worker[name]["parameters"][path], values, rtol=1e-5, atol=1e-6, err_msg=path)
        np.testing.assert_allclose([row["train_loss"] for row in worker[name]["rows"]], losses, rtol=1e-5)
    other = workers[0]["plain"]["parameters"]
    assert turned or any(abs(values - other[path]).max() > 1e-3 for path, values in expected.items())


def test_workers_have_the_same_bits_and_a_second_training_too(workers):
    for name in ("plain", "compressed", "again", "pieces on two devices", "twins"):
        assert_equal(workers[0][name], workers[1][name])
    assert_equal(workers[0]["again"], workers[0]["compressed"])


def test_a_small_threshold_is_not_rounded_to_zero(workers):
    """T236."""
    net = made(mlp())
    net(mx.nd.zeros((1, 6)))
    moved = []
    for path, parameter in net._collect_params_with_prefix().items():
        moved += [(workers[0]["small"]["parameters"][path] - parameter.data().asnumpy()).ravel()]
    sent = np.concatenate(moved) * WORKERS / 0.01  # the learning rate makes an update of the threshold one of 0.01
    np.testing.assert_allclose(sent, sent.round(), atol=1e-3)
    assert (abs(sent) > 0.5).mean() > 0.2  # where the workers have one sign
    assert abs(sent).max() < WORKERS + 0.5


ERRORS = {
    "other threshold": "threshold of compression: worker 0 has 1.0, worker 1 has 2.0",
    "not finite": "epoch 1, update 1: the loss is nan",
    "float16": "compression: MXNet would never lose an overflow of amp='float16'",
    "float64": "is of float64; MXNet compresses float32 only",
    "without": "an earlier training of this process had compression, which MXNet cannot switch off",
}


@pytest.mark.parametrize("name", ERRORS)
def test_all_workers_raise_one_error(workers, name):
    for worker in workers:
        assert ERRORS[name] in worker[name]


def test_a_resumed_run_says_that_it_is_another_one(workers):
    for worker in workers:
        assert [text for text in worker["resumed"] if "had not sent of their gradients yet is lost" in text]


WRONG = [{"type": "1bit", "threshold": 0.5}, {"type": "2bit"}, "2bit"]
WRONG += [two_bits(threshold) for threshold in (0, True, float("inf"))]


def test_what_is_no_compression():
    cases = [({"compression": one}, "expected None or {'type': '2bit', 'threshold': t}") for one in WRONG]
    for arguments, text in [*cases, ({"compression": two_bits(), "kvstore": "horovod"}, "kvstore='horovod' has none")]:
        with pytest.raises(ValueError, match=text):
            mxkit.distributed.set_kvstore(**arguments)


def test_one_process_compresses_nothing():
    assert_equal(fitted(compression=two_bits()), fitted())
