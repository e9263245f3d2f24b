"""onnxruntime's side of `inference`, run by .venv/peers: float32, and int8 by its own quantization."""

from functools import lru_cache
import os
from pathlib import Path
import time
from typing import Any, Dict, List

import numpy as np
import onnxruntime
from onnxruntime import quantization

onnxruntime.set_default_logger_severity(3)


def versions() -> Dict[str, str]:
    return {"onnxruntime": onnxruntime.__version__}


@lru_cache(maxsize=None)
def session(base: str, form: str) -> Any:
    """A net that `mxkit.export` wrote, in "float32" or "int8"."""
    path = f"{base}.onnx" if form == "float32" else quantized(base)
    return onnxruntime.InferenceSession(path, options(), providers=["CPUExecutionProvider"])


def options() -> Any:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    return made


class Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Images of a file, some at once."""

    def __init__(self, base: str) -> None:
        self._batches = iter(np.array_split(np.load(f"{base}-calibration.npy"), 8))

    def get_next(self) -> Any:
        batch = next(self._batches, None)
        return None if batch is None else {"data": batch}


def quantized(base: str) -> str:
    """Write a net in int8 (static, QDQ, a scale for each channel), and return the path."""
    folded, path = f"{base}-folded.onnx", f"{base}-int8.onnx"
    if not Path(path).exists():
        # BatchNorm becomes part of the convolution before it, as onnxruntime's guide wants it before a quantization
        fold = options()
        fold.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        fold.optimized_model_filepath = folded
        onnxruntime.InferenceSession(f"{base}.onnx", fold, providers=["CPUExecutionProvider"])
        quantization.quantize_static(
            folded, path, Calibration(base), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    return path


def seconds(base: str, form: str, shape: List[int], calls: int) -> float:
    """Seconds of so many calls."""
    run, x = session(base, form).run, np.random.RandomState(0).rand(*shape).astype(np.float32)
    run(None, {"data": x})
    begun = time.perf_counter()
    for _ in range(calls):
        run(None, {"data": x})
    return time.perf_counter() - begun


def classes(base: str, form: str) -> List[int]:
    """What a net sees in the images that are held out."""
    batches = np.array_split(np.load(f"{base}-held-out.npy"), 8)
    return [one for x in batches for one in session(base, form).run(None, {"data": x})[0].argmax(1).tolist()]
