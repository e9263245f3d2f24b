"""A training that is undone: the search of a learning rate, and the base of a profile."""

from contextlib import closing, contextmanager
import copy
import math
from pathlib import Path
from typing import Any, Iterator, List, Optional, Union

from mxkit.core.arguments import split_spec, whole_number
from mxkit.core.arrays import copy_into, copy_to_cpu
from mxkit.core.blocks import parameters_by_path
from mxkit.core.replicas import gradients_of, is_fresh, set_fresh, set_grad_req, set_trainer, trainer_of, values_of
from mxkit.core.seeding import generators_kept
from mxkit.core.trainers import HeldWeights, TrainerSpec, get_trainer, gradient_scale, set_update_counts, trainer_like
from mxkit.data.source import Data, Source, source_of
from mxkit.losses.named_losses import LossSpec
from mxkit.nets.settings import refuse_fixed_rate
from mxkit.plots.plotting import new_figure
from mxkit.training.update import finish_initialization
from mxkit.training.update import updates as train_updates
from mxkit.training.workers import alone
import mxnet as mx
from mxnet import gluon
import numpy as np


@contextmanager
def rehearsal(net: Any, data: Data) -> Iterator[Any]:
    """Yield a `Source` for a training that is undone at the end of `with`, also after an error.

    Values, `grad_req` and accumulated gradients of every replica, Python's and NumPy's generators and a loader's count
    of epochs are restored. MXNet's generator is not: its state cannot be read (T67).

    Args:
        net: An initialized block. Deferred parameters stay initialized.
        data: Read again and again from its beginning, unless it can be read only once.
    """
    source = source_of(data)
    with source.count_kept(), generators_kept(), source.open(), closing(source.endless()) as batches:
        endless = finish_initialization(net, Source(batches))  # values are needed to restore them
        with _undone(net):
            yield endless


@contextmanager
def _undone(net: Any) -> Iterator[None]:
    """Restore a net after a training: values, accumulated gradients, and `grad_req`."""
    before = [
        (
            parameter,
            parameter.grad_req,
            trainer_of(parameter),
            [is_fresh(data) for data in values_of(parameter) or ()],
            list(map(copy_to_cpu, gradients_of(parameter) or ())) if parameter.grad_req == "add" else (),
        )
        for parameter in dict.fromkeys(parameters_by_path(net).values())
        if values_of(parameter)
    ]
    with HeldWeights(parameters_by_path(net)):
        try:
            yield
        finally:
            for parameter, grad_req, trainer, fresh, gradients in before:
                set_grad_req(parameter, grad_req)
                set_trainer(parameter, trainer)
                for data, was_fresh in zip(values_of(parameter) or (), fresh):
                    if grad_req != "null":
                        set_fresh([data], was_fresh)
                for gradient, value in zip(gradients_of(parameter) or (), gradients):
                    copy_into(value, gradient)


def copied_trainer(net: Any, spec: TrainerSpec) -> "gluon.Trainer":
    """Return a copy of a Trainer: it has the same parameters, and shares only their multipliers."""
    if isinstance(spec, gluon.Trainer):
        trainer = get_trainer(net, spec)  # checks its devices
        optimizer = _unused(trainer.optimizer)
        optimizer.rescale_grad = gradient_scale(trainer)  # the last step divided it by the size of its batch
        return trainer_like(trainer, optimizer)
    name, arguments = split_spec(spec)
    arguments.pop("lr_scheduler", None)  # it would decide the rates, and change its state
    if isinstance(name, mx.optimizer.Optimizer):
        name = _unused(name)
    return get_trainer(net, (name, arguments) if arguments else name)


def _unused(optimizer: Any) -> Any:
    """A copy of an optimizer with the state before its first update, without a scheduler."""
    unused = copy.deepcopy(optimizer)
    unused.lr_scheduler = None
    unused.num_update = unused.begin_num_update
    set_update_counts(unused, {0: {}})
    if hasattr(unused, "m_schedule"):  # Nadam's, which each parameter changes
        unused.m_schedule = 1.0
    return unused


# With fewer points, a slope cannot be distinguished from noise.
FEWEST = 10
# The smoothed loss falls clearly if it falls by this many standard deviations of the losses from batch to batch.
CLEAR = 3.5


