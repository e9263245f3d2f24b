"""What works in MXNet only with mxkit's repairs, each on the real library."""

import copy
import functools
import io
import json
import pickle
import sys
from types import SimpleNamespace
import warnings

from built_nets import ready, stack
from mxkit.runtime import graphs, loaders, repairs
from mxkit.runtime.arrays import OperatorText, operator_text
import mxnet as mx
import numpy as np
import pytest


def test_operators_and_layers_take_numpy_scalars():
    # T86: mxnet/_ctypes/ndarray.py, line 90
    two = np.int64(2)
    assert mx.nd.zeros((two, 3)).shape == (2, 3)
    assert mx.nd.ones((6,)).reshape((two, np.int32(3))).shape == (2, 3)
    assert mx.nd.tile(mx.nd.ones((1, 1)), reps=[two, 3]).shape == (2, 3)
    # mxnet/_ctypes/ndarray.py, line 119, and mxnet/_ctypes/symbol.py, line 131
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.reshape(x, shape=(np.int64(3), np.int64(2))))
    net.hybridize()
    assert net(mx.nd.ones((6,))).shape == (3, 2)
    net = ready(mx.gluon.nn.Dense(np.int64(4), in_units=np.int64(3)), initializer=mx.init.Orthogonal())
    assert net(mx.nd.ones((2, 3))).shape == (2, 4)
    normalize = mx.gluon.data.vision.transforms.Normalize(tuple(np.float64([0.5] * 3)), tuple(np.float32([0.1] * 3)))
    np.testing.assert_allclose(normalize(mx.nd.ones((3, 2, 2))).asnumpy(), 5, rtol=1e-6)


def test_symbols_take_numpy_scalars():
    # T86: mxnet/_ctypes/symbol.py, line 100, and mxnet/symbol/symbol.py, lines 2957 and 2976
    x = mx.sym.var("x", shape=(np.int64(2), 3), lr_mult=np.float32(0.5), __note__=(np.int64(1),))
    assert x.attr("__shape__") == "(2, 3)"
    assert x.attr("__lr_mult__") == "0.5"
    assert x.attr("__note__") == "(1,)"
    y = mx.sym.reshape(x, shape=(np.int64(3), np.int64(2)))
    assert y.infer_shape()[1] == [(3, 2)]


def test_symbols_still_check_the_type_of_a_backend():
    # mxnet/symbol/symbol.py, line 1497: `assert isinstance(backend, str)`
    y = mx.sym.FullyConnected(mx.sym.var("x"), num_hidden=2)
    assert isinstance(y.optimize_for("MKLDNN"), mx.sym.Symbol)
    with pytest.raises(AssertionError):
        y.optimize_for(b"MKLDNN")


def test_iterators_take_numpy_scalars_and_keep_their_arguments(tmp_path):
    # T86: mxnet/io/io.py, line 969
    table = tmp_path / "table.csv"
    table.write_text("1,2\n3,4\n")
    two = np.int64(2)
    rows = mx.io.CSVIter(data_csv=str(table), data_shape=(two,), batch_size=two, round_batch=False)
    assert next(rows).data[0].asnumpy().tolist() == [[1, 2], [3, 4]]
    assert rows.options["round_batch"] is False  # T190: mxnet/io/io.py, line 834


class Rows(mx.io.DataIter):
    """Batches that a user's code cuts out of arrays of mx.np."""

    provide_data = provide_label = [mx.io.DataDesc("data", (2,))]

    def __init__(self):
        super().__init__(2)
        self.left = list(range(3))

    def next(self):
        if not self.left:
            raise StopIteration
        row = mx.np.arange(2) + self.left.pop(0)
        return mx.io.DataBatch([row], [row[0]], pad=0)


def test_a_prefetching_iterator_reads_under_the_switches_of_its_maker():
    """T160."""
    # mxnet/io/io.py, line 403: in a new thread `row[0]` has the shape (1,)
    with mx.util.np_shape(True), mx.util.np_array(True):
        rows, expected = mx.io.PrefetchingIter(Rows()), [batch.label[0] for batch in Rows()]
        found = [batch.label[0] for batch in rows]
    assert all(thread.daemon for thread in rows.prefetch_threads)  # line 406: `setDaemon` warns since Python 3.10
    assert [label.shape for label in found] == [label.shape for label in expected] == [()] * 3
    rows = mx.io.PrefetchingIter(Rows())
    assert [batch.label[0].shape for batch in rows] == [(1,)] * 3  # as without a thread


