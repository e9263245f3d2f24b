"""All errors that mxkit raises on purpose, and hints for misspelt names.

    MxkitError
    +-- MXNetImportError (ImportError)       MXNet cannot be imported
    +-- UnknownNameError (ValueError)        a name that no registry has
    +-- DeviceError (ValueError)             a device that does not exist, or is not the net's
    +-- DataError (ValueError)               a batch, a loader or a label that cannot be used for training
    |   +-- EmptyDataError                   a source without batches
    |   +-- LabelError                       labels that the loss would clip without an error
    +-- LossShapeError (ValueError)          a loss without one value per sample
    +-- NotInitializedError (RuntimeError)   a net without parameters' values
    +-- UnusedParameterError (RuntimeError)  a trainable parameter without a gradient
    +-- NonFiniteError (ArithmeticError)     NaN or infinity in a loss or a gradient
    +-- ForwardError (RuntimeError)          an error of a block, with its path and its inputs
    +-- TrainingError (RuntimeError)         an error of the net or of MXNet, with epoch, update and batch
    +-- RecipeError (ValueError)             a recipe that cannot be run
    +-- ArchitectureError (ValueError)       a net that cannot be described, or an invalid description
    +-- ExportError (ValueError)             a net that an exported file cannot compute as MXNet does
    +-- CheckpointError (RuntimeError)       files that are not a complete, verified checkpoint
    +-- BusyError (RuntimeError)             a request that a Predictor refuses, because its queue is full
    +-- DownloadError (ConnectionError)      files that no mirror has
    +-- DistributedError (RuntimeError)      workers that do not meet, are lost, or are at different places

Each also derives from the builtin error that a caller would catch without mxkit. A TrapWarning reports code that may
be intended but usually is a mistake; a CheckpointWarning reports that a run cannot be resumed exactly.
"""

import difflib
import traceback
from typing import Any, Iterable, Sequence


class MxkitError(Exception):
    """Base of all errors that mxkit raises on purpose."""


class MXNetImportError(MxkitError, ImportError):
    """MXNet is missing, installed twice, or damaged; the text contains the command that repairs it."""


class UnknownNameError(MxkitError, ValueError):
    """An unknown name; the text lists the known names and the nearest one."""


class DeviceError(MxkitError, ValueError):
    """A device that does not exist on this machine, or that is not the net's device."""


class DataError(MxkitError, ValueError):
    """Data that cannot be used for training, reported before a gradient is computed."""


class EmptyDataError(DataError):
    """A source without batches."""


class LabelError(DataError):
    """Labels that MXNet would accept and interpret as other labels without an error."""


class LossShapeError(MxkitError, ValueError):
    """A loss that does not return one value per sample."""


class NotInitializedError(MxkitError, RuntimeError):
    """A net with parameters that have neither values nor a device."""


class UnusedParameterError(MxkitError, RuntimeError):
    """Trainable parameters without a gradient after the backward pass.

    Attributes:
        parameters: The Parameters, for callers that use other names.
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
    """An error of a block in a forward pass; its cause is chained.

    Attributes:
        path: Path of the block in the net, like `features.3`; '' is the net itself.
        block: The block.
    """

    def __init__(self, text: str, path: str, block: Any) -> None:
        self.path, self.block = path, block
        super().__init__(text)


class TrainingError(MxkitError, RuntimeError):
    """An error of the net, the loss or the engine, with epoch, update and batch; its cause is chained."""


class RecipeError(MxkitError, ValueError):
    """A recipe that cannot be run."""


class ArchitectureError(MxkitError, ValueError):
    """A net that cannot be described, or an invalid description; the text names the block."""


class ExportError(MxkitError, ValueError):
    """A net that cannot leave: operators without an equivalent, or a file that computes other numbers than MXNet."""


class CheckpointError(MxkitError, RuntimeError):
    """Files that are not a complete, verified checkpoint."""


class BusyError(MxkitError, RuntimeError):
    """A request that a Predictor refuses, because its queue is full; a web server answers 503.

    Attributes:
        waiting: Number of requests that wait.
        limit: `max_queue` of the Predictor.
    """

    def __init__(self, waiting: int, limit: int) -> None:
        self.waiting, self.limit = waiting, limit
        super().__init__(
            f"busy: {waiting} requests wait, and max_queue is {limit}: ask again later, or answer fewer clients"
        )


class DistributedError(MxkitError, RuntimeError):
    """Workers of a job that do not meet or are lost, or make different calls."""


class DownloadError(MxkitError, ConnectionError):
    """Files that no mirror has; the text lists the files to download by hand and their folder."""


class CheckpointWarning(UserWarning):
    """A checkpoint is broken, could not be written, or cannot be resumed exactly."""


class TrapWarning(UserWarning):
    """Code that Gluon computes wrongly without an error, but that may be intended.

    `warnings.filterwarnings("ignore", category=mxkit.errors.TrapWarning)` silences all of them.
    """


# Names in other libraries of losses, optimizers, schedules and arguments, without "_" and "loss", by the name in mxkit
# if the spelling is not close to it; a remark follows the semicolon
_OTHER_NAMES = {
    "accuracy": "acc",
    "sigmoid_bce": "bce bcewithlogits binarycrossentropy",
    "softmax_ce": "ce crossentropy categoricalcrossentropy sparsecategoricalcrossentropy nll",
    "l2": "mse meansquarederror",
    "l1": "mae meanabsoluteerror",
    "huber": "smoothl1",
    "kl_div": "kld kullbackleiblerdivergence kldivergence",
    "poisson_nll": "poisson",
    "adam; its wd is added to the gradient, which is not AdamW's decay": "adamw",
    "multi_step": "multifactor multistep",
    "step": "factor",
    "poly": "polynomial linear",
    "one_cycle": "onecycle",
    "cosine": "cosineannealinglr",
    "on_update": "onbatchend ontrainbatchend",
    "positive": "poslabel",
    "ignore_label": "ignoreindex",
    "rho": "delta",
    "epsilon": "smoothing",
}
_NAMES = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}


def nearest(name: str, known: Iterable[str]) -> str:
    """Ask for the nearest known name, or return an empty string.

    Names of other libraries take precedence over the spelling.

    >>> nearest("sotfmax_ce", ["l2", "softmax_ce"])
    "did you mean 'softmax_ce'?"
    >>> nearest("mse", ["l2", "softmax_ce"])
    "did you mean 'l2'?"
    >>> nearest("zzz", ["l2", "softmax_ce"])
    ''
    """
    folded = {candidate.lower(): candidate for candidate in known}
    other, _, remark = _NAMES.get(name.lower().replace("_", "").replace("loss", ""), "").partition("; ")
    if other and other in folded:
        return f"did you mean {folded[other]!r}{f' ({remark})' if remark else ''}?"
    matches = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return f"did you mean {folded[matches[0]]!r}?" if matches else ""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that is not in `known`.

    >>> print(unknown_name("loss", "sotfmax_ce", ["l2", "softmax_ce"]))
    unknown loss 'sotfmax_ce': did you mean 'softmax_ce'? Known: l2, softmax_ce
    """
    known = sorted(known)
    hint = nearest(name, known) if isinstance(name, str) else ""
    return UnknownNameError(f"unknown {kind} {name!r}: {hint + ' ' if hint else ''}Known: {', '.join(known)}")


def error_text(error: BaseException) -> str:
    """Type and message of an error; an `assert` without a message is shown by its line of code."""
    kind, text = type(error).__name__, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError) and not text and frames:
        text = f"{frames[-1].line} ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{kind}: {text}" if text else kind
