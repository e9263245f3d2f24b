"""Devices by name, and batches split over them."""

import warnings

from hypothesis import given, settings
from hypothesis import strategies as st
import mxkit
from mxkit.core import device as module
from mxkit.core.arrays import of_kind, switches
from mxkit.core.device import as_ndarray, describe_batch
from mxkit.errors import DataError, DeviceError, EmptyDataError, TrapWarning
import mxnet as mx
import numpy as np
import pytest
from sharing import examples

GPUS = mx.context.num_gpus()


def test_devices_by_name():
    assert mxkit.devices("cpu") == [mx.cpu(0)]
    assert mxkit.devices(" CPU:3 ") == [mx.cpu(0), mx.cpu(1), mx.cpu(2)]
    assert mxkit.devices(mx.cpu(2)) == [mx.cpu(2)]
    assert mxkit.devices((mx.cpu(1), mx.cpu(0))) == [mx.cpu(1), mx.cpu(0)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)  # of a GPU without kernels
        assert mxkit.devices() == mxkit.devices("auto")
        assert {device.device_type for device in mxkit.devices()} < {"cpu", "gpu"}


FORMS = r"devices: expected 'auto', 'cpu', 'cpu:4' \(four virtual devices\), 'gpu'"
ABSENT = rf"devices: gpu\({GPUS}\) does not exist: .* 'auto'"
NO_DEVICES = [
    (spec, FORMS) for spec in ("tpu", "cpu:", "cpu:-1", "cpu:0", "cpu:1,2", "gpu:a", "", 5, None, [], ["cpu"], [0])
]
NO_DEVICES += [(spec, "devices: each device may be named once") for spec in ([mx.cpu(0), mx.cpu(0)], "gpu:1,1")]
NO_DEVICES += [(spec, ABSENT) for spec in (f"gpu:{GPUS}", [mx.gpu(GPUS)], mx.gpu(GPUS), [mx.cpu(), mx.gpu(GPUS)])]


@pytest.mark.parametrize(("spec", "text"), NO_DEVICES)
def test_other_devices_are_refused(spec, text):
    with pytest.raises(DeviceError, match=text):
        mxkit.devices(spec)


H200 = "NVIDIA H200 (sm_90, 139 GiB) cannot run this MXNet's kernels, which are compiled for sm_50. Use the CPU"


def test_auto_leaves_out_gpus_without_kernels_and_says_so():
    assert module._automatic(0, {}, "") == [mx.cpu()]
    assert module._automatic(3, {}, "") == [mx.gpu(0), mx.gpu(1), mx.gpu(2)]
    with pytest.warns(TrapWarning, match=r"devices: 'auto' leaves out gpu\(1\): NVIDIA H200 \(sm_90, 139 GiB\) cannot"):
        assert module._automatic(3, {1: H200}, "") == [mx.gpu(0), mx.gpu(2)]
    with pytest.warns(TrapWarning, match=r"leaves out gpu\(0\)"):
        assert module._automatic(1, {0: H200}, "") == [mx.cpu()]
    with pytest.warns(TrapWarning, match="takes the CPU, because MXNet fails to look for GPUs: CUDA: unknown error"):
        assert module._automatic(0, {}, "CUDA: unknown error") == [mx.cpu()]


def test_named_gpus_without_kernels_are_refused():
    module._refuse_gpus([mx.gpu(0), mx.gpu(2)], 3, {1: H200})
    with pytest.raises(DeviceError, match=r"gpu\(1\) cannot be used: NVIDIA H200 \(sm_90, .* sm_50\. Use the CPU"):
        module._refuse_gpus([mx.gpu(0), mx.gpu(1)], 3, {1: H200})
    text = r"devices: gpu\(3\) does not exist: MXNet 1.9.1 sees 3 GPUs, numbered from 0. Use 'auto' .* `mxkit doctor`"
    with pytest.raises(DeviceError, match=text):
        module._refuse_gpus([mx.gpu(3)], 3, {})