def test_random_arrays_have_a_size_of_numpy():
    # mxnet/ndarray/numpy/random.py, line 130
    calls = {
        "uniform": (0, 1), "normal": (0, 1), "choice": (5,), "exponential": (1.0,), "randint": (0, np.int64(9)),
    }  # fmt: skip
    with mx.util.np_shape(True), mx.util.np_array(True):
        for name, arguments in calls.items():
            function = getattr(mx.np.random, name)
            assert function(*arguments, np.int64(3)).shape == function(*arguments, size=np.int32(3)).shape == (3,)
            assert function(*arguments, size=(np.int64(2), 3)).shape == (2, 3)
            mx.random.seed(3)
            expected = function(*arguments, size=4).tolist()
            mx.random.seed(3)
            assert function(*arguments, size=np.int64(4)).tolist() == expected
        # mxnet/ndarray/numpy_extension/random.py, line 86, and both modules of mxnet/symbol
        assert mx.npx.random.bernoulli(0.5, size=np.int64(2)).shape == (2,)
        assert mx.npx.random.uniform_n(0, 1, batch_shape=np.int64(2)).shape == (2,)
        assert mx.sym.np.random.uniform(0, 1, size=np.int64(2)).infer_shape()[1] == [(2,)]
        assert mx.sym.npx.random.bernoulli(0.5, size=np.int64(2)).infer_shape()[1] == [(2,)]
        assert mx.sym.np.random.choice(np.int64(5), np.int64(2)).infer_shape()[1] == [(2,)]


def test_results_of_numpy_that_are_named_tuples_become_arrays():
    # mxnet/numpy/multiarray.py, line 149
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.array([[1.0, 2.0], [3.0, 4.0]])
        q, r = mx.np.linalg.qr(x)
        assert isinstance(q, mx.np.ndarray)
        np.testing.assert_allclose((q @ r).asnumpy(), x.asnumpy(), atol=1e-5)
        assert type(mx.np.linalg.qr(x)) is type(np.linalg.qr(np.eye(2)))


def test_names_of_mx_np_that_fail_on_every_numpy_compute():
    # mxnet/numpy/multiarray.py, line 1626; mxnet/ndarray/numpy/_op.py, lines 2715 and 2914, and the symbols' functions
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.array([[3.0, 1.0], [2.0, 4.0]])
        assert (x.sort().tolist(), x.sort(axis=0).tolist()) == ([[1, 3], [2, 4]], [[2, 1], [3, 4]])
        angles = mx.np.deg2rad(mx.np.array([0.0, 180.0]))
        np.testing.assert_allclose(angles.asnumpy(), [0, np.pi], rtol=1e-6)
        graph = mx.sym.np.rad2deg(mx.sym.var("x").as_np_ndarray())
        degrees = graph.bind(mx.cpu(), {"x": angles.as_nd_ndarray()}).forward()[0]
        np.testing.assert_allclose(degrees.asnumpy(), [0, 180], rtol=1e-6)


def test_functions_that_numpy_dropped_compute_on_mxnet_arrays():
    # mxnet/numpy/fallback.py: the view's own functions ask `__array_function__`, as NumPy's did
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.array([[3.0, 1.0], [2.0, 4.0]])
        assert mx.np.in1d(x, mx.np.array([1.0, 4.0])).tolist() == [False, True, False, True]
        assert mx.np.in1d(x, mx.np.array([1.0]), False, True).tolist() == [True, False, True, True]
        assert mx.np.msort(x > 1).tolist() == [[True, False], [True, True]]
        assert mx.np.trapz(x).tolist() == [2, 3]
        assert isinstance(mx.np.trapz(x), mx.np.ndarray)
        assert mx.np.alltrue(x) == np.True_
        assert mx.np.alltrue(x > 1, axis=1).tolist() == [False, True]
        assert mx.np.fix(-2.5) == -2
        assert mx.np.fix(x).dtype == np.float32


