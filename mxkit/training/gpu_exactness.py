"""Warnings before the first update of operators that do not give the same bits each time on a GPU."""

import os
from typing import Any, Iterator, Mapping, Sequence
import warnings

from mxkit.core.device import is_gpu
from mxkit.errors import TrapWarning
from mxkit.runtime.exact import WORD, switches_off, warn_if_late
from mxkit.training.randomness import operators_of

_ALGORITHMS = ("MXNET_CUDNN_AUTOTUNE_DEFAULT", "MXNET_ENFORCE_DETERMINISM")
# Operators for which cuDNN has algorithms with a random order of additions, with the variables that exclude these
# algorithms (T132).
_NEEDS = {
    "convolution": _ALGORITHMS,
    "deconvolution": _ALGORITHMS,
    "pooling": _ALGORITHMS,
    "rnn": ("CUBLAS_WORKSPACE_CONFIG",),
}
# Operators whose gradient is added by atomics in a random order; no variable changes this (T132).
_ATOMIC = (
    "gather_nd",
    "pad",
    "bilinearsampler",
    "spatialtransformer",
    "_contrib_adaptiveavgpooling2d",
    "_contrib_bilinearresize2d",
    "_contrib_deformableconvolution",
    "_contrib_deformablepsroipooling",
    "_contrib_modulateddeformableconvolution",
    "_contrib_psroipooling",
    "_contrib_roialign",
)


def warn_of_inexact(net: Any, inputs: int, devices: Sequence[Any]) -> None:
    """Warn if a seed or checkpoints promise equal bits, but a net on GPUs cannot give them.

    Args:
        net: The net.
        inputs: Number of input arrays of the net.
        devices: The devices of the net; CPUs need no warning.

    Warns:
        TrapWarning: Variables that operators of the net need are not set (T132), or no variable helps.
    """
    if not any(map(is_gpu, devices)):
        return
    warn_if_late(os.environ)
    operators = operators_of(net, inputs)
    kinds = sorted(set(_NEEDS) if operators is None else {name for name, _ in operators if name in _NEEDS})
    needed = [
        f"{name}={value}" for name, value in switches_off().items() if any(name in _NEEDS[kind] for kind in kinds)
    ]
    if needed:
        settings = " ".join(needed)
        cause = "operators that mxkit cannot inspect" if operators is None else ", ".join(kinds)
        _warn(
            f"on a GPU a seed and a resumed run give the same bits only with {settings} (because of {cause}). Start "
            f"the program with {WORD}=1 in the environment, or mxkit train --exact, which set them; it is slower (T132)"
        )
    never = sorted(set(_never_exact(operators or ())))
    if never:
        _warn(
            f"on a GPU this net cannot give the same bits each time, with any settings: {'; '.join(never)}. Runs with "
            "one seed, and resumed runs, are only approximately equal"
        )


def _never_exact(operators: Sequence[Any]) -> Iterator[str]:
    for name, attributes in operators:
        if name in _ATOMIC:
            yield f"the gradient of {name} is summed in a random order (T132)"
        elif name == "embedding" and _is_true(attributes, "sparse_grad"):
            yield "the sparse gradient of Embedding is summed in a random order (T132)"
        elif name == "rnn" and float(attributes.get("p", 0)) > 0 and int(attributes.get("num_layers", 1)) > 1:
            way = "stack layers of num_layers=1 and put Dropout between them"
            yield f"no seed reaches the dropout between recurrent layers: {way} (T125)"
        elif name == "dropout" and float(attributes.get("p", 0.5)) > 0 and _from_cudnn(attributes):
            yield "no seed reaches Dropout of an imported graph, or with cudnn_off=False (T125)"


def _from_cudnn(attributes: Mapping[str, str]) -> bool:
    return not _is_true(attributes, "cudnn_off") and attributes.get("axes", "()") == "()"


def _is_true(attributes: Mapping[str, str], name: str) -> bool:
    return attributes.get(name, "False").lower() in ("true", "1")


def _warn(text: str) -> None:
    warnings.warn(text, TrapWarning, stacklevel=6)
