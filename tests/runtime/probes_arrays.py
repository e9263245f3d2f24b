"""Hand-written probes of MXNet's arrays (`probes.py` runs them): each returns what is compared."""

import numpy as np
from probes_shared import _each, _folder


def probe_sparse(mx):
    import scipy.sparse as sp

    sparse = mx.nd.sparse
    dense = np.array([[0, 1, 0], [2, 0, 3]], dtype="float32")
    items = [
        ("csr", lambda: sparse.csr_matrix(dense)),
        ("csr parts", lambda: sparse.csr_matrix(([1, 2.0], [0, 1], [0, 1, 2]), shape=(np.int64(2), 3))),
        ("coo", lambda: sparse.csr_matrix((np.float32([1, 2]), (np.array([0, 1]), np.array([1, 2]))))),
        ("scipy", lambda: sparse.array(sp.csr_matrix(dense))),
        ("back", lambda: sparse.csr_matrix(dense).asscipy().toarray()),
        ("rsp", lambda: sparse.row_sparse_array((np.ones((2, 3)), [0, np.int64(2)]), shape=(4, 3))),
        ("zeros", lambda: sparse.zeros("csr", (np.int64(2), 3))),
        ("dot", lambda: sparse.dot(sparse.csr_matrix(dense), mx.nd.ones((3, 2)))),
        ("slice", lambda: sparse.csr_matrix(dense)[np.int64(0) : 1]),
        ("retain", lambda: sparse.row_sparse_array(dense).retain(mx.nd.array([0]))),
        ("cast", lambda: sparse.csr_matrix(dense).astype(np.float64)),
        ("add", lambda: sparse.csr_matrix(dense) + sparse.csr_matrix(dense)),
        ("index", lambda: sparse.csr_matrix(dense).indices),
    ]  # fmt: skip
    return _each([*items, ("save", lambda: _saved(mx, sparse.csr_matrix(dense)))])


def _saved(mx, array):
    path = str(_folder() / "x")
    mx.nd.save(path, {"a": array})
    return mx.nd.load(path)["a"]


def probe_indexing(mx):
    x = mx.nd.arange(24).reshape((2, 3, 4))
    keys = [
        np.int64(1), (np.int64(0), slice(None)), [0, 1], np.array([0, 1]), (np.array([0, 1]), np.array([1, 2])),
        (slice(np.int64(0), np.int64(2)), np.int32(1)), (Ellipsis, np.int64(-1)), None, (None, 0, [0, 2]),
        slice(None, None, -1), mx.nd.array([1, 0]), np.array([True, False]),
    ]  # fmt: skip
    items = [(f"get {i}", lambda k=k: x[k]) for i, k in enumerate(keys)]

    def put(key, value):
        y = x.copy()
        y[key] = value
        return y

    items += [
        (f"set {i} {j}", lambda k=k, v=v: put(k, v))
        for i, k in enumerate(keys)
        for j, v in enumerate((1, np.float64(2), np.float32(2), np.int64(3)))
    ]
    items += [
        (f"op {i}", lambda v=v: (x + v, v + x, x > v, x / v, x**v))
        for i, v in enumerate((np.float32(0.1), np.float64(0.1), np.int64(2), np.bool_(True)))
    ]
    items += [
        (f"make {i}", lambda v=v: mx.nd.array(v))
        for i, v in enumerate(
            (
                [np.float64(1), 2],
                np.int64(3),
                [np.float32(1)],
                [[True, False]],
                np.arange(3),
                (1, 2),
                range(3),
                [x[0], x[1]],
            )
        )
    ]
    items += [
        (
            "astype",
            lambda: [
                x.astype(t).dtype.__name__
                for t in (np.float64, "float16", bool, np.bool_, int, float, np.dtype("int8"))
            ],
        )
    ]
    items += [
        (
            "scalar",
            lambda: (
                x[0, 0, 1].asscalar(),
                float(x[0, 0, 1]),
                int(x[0, 0, 1]),
                bool(x[0, 0, 1]),
                repr(x[0]),
                str(x[0, 0, 1]),
            ),
        )
    ]
    items += [("bool assign", lambda: put((x > 5).asnumpy().astype(bool), 0))]
    return _each(items)