@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
def test_numpys_fix_still_reaches_mxnets():
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.array([1.5, -1.5])
        x.attach_grad()
        with mx.autograd.record(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = np.fix(x)  # a function that MXNet leaves to NumPy is refused while recording
        assert isinstance(y, mx.np.ndarray)
        assert y.tolist() == [1, -1]


class _Ones(mx.metric.EvalMetric):
    """A metric as users write them: it adds float32 to what `reset` left."""

    def update(self, labels, preds):
        self.sum_metric += np.float32(0.1)
        self.num_inst += np.float32(1)


def test_metrics_add_in_double_precision():
    # mxnet/metric.py, line 1687: NumPy 2 makes `0.0 + np.float32(0.1)` a float32
    loss, mae, own = mx.metric.Loss(), mx.metric.MAE(), _Ones("ones")
    tenth = mx.nd.array([0.1])
    for _ in range(2000):
        loss.update(None, [tenth])
        mae.update([mx.nd.array([0.0])], [tenth])
        own.update(None, None)
    for metric in (loss, mae, own):
        assert metric.sum_metric == pytest.approx(2000 * float(np.float32(0.1)), rel=1e-12), metric
        assert metric.get()[1] == pytest.approx(float(np.float32(0.1)), rel=1e-12)
    assert loss.get_global()[1] == pytest.approx(float(np.float32(0.1)), rel=1e-12)


def test_perplexity_counts_words_exactly():
    # mxnet/metric.py, line 1036: an int minus a float32
    labels, scores = [mx.nd.array([0, 1])], [mx.nd.array([[0.5, 0.5], [0.5, 0.5]])]
    metric = mx.metric.Perplexity(ignore_label=0)
    for _ in range(2):
        metric.update(labels, scores)
    metric.num_inst += 2**24
    metric.update(labels, scores)
    assert metric.num_inst == 2**24 + 3


def test_metrics_are_still_plain_objects():
    metric = mx.metric.Accuracy()
    assert type(metric.num_inst) is int
    metric.update([mx.nd.array([0, 1])], [mx.nd.array([[0.5, 0.4], [0.5, 0.4]])])
    assert (metric.get(), metric.num_inst) == (("accuracy", 0.5), 2)
    for again in (copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))):
        assert again.get() == metric.get()
        assert vars(again)["sum_metric"] == vars(metric)["sum_metric"] == 1
    lists = mx.metric.EvalMetric("lists")
    lists.sum_metric = [0.0, 1.0]
    lists.sum_metric[0] += 1
    assert lists.sum_metric == [1.0, 1.0]


def test_records_are_packed_with_several_labels():
    # T87: mxnet/recordio.py, line 392
    packed = mx.recordio.pack(mx.recordio.IRHeader(0, [1.0, 2.5], 7, 0), b"data")
    header, data = mx.recordio.unpack(packed)
    assert (header.flag, header.label.tolist(), header.id, data) == (2, [1.0, 2.5], 7, b"data")
    header, data = mx.recordio.unpack(mx.recordio.pack((0, 4, 9, 0), b"x"))
    assert (header.flag, header.label, header.id, data) == (0, 4.0, 9, b"x")


CROPS = {
    "center_crop": lambda image: mx.image.center_crop(image, (8, 8))[0],
    "random_crop": lambda image: mx.image.random_crop(image, (8, 6))[0],
    "random_size_crop": lambda image: mx.image.random_size_crop(image, (8, 8), (1.0, 1.0), (1.0, 1.0))[0],
    "fixed_crop of a row": lambda image: mx.image.fixed_crop(image, 2, 3, 4, 1),
    "CenterCrop": mx.gluon.data.vision.transforms.CenterCrop(8),
    "RandomResizedCrop": mx.gluon.data.vision.transforms.RandomResizedCrop(8, (1.0, 1.0), (1.0, 1.0)),
}
AUGMENTERS = {
    "brightness": mx.image.BrightnessJitterAug(0.4),
    "contrast": mx.image.ContrastJitterAug(0.4),
    "saturation": mx.image.SaturationJitterAug(0.4),
    "lighting": mx.image.LightingAug(0.5, np.ones(3), np.eye(3)),
    "normalize": mx.image.ColorNormalizeAug(mx.nd.array([1, 2, 3]), mx.nd.array([4, 5, 6])),
    "jitter": mx.image.ColorJitterAug(0.4, 0.4, 0.4),
}


