"""The text of operator arguments (T86)."""

from mxkit.runtime.arrays import OperatorText, operator_text
import numpy as np
import pytest

PLAIN = [
    "text", "", 3, -2.5, True, None, (), (1,), (1, 2.5, "x", None, True), [1, [2, (3,)]], {"a": (1, 2)}, b"bytes",
    float("inf"), 1e-20, (1e-20,), "np.int64(2)", ("np.int64(2)",), range(3), np.dtype("float32"), np.float32, bool,
    np.arange(3), np.int64(2), np.float32(0.1), np.float64(1e-20), np.bool_(True), {1},
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_other_text_is_that_of_str_to_the_bit(value):
    assert operator_text(value) == OperatorText(value) == str(value)
    assert type(operator_text(value)) is str


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((np.int64(2), 3), "(2, 3)"),
        ((np.int32(7),), "(7,)"),
        ([np.float32(0.1), np.float64(0.1)], "[0.1, 0.1]"),
        ((np.float16(0.1), (np.uint8(1), [np.bool_(True)])), "(0.1, (1, [True]))"),
        ((np.float32(1e-7), np.float64("inf"), None, "s"), "(1e-07, inf, None, 's')"),
        ((np.str_("a"), np.bytes_(b"b"), np.int8(-1)), "('a', b'b', -1)"),
    ],
)
def test_numpy_scalars_inside_are_written_as_numpy_1_does(value, text):
    assert operator_text(value) == text
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        assert str(value) == text


def test_the_stand_in_for_str_answers_isinstance_as_str_does():
    assert isinstance("x", OperatorText)
    assert not isinstance(b"x", OperatorText)
    assert OperatorText() == ""