def test_the_cpu_and_auto_without_gpus_never_ask_the_driver(monkeypatch):
    def asked(*arguments):
        raise AssertionError("the driver or the library was read")

    monkeypatch.setattr(module, "read_driver", asked)
    monkeypatch.setattr(module, "has_known_kernels", asked)
    mxkit.devices("cpu:2")
    mxkit.devices([mx.cpu(1)])
    if GPUS == 0:
        module._unusable.cache_clear()
        mxkit.devices("auto")
        with pytest.raises(AssertionError, match="the driver or the library was read"):
            mxkit.devices("gpu")


@settings(max_examples=examples(40))
@given(samples=st.integers(1, 17), count=st.integers(1, 6), as_numpy=st.booleans())
def test_shards_join_to_the_batch(samples, count, as_numpy):
    x = np.random.RandomState(samples).randn(samples, 2, 3).astype("float32")
    y = np.arange(samples, dtype="int64") + 2**24
    batch = (x, y) if as_numpy else (mx.nd.array(x), mx.nd.array(y, dtype="int64"))
    devices = mxkit.devices(f"cpu:{count}")
    shards = mxkit.data.split_batch(batch, devices)
    sizes = [shard.samples for shard in shards]
    assert shards.samples == sum(sizes) == samples
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert [shard.device for shard in shards] + shards.idle == devices
    assert len(shards) == min(samples, count)
    for shard in shards:
        assert [array.context for array in shard.inputs + shard.labels] == [shard.device] * 2
        assert {array.shape[0] for array in shard.inputs + shard.labels} == {shard.samples}
    np.testing.assert_array_equal(np.concatenate([shard.inputs[0].asnumpy() for shard in shards]), x)
    np.testing.assert_array_equal(np.concatenate([shard.labels[0].asnumpy() for shard in shards]), y)  # T14


KEPT = ["uint8", "int8", "int32", "int64", "float16", "float32"]
INTEGERS = ["int16", "uint16", "uint32", "uint64", ">i2", ">u8"]
FLOATS = ["float64", ">f4", ">f8", np.longdouble]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [*zip(KEPT, KEPT), *[(dtype, "int32") for dtype in INTEGERS], *[(dtype, "float32") for dtype in [*FLOATS, bool]]],
)
def test_dtypes_are_kept_or_become_those_of_mxnet(dtype, expected):
    """T14."""
    large = 2**40 + 1 if dtype == "int64" else 100
    values = np.array([[0, 1], [1, 0]] if dtype is bool else [[0, 1], [large, 7]], dtype)
    found = as_ndarray(values)
    assert found.dtype == np.dtype(expected)
    np.testing.assert_array_equal(found.asnumpy(), values)
    assert as_ndarray(found) is found


