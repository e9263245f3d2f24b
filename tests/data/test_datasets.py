"""The digits: a split that nobody may change without noticing."""

import hashlib

import mxkit
from mxkit.data.datasets import upsample
import numpy as np
import pytest


@pytest.fixture(scope="module")
def digits():
    return mxkit.data.digits()


def test_shapes_dtypes_and_ranges(digits):
    assert [len(split.x) for split in digits[:3]] == [1354, 147, 296]
    for split in digits[:3]:
        assert split.x.shape == (len(split.y), 1, 8, 8)
        assert split.x.dtype == np.float32
        assert split.y.dtype == np.int32
        assert split.x.min() == 0
        assert split.x.max() == 1
        assert (split.x * 16 == np.round(split.x * 16)).all()
    assert digits.classes == list("0123456789")


def test_the_split_is_fixed(digits):
    found = {
        name: hashlib.sha256(split.y.tobytes() + (split.x * 16).astype("uint8").tobytes()).hexdigest()[:16]
        for name, split in zip(("train", "valid", "test"), digits)
    }
    assert found == SPLITS


SPLITS = {"train": "f3546226c918b406", "valid": "9d599eadd2d283f7", "test": "c174030003801b62"}


def test_the_parts_have_no_sample_in_common_and_nothing_is_lost(digits):
    from sklearn.datasets import load_digits

    rows = [
        [image.tobytes() + bytes([label]) for image, label in zip(split.x, split.y.tolist())] for split in digits[:3]
    ]
    bunch = load_digits()
    whole = [
        image.tobytes() + bytes([label])
        for image, label in zip((bunch.images / 16).astype("float32"), bunch.target.tolist())
    ]
    assert sorted(sum(rows, [])) == sorted(whole)
    assert not set(rows[0]) & set(rows[1])
    assert not set(rows[0]) & set(rows[2])
    assert not set(rows[1]) & set(rows[2])


def test_each_part_has_each_class_in_its_share(digits):
    whole = sum(np.bincount(split.y, minlength=10) for split in digits[:3])
    np.testing.assert_array_equal(np.bincount(digits.test.y), whole // 6)
    np.testing.assert_array_equal(np.bincount(digits.valid.y), (whole - whole // 6) // 10)


@pytest.mark.parametrize(("size", "factor", "border"), [(28, 3, 2), (32, 4, 0), (12, 1, 2), (8, 1, 0), (224, 28, 0)])
def test_upsampling_is_exact(size, factor, border):
    x = np.random.RandomState(0).rand(3, 2, 8, 8).astype("float32")
    large = upsample(x, size)
    assert large.shape == (3, 2, size, size)
    inner = large[:, :, border : size - border, border : size - border]
    for down in range(factor):
        for right in range(factor):
            np.testing.assert_array_equal(inner[:, :, down::factor, right::factor], x)
    assert large.sum(dtype="float64") == pytest.approx(x.sum(dtype="float64") * factor**2, rel=1e-12)


def test_digits_28_are_the_digits_upsampled(digits):
    np.testing.assert_array_equal(mxkit.data.digits(28).valid.x, upsample(digits.valid.x, 28))


@pytest.mark.parametrize("size", [0, 7, 9, 29, -8])
def test_sizes_that_do_not_fit(size):
    with pytest.raises(ValueError, match=f"expected 8, or a number whose rest .* is even; received {size}"):
        mxkit.data.digits(size)
