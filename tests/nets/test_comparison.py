"""What differs between two nets, and between the replicas of one."""

from built_nets import stack
import mxkit
from mxkit.errors import NotInitializedError
from mxkit.nets.parameter_table import Difference, compare
import mxnet as mx
from mxnet import autograd, gluon
from mxnet.gluon import nn
import numpy as np
import pytest
from sharing import Kind


def make(units=3, devices="cpu", norm=False, extra=False):
    net = stack(nn.Dense(units, in_units=2))
    if norm:
        net.add(nn.BatchNorm(in_channels=units))
    if extra:
        net.add(nn.Dense(1, in_units=units, use_bias=False))
    mxkit.seed_all(1)
    mxkit.initialize(net, devices=devices)
    return net


def test_equal_nets_whatever_their_gluon_names():
    a, b = make(), make()
    assert a[0].weight.name != b[0].weight.name
    comparison = compare(a, b)
    assert comparison
    assert comparison.equal
    assert str(comparison) == repr(comparison) == "equal: 2 common paths"
    long = compare(gluon.model_zoo.vision.resnet18_v1(), nn.Flatten())
    assert len(long.only_a) == 102
    assert "  and 92 more" in str(long)


def test_nets_of_mx_nd_and_mx_np_are_compared_by_their_values():
    nd, numpy = make(norm=True, devices="cpu:2"), Kind(True).net(lambda: make(norm=True, devices="cpu:2"))
    assert compare(nd, numpy)
    numpy[0].bias.data(mx.cpu(1))[1] = 5
    assert compare(numpy, nd).values == {"0.bias": Difference(5, 1, 3)}
    assert list(compare(numpy, numpy).drifted_a) == ["0.bias"]


def test_paths_and_shapes():
    comparison = compare(make(extra=True), make(norm=True, units=4))
    assert not comparison
    assert comparison.only_a == ["1.weight"]
    assert comparison.only_b == ["1.gamma", "1.beta", "1.running_mean", "1.running_var"]
    assert comparison.shapes == {"0.weight": ((3, 2), (4, 2)), "0.bias": ((3,), (4,))}
    assert comparison.values == {}
    assert str(comparison).splitlines() == [
        "different: 2 common paths",
        "only in the first net: 1",
        "  1.weight",
        "only in the second net: 4",
        "  1.gamma",
        "  1.beta",
        "  1.running_mean",
        "  1.running_var",
        "other shapes: 2",
        "  0.weight: (3, 2) and (4, 2)",
        "  0.bias: (3,) and (4,)",
    ]


def test_values_and_tolerances():
    a, b = make(), make()
    b[0].weight.data()[:2] *= 1.25
    theirs = b[0].weight.data().asnumpy().astype(np.float64)
    apart = np.abs(a[0].weight.data().asnumpy() - theirs)
    assert compare(a, b).values == {"0.weight": Difference(apart.max(), 4, 6)}
    assert compare(a, b, rtol=0.2001)
    assert not compare(a, b, rtol=0.1999)
    assert compare(a, b, atol=float(apart.max()))
    middle = float(np.sort(apart.ravel())[-2])
    assert compare(a, b, atol=middle).values == {"0.weight": Difference(apart.max(), 1, 6)}
    for wrong in ({"rtol": -1}, {"atol": float("nan")}):
        with pytest.raises(ValueError, match=f"compare: {next(iter(wrong))}: expected a number, at least 0"):
            compare(a, b, **wrong)


def test_the_last_bit_counts_and_nan_equals_nan():
    a, b = make(), make()
    for net in (a, b):
        net[0].bias.set_data(mx.nd.array([np.nan, np.inf, 1.0]))
    assert compare(a, b)
    b[0].bias.data()[2] = float(np.nextafter(np.float32(1), np.float32(2)))
    assert compare(a, b).values == {"0.bias": Difference(2**-23, 1, 3)}
    b[0].bias.data()[0] = 0
    b[0].bias.data()[1] = -np.inf
    found = compare(a, b).values["0.bias"]
    assert np.isnan(found.largest)
    assert found.differing == 3