class LearningRateSearch:
    """Losses of `find_learning_rate` by learning rate.

    Attributes:
        rates: Rate of each update, rising by a constant factor.
        losses: Mean loss per sample before each update.
    """

    def __init__(self, rates: List[float], losses: List[float]) -> None:
        self.rates, self.losses = rates, losses

    @property
    def _reach(self) -> int:
        return max(1, len(self.losses) // 20)

    @property
    def smoothed(self) -> List[float]:
        """The losses, each averaged with its neighbours; the weights are a triangle, a tenth of the curve wide."""
        reach = self._reach
        weights = np.bartlett(2 * reach + 3)[1:-1]
        values = np.asarray(self.losses, dtype="float64")
        sums = np.convolve(np.ones_like(values), weights)[reach:-reach]
        return list((np.convolve(values, weights)[reach:-reach] / sums).tolist())

    @property
    def suggestion(self) -> float:
        """The rate, before the minimum, with the steepest fall of the smoothed loss over the rate's logarithm.

        Raises:
            ValueError: There are too few points; the loss did not fall by clearly more than it varies from batch to
                batch; or it falls fastest at an end of the range.
        """
        smoothed = np.asarray(self.smoothed)
        upto = int(smoothed.argmin()) + 1
        fall, noise = smoothed[:upto].max() - smoothed.min(), 0.0
        if len(smoothed) >= FEWEST:  # differences of second order hold no trend
            noise = float(np.median(np.abs(np.diff(self.losses, 2)))) / (0.6745 * 6**0.5)
        if len(smoothed) < FEWEST or not fall > CLEAR * noise:
            text = f"the loss did not fall in {len(self.rates)} updates by clearly more than it varies"
            raise ValueError(f"find_learning_rate: {text}: no rate can be suggested. Start lower, or take more updates")
        steepest = int(np.gradient(smoothed, np.log(self.rates))[:upto].argmin())
        if self._reach <= steepest < len(smoothed) - self._reach:
            return self.rates[steepest]
        end, way = ("start", "lower start") if steepest < self._reach else ("end", "higher end")
        text = f"the loss falls fastest at the {end} of the range, {self.rates[steepest]:g}"
        raise ValueError(f"find_learning_rate: {text}: no rate can be suggested. Pass a {way}")

    def plot(self, path: Union[str, Path, None] = None) -> Any:
        """Draw the losses over the rates, with the suggestion if there is one.

        Args:
            path: Where to save the picture, or None to save nothing.

        Returns:
            The matplotlib Figure.
        """
        figure = new_figure()
        axes = figure.add_subplot(1, 1, 1)
        axes.plot(self.rates, self.losses, color="#4C72B0", alpha=0.35, label="loss")
        axes.plot(self.rates, self.smoothed, color="#4C72B0", label="smoothed")
        try:
            axes.axvline(self.suggestion, color="#DD8452", label=f"suggestion {self.suggestion:.2g}")
        except ValueError as error:
            axes.set_title(str(error).split(":")[1].strip(), fontsize=7)
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower left")
        if path is not None:
            figure.savefig(str(path))
        return figure


def find_learning_rate(
    net: Any,
    data: Data,
    *,
    loss: LossSpec,
    trainer: TrainerSpec,
    start: float = 1e-7,
    end: float = 1.0,
    updates: int = 100,
    accumulate: int = 1,
    clip_norm: Optional[float] = None,
    diverged: float = 4.0,
) -> LearningRateSearch:
    """Train with a rate that rises at each update, record the loss, and restore everything.

    With several workers it concerns this one alone, also if only one of them calls it.

    Args:
        net: An initialized block. Unknown shapes follow from the first batch, and stay.
        data: As for `updates`; read again from its beginning if it is too short.
        loss: As for `updates`.
        trainer: As for `updates`. The search uses a copy of a Trainer or an optimizer, without states and scheduler.
        start: The first rate, above 0.
        end: The last rate, above `start`.
        updates: Number of updates, at least 10.
        accumulate: As for `updates`.
        clip_norm: As for `updates`.
        diverged: Stop when the loss is this many times the lowest so far, or not finite.

    Returns:
        `rates`, `losses`, `.suggestion` and `.plot(path)`.

    Raises:
        ValueError: A number is out of range, or the optimizer ignores learning rates.
        MxkitError: As for `updates`.

    Side effects:
        None, also after an error: the values of every replica, `grad_req`, accumulated gradients, and Python's and
        NumPy's generators are restored, and the Trainer does not change. Two things cannot be restored: MXNet's
        generator, if the net draws random numbers (its state cannot be read, T67; seed it afterwards), and data
        that can be read only once.
    """
    if not (0 < start < end < math.inf and diverged > 1 and whole_number(updates, "updates") >= FEWEST):
        wanted = f"expected 0 < start < end, diverged > 1, updates >= {FEWEST}"
        raise ValueError(f"find_learning_rate: {wanted}; received {start!r}, {end!r}, {diverged!r}, {updates!r}")
    with rehearsal(net, data) as batches:
        copied = copied_trainer(net, trainer)
        refuse_fixed_rate(copied)
        with alone():
            steps = train_updates(
                net, batches, loss=loss, trainer=copied, accumulate=accumulate, clip_norm=clip_norm, check_finite=False
            )
        rates = [start * (end / start) ** (number / (updates - 1)) for number in range(updates)]
        return _search(steps, copied, rates, diverged)


def _search(steps: Any, trainer: "gluon.Trainer", rates: List[float], diverged: float) -> LearningRateSearch:
    losses: List[float] = []
    trainer.set_learning_rate(rates[0])
    try:
        for update in steps:
            losses.append(update.loss)
            if not math.isfinite(losses[-1]):
                losses.pop()
                break
            if len(losses) == len(rates) or losses[-1] > diverged * min(losses) > 0:
                break
            trainer.set_learning_rate(rates[len(losses)])
    finally:
        steps.close()
    if not losses:
        raise ValueError(f"find_learning_rate: the loss is not finite before the first update, at rate {rates[0]:g}")
    return LearningRateSearch(rates[: len(losses)], losses)
