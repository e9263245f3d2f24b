"""Repairs of modules of MXNet 1.9.1 and GluonCV, applied right after each module has run; `REPAIRS` lists all of them.

Each repair names the upstream line that needs it, and does nothing if the installed versions do not need it.
`mxkit.runtime.numpy_view` restores the names that NumPy removed (`np.bool`, `np.PZERO`).
"""

import ctypes
import functools
import inspect
from pathlib import Path
import struct
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from mxkit.errors import MXNetImportError
from mxkit.runtime import (
    gluon_layers,
    graph_repairs,
    numpy_functions,
    numpy_operators,
    numpy_symbols,
    operators,
    workers,
)
from mxkit.runtime.numpy_view import numpy_view
from mxkit.runtime.versions import release
from mxkit.runtime.wheels import version_problem

Repair = Callable[[ModuleType], None]


def apply(module: ModuleType) -> None:
    """Run the repair of a module that was just imported, if it has one. A second run changes nothing."""
    repair = REPAIRS.get(module.__name__)
    if repair is not None:
        repair(module)


def _numpy_version() -> Tuple[int, ...]:
    import numpy

    return release(numpy.__version__)


def operator_arguments(module: ModuleType) -> None:
    """T86, NumPy 2: `str((np.int64(2), 3))` became "(np.int64(2), 3)", which MXNet's C++ parser rejects.

    The modules get a global `str`, which their functions find before the builtin one. Upstream:
    `_ctypes/ndarray.py` lines 90 and 119, `_ctypes/symbol.py` lines 100 and 131, `io/io.py` line 969.
    """
    if _numpy_version() >= (2,):
        from mxkit.runtime.operators import operator_text

        module.str = operator_text  # type: ignore[attr-defined]


def symbol_arguments(module: ModuleType) -> None:
    """T86 as `operator_arguments`, in a module that also evaluates `isinstance(backend, str)` (line 1497).

    T139 and T250 to T252 in bound graphs. Upstream: `symbol/symbol.py` lines 1589, 2957 and 2976; 1666 and 1968.
    """
    if _numpy_version() >= (2,):
        from mxkit.runtime.operators import OperatorText

        module.str = OperatorText  # type: ignore[attr-defined]
    operators.replace(module.Symbol, bind=graph_repairs.bound, simple_bind=graph_repairs.bound)


def arguments_and_graphs(module: ModuleType) -> None:
    """T86 as `operator_arguments`; T130, T137, T139 and T250 to T252 in compiled graphs.

    Upstream: `_ctypes/ndarray.py` line 104.
    """
    operator_arguments(module)
    compiled = functools.partial(operators.predicting_graphs, prepare=graph_repairs.repaired_graph)
    operators.replace(module, CachedOp=compiled)


def input_iterators(module: ModuleType) -> None:
    """T86 as `operator_arguments`; T160: the threads of a `PrefetchingIter` have the switches of `mx.np` off.

    T190: iterators in C++ keep their arguments, as `options`; nothing else says whether `pad` can be trusted.

    Python 3.10: `Thread.setDaemon` warns. Upstream: `io/io.py` lines 403 and 406; the module uses `Thread` and `Event`
    of `threading` (lines 384, 385, 403).
    """
    operator_arguments(module)
    module.threading = SimpleNamespace(Thread=_Thread, Event=threading.Event)  # type: ignore[attr-defined]
    begin = module.MXDataIter.__init__

    def keep_options(self: Any, handle: Any, **options: Any) -> None:
        self.options = options
        begin(self, handle, **options)

    module.MXDataIter.__init__ = keep_options