def probe_numpy_arrays(mx):
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.arange(6, dtype="float32").reshape(2, 3)
        b = x > 2
        items = [
            ("bool get", lambda: x[b]), ("repr", lambda: repr(x)), ("repr scalar", lambda: repr(x.sum())),
            ("str bool", lambda: repr(b)),
            (
                "array",
                lambda: [
                    mx.np.array(v) for v in ([1, 2], np.int64(3), [True], np.arange(3.0), [np.float32(1)], True, 1.5)
                ],
            ),
            (
                "dtypes",
                lambda: [mx.np.zeros(2, dtype=t) for t in (bool, np.bool_, "bool", int, float, np.int8, mx.np.float16)],
            ),
            ("full", lambda: [mx.np.full((2,), v) for v in (True, 1, 1.5, np.float64(2), np.int64(3))]),
            ("resize", lambda: mx.np.resize(x, (np.int64(3), np.int64(4)))),
            ("tensordot", lambda: mx.np.tensordot(x, x, ((0, 1), (0, 1)))),
            ("unravel", lambda: mx.np.unravel_index(mx.np.array([1, 5], dtype="int32"), (2, 3))),
            ("mvn", lambda: mx.np.random.multivariate_normal(mx.np.zeros(2), mx.np.eye(2), 3)),
            ("pad", lambda: [mx.np.pad(x, ((np.int64(1), 1), (0, 2)), m) for m in ("constant", "edge", "reflect")]),
            ("binary", lambda: [x + np.float32(1), np.float64(2) * x, x ** np.int64(2), x == 1, -x, abs(x), x @ x.T]),
            ("tolist", lambda: (x.tolist(), x.item(3), x.sum().item(), float(x.sum()), len(x))),
            ("mixed", lambda: np.ones((2, 3)) + x), ("inplace", lambda: _inplace(x.copy())),
            ("einsum", lambda: mx.np.einsum("ij,kj->ik", x, x)),
            (
                "linalg",
                lambda: [
                    mx.np.linalg.norm(x),
                    mx.np.linalg.svd(x),
                    mx.np.linalg.inv(x @ x.T),
                    mx.np.linalg.det(x @ x.T),
                ],
            ),
            (
                "random",
                lambda: [
                    mx.np.random.uniform(size=(np.int64(2), 2)),
                    mx.np.random.choice(5, 3),
                    mx.np.random.permutation(4),
                    mx.np.random.randn(2, 2),
                ],
            ),
            (
                "finfo",
                lambda: [mx.np.finfo(mx.np.float32).eps, mx.np.pi, mx.np.inf, mx.np.PZERO, mx.np.NaN, mx.np.newaxis],
            ),
            ("print", lambda: _printed(mx, x)), ("save", lambda: _npz(mx, x)),
            ("one bool", lambda: mx.np.bool is bool),
            ("numpy", lambda: np.asarray(x) if hasattr(x, "__array__") else x.asnumpy()),
        ]  # fmt: skip
        return _each(items)


def _inplace(x):
    x += np.float32(1)
    x *= 2
    x[0, np.int64(1)] = np.float64(7)
    x[x > 8] = 0
    return x


def _printed(mx, x):
    mx.np.set_printoptions(precision=3)
    return f"{x / 3}"


def _npz(mx, x):
    path = str(_folder() / "x.npz")
    mx.npx.save(path, {"a": x})
    return mx.npx.load(path)["a"]


def probe_control_flow(mx):
    c = mx.nd.contrib
    items = [
        ("foreach", lambda: c.foreach(lambda d, s: (d + s, d + s), mx.nd.ones((3, 2)), mx.nd.zeros((2,)))),
        (
            "while",
            lambda: c.while_loop(
                lambda i, s: i < 3,
                lambda i, s: (s + i, [i + 1, s + i]),
                [mx.nd.array([0]), mx.nd.array([1])],
                max_iterations=np.int64(5),
            ),
        ),
        ("cond", lambda: c.cond(mx.nd.array([1]) > 0, lambda: mx.nd.ones(2), lambda: mx.nd.zeros(2))),
        (
            "isinf",
            lambda: [
                c.isinf(mx.nd.array([np.inf, 1])),
                c.isnan(mx.nd.array([np.nan, 1])),
                c.isfinite(mx.nd.array([np.inf, 1])),
            ],
        ),
        ("sampler", lambda: c.rand_zipfian(mx.nd.array([3]), np.int64(4), 10)),
    ]  # fmt: skip
    return _each(items)


