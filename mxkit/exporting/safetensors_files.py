"""Parameters by structural path as safetensors, with the net's description."""

import json
from pathlib import Path
from typing import AbstractSet, Any, Dict, List, Mapping, Optional

from mxkit.core.arguments import require
from mxkit.core.blocks import parameters_by_path
from mxkit.core.device import DeviceSpec
from mxkit.errors import ArchitectureError, CheckpointError
from mxkit.exporting.array_files import safetensors_bytes
from mxkit.exporting.proof import Row, compare
from mxkit.nets.architecture import build, describe
from mxkit.nets.saving import values_by_path
from mxkit.storage.loading import match_arrays, put_arrays
from mxkit.storage.parameter_file import read_safetensors
from mxkit.version import __version__
import mxnet as mx
import numpy as np


def metadata_of(format: str, facts: Mapping[str, str]) -> Dict[str, str]:
    """Entries of a file's header: who reads the layout, the versions, and facts about the net."""
    return {"format": format, "mxkit": __version__, "mxnet": mx.__version__, **facts}


def parameter_values(net: Any, fixed: AbstractSet[int]) -> Dict[str, Any]:
    """Values by structural path as NumPy's, a shared parameter under its first path; of `fixed`, by id, ones.

    Raises:
        NotInitializedError: A parameter has no value.
    """
    ones = {path for path, parameter in parameters_by_path(net).items() if id(parameter) in fixed}
    values = {path: array.asnumpy() for path, array in values_by_path(net, "export").items()}
    return {path: np.ones_like(value) if path in ones else value for path, value in values.items()}


def safetensors_content(net: Any, values: Mapping[str, Any], facts: Mapping[str, str]) -> bytes:
    """Content of a safetensors file, with the net's description.

    Args:
        net: An initialized net.
        values: Result of `parameter_values`.
        facts: More entries for the metadata.
    """
    metadata = metadata_of("np", facts)
    try:
        metadata["description"] = json.dumps(describe(net))
    except ArchitectureError:  # a net of the user's own classes; the arrays are complete without it
        metadata["class"] = type(net).__name__
    return safetensors_bytes(values, metadata)


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


def compare_safetensors(values: Mapping[str, Any], content: bytes) -> List[Row]:
    """Read the content again and compare every parameter."""
    stored = require("safetensors.numpy", "safetensors").load(content)
    return [compare(path, "parameter", 0, value, stored[path]) for path, value in values.items()]
