"""What keeps a training on a GPU from giving the same bits each time, told before the first update."""

from typing import Any, Iterator, Mapping, Sequence
import warnings

from mxkit.device import is_gpu
from mxkit.errors import TrapWarning
from mxkit.runtime.exact import WORD, switches_off
from mxkit.training.randomness import operators_of

# Operators of which cuDNN and MXNet have algorithms that add in an order of the moment, and others (T132).
_CHOOSE = ("convolution", "deconvolution", "pooling")
# Operators whose gradient is added up by atomics in any order, whatever the switches say (T132).
_ATOMIC = (
    "gather_nd",
    "pad",
    "bilinearsampler",
    "spatialtransformer",
    "_contrib_bilinearresize2d",
    "_contrib_deformableconvolution",
    "_contrib_modulateddeformableconvolution",
    "_contrib_roialign",
)


def warn_of_inexact(net: Any, inputs: int, devices: Sequence[Any]) -> None:
    """Warn where a seed or checkpoints promise equal bits that this net cannot have on its GPUs.

    Args:
        net: Traced with symbols.
        inputs: How many arrays it is called with.
        devices: Where it lives; nothing is said of a CPU.

    Warns:
        TrapWarning: Switches are off that operators of the net need (T132), or no switch helps.
    """
    if not any(map(is_gpu, devices)):
        return
    found = operators_of(net, inputs)
    off = switches_off()
    kinds = None if found is None else sorted({name for name, _ in found if name in _CHOOSE})
    if off and (kinds is None or kinds):
        of_what = "of operators that cannot be looked into" if kinds is None else f"of {', '.join(kinds)}"
        _warn(
            f"on a GPU a seed and a resumed run give the same bits only with {' '.join(off)} ({of_what}). Start the "
            f"program with {WORD}=1 in the environment, or mxkit train --exact, which set them; it is slower (T132)"
        )
    without_help = sorted(set(_never_exact(found or ())))
    if without_help:
        _warn(
            f"on a GPU this net cannot give the same bits each time, whatever is set: {'; '.join(without_help)}. A "
            "seed and a resumed run are equal to some digits only"
        )


def _never_exact(operators: Sequence[Any]) -> Iterator[str]:
    for name, attributes in operators:
        if name in _ATOMIC:
            yield f"the gradient of {name} is added up in any order (T132)"
        elif name == "embedding" and _is_true(attributes, "sparse_grad"):
            yield "the sparse gradient of Embedding is added up in any order (T132)"
        elif name == "rnn" and float(attributes.get("p", 0)) > 0 and int(attributes.get("num_layers", 1)) > 1:
            way = "stack layers of num_layers=1 and put Dropout between them"
            yield f"no seed reaches the dropout between recurrent layers: {way} (T125)"
        elif name == "dropout" and not _is_true(attributes, "cudnn_off") and attributes.get("axes", "()") == "()":
            yield "no seed reaches Dropout of an imported graph, or with cudnn_off=False (T125)"


def _is_true(attributes: Mapping[str, str], name: str) -> bool:
    return attributes.get(name, "False").lower() in ("true", "1")


def _warn(text: str) -> None:
    warnings.warn(text, TrapWarning, stacklevel=6)