def probe_autograd(mx):
    class Square(mx.autograd.Function):
        def forward(self, x):
            self.save_for_backward(x)
            return x * x

        def backward(self, dy):
            (x,) = self.saved_tensors
            return dy * 2 * x

    x = mx.nd.array([1.0, 2.0])
    x.attach_grad(grad_req="add")
    with mx.autograd.record():
        y = Square()(x) * np.float32(0.5)
    y.backward(mx.nd.array([1, np.float32(2)]))
    with mx.autograd.record():
        z = mx.nd.sin(x)
        first = mx.autograd.grad(z, x, create_graph=True, retain_graph=True)[0]
    first.backward()
    return x.grad, first, _custom(mx)


def _custom(mx):
    class Twice(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    class TwiceProp(mx.operator.CustomOpProp):
        def __init__(self, power="(1,)"):
            super().__init__()
            self.power = power

        def create_operator(self, ctx, shapes, dtypes):
            return Twice()

    mx.operator.register("probe_twice")(TwiceProp)
    return mx.nd.Custom(mx.nd.array([3]), op_type="probe_twice", power=(np.int64(2), 3))


def probe_test_utils(mx):
    from mxnet import test_utils as tu

    x = mx.sym.var("x")
    items = [
        ("almost", lambda: tu.almost_equal(mx.nd.ones(2), np.ones(2))),
        ("sparse", lambda: tu.rand_ndarray((3, 4), "csr", 0.5)),
        ("rsp", lambda: tu.rand_ndarray((3, 4), "row_sparse", 0.5)), ("shape", lambda: tu.rand_shape_nd(3)),
        ("tols", lambda: (tu.default_rtols(), tu.default_atols())[0][np.dtype(bool)]),
        ("assert", lambda: tu.assert_almost_equal(mx.nd.ones(3), np.ones(3) + 1e-3)),
        ("grad", lambda: tu.check_numeric_gradient(mx.sym.sin(x), {"x": np.array([0.1, 0.2])})),
        ("forward", lambda: tu.check_symbolic_forward(x * 2, {"x": np.array([1.0])}, [np.array([2.0])])),
        (
            "backward",
            lambda: tu.check_symbolic_backward(
                x * 2, {"x": np.array([1.0])}, [np.array([1.0])], {"x": np.array([2.0])}
            ),
        ),
        (
            "consistency",
            lambda: tu.check_consistency(
                mx.sym.sin(x),
                [
                    {"ctx": mx.cpu(), "x": (2, 2), "type_dict": {"x": np.float32}},
                    {"ctx": mx.cpu(), "x": (2, 2), "type_dict": {"x": np.float64}},
                ],
            ),
        ),
        (
            "chi",
            lambda: tu.chi_square_check(
                lambda n: mx.nd.random.uniform(0, 1, shape=(n,)).asnumpy(),
                [(0, 0.5), (0.5, 1)],
                [0.5, 0.5],
                nsamples=1000,
            )[1],
        ),
        ("ppf", lambda: tu.gen_buckets_probs_with_ppf(lambda q: q, 4)),
        ("chi discrete", lambda: tu.chi_square_check(lambda n: np.arange(n) % 3, [0, 1, 2], [1 / 3] * 3, nsamples=999)),
        ("mean", lambda: tu.mean_check(lambda n: np.random.normal(0, 1, n), 0, 1, 1000)),
        ("var", lambda: tu.var_check(lambda n: np.random.normal(0, 1, n), 1, 1000)),
        ("verify", lambda: tu.verify_generator(lambda n: np.random.rand(n), [(0, 0.5), (0.5, 1)], [0.5, 0.5], 1000, 2)),
        ("reduce", lambda: tu.np_reduce(np.ones((2, 3)), 1, True, np.sum)),
        ("optimizer", lambda: tu.compare_optimizer(mx.optimizer.SGD(), mx.optimizer.SGD(), (2, 3), np.float32)),
        ("orthonormal", lambda: tu.new_orthonormal_matrix_2d(3)),
        ("speed", lambda: tu.check_speed(mx.sym.sin(x), N=1, x=(2, 2)) > 0),
        ("dummy", lambda: tu.DummyIter(mx.io.NDArrayIter(np.ones((4, 2)), np.ones(4), 2)).next().data[0]),
        (
            "hybridize",
            lambda: tu.check_gluon_hybridize_consistency(
                lambda: mx.gluon.nn.Dense(2), [mx.nd.ones((2, 3))], rtol=1e-3, atol=1e-3
            ),
        ),
        ("environment", lambda: _environment(tu)),
    ]  # fmt: skip
    return _each(items)


def _environment(tu):
    with tu.environment("A_NAME", "1"):
        return tu.list_gpus() == []
