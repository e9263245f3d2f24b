"""What `asnumpy` and `asscalar` return behaves as under NumPy 1, whatever NumPy is installed (T276, T277)."""

import copy
import io
import math
import operator
import pickle
import struct

import mxnet as mx
import numpy as np
import pytest


def _assigned(kind):
    def assign(value):
        array = np.zeros((2, 2), kind)
        array[0, 1] = value
        return array.tolist()

    return assign


NUMBERS = {
    "percent": lambda x: "%f %d %5.2f" % (x, x, x),  # noqa: UP031 - how the books print
    "float": float,
    "int": int,
    "complex": complex,
    "exp": math.exp,
    "floor": math.floor,
    "struct": lambda x: struct.pack("f", x),
    **{f"assign {kind}": _assigned(kind) for kind in ("float32", "int64", "complex64", "bool")},
    "sum": lambda x: float(sum([x, x]) / 2 + 1),
    "in a list": lambda x: [float(value) for value in (x - 1, x * x, -x, abs(x))],
}


@pytest.mark.parametrize("read", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: mx.nd.array([2.5]).mean(),
        lambda: mx.nd.array([[2.5]]),
        lambda: mx.np.array([2.5]),
        lambda: mx.nd.array([[2.5]]).tostype("csr"),
    ],
    ids=["nd", "two axes", "np", "csr"],
)
def test_an_array_of_one_element_is_a_number(make, read):
    """T276."""
    assert read(make().asnumpy()) == read(2.5)


def test_it_is_an_array_of_numpy_in_all_else():
    """T276."""
    x = mx.nd.array([2.5]).asnumpy()
    plain = np.array([2.5], "float32")
    assert isinstance(x, np.ndarray)
    assert (repr(x), str(x), x.tolist(), x.dtype, x.shape) == (repr(plain), str(plain), [2.5], plain.dtype, (1,))
    file = io.BytesIO()
    np.save(file, x)
    for same in (pickle.loads(pickle.dumps(x, 2)), pickle.loads(pickle.dumps(x)), np.load(io.BytesIO(file.getvalue()))):
        assert type(same) is np.ndarray
        assert same == plain
    assert float(copy.deepcopy(x)) == 2.5
    for more in (x + np.ones(3), np.ones(3) * x, np.concatenate([x, x]), np.stack([x, x]), np.outer(x, [1, 2])):
        assert type(more) is np.ndarray
    assert type(x.sum()) is type(x[0]) is np.float32
    for refused in (x.repeat(2), mx.nd.array([1, 2]).asnumpy()):
        with pytest.raises(TypeError):
            float(refused)
    assert mx.nd.array(x).asnumpy() == mx.np.array(x).asnumpy() == plain
    assert np.add(x, 1, out=plain) is plain
    assert plain.item() == 3.5


OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "eq", "ne", "lt", "le", "gt", "ge")


@pytest.mark.parametrize("kind", ["float32", "float16", "uint8", "int8", "int32"])
@pytest.mark.parametrize("name", OPERATORS)
def test_scalars_compute_with_numbers_of_python_in_double_precision(kind, name):
    """T277."""
    x = mx.nd.array([9.7], dtype=kind).asscalar()
    number, compute = x.item(), getattr(operator, name)
    for other in (3, 300, 0.1, number):
        for left, right in ((x, other), (other, x)):
            expected = compute(*(value.item() if value is x else value for value in (left, right)))
            if abs(expected) < 2**63:
                assert compute(left, right) == expected


def test_sums_of_a_loop_have_the_bits_of_numpy_1():
    """T277."""
    x = mx.nd.array([0.1]).sum()
    total, product, expected = 0.0, 0, 0.0
    for _ in range(1000):
        total += x.asscalar()
        product += x.asscalar() * x.asscalar()
        expected += float(np.float32(0.1))
    assert total == expected
    assert abs(product - 1000 * float(np.float32(0.1) * np.float32(0.1))) < 1e-12
    assert 2.0**24 + mx.nd.array([1]).asscalar() == 2**24 + 1
    assert mx.nd.array([3], dtype="uint8").asscalar() - 5 == -2


def test_scalars_are_numpys_own_in_all_else():
    """T277."""
    x = mx.nd.array([0.1]).asscalar()
    assert isinstance(x, np.float32)
    assert (str(x), repr([x]), type(x).__name__, x.dtype, x.shape) == ("0.1", "[0.1]", "float32", np.float32, ())
    assert hash(x) == hash(np.float32(0.1))
    assert type(pickle.loads(pickle.dumps(x))) is np.float32
    assert np.array([x, x]).dtype == (np.ones(2, "float32") * x).dtype == (x + np.float32(1)).dtype == "float32"
    assert (mx.nd.ones(2) * x).dtype == np.float32
    assert mx.nd.zeros((mx.nd.array([3], dtype="int32").asscalar(), 2)).shape == (3, 2)
    assert [0, 1, 2][mx.nd.array([2], dtype="uint8").asscalar()] == 2
    assert mx.nd.array([True], dtype="bool").asscalar() is np.True_
