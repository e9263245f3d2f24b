"""What fails with every Python and NumPy, because it is MXNet 1.9.1 or a package that nobody mends any more."""

from typing import Tuple

from mxkit.runtime.doctor.findings import Line

# Found by running 75 features of MXNet and 25 of gluoncv on Python 3.8 to 3.13 with NumPy 1.23 to 2.x.
_LIMITS = (
    ("float16 on the CPU", 'matrix products: "FP16 gemm on cpu not implemented"; use amp="bfloat16"'),
    ("GPUs from sm_90 on", "the wheels end at sm_86 and hold no PTX (T83); use older ones, or build from source"),
    ("ONNX", "mx.onnx.export_model fails or writes a wrong opset with today's onnx; use mxkit.export's symbol files"),
    ("gluoncv.auto", "does not import with today's autocfg; build nets by name: mxkit.models"),
    ("dropout in RNN layers", "does nothing on the CPU (T115); put nn.Dropout between them"),
    ("kvstore 'p3'", "does not distribute, in silence (T76); use dist_sync"),
    ("tools/launch.py", "of the wheel ends with an error from Python 3.9 on (T76)"),
    ("pip check", "with NumPy 2 or graphviz from 0.9 on it says that mxnet asks for older ones; they work"),
    ("mxboard", "needs protobuf 3; use mxkit.callbacks.TensorBoardLog"),
)


def limit_lines() -> Tuple[Line, ...]:
    """The list; a limit is no finding about this machine, so none counts as a warning."""
    return tuple(Line(name, text) for name, text in _LIMITS)
