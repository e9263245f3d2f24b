"""Repairs of modules of MXNet 1.9.1 and GluonCV, applied right after each module has run; `REPAIRS` lists all of them.

Each repair names the upstream line that needs it, and does nothing if the installed versions do not need it.
`mxkit.runtime.old_names` restores the names that NumPy removed (`np.bool`, `np.PZERO`).
"""

import ctypes
import inspect
import threading
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, Sequence

from mxkit.runtime import arrays, gluon_layers, graphs, loaders, operators
from mxkit.runtime.arrays import NUMPY
from mxkit.runtime.old_names import Overlay
from mxkit.runtime.operators import PROPERTIES, around, mxnet_module, replace
import numpy

Repair = Callable[[ModuleType], None]


def apply(module: ModuleType) -> None:
    """Run the repairs of a module that was just imported. A second run changes nothing."""
    for repair in REPAIRS.get(module.__name__, ()):
        repair(module)


def input_iterators(module: ModuleType) -> None:
    """T160: the threads of a `PrefetchingIter` have the switches of `mx.np` off.

    T190: iterators in C++ keep their arguments, as `options`; nothing else says whether `pad` can be trusted.

    Python 3.10: `Thread.setDaemon` warns. Upstream: `io/io.py` lines 403 and 406; the module uses `Thread` and `Event`
    of `threading` (lines 384, 385, 403).
    """
    module.threading = SimpleNamespace(Thread=_Thread, Event=threading.Event)  # type: ignore[attr-defined]
    begin = module.MXDataIter.__init__

    def keep_options(self: Any, handle: Any, **options: Any) -> None:
        self.options = options
        begin(self, handle, **options)

    module.MXDataIter.__init__ = keep_options