FOUR = np.zeros((4, 3))
NUMBERS = r"expected numbers; received an array of shape"
REFUSED = {
    "too large": ((np.array([2**31], "uint32"), FOUR[:1]), "uint32 becomes int32, which cannot hold 2147483648"),
    "complex": ((np.zeros((2, 3), complex), FOUR[:2]), rf"a batch: {NUMBERS} \(2, 3\) complex128"),
    "texts": ((np.array(["a", "b"]), FOUR[:2]), rf"a batch: {NUMBERS} \(2,\) <U1. .*number the classes"),
    "objects": ((np.array([np.zeros(1000), None], object), FOUR[:2]), rf"{NUMBERS} \(2,\) object. Convert it"),
    "a dict": ({"image": FOUR, "label": FOUR}, r"the keys 'image', 'label'. .* \(\(b\['image'\], b\['label'\]\)"),
    "no sample": ((FOUR[:0], np.zeros(0)), r"a batch has no sample: shapes \[\(0, 3\), \(0,\)\]"),
    "lengths": ((FOUR, np.zeros(3)), r"axis 0 of every array .* received shapes \[\(4, 3\), \(3,\)\]"),
    "a number": ((FOUR, np.float32(1)), r"axis 0 of every array .* received shapes \[\(4, 3\), \(\)\]"),
    "a list": ((FOUR, ([0, 1, 2, 3],)), r"NumPy arrays; received list. Make an array of it: np.asarray\("),
    "a row": ([1.0, 2.0, 3.0], "received 3 items. .* rows of numbers are np.asarray"),
    "three arrays": ((FOUR,) * 3, r"received 3 items. Group them: \(\(x1, x2\), y\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch_is_refused_without_being_printed(name):
    batch, text = REFUSED[name]
    with pytest.raises(EmptyDataError if name == "no sample" else DataError, match=text):
        mxkit.data.split_batch(batch, mxkit.devices("cpu:2"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int64", "uint8"])
@pytest.mark.parametrize("count", [1, 2])
def test_arrays_of_either_kind_become_those_that_are_asked_for(dtype, count, kind):
    x, empty = np.array([[0, 1], [1, 0], [1, 1]], dtype), np.zeros((3, 0), "float32")
    with switches(True):  # of the types of mx.nd, bool is missing
        passed = of_kind(mx.np.array(x, dtype=dtype), kind.numpy)
    for switch, numpy in ((kind.numpy, None), (False, kind.numpy), (True, kind.numpy)):
        with switches(switch):
            shards = mxkit.data.split_batch((x, (passed, kind.of(empty))), [mx.cpu(0)] * count, numpy)
        for shard in shards:
            assert all(map(kind.holds, shard.inputs + shard.labels))
            assert shard.numpy == kind.numpy
        arrays = [np.concatenate([shard.labels[part].asnumpy() for shard in shards]) for part in (0, 1)]
        assert arrays[0].dtype == x.dtype  # arrays of MXNet keep their type
        np.testing.assert_array_equal(arrays[0], x)
        assert arrays[1].shape == (3, 0)


def test_the_forms_of_a_batch():
    x, z, y = np.zeros((4, 2)), np.ones((4, 3)), np.arange(4)
    some = [(x, 1, 0), ((x,), 1, 0), ((x, y), 1, 1), ([x, y], 1, 1), (((x, z), y), 2, 1)]
    more = [((x, (y, z)), 1, 2), (((x, z), (y, z)), 2, 2), (((x, z),), 2, 0)]
    for batch, inputs, labels in some + more:
        for shard in mxkit.data.split_batch(batch, mxkit.devices("cpu:2")):
            assert (len(shard.inputs), len(shard.labels)) == (inputs, labels)


def test_shards_print():
    shards = mxkit.data.split_batch(np.zeros((2, 3)), mxkit.devices("cpu:3"))
    assert repr(shards) == "Shards(2 samples: 1 on cpu(0), 1 on cpu(1); idle [cpu(2)])"


def test_batches_are_described_for_messages():
    assert describe_batch((np.zeros((2, 3), "uint8"), mx.nd.zeros(2))) == "x (2, 3) uint8, y (2,) float32"
    assert describe_batch(((np.zeros(2), np.zeros(2)),)) == "x0 (2,) float64, x1 (2,) float64"
    assert describe_batch("abc") == "x () str"


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 0), (5,), (np.int64(2), 3), [2, 3, 4]])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", np.float32, np.dtype("float64")])
def test_what_is_written_into_a_new_batch_is_its_array(shape, dtype):
    array, view = module.empty_batch(shape, dtype)
    assert (view.shape, view.dtype) == (tuple(shape), np.dtype(dtype))
    if view.size and shape:
        view[...] = np.arange(view.size).reshape(view.shape)
        assert (array.shape, array.dtype, array.context) == (view.shape, view.dtype, mx.cpu())
        np.testing.assert_array_equal(array.asnumpy(), np.arange(view.size).reshape(view.shape))
