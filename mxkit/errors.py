"""Every error mxkit raises on purpose, and the phrase that answers a misspelt name.

    MxkitError
    +-- MXNetImportError (ImportError)       MXNet cannot be imported as it is installed
    +-- UnknownNameError (ValueError)        a name that no registry knows
    +-- DeviceError (ValueError)             a device that is not there, or not where the net lives
    +-- DataError (ValueError)               a batch, a loader or a label that cannot be trained on
    |   +-- EmptyDataError                   no batch where at least one is needed
    |   +-- LabelError                       labels that the loss would silently clip
    +-- LossShapeError (ValueError)          a loss without one value per sample
    +-- NotInitializedError (RuntimeError)   a net without parameters yet
    +-- UnusedParameterError (RuntimeError)  a trainable parameter that got no gradient
    +-- NonFiniteError (ArithmeticError)     NaN or infinity in a loss or a gradient
    +-- ForwardError (RuntimeError)          what a block of a net raised, with its path and what it got
    +-- TrainingError (RuntimeError)         what the net or MXNet raised, with the place it happened
    +-- RecipeError (ValueError)             a recipe that cannot be run as written
    +-- ArchitectureError (ValueError)       a net that cannot be described, or a description that is no net
    +-- CheckpointError (RuntimeError)       files that are no whole, verified checkpoint
    +-- DownloadError (ConnectionError)      files that no mirror gave

Each also derives from the builtin that a caller would catch without knowing mxkit. What can be meant, but
mostly is a mistake, is told by a TrapWarning; what keeps a run from being gone on with, by a CheckpointWarning.
"""

import difflib
from typing import Any, Iterable, Sequence


class MxkitError(Exception):
    """Base of all errors that mxkit raises on purpose."""


class MXNetImportError(MxkitError, ImportError):
    """MXNet is missing, installed twice, or damaged; the text says what to type."""


class UnknownNameError(MxkitError, ValueError):
    """A name that is not known; the text lists the known ones and the nearest."""


class DeviceError(MxkitError, ValueError):
    """A device that does not exist here, or that is not the one the net lives on."""


class DataError(MxkitError, ValueError):
    """Data that cannot be trained on, told before a gradient is computed."""


class EmptyDataError(DataError):
    """A source of batches that gave none."""


class LabelError(DataError):
    """Labels that MXNet would accept and silently read as something else."""


class LossShapeError(MxkitError, ValueError):
    """A loss that does not give one value per sample."""


class NotInitializedError(MxkitError, RuntimeError):
    """A net whose parameters have no values and no device yet."""


class UnusedParameterError(MxkitError, RuntimeError):
    """Trainable parameters that the backward pass did not reach.

    Attributes:
        parameters: The Parameters, for callers who know them by another name.
    """

    def __init__(self, names: Sequence[str], parameters: Sequence[Any], where: str = "") -> None:
        self.parameters = list(parameters)
        super().__init__(
            f"{where}the loss does not depend on {', '.join(map(repr, names))}, so the backward pass gave no gradient. "
            "Use it in forward, or freeze it: parameter.grad_req = 'null'. Nothing was updated"
        )


class NonFiniteError(MxkitError, ArithmeticError):
    """NaN or infinity in a loss or a gradient."""


class ForwardError(MxkitError, RuntimeError):
    """What a block raised in a forward pass, told with the block; its cause is chained.

    Attributes:
        path: Where the block stands in the net, like `features.3`; '' is the net itself.
        block: The block.
    """

    def __init__(self, text: str, path: str, block: Any) -> None:
        self.path, self.block = path, block
        super().__init__(text)


class TrainingError(MxkitError, RuntimeError):
    """An error of the net, the loss or the engine, with epoch, update and batch; its cause is chained."""


class RecipeError(MxkitError, ValueError):
    """A recipe that does not say something that can be run."""


class ArchitectureError(MxkitError, ValueError):
    """A net that cannot be described, or a description that is no net; the text names the block."""


class CheckpointError(MxkitError, RuntimeError):
    """Files that are not a whole, verified checkpoint."""


class DownloadError(MxkitError, ConnectionError):
    """Files that no mirror gave; the text lists what to fetch by hand and where to put it."""


class CheckpointWarning(UserWarning):
    """A checkpoint is broken, could not be written, or cannot be gone on from to the last bit."""


class TrapWarning(UserWarning):
    """Something that Gluon gets wrong in silence, but that can be meant.

    `warnings.filterwarnings("ignore", category=mxkit.errors.TrapWarning)` silences all of them.
    """


# What other libraries call losses, optimizers, schedules and arguments, where the spelling does not lead to the name
# here.
OTHER_NAMES = {
    "bce": "sigmoid_bce",
    "bcewithlogits": "sigmoid_bce",
    "binary_crossentropy": "sigmoid_bce",
    "binary_cross_entropy": "sigmoid_bce",
    "ce": "softmax_ce",
    "cross_entropy": "softmax_ce",
    "crossentropy": "softmax_ce",
    "crossentropyloss": "softmax_ce",
    "categorical_crossentropy": "softmax_ce",
    "sparse_categorical_crossentropy": "softmax_ce",
    "nll": "softmax_ce",
    "nll_loss": "softmax_ce",
    "mse": "l2",
    "mean_squared_error": "l2",
    "mae": "l1",
    "mean_absolute_error": "l1",
    "smooth_l1": "huber",
    "kld": "kl_div",
    "kullback_leibler_divergence": "kl_div",
    "kl_divergence": "kl_div",
    "poisson": "poisson_nll",
    "adamw": "adam; its wd is added to the gradient, which is not AdamW's decay",
    "multifactor": "multi_step",
    "multistep": "multi_step",
    "factor": "step",
    "polynomial": "poly",
    "onecycle": "one_cycle",
    "pos_label": "positive",
    "ignore_index": "ignore_label",
    "delta": "rho",
    "smoothing": "epsilon",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """Phrase the nearest known name as a question, or return an empty string.

    Names of other libraries in `OTHER_NAMES` come before spelling.

    >>> nearest("sotfmax_ce", ["l2", "softmax_ce"])
    "did you mean 'softmax_ce'?"
    >>> nearest("mse", ["l2", "softmax_ce"])
    "did you mean 'l2'?"
    >>> nearest("zzz", ["l2", "softmax_ce"])
    ''
    """
    folded = {candidate.lower(): candidate for candidate in known}
    other, _, remark = OTHER_NAMES.get(name.lower(), "").partition("; ")
    if other and other in folded:
        return f"did you mean {folded[other]!r}{f' ({remark})' if remark else ''}?"
    found = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return f"did you mean {folded[found[0]]!r}?" if found else ""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that is not among the `known` ones.

    >>> print(unknown_name("loss", "sotfmax_ce", ["l2", "softmax_ce"]))
    unknown loss 'sotfmax_ce': did you mean 'softmax_ce'? Known: l2, softmax_ce
    """
    known = sorted(known)
    hint = nearest(name, known) if isinstance(name, str) else ""
    return UnknownNameError(f"unknown {kind} {name!r}: {hint + ' ' if hint else ''}Known: {', '.join(known)}")