class _Thread(threading.Thread):
    """A thread with the switches of MXNet of the thread that makes it, and a `setDaemon` that does not warn."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        arrays = mxnet_module("util").is_np_array()
        self._switches = mxnet_module("util").is_np_shape() or arrays, arrays  # `set_np` refuses the second alone

    def run(self) -> None:
        mxnet_module("util").set_np(*self._switches)
        super().run()

    def setDaemon(self, daemonic: bool) -> None:  # noqa: N802
        self.daemon = daemonic


def record_packing(module: ModuleType) -> None:
    """T87: `ndarray.tostring` warns since NumPy 1.19 and is gone since 2.3; the same method is called `tobytes`.

    Upstream: `recordio.py` line 392 in `pack` and line 508 in `pack_img`.
    """
    recordio: Any = module
    if NUMPY < (1, 19) or isinstance(recordio.np, Overlay):
        return
    cv2 = recordio.cv2

    class Packed(numpy.ndarray):
        tostring = numpy.ndarray.tobytes

    def asarray(*args: Any, **kwargs: Any) -> Any:
        return numpy.asarray(*args, **kwargs).view(Packed)

    def imencode(*args: Any) -> Any:
        encoded, buffer = cv2.imencode(*args)
        return encoded, buffer.view(Packed)

    recordio.np = Overlay("numpy", asarray=asarray)
    if cv2 is not None:
        recordio.cv2 = Overlay("cv2", imencode=imencode)


def image_functions(module: ModuleType) -> None:
    """T260: a crop of all columns shares the memory of its image, and augmenters write into their argument.

    So the images of a dataset in memory change from epoch to epoch. Upstream: `image/image.py` lines 444, 557, 559,
    960, 982, 1006 and 1090.
    """

    def own_crop(crop: Any, src: Any, x0: int, y0: int, w: int, h: int, size: Any = None, interp: int = 2) -> Any:
        out = crop(src, x0, y0, w, h, size, interp)
        return out.copy() if size is None or (w, h) == size else out

    def on_a_copy(call: Any, self: Any, src: Any) -> Any:
        return call(self, src.copy())

    replace(module, fixed_crop=around(own_crop))
    for name in ("BrightnessJitter", "ContrastJitter", "SaturationJitter", "Lighting", "ColorNormalize"):
        replace(getattr(module, f"{name}Aug"), __call__=around(on_a_copy))


def center_net_classes(module: ModuleType) -> None:
    """T87, in CenterNet's training targets: `int` of an array with one element warns, and is an error since NumPy 2.5.

    Upstream: gluoncv's `model_zoo/center_net/target_generator.py` line 41.
    """
    if NUMPY >= (1, 25):
        module.int = lambda value: int(value.item() if hasattr(value, "item") else value)  # type: ignore[attr-defined]


def detection_image_by_image(module: ModuleType) -> None:
    """T271: gluoncv's Faster R-CNN detects in one image a call; of several, the shapes of its regions do not fit.

    Upstream: gluoncv's `model_zoo/rcnn/faster_rcnn/faster_rcnn.py` line 377.
    """
    from mxnet import autograd, nd

    upstream = module.FasterRCNN.hybrid_forward

    def hybrid_forward(self: Any, F: Any, x: Any, gt_box: Any = None, gt_label: Any = None) -> Any:  # noqa: N803
        several = isinstance(x, nd.NDArray) and len(x) > 1
        if not several or autograd.is_training() or self._additional_output:
            return upstream(self, F, x, gt_box, gt_label)
        each = [upstream(self, F, x[number : number + 1]) for number in range(len(x))]
        return tuple(nd.concat(*outputs, dim=0) for outputs in zip(*each))

    module.FasterRCNN.hybrid_forward = hybrid_forward


def regions_of_each_level(module: ModuleType) -> None:
    """T272: on the CPU `ROIAlign` leaves its output unset for regions of image -1, which gluoncv adds up over levels.

    Upstream: gluoncv's `model_zoo/rcnn/faster_rcnn/faster_rcnn.py` line 310; its way for MXNet 1.5 is right.
    """
    upstream = module.FasterRCNN._pyramid_roi_feats

    def _pyramid_roi_feats(self: Any, F: Any, *arguments: Any, **options: Any) -> Any:  # noqa: N803
        contrib = SimpleNamespace(ROIAlign=F.contrib.ROIAlign)  # without box_encode, it takes the way for MXNet 1.5
        return upstream(self, SimpleNamespace(**{**vars(F), "contrib": contrib}), *arguments, **options)

    module.FasterRCNN._pyramid_roi_feats = _pyramid_roi_feats


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
                    scoped = {name for name in kwargs if name.startswith("__") and name.endswith("__")}
                    left_out = set() if takes_any else scoped - {*parameters}
                    return prop_cls(**{name: kwargs[name] for name in kwargs if name not in left_out})

                upstream(reg_name)(make)
                PROPERTIES[reg_name] = prop_cls
                return prop_cls

            return do_register

        return register

    replace(module, register=with_known_arguments)


def kept_callbacks(module: ModuleType) -> None:
    """T254: callbacks of an `autograd.Function` that are freed while Python ends can end the process in a crash.

    They hold arrays of NumPy or of another library, whose memory MXNet frees by a callback of Python's that is gone by
    then (DGL's GATConv). So what is left at the end is not freed. Upstream: `autograd.py` line 412, `ref_holder`.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module.Function._registry.ref_holder))


REPAIRS: Dict[str, Sequence[Repair]] = {
    "mxnet.autograd": [kept_callbacks],
    "mxnet.operator": [custom_operator_arguments],
    "mxnet._ctypes.ndarray": [arrays.operator_arguments, graphs.compiled_graphs],
    "mxnet._ctypes.symbol": [arrays.operator_arguments],
    "mxnet.io.io": [arrays.operator_arguments, input_iterators],
    "mxnet.symbol.symbol": [arrays.operator_arguments, graphs.bound_graphs],
    "mxnet.metric": [arrays.metric_sums],
    "mxnet.numpy.multiarray": [arrays.array_methods],
    "mxnet.numpy_dispatch_protocol": [arrays.fix_function, arrays.dispatched_functions],
    "mxnet.ndarray.numpy.random": [arrays.normal_vectors, arrays.random_sizes],
    "mxnet.ndarray.numpy_extension.random": [arrays.random_sizes],
    "mxnet.symbol.numpy.random": [arrays.rayleigh_scale, arrays.random_sizes],
    "mxnet.symbol.numpy_extension.random": [arrays.random_sizes],
    "mxnet.recordio": [record_packing],
    "mxnet.image.image": [image_functions],
    "mxnet.ndarray.sparse": [arrays.sparse_matrices],
    "mxnet.ndarray.utils": [arrays.sparse_matrices],
    "mxnet.ndarray.ndarray": [arrays.array_conversion],
    "mxnet.ndarray.register": [operators.wrap_operators],
    "mxnet.symbol.register": [operators.wrap_operators],
    "mxnet.ndarray.numpy._register": [operators.wrap_operators, operators.degrees_and_radians],
    "mxnet.symbol.numpy._register": [operators.wrap_operators, operators.degrees_and_radians],
    "mxnet.numpy._register": [operators.wrap_operators],
    "mxnet.ndarray.numpy_extension._register": [operators.wrap_operators],
    "mxnet.symbol.numpy_extension._register": [operators.wrap_operators],
    "mxnet.numpy_extension._register": [operators.wrap_operators],
    "mxnet.symbol.numpy._symbol": [graphs.copied_symbols],
    "mxnet.symbol.contrib": [graphs.cond_that_writes_gradients],
    "mxnet.symbol.numpy.linalg": [graphs.eigenvectors],
    "mxnet.gluon.block": [gluon_layers.library_blocks, gluon_layers.trace_in_turn, gluon_layers.symbol_blocks],
    "mxnet.gluon.rnn.rnn_layer": [gluon_layers.recurrent_states],
    "mxnet.gluon.nn.basic_layers": [
        gluon_layers.dropout_layer,
        gluon_layers.basic_layers,
        gluon_layers.layers_for_nd,
    ],
    "mxnet.gluon.nn.conv_layers": [gluon_layers.layers_for_nd],
    "mxnet.gluon.contrib.nn.basic_layers": [gluon_layers.concurrent_layers, gluon_layers.layers_for_nd],
    "mxnet.gluon.model_zoo.vision.mobilenet": [gluon_layers.mobilenet_layers, gluon_layers.layers_for_nd],
    "mxnet.gluon.data.dataloader": [loaders.loader_workers],
    "gluoncv.check": [gluoncv_beside_torch],
    "gluoncv.data.dataloader": [loaders.gluoncv_loader_workers],
    "gluoncv.model_zoo.center_net.target_generator": [center_net_classes],
    "gluoncv.model_zoo.rcnn.faster_rcnn.faster_rcnn": [detection_image_by_image, regions_of_each_level],
}
