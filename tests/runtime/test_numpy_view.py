"""NumPy as MXNet knows it (T84, T85, T90)."""

from mxkit.runtime.old_names import numpy_view
import mxnet as mx
import numpy
import pytest

OLD_NAMES = [
    "PZERO", "NZERO", "NINF", "PINF", "Inf", "NAN", "NaN", "alltrue", "sometrue", "product", "round_", "msort", "in1d",
    "trapz", "mirr", "npv", "pmt", "ppmt", "pv", "rate",
]  # fmt: skip


@pytest.fixture
def view():
    return numpy_view()


def test_every_old_name_is_read_without_a_warning(view):
    types = {"bool": bool, "int": int, "float": float, "object": object, "str": str, "complex": complex}
    assert {name: getattr(view, name) for name in types} == types  # warns of nothing
    assert all(hasattr(view, name) for name in OLD_NAMES)
    assert view.core.numeric.normalize_axis_tuple(-1, 3) == (2,)
    assert view.compat.basestring is str


def test_old_constants(view):
    constants = [view.Inf, view.PINF, view.NINF, view.NaN, view.NAN, view.NZERO, view.PZERO]
    assert list(map(repr, constants)) == ["inf", "inf", "-inf", "nan", "nan", "-0.0", "0.0"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # NumPy 1.24 to 2.3 still have some, which warn when called
def test_old_functions_compute(view):
    matrix = numpy.array([[3.0, 1.0], [2.0, 4.0]])
    assert view.alltrue(matrix > 0)
    assert not view.sometrue(matrix > 9)
    assert view.product(matrix) == 24
    assert view.round_(2.345, 1) == 2.3
    assert view.msort(matrix).tolist() == [[2, 1], [3, 4]]
    assert view.in1d([1, 5], [5, 6]).tolist() == [False, True]
    assert view.trapz([1.0, 3.0]) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of NumPy 1.24 to 1.26, which wrap by themselves
def test_lists_of_integers_out_of_bounds_wrap_as_operators_do(view):
    """T232."""
    assert view.array([1621, 300.7, -1], dtype="uint8").tolist() == [85, 44, 255]
    assert mx.np.array([1621], dtype="uint8").tolist() == mx.np.full((1,), 1621, dtype="uint8").tolist() == [85]
    assert mx.nd.array([1621, -1], dtype="uint8").asnumpy().tolist() == [85, 255]
    x = mx.nd.zeros((2,), dtype="uint8")
    x[:] = [1621, 3]
    assert x.asnumpy().tolist() == [85, 3]
    with pytest.raises(OverflowError):
        view.array([2**70], dtype="int32")
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.0.0":
        with pytest.raises(OverflowError):
            numpy.array([1621], dtype="uint8")  # NumPy itself stays


@pytest.mark.skipif("mirr" in vars(numpy), reason="NumPy before 1.20 has the functions of finance")
def test_functions_of_finance_say_where_they_went(view):
    with pytest.raises(NotImplementedError, match="numpy_financial"):
        view.mirr([1, 2], 0.1, 0.1)


def test_everything_else_is_numpys_own(view):
    assert view.ndarray is numpy.ndarray
    assert view.random is numpy.random
    assert view.__version__ == numpy.__version__
    assert view.__name__ == "numpy"
    assert set(dir(numpy)) <= set(dir(view))
    assert {"bool", "Inf", "alltrue"} <= set(dir(view))
    with pytest.raises(AttributeError, match="no_such_name"):
        view.no_such_name  # noqa: B018


def test_a_changed_numpy_is_seen_and_a_changed_view_stays_private(view, monkeypatch):
    monkeypatch.setattr(numpy, "load", "patched")
    assert view.load == "patched"
    monkeypatch.setattr(view, "a_name_of_mxnets", 1, raising=False)
    assert not hasattr(numpy, "a_name_of_mxnets")