@pytest.mark.parametrize("way", [*CROPS, *AUGMENTERS])
def test_crops_and_augmenters_leave_the_image(way, kind):
    """T260."""
    pixels = np.random.RandomState(0).randint(0, 256, (8, 8, 3)).astype("float32")
    image = mx.nd.array(pixels) if way in AUGMENTERS else kind.of(mx.nd.array(pixels))  # augmenters refuse mx.np
    changed = {**CROPS, **AUGMENTERS}[way](image)
    if way in CROPS:
        changed[:] = -1
    else:
        assert (changed.asnumpy() != pixels).any()
    np.testing.assert_array_equal(image.asnumpy(), pixels)


def test_images_are_packed():
    # T87: mxnet/recordio.py, line 508
    image = np.full((4, 5, 3), 200, dtype=np.uint8)
    for ending, quality, off in ((".png", 9, 0), (".jpg", 95, 3), (".JPEG", 95, 3)):
        packed = mx.recordio.pack_img((0, 1.0, 2, 0), image, quality=quality, img_fmt=ending)
        header, read = mx.recordio.unpack_img(packed)
        assert header.label == 1.0
        assert read.shape == (4, 5, 3)
        assert abs(read.astype(int) - 200).max() <= off


def test_the_entropy_calibrator_gives_numbers():
    # T87: mxnet/contrib/quantization.py, line 340
    from mxnet.contrib import quantization

    values = np.random.RandomState(0).normal(size=4000)
    counts, edges = np.histogram(values, bins=8001, range=(-4, 4))
    thresholds = quantization._get_optimal_thresholds({"layer": (counts, edges, -4.0, 4.0, 4.0)}, "int8")
    low, high = thresholds["layer"]
    assert -4 <= float(low) < 0 < float(high) <= 4
    assert "%f" % high  # noqa: UP031 - how line 368 reads it


def test_center_net_reads_the_class_of_a_box():
    # gluoncv/model_zoo/center_net/target_generator.py, line 41
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is under test is not what GluonCV's import warns of
        from gluoncv.model_zoo.center_net.target_generator import CenterNetTargetGenerator

    targets = CenterNetTargetGenerator(2, 8, 8)(np.float32([[1, 1, 5, 5]]), np.float32([[1]]))
    heatmap = targets[0].asnumpy()
    assert heatmap[1, 3, 3] == 1
    assert heatmap[0].sum() == 0


def test_gluoncv_imports_beside_pytorch_2(monkeypatch):
    """T195."""
    # gluoncv/check.py, line 36, whose caller catches an ImportError; the real PyTorch is not installed here
    from gluoncv import check

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.13.0"))
    with pytest.raises(ImportError, match=r"Legacy torch==2\.13\.0"):
        check._require_pytorch_version("1.4.0", "2.0.0")


def test_numpy_reads_arrays_of_both_kinds():
    # T88: mxnet/ndarray/ndarray.py has no __array__
    for array in (mx.nd.array([[1, 2], [3, 4]]), mx.np.array([[1, 2], [3, 4]])):
        read = np.asarray(array)
        assert type(read) is np.ndarray
        assert read.dtype == np.float32
        assert read.tolist() == [[1, 2], [3, 4]]
        assert np.asarray(array, dtype="int64").dtype == np.int64
        assert np.array(array, dtype=np.float64).sum() == 10
        assert array.__array__("float16").dtype == np.float16
        assert np.concatenate([np.asarray(array), np.zeros((1, 2))]).shape == (3, 2)
    assert np.asarray(mx.nd.array([[0, 1]]).tostype("csr")).tolist() == [[0, 1]]
    assert np.asarray(mx.nd.array([5])[0]).shape == (1,)


