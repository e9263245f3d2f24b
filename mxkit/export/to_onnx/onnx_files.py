"""Reads ONNX files for onnxruntime."""

from pathlib import Path
from typing import Any

from mxkit.core.extras import require
from mxkit.errors import CheckpointError


def onnx_session(path: Path) -> Any:
    """Open a file in onnxruntime.

    Raises:
        CheckpointError: The file is damaged, or onnxruntime refuses it.
    """
    runtime = require("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CheckpointError(f"{path} is damaged, or onnxruntime refuses it: {str(error)[:300]}") from error