class _Thread(threading.Thread):
    """A thread with the switches of MXNet of the thread that makes it, and a `setDaemon` that does not warn."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        from mxnet.util import is_np_array, is_np_shape

        super().__init__(*arguments, **named)
        self._switches = is_np_shape() or is_np_array(), is_np_array()  # `set_np` refuses the second alone

    def run(self) -> None:
        from mxnet.util import set_np

        set_np(*self._switches)
        super().run()

    def setDaemon(self, daemonic: bool) -> None:  # noqa: N802
        self.daemon = daemonic


def random_sizes(module: ModuleType) -> None:
    """`size=np.int64(2)`: `size == ()` is an empty array, whose truth value warns, and is an error since NumPy 2.2.

    T242: line 478 of `symbol/numpy/random.py`.

    Upstream: `ndarray/numpy/random.py` line 130 and twelve more, the same in `symbol/numpy/random.py`, and
    `numpy_extension/random.py` of both, lines 86, 166 and 253.
    """
    if module.__name__ == "mxnet.ndarray.numpy.random":
        numpy_functions.normal_vectors(module)
    if module.__name__ == "mxnet.symbol.numpy.random" and not hasattr(module.rayleigh, "__wrapped__"):
        _, *others = module.rayleigh.__defaults__
        module.rayleigh.__defaults__ = (1.0, *others)  # T242: 0.0 in graphs
    for name in {*vars(module)["__all__"], "choice"} & {*vars(module)}:  # the list of the symbols lacks `choice`
        function = getattr(module, name)
        if not hasattr(function, "__wrapped__"):
            setattr(module, name, _with_python_integers(function))


def _with_python_integers(function: Callable[..., Any]) -> Callable[..., Any]:
    import numpy

    def python_integer(value: Any) -> Any:
        return int(value) if isinstance(value, numpy.integer) else value

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*map(python_integer, args), **{name: python_integer(value) for name, value in kwargs.items()})

    return run


def named_results(module: ModuleType) -> None:
    """NumPy 1.25: functions of `numpy.linalg` return named tuples, which cannot be built from a list.

    Upstream: `numpy/multiarray.py` line 149, for functions that MXNet leaves to NumPy, like `mx.np.linalg.qr`.
    Every NumPy: line 1626 raises the sorted array, so that `x.sort()` ends in a TypeError; matplotlib calls
    `x.ravel()`, which the class lacks (T279). T282: Python's protocol of sequences iterates over an array of no axes.
    """

    def returned_sort(self: Any, axis: Any = -1, kind: Any = None, order: Any = None) -> Any:
        return vars(module)["sort"](self, axis=axis, kind=kind, order=order)

    def rows(self: Any) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return map(self.__getitem__, range(len(self)))

    def with_named_tuples(upstream: Any) -> Any:
        def convert(object: Any, ctx: Any = None) -> Any:
            if hasattr(object, "_make"):
                return object._make(convert(value, ctx) for value in object)
            return upstream(object, ctx)

        return convert

    if _numpy_version() >= (1, 25):
        operators.replace(module, _as_mx_np_array=with_named_tuples)
    operators.replace(module.ndarray, sort=lambda upstream: returned_sort)
    module.ndarray.ravel, module.ndarray.__iter__ = module.ndarray.flatten, rows


def dispatched_functions(module: ModuleType) -> None:
    """NumPy 2.5: `numpy.fix` warns, so the view has its own; `numpy.fix` itself must stay in MXNet's table.

    Upstream: `numpy_dispatch_protocol.py` line 101.
    """
    if _numpy_version() >= (2, 5):
        import numpy

        protocol: Any = module
        protocol._NUMPY_ARRAY_FUNCTION_DICT[numpy.fix] = protocol.mx_np.fix
    numpy_functions.dispatched_operators(module)


def metric_sums(module: ModuleType) -> None:
    """NumPy 2 (T107): `0.0 + np.float32(x)` is float32, so a metric rounds its sum to 7 digits at each batch, silently.

    4,000 batches of a loss of 0.1 gave a sum of 400.015. Upstream: `metric.py` lines 1040, 1135, 1199, 1263, 1336, 1408
    and 1687, where `reset` (lines 149 to 157) left 0.0; `Perplexity` counts its words so too (line 1036).
    """
    if _numpy_version() >= (2,):
        for name in ("sum_metric", "global_sum_metric", "num_inst", "global_num_inst"):
            setattr(module.EvalMetric, name, _DoubleSum(name))


class _DoubleSum:
    """An attribute of metrics that reads floats in double precision, as NumPy 1 added; other types pass unchanged."""

    def __init__(self, name: str) -> None:
        import numpy

        self._name, self._double, self._floats = name, numpy.float64, (float, numpy.float32, numpy.float16)

    def __get__(self, metric: Any, owner: Optional[type] = None) -> Any:
        if metric is None:
            return self
        try:
            value = vars(metric)[self._name]
        except KeyError:
            raise AttributeError(f"{type(metric).__name__!r} object has no attribute {self._name!r}") from None
        return self._double(value) if type(value) in self._floats else value

    def __set__(self, metric: Any, value: Any) -> None:
        # Stored under its own name, so that copies, pickles and `vars` find it.
        vars(metric)[self._name] = value


def record_packing(module: ModuleType) -> None:
    """T87: `ndarray.tostring` warns since NumPy 1.19 and is gone since 2.3; the same method is called `tobytes`.

    Upstream: `recordio.py` line 392 in `pack` and line 508 in `pack_img`.
    """
    if _numpy_version() < (1, 19):
        return
    recordio: Any = module

    @functools.wraps(recordio.pack)
    def pack(header: Any, s: bytes) -> bytes:
        header = recordio.IRHeader(*header)
        if isinstance(header.label, recordio.numbers.Number):
            header = header._replace(flag=0)
        else:
            label = recordio.np.asarray(header.label, dtype=recordio.np.float32)
            header = header._replace(flag=label.size, label=0)
            s = label.tobytes() + s
        return struct.pack(recordio._IR_FORMAT, *header) + s

    @functools.wraps(recordio.pack_img)
    def pack_img(header: Any, img: Any, quality: int = 95, img_fmt: str = ".jpg") -> bytes:
        cv2 = recordio.cv2
        if cv2 is None:
            raise ImportError("mxnet.recordio.pack_img needs OpenCV: pip install opencv-python-headless")
        flags = {".jpg": "IMWRITE_JPEG_QUALITY", ".jpeg": "IMWRITE_JPEG_QUALITY", ".png": "IMWRITE_PNG_COMPRESSION"}
        flag = flags.get(img_fmt.lower())
        encoded, buffer = cv2.imencode(img_fmt, img, [getattr(cv2, flag), quality] if flag else None)
        if not encoded:
            raise ValueError(f"OpenCV could not encode shape {img.shape} and dtype {img.dtype} as {img_fmt}")
        return pack(header, buffer.tobytes())

    recordio.pack, recordio.pack_img = pack, pack_img


def image_functions(module: ModuleType) -> None:
    """T260: a crop of all columns shares the memory of its image, and augmenters write into their argument.

    So the images of a dataset in memory change from epoch to epoch. Upstream: `image/image.py` lines 444, 557, 559,
    960, 982, 1006 and 1090.
    """

    def own_crop(crop: Any) -> Any:
        def fixed_crop(src: Any, x0: int, y0: int, w: int, h: int, size: Any = None, interp: int = 2) -> Any:
            out = crop(src, x0, y0, w, h, size, interp)
            return out.copy() if size is None or (w, h) == size else out

        return fixed_crop

    operators.replace(module, fixed_crop=own_crop)
    for name in ("BrightnessJitter", "ContrastJitter", "SaturationJitter", "Lighting", "ColorNormalize"):
        operators.replace(getattr(module, f"{name}Aug"), __call__=lambda call: lambda self, src: call(self, src.copy()))


def array_conversion(module: ModuleType) -> None:
    """T253: weights are read in their turn. T88: `np.asarray(NDArray)` gave objects, or ValueError since NumPy 1.24.

    A prediction that waits in the engine reorders the weights of convolutions and dense layers for oneDNN, in their
    memory; `asnumpy` did not wait for it, and read both orders. Upstream: `ndarray/ndarray.py` line 2550.
    T255: after a prediction, weights of Conv1D and Conv3D cannot be copied into (`ndarray.cc` line 1146).
    T276, T277: what `asnumpy` and `asscalar` return (line 2590) is a number as in NumPy 1. T278: an array as a dtype.

    Upstream: `ndarray/ndarray.py` line 220, whose class has no `__array__`; `mx.np.ndarray` and the sparse arrays
    derive from it. Matplotlib, scikit-learn and pandas call `__array__` too.
    """
    ndarray: Any = module

    def to_numpy(self: Any, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """Copy the values to NumPy; NumPy calls this."""
        if copy is False:
            raise ValueError(f"a {type(self).__name__} cannot be read by NumPy without a copy: leave out copy=False")
        values = self.asnumpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def in_turn(asnumpy: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def read(self: Any) -> Any:
            # only parameters have gradients; a copy waits for what the engine does with them
            values = asnumpy(_copy_of_weight(self) if self.ndim > 1 and self.grad is not None else self)
            return of_one(values) if values.size == 1 else values

        return read

    def into_weights(copyto: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def copy(self: Any, other: Any) -> Any:
            if isinstance(other, ndarray.NDArray) and other.ndim in (3, 5) and other.grad is not None:
                other[:] = 0  # in the usual layout
            return copyto(self, other)

        return copy

    def of_one(values: Any) -> Any:
        return values.view(numpy_values.ndarray) if values.ndim and version >= (1, 25) else values

    def as_number(asscalar: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda self: numpy_values.number(asscalar(self))

    if "__array__" not in vars(ndarray.NDArray):
        from mxkit.runtime import numpy_values  # its import would import NumPy with mxkit
        import numpy

        version = _numpy_version()
        ndarray.NDArray.__array__ = to_numpy
        ndarray.NDArray.__numpy_dtype__ = property(lambda self: numpy.dtype(self.dtype))
        if version >= (2,):
            operators.replace(ndarray.NDArray, asscalar=as_number)
        operators.replace(ndarray.NDArray, asnumpy=in_turn, copyto=into_weights)


def _copy_of_weight(array: Any) -> Any:
    if array.stype != "default":
        return array
    with operators.mxnet_module("autograd").pause():
        return array.copy()


def sparse_matrices(module: ModuleType) -> None:
    """SciPy 1.8: `scipy.sparse.csr` became private, warns at each access, and will be gone in SciPy 2.

    Upstream: `ndarray/utils.py` line 141, which each call of `mx.nd.array` runs, and `ndarray/sparse.py` lines 827,
    975 and 1641. `spsp` is None without SciPy.
    """
    sparse: Any = vars(module).get("spsp")
    if sparse is None or isinstance(sparse, _SparseView) or release(sys.modules["scipy"].__version__) < (1, 8):
        return
    module.spsp = _SparseView(sparse)  # type: ignore[attr-defined]


class _SparseView(ModuleType):
    """`scipy.sparse` with a `csr` that holds the one class that MXNet reads there."""

    def __init__(self, sparse: Any) -> None:
        super().__init__("scipy.sparse")
        self.csr = SimpleNamespace(csr_matrix=sparse.csr_matrix)
        self.__dict__["__getattr__"] = functools.partial(getattr, sparse)


def loader_workers(module: ModuleType) -> None:
    """T91, every NumPy: a worker started by spawn or forkserver must import mxkit before MXNet.

    If MXNet imports without mxkit, the worker would still lack the repairs. Upstream: `gluon/data/dataloader.py`
    line 414, which line 667 passes to the pool, and line 215 for `DataLoaderV1`.

    T234, every Python: a killed worker made the loader wait for 120 s, or for ever. Upstream: lines 472 and 665.
    """

    from mxkit.runtime import worker_pools  # its imports would slow down `import mxkit`

    workers.replace_initializer(module, workers.initialize_mxnet_worker)
    worker_pools.replace_pools(module)
    loader: Any = module
    operators.replace(loader._MultiWorkerIter, __next__=worker_pools.named_deaths)
    defaults = loader._MultiWorkerIterV1.__init__.__defaults__
    loader._MultiWorkerIterV1.__init__.__defaults__ = tuple(
        workers.work_for_loader_v1 if value is loader.worker_loop_v1 else value for value in defaults
    )


def gluoncv_loader_workers(module: ModuleType) -> None:
    """T91, T234: as `loader_workers`. Upstream: gluoncv's `data/dataloader.py` lines 140 and 275.

    T233, NumPy 1.24: arrays of several shapes, boxes of images above all, are no array of objects any more but a
    ValueError (a warning since 1.19). Upstream: lines 20 and 37, which read the arrays one by one.
    """

    from mxkit.runtime import worker_pools  # its imports would slow down `import mxkit`

    workers.replace_initializer(module, workers.initialize_gluoncv_worker)
    worker_pools.replace_pools(module)
    if _numpy_version() >= (1, 19):
        module.np = _RaggedView()  # type: ignore[attr-defined]


class _RaggedView(ModuleType):
    """MXNet's view of NumPy whose `asarray` makes arrays of several shapes an array of objects."""

    def __init__(self) -> None:
        super().__init__("numpy")
        self.__dict__["__getattr__"] = functools.partial(getattr, numpy_view())

    @staticmethod
    def asarray(data: Any) -> Any:
        import numpy

        if len({numpy.shape(value) for value in data}) < 2:
            return numpy.asarray(data)
        ragged = numpy.empty(len(data), dtype=object)
        for place, value in enumerate(data):
            ragged[place] = value
        return ragged


