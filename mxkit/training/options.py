"""The arguments that `fit` and `updates` share, checked once."""

from typing import Any, Dict, Optional, Sequence, Union

from mxkit.core.arguments import Length, length, whole_number
from mxkit.losses.named_losses import BatchLossSpec, get_batch_loss
from mxkit.metrics import Metric
from mxkit.training.precision import MixedPrecision, get_precision


class Options:
    """Arguments that `fit` and `updates` share; `updates` describes them.

    Attributes:
        batch_loss: The `BatchLoss`.
        accumulate: The length of a window, in batches or samples.
        precision: The `MixedPrecision` of `amp`, or None.
        check_finite: Whether NaN and infinity end the training.
        stop_at_nonfinite: Whether they stop `fit` like a callback, without an error.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has another type.
    """

    def __init__(
        self,
        *,
        loss: Optional[BatchLossSpec],
        accumulate: Union[int, str, Length] = 1,
        clip_norm: Optional[float] = None,
        clip_value: Optional[float] = None,
        amp: Union[None, str, MixedPrecision] = None,
        limit_batches: Optional[int] = None,
        check_finite: Union[bool, str] = True,
        seed: Optional[int] = None,
    ) -> None:
        self.batch_loss = get_batch_loss(loss)
        self.accumulate = length(accumulate, "accumulate", ("batches", "samples"), "batches")
        self.clip_norm, self.clip_value = clip_norm, clip_value
        self.precision = get_precision(amp)
        self.limit_batches = None if limit_batches is None else whole_number(limit_batches, "limit_batches")
        if check_finite not in (True, False, "stop"):
            raise ValueError(f"check_finite is True, False or 'stop'; received {check_finite!r:.100}")
        self.check_finite, self.stop_at_nonfinite = bool(check_finite), check_finite == "stop"
        self.seed = seed
        self.metrics: Sequence[Metric] = ()

    @property
    def several(self) -> bool:
        """Whether an update may hold several batches."""
        return self.accumulate != (1, "batches")

    def batches_of_update(self, samples: int) -> int:
        """Number of batches of `samples` samples in an update."""
        number = int(self.accumulate.number)
        return number if self.accumulate.unit == "batches" else -(-number // samples)

    def settings(self) -> Dict[str, Any]:
        """The options that change the numbers of a training, with the names that checkpoints store."""
        number, unit = self.accumulate
        return {
            "seed": self.seed,
            "loss": self.batch_loss.description,
            "accumulate": number if unit == "batches" else 1,
            "accumulate_samples": number if unit == "samples" else None,
            "clip_norm": self.clip_norm,
            "clip_value": self.clip_value,
            "amp": None if self.precision is None else self.precision.dtype,
            "limit_batches": self.limit_batches,
        }
