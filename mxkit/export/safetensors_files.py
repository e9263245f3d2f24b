"""Parameters by structural path as safetensors, with the net's description."""

import json
from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Mapping, Optional

from mxkit.core.array_kind import copy_to_cpu
from mxkit.core.blocks import distinct, parameters_by_path
from mxkit.core.device import DeviceSpec
from mxkit.core.extras import require
from mxkit.core.replicas import values_of
from mxkit.errors import ArchitectureError, CheckpointError, NotInitializedError
from mxkit.export.proof import Row, compare
from mxkit.nets.architecture import build, describe
from mxkit.storage.loading import match_arrays, put_arrays
from mxkit.storage.safetensors_file import read_safetensors
from mxkit.version import __version__
import mxnet as mx
import numpy as np


def safetensors_content(net: Any, facts: Mapping[str, str], fixed: AbstractSet[int] = frozenset()) -> bytes:
    """Content of a safetensors file: arrays by structural path, a shared parameter under its first path.

    Args:
        net: An initialized net.
        facts: More entries for the metadata.
        fixed: Ids of parameters that are written as ones.

    Raises:
        NotInitializedError: A parameter has no value.
    """
    save = require("safetensors.numpy", "safetensors").save
    metadata = {"format": "np", "mxkit": __version__, "mxnet": mx.__version__, **facts}
    try:
        metadata["description"] = json.dumps(describe(net))
    except ArchitectureError:  # a net of the user's own classes; the arrays are complete without it
        metadata["class"] = type(net).__name__
    return bytes(save(_arrays(net, fixed), metadata=metadata))


def read_safetensors_net(path: Path, devices: Optional[DeviceSpec] = None) -> Any:
    """Build the net that a safetensors file of `export` describes, with its values.

    Raises:
        CheckpointError: The file is damaged, or has no description.
    """
    arrays, metadata = read_safetensors(path)
    if "description" not in metadata:
        raise CheckpointError(
            f"{path} holds parameters without a description of their net{_of_class(metadata)}: make the net and call "
            f"mxkit.load_parameters(net, {str(path)!r})"
        )
    try:
        net = build(json.loads(metadata["description"]))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its description: {str(error)[:300]}") from error
    put_arrays(net, match_arrays(net, arrays), devices)
    return net


def _of_class(metadata: Mapping[str, str]) -> str:
    return f", a {metadata['class']:.100}" if "class" in metadata else ""


def compare_safetensors(net: Any, content: bytes, fixed: AbstractSet[int] = frozenset()) -> List[Row]:
    """Read the content again and compare every parameter."""
    stored = require("safetensors.numpy", "safetensors").load(content)
    return [compare(path, "parameter", 0, array, stored[path]) for path, array in _arrays(net, fixed).items()]


def _arrays(net: Any, fixed: AbstractSet[int]) -> Dict[str, Any]:
    arrays = {}
    for path, parameter in distinct(parameters_by_path(net)).items():
        if values_of(parameter) is None:
            raise NotInitializedError(
                f"export: parameter {path!r} {parameter.shape} has no value. Pass input_shape=(1, ...), or initialize "
                "the net and run it once on a batch"
            )
        value = copy_to_cpu(parameter.list_data()[0]).asnumpy()
        arrays[path] = np.ones_like(value) if id(parameter) in fixed else value
    return arrays