def test_a_reading_without_a_copy_is_refused_as_numpy_2_asks():
    with pytest.raises(ValueError, match="NDArray cannot be read by NumPy without a copy"):
        mx.nd.ones(2).__array__(copy=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(mx.nd.ones(2), copy=False)


def test_arithmetic_with_numpy_still_gives_mxnet_arrays():
    assert isinstance(mx.nd.ones(2) + np.float32(1), mx.nd.NDArray)
    assert isinstance(mx.nd.array([mx.nd.ones(2).asnumpy(), [3, 4]]), mx.nd.NDArray)
    with mx.util.np_shape(True), mx.util.np_array(True):
        assert isinstance(np.sum(mx.np.ones(2)), mx.np.ndarray)


PLOTS = {
    "plot": lambda axes, x, y: axes.plot(x, y),
    "bar": lambda axes, x, y: axes.bar(x, y, bottom=y),
    "bar beside an array of NumPy": lambda axes, x, y: axes.bar(np.arange(4), y),
    "quiver": lambda axes, x, y: axes.quiver(x, y, y, x),
    "3d plot": lambda axes, x, y: axes.plot(x, y),
    "3d scatter": lambda axes, x, y: axes.scatter(x, y, y),
    "3d plot_surface": lambda axes, x, y: axes.plot_surface(*np.meshgrid(x, y), np.outer(y, x)),
}


@pytest.mark.parametrize("name", PLOTS)
def test_matplotlib_draws_arrays_of_mx_np_as_those_of_numpy(name):
    """T279."""
    figures = pytest.importorskip("matplotlib.figure")
    projection = {"projection": "3d"} if name.startswith("3d") else {}
    pictures = []
    with mx.util.np_shape(True), mx.util.np_array(True):
        for make in (functools.partial(np.array, dtype="float32"), mx.np.array):
            figure = figures.Figure(figsize=(2, 2), dpi=50)
            axes = figure.add_subplot(**projection)
            PLOTS[name](axes, make([1.0, 2, 3, 4]), make([1.0, 4, 9, 16]))
            pictures.append(io.BytesIO())
            figure.savefig(pictures[-1], format="raw")
    expected, found = (np.frombuffer(picture.getvalue(), "uint8").astype(int) for picture in pictures)
    assert abs(found - expected).mean() < 2  # edges of bars may be rounded to another pixel


def test_an_array_without_axes_is_not_iterated_over():
    """T282."""
    with mx.util.np_shape(True), mx.util.np_array(True):
        for read in (list, sum, max, iter):
            with pytest.raises(TypeError, match="iteration over a 0-d array"):
                read(mx.np.array(5.0))
        assert not np.iterable(mx.np.array(5.0))
        assert [row.tolist() for row in mx.np.array([[1.0], [2.0]])] == [[1], [2]]
        assert mx.np.array([[1.0], [2.0]]).ravel().shape == (2,)


def test_an_array_as_a_dtype_has_its_own():
    """T278."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 1.20 to 2.4
        y = mx.nd.array([1, 2], dtype="int32")
        for made in (
            mx.nd.ones(2).astype(y), mx.nd.zeros(2, dtype=y), mx.nd.full(2, 1, dtype=y), mx.nd.array([1], dtype=y),
            mx.nd.cast(mx.nd.ones(2), dtype=y), mx.nd.arange(3, dtype=y), mx.nd.empty(2, dtype=y),
        ):  # fmt: skip
            assert made.dtype == np.int32
        assert np.zeros(2, dtype=y).dtype == np.int32
        assert mx.np.ones(2).astype(mx.np.ones(2, dtype="int8")).dtype == np.int8


def test_arrays_are_made_without_scipys_warning():
    # mxnet/ndarray/utils.py, line 141, and mxnet/ndarray/sparse.py, lines 827 and 1641
    sparse = pytest.importorskip("scipy.sparse")
    assert mx.nd.array([1, 2]).shape == (2,)
    csr = mx.nd.array(sparse.csr_matrix([[0.0, 2.0]]))
    assert csr.stype == "csr"
    assert csr.asscipy().toarray().tolist() == [[0, 2]]
    assert mx.nd.sparse.csr_matrix(sparse.csr_matrix([[3.0]])).asnumpy().tolist() == [[3]]
    assert mx.nd.sparse.array(sparse.csr_matrix([[3.0]])).asnumpy().tolist() == [[3]]


def test_a_second_repair_changes_nothing():
    from mxnet.gluon.data import dataloader

    upstream = vars(dataloader)[loaders.UPSTREAM]
    repairs.apply(dataloader)
    repairs.apply(mx.recordio)
    for name in ("mxnet.metric", "mxnet.numpy.multiarray", "mxnet.ndarray.numpy.random", "mxnet.io.io"):
        before = dict(vars(sys.modules[name]))
        repairs.apply(sys.modules[name])
        assert {one for one, value in vars(sys.modules[name]).items() if value is not before.get(one)} <= {"threading"}
    assert vars(dataloader)[loaders.UPSTREAM] is upstream is not dataloader._worker_initializer
    assert mx.recordio.unpack(mx.recordio.pack((0, [1, 2], 0, 0), b"x"))[1] == b"x"


def test_names_read_while_running():
    # T85: np.bool, np.Inf, np.compat and np.core in functions of MXNet
    assert mx.nd.moveaxis(mx.nd.ones((2, 3)), 0, 1).shape == (3, 2)
    with mx.util.np_shape(True), mx.util.np_array(True):
        assert mx.np.pad(mx.np.ones((1, 1)), ((1, 1), (1, 1))).shape == (3, 3)
        x = mx.np.array([1.0, 2.0])
        assert x[x > 1].tolist() == [2.0]
        assert mx.np.full((2,), True).dtype == np.bool_
        assert mx.np.bool is bool


def test_a_copied_symbol_of_mx_np_is_independent_and_its_block_runs_in_a_graph():
    """T164."""
    # mxnet/symbol/numpy/_symbol.py, line 243; mxnet/gluon/block.py, line 1693
    x = mx.sym.var("x", dtype="float32").as_np_ndarray()
    graph = mx.sym.np.tanh(x)
    copied = copy.copy(graph)
    copied._compose(x=mx.sym.var("other").as_np_ndarray())
    assert (type(copied), copied.list_inputs(), graph.list_inputs()) == (type(graph), ["other"], ["x"])
    assert copy.deepcopy(graph).list_inputs() == ["x"]
    with mx.util.np_shape(), mx.util.np_array():
        block = mx.gluon.SymbolBlock(graph, x)
        net = stack(block, block)
        net.hybridize()
        expected = np.tanh(np.tanh(0.5))
        for _ in range(2):
            np.testing.assert_allclose(net(mx.np.full((2,), 0.5)).asnumpy(), expected, rtol=1e-6)
    assert graph.list_inputs() == ["x"]


@pytest.mark.parametrize("kind", [mx.gluon.rnn.RNN, mx.gluon.rnn.LSTM, mx.gluon.rnn.GRU])
def test_a_recurrent_layer_of_mx_np_without_states_runs_in_a_graph(kind):
    """T165."""
    # mxnet/gluon/rnn/rnn_layer.py, line 235
    net = stack(kind(3, 2, layout="NTC", bidirectional=True), mx.gluon.nn.Dense(2, flatten=False))
    with mx.util.np_shape(), mx.util.np_array():
        net.initialize()
        net.hybridize()
        outputs = [net(mx.np.ones(shape)) for shape in ((2, 3, 4), (5, 1, 4))]
        net.hybridize(False)
        for output in outputs:
            shape = (*output.shape[:2], 4)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # upstream reads `context`
                np.testing.assert_array_equal(net(mx.np.ones(shape)).asnumpy(), output.asnumpy())


def test_a_batch_norm_with_relu_has_its_relu_for_mx_np():
    """T149."""
    # mxnet/gluon/nn/basic_layers.py, line 371
    x = mx.nd.array(np.linspace(-1, 1, 24).reshape(2, 3, 2, 2))
    layer = ready(mx.gluon.nn.BatchNormReLU())
    expected = layer(x).asnumpy()
    assert expected.min() == 0
    with mx.util.np_shape(), mx.util.np_array():
        layer = ready(mx.gluon.nn.BatchNormReLU())
        for hybridized in (False, True):
            layer.hybridize(hybridized)
            np.testing.assert_array_equal(layer(x.as_np_ndarray()).asnumpy(), expected)
        plain = ready(mx.gluon.nn.BatchNorm())
        assert plain(x.as_np_ndarray()).asnumpy().min() < 0


@pytest.mark.parametrize(
    "make",
    [
        lambda nn, contrib: nn.GroupNorm(2),
        lambda nn, contrib: nn.InstanceNorm(axis=2, scale=True),
        lambda nn, contrib: nn.ReflectionPad2D(1),
        lambda nn, contrib: contrib.PixelShuffle2D((2, 1)),
        lambda nn, contrib: contrib.SyncBatchNorm(num_devices=1),
    ],
)
def test_layers_of_mx_nd_compute_on_views_of_mx_np(make):
    results = []
    for numpy, hybridized in ((False, False), (True, False), (True, True)):
        x = mx.nd.array(np.random.RandomState(0).normal(size=(2, 4, 3, 3)))
        with mx.util.np_shape(numpy), mx.util.np_array(numpy):
            layer = ready(make(mx.gluon.nn, mx.gluon.contrib.nn))
            layer.hybridize(hybridized)
            x = x.as_np_ndarray() if numpy else x
            x.attach_grad()
            with mx.autograd.record():
                output = layer(x)
                loss = (output * output * output).sum()
            loss.backward()
            assert isinstance(output, mx.np.ndarray) == numpy
            gradients = [one.grad() for one in layer.collect_params().values() if one.grad_req != "null"]
            results.append([array.asnumpy() for array in (output, x.grad, *gradients)])
    for other in results[1:]:
        np.testing.assert_equal(list(other), list(results[0]))


# the text of operator arguments (T86)

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


RECURRENT = {
    "RNN": (mx.gluon.rnn.RNN, {}),
    "LSTM": (mx.gluon.rnn.LSTM, {"bidirectional": True}),
    "GRU": (mx.gluon.rnn.GRU, {"layout": "NTC"}),
    "projected": (mx.gluon.rnn.LSTM, {"projection_size": 5}),
}


@pytest.mark.filterwarnings("ignore:ndarray.context has been renamed")  # T165
@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", RECURRENT)
def test_parameters_of_recurrent_layers_are_joined_as_rows(name, dtype, numpy, monkeypatch):
    """T290: the bits of MXNet's own `_rnn_param_concat`, with and without a graph."""
    kind, options = RECURRENT[name]
    with mx.util.np_shape(numpy), mx.util.np_array(numpy):
        layer = kind(6, 2, input_size=4, **options)
        layer.initialize(mx.init.Uniform(0.5))
        layer.cast(dtype)
        x = (mx.np if numpy else mx.nd).array(np.random.RandomState(1).rand(3, 2, 4), dtype=dtype)
        repaired = [recurrent_pass(layer, x, active) for active in (False, True)]
        # MXNet's own operators
        monkeypatch.setattr(graphs, "repaired_graph", lambda graph: graph)
        owner, operator = (
            (mx.nd.numpy._internal, "rnn_param_concat") if numpy else (mx.nd._internal, "_rnn_param_concat")
        )
        monkeypatch.setattr(owner, operator, getattr(owner, operator).__wrapped__)
        plain = [recurrent_pass(layer, x, active) for active in (False, True)]
        for found, expected in zip(repaired, plain):
            assert len(found) == len(expected)
            for one, other in zip(found, expected):
                np.testing.assert_array_equal(one, other)


def recurrent_pass(layer, x, active):
    layer.hybridize(active)
    if layer._projection_size:  # MXNet's CPU has no gradient for it
        return [layer(x).asnumpy()]
    x.attach_grad()
    with mx.autograd.record():
        output = layer(x)
        (output * output).backward()
    return [one.asnumpy() for one in (output, x.grad, *(each.grad() for each in layer.collect_params().values()))]


def test_a_graph_joins_parameters_of_recurrent_layers_as_rows():
    """T290."""
    layer = mx.gluon.rnn.LSTM(6, input_size=4)
    graph = graphs.repaired_graph(layer(mx.sym.var("x")))
    found = [node["op"] for node in json.loads(graph.tojson())["nodes"]]
    assert "_rnn_param_concat" not in found
    assert found.count("Concat") == 1


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("hybrid", [False, True])
def test_the_last_step_without_lengths_has_a_gradient(axis, hybrid):
    """T294."""
    net = mx.gluon.nn.HybridLambda(lambda F, x: F.SequenceLast(x * 2, axis=axis))
    net.hybridize(hybrid)
    x = mx.nd.random.normal(shape=(4, 3, 2))
    x.attach_grad()
    with mx.autograd.record():
        last = net(x)
    last.backward()
    expected = np.zeros((4, 3, 2))
    expected[(slice(None),) * axis + (-1,)] = 2
    np.testing.assert_array_equal(last.asnumpy(), 2 * x.asnumpy().take(-1, axis=axis))
    np.testing.assert_array_equal(x.grad.asnumpy(), expected)
    lengths = mx.nd.array([1, 2, 3][: (3, 4)[axis]] + [1] * axis)
    assert mx.nd.SequenceLast(x, lengths, use_sequence_length=True, axis=axis).shape == last.shape
    with pytest.raises(mx.MXNetError, match="expects 1 inputs, but got 2|Keyword argument"):
        mx.nd.SequenceLast(x, lengths, axis=axis)  # lengths that would not be read
    for call in (lambda: x.softmax(-1), lambda: mx.nd.SequenceMask(x, [1, 2], use_sequence_length=True)):
        with pytest.raises(AssertionError, match="length must have NDArray type"):
            call()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "float64"])