def center_net_classes(module: ModuleType) -> None:
    """T87, in CenterNet's training targets: `int` of an array with one element warns, and is an error since NumPy 2.5.

    Upstream: gluoncv's `model_zoo/center_net/target_generator.py` line 41.
    """
    if _numpy_version() >= (1, 25):
        module.int = lambda value: int(value.item() if hasattr(value, "item") else value)  # type: ignore[attr-defined]


def gluoncv_beside_torch(module: ModuleType) -> None:
    """T195: gluoncv does not import where PyTorch 2 is installed; without its PyTorch part, it does.

    Upstream: gluoncv's `check.py` line 36, which line 27 of its `__init__.py` calls.
    """
    upstream = module._require_pytorch_version

    def check(torch_version: str, max_torch_version: str = "2.0.0") -> None:
        try:
            upstream(torch_version, max_torch_version)
        except RuntimeError as error:
            raise ImportError(str(error)) from error  # which gluoncv catches

    module._require_pytorch_version = check  # type: ignore[attr-defined]


def custom_operator_arguments(module: ModuleType) -> None:
    """T114: MXNet passes attributes of `mx.AttrScope` to the constructor of a CustomOpProp; an unknown one aborts.

    Upstream: `operator.py` line 737, in a callback of C, where the TypeError is lost. The replacement leaves out
    attributes with two underscores at both ends that the constructor does not take.
    """

    def with_known_arguments(upstream: Any) -> Any:
        def register(reg_name: str) -> Callable[[Any], Any]:
            def do_register(prop_cls: Any) -> Any:
                parameters = inspect.signature(prop_cls).parameters
                takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

                def make(**kwargs: str) -> Any:
                    if not takes_any:
                        scoped = {name for name in kwargs if name.startswith("__") and name.endswith("__")}
                        kwargs = {name: kwargs[name] for name in kwargs if name not in scoped - {*parameters}}
                    return prop_cls(**kwargs)

                upstream(reg_name)(make)
                operators.PROPERTIES[reg_name] = prop_cls
                return prop_cls

            return do_register

        return register

    operators.replace(module, register=with_known_arguments)


