"""Arguments that every function is called with, and symbols computed with the arrays behind their variables."""


class Eager:
    """Makes arrays of `mx.nd` or `mx.np`."""

    def __init__(self, mx, numpy):
        self._make = (mx.np if numpy else mx.nd).array

    def __call__(self, values, dtype="float32"):
        return self._make(values, dtype=dtype)

    def result(self, value):
        return value


class Symbolic:
    """Makes variables, and keeps the arrays that a graph of them is computed with."""

    def __init__(self, mx, numpy):
        self._mx, self._numpy, self._values = mx, numpy, {}

    def __call__(self, values, dtype="float32"):
        name = f"v{len(self._values)}"
        self._values[name] = self._mx.nd.array(values, dtype=dtype)
        variable = self._mx.sym.var(name)
        return variable.as_np_ndarray() if self._numpy else variable

    def result(self, value):
        """The arrays of a graph; other values as they are."""
        mx = self._mx
        if isinstance(value, (list, tuple)):
            return type(value)(self.result(item) for item in value)
        if not isinstance(value, mx.sym.Symbol):
            return value
        known = {name: self._values[name] for name in value.list_arguments() if name in self._values}
        shapes, _, auxiliary = value.infer_shape(**{name: array.shape for name, array in known.items()})
        arrays, states = dict(known), {}
        for names, sizes, given, number in (
            (value.list_arguments(), shapes, arrays, 0.5),
            (value.list_auxiliary_states(), auxiliary, states, 1),
        ):
            for name, shape in zip(names, sizes or ()):  # none if a shape depends on numbers
                given[name] = self._values[name] if name in self._values else mx.nd.full(shape, number)
        outputs = value.bind(mx.cpu(), arrays, aux_states=states).forward()
        mx.nd.waitall()  # before the shape of outputs is read that depends on numbers
        if self._numpy:
            outputs = [output.as_np_ndarray() for output in outputs]
        return outputs[0] if len(outputs) == 1 else list(outputs)


class Input:
    """An input array of a call; `made` makes it, a new one for each call."""

    def __init__(self, values, dtype="float32"):
        self._values, self._dtype = values, dtype

    def __call__(self, array):
        return array(self._values, self._dtype)


def made(value, array):
    """Arguments with the arrays that `array` makes of their inputs."""
    if isinstance(value, Input):
        return value(array)
    if isinstance(value, (tuple, list)):
        return type(value)(made(item, array) for item in value)
    return {key: made(item, array) for key, item in value.items()} if isinstance(value, dict) else value


def generic():
    """Positional and named arguments, one call each, for every function of arrays."""
    import numpy as np

    f, v, i = Input([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]]), Input([0.5, 0.25, 0.125]), Input([2, 0, 1], "int32")
    j, s = Input([3, 1, 2], "int32"), Input([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
    b, u = Input([[True, False, True], [False, True, True]], "bool"), Input([[7, 200], [3, 255]], "uint8")
    h, d = Input([[1.0, 2.5], [0.25, 3.0]], "float16"), Input([[1.0, 2.5], [0.25, 3.0]], "float64")
    n = np.array([[1.0, 2.5, 3.0], [4.0, 5.5, 0.5]], "float32")
    positional = [
        (), (f,), (s,), (v,), (i,), (b,), (h,), (d,), (u,), (f, f), (s, s), (v, v), (j, j), (s, v), (v, i), (f, i),
        (u, u), (d, f), (f, 1), (f, 0, 1), (v, 2), (i, 2), (i, 2.5), (u, 1), (f, (1, 0)), (f, (3, 2)), (f, -1),
        (f, 2.5), (2.5, f), (2, j), (3,), (2, 5), (0, 1, 5), ((2, 3),), (2.5,), ([v, v],), ((v, v), 0), (v, v, v),
        (s, s, s), (f, 1, 2), (f, np.float32(2)), (np.float64(2), f), (i, np.int64(1)), (np.int64(3),), (n,), (f, n),
        (n, n), ((np.int64(2), 3),), (f, (np.int64(3), np.int64(2))), ("ij,jk", s, s), (i, 4), (b, f, f), (b, b),
        (f, [[1, 1], [2, 2]]), ([1, 2, 300],), ([[1.5, 2], [3, 4]],), ((2, 3), 7), ((2, 3), np.float64(7)),
    ]  # fmt: skip
    named = [
        ((f,), {"axis": 1}), ((f,), {"axis": (0, 1)}), ((f,), {"axis": np.int64(1)}), ((f,), {"dtype": "float64"}),
        ((f,), {"dtype": np.int32}), ((f,), {"dtype": bool}), (((2, 3),), {"dtype": np.float16}),
        ((f,), {"shape": (np.int64(3), 2)}), ((), {"size": (np.int64(2),)}), ((f, 50), {"axis": 0}),
        ((), {"shape": (2, 3)}), ((f, f), {"axis": 1}), ((f,), {"keepdims": True}), ((f, i), {"axis": np.int64(1)}),
        ((f,), {"num_outputs": 3, "axis": 1}), ((f, 2, 3), {"size": (2, 3)}), ((f,), {"scalar": 2}),
        ((0.5, 2.0), {"shape": (2, 3)}), ((), {"data": f}),
    ]  # fmt: skip
    return [(arguments, {}) for arguments in positional] + named


def of_methods():
    """Arguments of methods of arrays, without the array itself."""
    import numpy as np

    x = Input([[2.0, 1.0, 0.5], [1.0, 4.0, 3.0]])
    ones = [
        (), (1,), (0,), (x,), (2.5,), (np.float32(2),), (np.int64(1),), ((3, 2),), (np.int64(3), 2), (0, 1),
        ("float64",), (np.float64,), (bool,), (True,), (slice(0, 1),), (None,), ((0, np.int64(1)),),
        ([0, 1],), (-1,), (1, 0, 1),
        (Input([1, 0], "int32"),), (np.ones((2, 3), "float32"),), (0, 7.0), (slice(None), 1.5),
    ]  # fmt: skip
    named = [{"axis": 1}, {"axis": np.int64(0)}, {"shape": (3, 2)}, {"dtype": "int32"}, {"depth": 3}, {"reps": 2}]
    return [(arguments, {}) for arguments in ones] + [((), one) for one in named]