@pytest.mark.parametrize(
    ("name", "axis", "least"),
    [("SequenceMask", 0, 0), ("SequenceMask", 1, 0), ("SequenceLast", 0, 1), ("SequenceLast", 1, 1)]
    + [("SequenceReverse", 0, 0), ("sequence_mask", 1, 0)]
    + [("softmax", 0, 0), ("softmax", 1, 0), ("npx.softmax", 1, 0)],
)
def test_lengths_that_do_not_exist_are_the_nearest_that_do(name, axis, least, dtype, hybrid):
    """T295: MXNet would read and write outside of the arrays."""
    numpy, by_column = name in ("sequence_mask", "npx.softmax"), "softmax" in name
    word = "use_length" if by_column else "use_sequence_length"

    def compute(F, x, lengths):  # noqa: N803
        operator = getattr(F.npx if numpy else F, name.rpartition(".")[2])
        return operator(x * 2, lengths, axis=axis, **{word: True})

    lengths, found = np.array([-7, 0, 1, 3, 5, 6, 100]), {}
    if "float" in dtype:
        lengths = np.array([np.nan, -np.inf, 1, 3.5, 5, 1e12, np.inf])
    inside = np.nan_to_num(lengths, nan=least).clip(least, 5)
    x = np.random.RandomState(0).randn(*((5, 7, 2) if axis == 0 else (7, 5, 2)))
    for given in ("outside", "inside"):
        with mx.util.np_shape(numpy), mx.util.np_array(numpy):
            net = mx.gluon.nn.HybridLambda(compute)
            net.hybridize(hybrid)
            make = mx.np.array if numpy else mx.nd.array
            data = make(x, dtype="float32")
            counts = lengths if given == "outside" else inside
            counts = make(np.stack([counts] * 2, axis=1) if by_column else counts, dtype=dtype)
            data.attach_grad()
            with mx.autograd.record():
                output = net(data, counts)
            output.backward()
            found[given] = output.asnumpy(), data.grad.asnumpy()
    for one, other in zip(*found.values()):
        np.testing.assert_array_equal(one, other)
    if by_column:
        np.testing.assert_allclose(found["outside"][0].sum(axis=axis).T, [inside > 0] * 2, rtol=1e-6)
    if "ask" in name:
        whole = np.trunc(inside).reshape((1, 7) if axis == 0 else (7, 1))
        steps = np.arange(5).reshape((5, 1) if axis == 0 else (1, 5)) < whole
        np.testing.assert_allclose(found["outside"][0], 2 * x * steps[..., None], rtol=1e-6)
