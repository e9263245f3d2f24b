"""Memory that runs out (T135): named as that, without blaming a layer, and a process that goes on after it."""

from contextlib import contextmanager
from pathlib import Path
import resource

from built_nets import hybrid_net, plain_net, ready
import mxkit
from mxkit.core.forward_errors import explained
from mxkit.errors import ForwardError, TrainingError
import mxnet as mx
from mxnet.gluon import nn
import numpy as np
from oracle import fit
import pytest
from sharing import pairs, text_of

STATUS = Path("/proc/self/statm")
SMALL, LARGE = 2, 2**15  # LARGE squared is 4 GiB


@contextmanager
def little_memory(room=2**29):
    """Let this process take no more than `room` bytes beyond what it has."""
    if not STATUS.exists():
        pytest.skip("no /proc/self/statm here: the memory in use is read from it")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(STATUS.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def squares():
    """A net that takes memory by the square of the batch, and adds nothing of it."""

    def forward(net, F, x):
        y = net.norm(net.dense(x))
        column = F.slice_axis(y, axis=1, begin=0, end=1)
        squared = F.dot(column, column, transpose_b=True).mean(axis=1, keepdims=True)
        return net.out(F.broadcast_add(y, 0 * squared))

    layers = {"dense": nn.Dense(3, in_units=4), "norm": nn.BatchNorm(in_channels=3), "out": nn.Dense(3)}
    return ready(hybrid_net(forward, **layers), sample=(2, 4))


def batch_of(samples):
    return np.random.RandomState(0).rand(samples, 4), np.zeros(samples)


CALLS = {
    "fit": lambda net, data: fit(net, data, accumulate=2),
    "evaluate": lambda net, data: mxkit.evaluate(net, data, loss="softmax_ce"),
    "predict": mxkit.predict,
    "extract": lambda net, data: mxkit.extract(net, ["out"], data, progress=False),
    "recalibrate": mxkit.training.recalibrate_batch_norm,
}


@pytest.mark.filterwarnings("ignore:accumulated micro-batches")
@pytest.mark.parametrize(("call", "hybridize"), pairs(CALLS, [False, True]))
def test_a_process_goes_on_after_it_was_out_of_memory(call, hybridize):
    """T135."""
    net = squares()
    net.hybridize(hybridize)
    good = [batch_of(SMALL)] * 4
    expected = mxkit.predict(net, good).asnumpy()
    with little_memory(), pytest.raises((ForwardError, TrainingError)) as e:
        CALLS[call](net, [*good[:3], batch_of(LARGE), *good[:1]])
    text = str(e.value)
    assert "out of memory on the CPU" in text
    assert "Failed to allocate CPU Memory. Try a smaller batch" in text
    assert [word for word in ("nvidia-smi", "Dense") if word in text] == []
    assert isinstance(e.value.__cause__, mx.MXNetError)
    assert call == "fit" or "batch x (" in text
    assert {one.grad_req for one in net.collect_params().values()} == {"write", "null"}
    assert not any(block._forward_hooks or block._forward_pre_hooks for _, block in net._children.items())
    if call != "fit":
        np.testing.assert_array_equal(mxkit.predict(net, good).asnumpy(), expected)
    CALLS[call](net, good)
    assert np.isfinite(mxkit.predict(net, good).asnumpy()).all()


TEXTS = [
    "cudaMalloc retry failed: out of memory",
    "Check failed: e == cudaSuccess (2 vs. 0) : CUDA: out of memory",
    "Check failed: e == CUDNN_STATUS_SUCCESS (2 vs. 0) : cuDNN: CUDNN_STATUS_ALLOC_FAILED",
    "Check failed: e == CUBLAS_STATUS_SUCCESS (3 vs. 0) : cuBLAS: CUBLAS_STATUS_ALLOC_FAILED",
]


def raising(error, devices="cpu:2"):
    """A net that raises it, and counts how often it is called."""

    def forward(net, x):
        net.calls += 1
        raise error

    net = ready(plain_net(forward, dense=nn.Dense(3, in_units=4)), devices=devices)
    net.calls = 0
    return net


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_a_gpu_name_it_and_nothing_is_run_again(text, monkeypatch):
    """T135."""
    monkeypatch.setattr("mxkit.core.forward_errors.is_gpu", lambda device: device == mx.cpu(1))
    net = raising(mx.MXNetError(f"Traceback (most recent call last):\n  File x.cc, line 1\nMXNetError: {text}"))
    with pytest.raises(ForwardError, match=r"^out of memory on cpu\(1\), batch x \(6, 4\) float64, y \(6,\)") as e:
        mxkit.evaluate(net, [batch_of(6)], loss="softmax_ce")
    assert (e.value.path, e.value.block, net.calls) == ("", net, 1)
    assert str(e.value).endswith("amp='float16', or end what else nvidia-smi shows there")
    assert text.split(" : ")[-1] in str(e.value)
    with pytest.raises(TrainingError, match=r"^epoch 1, update 1, batch x \(6, 4\) .*: out of memory on cpu\(1\) "):
        fit(net, [batch_of(6)])
    assert net.calls == 2


def test_what_else_failed_meanwhile_is_not_raised_at_a_later_wait():
    """T135."""
    column = mx.nd.ones((LARGE, 1))
    net = raising(mx.MXNetError(TEXTS[0]), "cpu")
    with little_memory():
        lost = mx.nd.dot(column, column, transpose_b=True)
        with pytest.raises(ForwardError, match="^out of memory on the GPU"):
            mxkit.predict(net, [batch_of(SMALL)])
    mx.nd.waitall()
    del lost


def test_memory_that_ends_at_the_first_step_or_in_a_callback(monkeypatch):
    """T135."""
    error = mx.MXNetError(TEXTS[0])

    def full(*_):
        raise error

    net = ready(mxkit.models.mlp(3, hidden=[4]), sample=(2, 4))
    with pytest.raises(TrainingError, match="^epoch 1, update 1: out of memory on the GPU"):
        fit(net, [batch_of(6)], callbacks=[mxkit.callbacks.LambdaCallback(on_update=full)])
    monkeypatch.setattr(mx.optimizer.Adam, "create_state", full)
    with pytest.raises(TrainingError, match=r"^epoch 1, update 1, batch x \(6, 4\) .*: out of memory on the GPU") as e:
        fit(net, [batch_of(6)], trainer="adam")
    assert e.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), mx.MXNetError("CUDA: an illegal memory access")])
def test_other_errors_are_what_they_were(error):
    text = text_of((ForwardError, RuntimeError), mxkit.predict, raising(error, "cpu"), [batch_of(2)])
    assert "accumulate=" not in text


def test_memory_of_numpy_is_named_too():
    """T135."""
    text = "^out of memory on the CPU.*: Unable to allocate 4 GiB. Try a smaller"
    with pytest.raises(ForwardError, match=text), explained(squares()):
        raise MemoryError("Unable to allocate 4 GiB")