@pytest.mark.parametrize("dtype", ["float16", "float64", np.dtype([("bfloat16", np.uint16)])], ids=str)
def test_dtypes_differ_and_values_are_compared_all_the_same(dtype):
    a, b = make(), make()
    for net in (a, b):
        net[0].weight.set_data(mx.nd.ones((3, 2)) * 0.5)
    b.cast(dtype)
    comparison = compare(a, b)
    name = dtype if isinstance(dtype, str) else "bfloat16"
    assert comparison.dtypes == {"0.weight": ("float32", name), "0.bias": ("float32", name)}
    assert comparison.values == {}
    assert not comparison
    assert f"  0.weight: float32 and {name}" in str(comparison)


def test_sharing_is_structure():
    first = nn.Dense(2, in_units=2)
    a = stack(first, nn.Dense(2, in_units=2, params=first.params))
    b = stack(nn.Dense(2, in_units=2), nn.Dense(2, in_units=2))
    for net in (a, b):
        net.initialize(mx.init.One())
    comparison = compare(a, b)
    assert comparison.shared["0.weight"] == (["1.weight"], [])
    assert len(comparison.shared) == 4
    assert not comparison
    assert "  0.bias: ['1.bias'] and []" in str(comparison)
    assert compare(a, a)


def test_every_replica_is_compared():
    a, b = make(devices="cpu:2"), make(devices="cpu:2")
    assert compare(a, b)
    assert compare(a, make())
    b[0].weight.data(mx.cpu(1))[0, 0] += 1
    for one, other in ((a, b), (make(), b), (b, make())):
        found = compare(one, other).values["0.weight"]
        assert found.differing == 1
        assert found.largest == pytest.approx(1)
    assert not compare(make(devices="cpu:3"), b)
    b[0].weight.data(mx.cpu(0))[:] += 2
    assert compare(a, b).values["0.weight"] == compare(make(), b).values["0.weight"]
    assert compare(a, b).values["0.weight"].differing == 6


def test_replicas_that_drifted_apart_are_told():
    """T24."""
    net = make(devices="cpu:2")
    assert compare(net, net).drifted_a == {}
    trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=None)
    with autograd.record():
        losses = [
            net(mx.nd.ones((1, 2), ctx=device) * (1 + device.device_id)).sum() for device in net[0].weight.list_ctx()
        ]
    autograd.backward(losses)
    trainer.step(1)
    comparison = compare(net, net)
    assert comparison
    assert comparison.drifted_a == comparison.drifted_b
    assert set(comparison.drifted_a) == {"0.weight"}
    first, second = (one.asnumpy().astype(np.float64) for one in net[0].weight.list_data())
    assert comparison.drifted_a["0.weight"] == Difference(np.abs(first - second).max(), 6, 6)
    assert "replicas of the first net drifted apart: 1\n  0.weight: 6 of 6 elements, by at most 0.01" in str(comparison)


def test_statistics_that_differ_between_devices_have_not_drifted():
    """T71."""
    net = make(devices="cpu:2", norm=True)
    net[1].running_mean.data(mx.cpu(1))[:] = 3
    assert compare(net, net).drifted_a == {}
    net[1].gamma.data(mx.cpu(1))[:] = 3
    assert set(compare(net, net).drifted_a) == {"1.gamma"}


def test_nets_without_values():
    ready, raw, late = nn.Dense(2, in_units=2), nn.Dense(2, in_units=2), nn.Dense(2)
    mxkit.initialize(ready)
    mxkit.initialize(late)
    for a, b, which in ((ready, raw, "second"), (raw, ready, "first"), (late, late, "first"), (ready, late, "second")):
        with pytest.raises(NotInitializedError, match=f"compare: 'weight' of the {which} net has no values"):
            compare(a, b)