def kept_callbacks(module: ModuleType) -> None:
    """T254: callbacks of an `autograd.Function` that are freed while Python ends can end the process in a crash.

    They hold arrays of NumPy or of another library, whose memory MXNet frees by a callback of Python's that is gone by
    then (DGL's GATConv). So what is left at the end is not freed. Upstream: `autograd.py` line 412, `ref_holder`.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module.Function._registry.ref_holder))


def known_version(module: ModuleType) -> None:
    """Refuse an MXNet that is not 1.9, before its library is loaded.

    Raises:
        MXNetImportError: It calls itself by another version.
    """
    problem = version_problem(module.__version__, Path(module.__file__ or "mxnet").parent)
    if problem:
        raise MXNetImportError(problem, name="mxnet")


REPAIRS: Dict[str, Repair] = {
    "mxnet.libinfo": known_version,
    "mxnet.autograd": kept_callbacks,
    "mxnet.operator": custom_operator_arguments,
    "mxnet._ctypes.ndarray": arguments_and_graphs,
    "mxnet._ctypes.symbol": operator_arguments,
    "mxnet.io.io": input_iterators,
    "mxnet.symbol.symbol": symbol_arguments,
    "mxnet.metric": metric_sums,
    "mxnet.numpy.multiarray": named_results,
    "mxnet.numpy_dispatch_protocol": dispatched_functions,
    "mxnet.ndarray.numpy.random": random_sizes,
    "mxnet.ndarray.numpy_extension.random": random_sizes,
    "mxnet.symbol.numpy.random": random_sizes,
    "mxnet.symbol.numpy_extension.random": random_sizes,
    "mxnet.recordio": record_packing,
    "mxnet.image.image": image_functions,
    "mxnet.ndarray.sparse": sparse_matrices,
    "mxnet.ndarray.utils": sparse_matrices,
    "mxnet.ndarray.ndarray": array_conversion,
    "mxnet.ndarray.register": numpy_operators.eager_operators,
    "mxnet.symbol.register": numpy_operators.symbolic_operators,
    "mxnet.ndarray.numpy._register": numpy_operators.numpy_operators,
    "mxnet.symbol.numpy._register": numpy_operators.numpy_operators,
    "mxnet.numpy._register": numpy_operators.numpy_methods,
    "mxnet.ndarray.numpy_extension._register": numpy_operators.extension_operators,
    "mxnet.symbol.numpy_extension._register": numpy_operators.extension_operators,
    "mxnet.numpy_extension._register": numpy_operators.extension_operators,
    "mxnet.symbol.numpy._symbol": numpy_symbols.copied_symbols,
    "mxnet.symbol.numpy.linalg": numpy_symbols.eigenvectors,
    "mxnet.gluon.block": numpy_symbols.symbol_blocks,
    "mxnet.gluon.rnn.rnn_layer": numpy_symbols.recurrent_states,
    "mxnet.gluon.nn.basic_layers": gluon_layers.basic_layers,
    "mxnet.gluon.nn.conv_layers": gluon_layers.convolution_layers,
    "mxnet.gluon.contrib.nn.basic_layers": gluon_layers.concurrent_layers,
    "mxnet.gluon.model_zoo.vision.mobilenet": gluon_layers.mobilenet_layers,
    "mxnet.gluon.data.dataloader": loader_workers,
    "gluoncv.check": gluoncv_beside_torch,
    "gluoncv.data.dataloader": gluoncv_loader_workers,
    "gluoncv.model_zoo.center_net.target_generator": center_net_classes,
}
