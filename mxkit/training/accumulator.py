"""Gradients of many micro-batches that equal those of one big batch."""

from contextlib import ExitStack, contextmanager
from itertools import chain
from numbers import Real
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Type, Union

from mxkit.core import trainers
from mxkit.core.arguments import Length, length
from mxkit.core.arrays import copied, copy_into, legacy, sum_of_squares, switches
from mxkit.core.prepared import OptimizerStep
from mxkit.core.replicas import all_fresh, gradients_of, holds_numpy, is_fresh, request_gradient, set_fresh, values_of
from mxkit.errors import DataError, LossShapeError, UnusedParameterError
from mxkit.losses.named_losses import checked_count
from mxkit.training.checks import check_replicas, check_sparse
from mxkit.training.ledger import Update
from mxkit.training.loss_checks import refuse_means
from mxkit.training.precision import MixedPrecision
from mxkit.training.workers import Workers, get_workers
import mxnet as mx
from mxnet import autograd, gluon

# Accumulators inside `with`. The reference keeps the Trainer's arrays alive until the garbage collector closes an
# abandoned generator: `__exit__` on arrays that are freed already would end the process.
_OPEN: Set["Accumulator"] = set()


class Accumulator:
    """Sum gradients over windows of micro-batches, and step once per window, in a loop of your own.

    The gradient of an update is the mean over every sample of its window. It equals the gradient of one big
    batch, also when micro-batches differ in size. Replicas are reduced once per update.

    ```
    with Accumulator(trainer, every=4) as accumulator:
        for x, y in batches:
            with autograd.record():
                losses = loss(net(x), y)        # shape (B,): one value per sample
            accumulator.backward(losses)
            update = accumulator.step()         # None inside a window
        accumulator.flush()                     # a shorter last window, with its true count
    ```

    After `mxkit.distributed.initialize()` each update is that of all workers together, and `step` waits for them: give
    each its own part of the data, and all the same parameters (`mxkit.distributed.broadcast_parameters`). A worker
    whose data has ended takes part in the others' updates until theirs has ended, too:

    ```
        accumulator.flush()
        while accumulator.join():               # None when the data of all has ended
            pass
    ```

    Args:
        trainer: A Trainer over the parameters to train. It alone changes them.
        every: Calls of `backward` in a window, at least 1; or "256 samples": a window is full when it holds at least
            this many samples, which suits micro-batches of different sizes.
        clip_norm: Largest L2 norm of the averaged gradient, over all parameters and devices together; a gradient
            with a larger norm is scaled down to it. `float("inf")` only measures the norm. None does neither.
        clip_value: Largest absolute value of each element of the averaged gradient, after `clip_norm`.
        precision: Its loss scale multiplies the gradients of a whole window, and is divided out before clipping;
            a window with overflowing gradients is skipped. None scales nothing.

    Attributes:
        updates: Number of updates so far, with skipped ones.
        micro_batches: Calls of `backward` in the open window; each update resets it to 0.
        samples: Samples in the open window; each update resets it to 0.
        count: Divisor of the window's gradient: `samples`, unless `backward` gets another count.

    Raises:
        ValueError: `every` is no such length; a limit is not above 0; replicas of this Trainer would drift apart; or
            `clip_value` is given, and only the kvstore adds the replicas up.
        DeviceError: `precision` is bfloat16, and the Trainer's parameters live on a GPU or the processor lacks AVX-512.
        RuntimeError: `with` ends, also by `break`, before the last micro-batches are applied: call `flush` first.

    Side effects:
        Inside `with`, `grad_req` of the Trainer's parameters is `"add"` instead of `"write"`, if a window may hold
        several micro-batches. Frozen parameters stay frozen. `grad_req` is restored on exit, also after an error.
        An error that leaves `with` drops the gradients of the open window.
    """

    def __init__(
        self,
        trainer: "gluon.Trainer",
        every: Union[int, str, Length] = 1,
        *,
        clip_norm: Optional[float] = None,
        clip_value: Optional[float] = None,
        precision: Optional[MixedPrecision] = None,
    ) -> None:
        for name, limit in (("clip_norm", clip_norm), ("clip_value", clip_value)):
            if limit is not None and not (isinstance(limit, Real) and limit > 0):
                raise ValueError(f"{name}: expected a number above 0, or None; received {limit!r:.100}")
        check_replicas(trainer)
        self.trainer = trainer
        self._parameters, self._devices = trainers.trainer_parameters(trainer), trainers.trainer_devices(trainer)
        if precision is not None:
            precision.check_devices(self._devices)
        scaled = precision is not None and precision.dtype == "float16"
        if len(self._devices) > 1 and trainers.shall_step_on_kvstore(trainer) and (scaled or clip_value is not None):
            name = "clip_value" if clip_value is not None else "amp='float16'"
            text = "the Trainer adds replicas up inside its kvstore, where single values cannot be reached"
            way = "Make it with update_on_kvstore=False"
            if isinstance(trainer.optimizer, trainers.DRIFTING):
                kind = type(trainer.optimizer).__name__
                way = f"{kind} has to step there (T24): use one device, or another optimizer"
            raise ValueError(f"{name}: {text}. {way}")
        self._optimizer_step = OptimizerStep(trainer)
        self._on_kvstore: Optional[bool] = None  # known after the kvstore is created
        self.every = length(every, "accumulate", ("batches", "samples"), "batches")
        self._adds = self.every != (1, "batches")
        self.clip_norm, self.clip_value, self.precision = clip_norm, clip_value, precision
        self.workers: Workers = get_workers()
        self.workers.check(trainer)
        clips = clip_norm is not None or clip_value is not None
        dense = {"accumulation": self._adds, "clipping": clips, "training in several workers": self.workers.size > 1}
        check_sparse(trainer, [why for why, asked in dense.items() if asked])
        self.updates = 0
        self.least_count = 0.0  # replaces a window's count of 0, if it is not 0 itself
        self._compared = False  # the parameters of the workers
        self._means_searched = False
        self._switched: List[Any] = []
        self._open_window()

    def __enter__(self) -> "Accumulator":
        if self._adds:
            # Only "write" is changed, before anything is recorded (T5).
            self._switched = [parameter for parameter in self._parameters if parameter.grad_req == "write"]
            for parameter in self._switched:
                request_gradient(parameter, "add")
        _OPEN.add(self)
        self._drop_gradients()  # of an interrupted window, or of a backward pass outside of this class
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Any, traceback: Any) -> None:
        _OPEN.discard(self)
        switched, self._switched = self._switched, []
        batches, samples = self.micro_batches, self.samples
        if batches:
            self._zero_added_gradients()
        for parameter in switched:
            if parameter.grad_req == "add":  # the user may have frozen it meanwhile
                request_gradient(parameter, "write")
        self._open_window()
        if batches and kind is None:
            held = f"the last window held {batches} micro-batches, {samples} samples, which no update used"
            raise RuntimeError(f"Accumulator: {held}. Call accumulator.flush() after the loop over the batches")

    def backward(self, losses: Any, *, count: Optional[float] = None) -> None:
        """Compute the gradients of one micro-batch and add them to the window.

        Args:
            losses: One value per sample, shape (B,), recorded; a list with one array per device if the micro-batch
                is split over devices.
            count: What the micro-batch adds to the divisor of the window's gradient, at least 0: the sum of
                sample weights, or the number of unmasked tokens. None is the number of samples.

        Raises:
            LossShapeError: A loss has no sample axis, or is a mean or a sum over the samples. If the first losses have
                the shape (1,), their graph is searched for such a reduction: those of one sample have this shape too.
            DataError: There is no loss, or `count` is no number of at least 0.
            RuntimeError: Another backward pass changed the gradients of the window; `step` raises it too.
        """
        self._refuse_other_passes()
        parts = legacy(list(losses) if isinstance(losses, (list, tuple)) else [losses])
        if not self._means_searched:
            self._means_searched = True
            # beside several losses, one is that of a sample, also if it is a mean over the steps on axis 0
            if all(part.shape == (1,) for part in parts):
                refuse_means(parts)
        self.backward_of(parts, count=count)
        computed = [replica for replica in self._replicas() if is_fresh(replica)]
        set_fresh(computed, False)  # until `step`: another pass before it marks them again
        self._computed += computed

    def backward_of(
        self, parts: List[Any], *, count: Optional[float] = None, backward: Optional[Callable[[], None]] = None
    ) -> None:
        """Do what `backward` does, by a graph of one's own.

        Args:
            parts: The losses of each device.
            count: As for `backward`.
            backward: Computes the gradients of losses that are not recorded, by `grad_req`; None is autograd's way.
        """
        if self._adds and not self._switched and any(p.grad_req == "write" for p in self._parameters):
            raise RuntimeError("Accumulator.backward: call it inside `with Accumulator(...) as accumulator:`")
        if not parts:
            raise DataError("Accumulator.backward: received no loss")
        parts = legacy(parts)
        shapes = [part.shape for part in parts]
        if () in shapes:
            text = "expected losses of shape (B,), one per sample; received a scalar, a mean or a sum over the samples"
            raise LossShapeError(f"Accumulator.backward: {text}. Pass them without .mean() or .sum()")
        samples = sum(shape[0] for shape in shapes)
        count = samples if count is None else checked_count(count)
        if self._adds and not self.micro_batches and any(map(is_fresh, self._replicas())):
            self._drop_gradients()  # of another net's loss, which was computed through this one since the last update
        with ExitStack() as around:
            for accumulator in _OPEN - {self}:
                around.enter_context(accumulator._window_kept(self._parameters))
            if backward is None:
                self._autograd(parts, shapes)
            else:
                backward()
                self._losses += parts
        if len(parts) == len(self._devices):  # faster than reading the device of each array
            self._active.update(dict.fromkeys(self._devices))
        else:
            self._active.update((part.ctx, None) for part in parts)
        self.samples += samples
        self.count += count
        self.micro_batches += 1

    def _autograd(self, parts: List[Any], shapes: Sequence[Tuple[int, ...]]) -> None:
        self._losses.extend(_flat(part, shape) for part, shape in zip(parts, shapes))
        ones = None if self._scale == 1 else [part.ones_like() * self._scale for part in parts]
        with switches(self._holds_numpy()):
            autograd.backward(parts, ones)

    def step(self) -> Optional[Update]:
        """Apply the window if it is full.

        Returns:
            The update, or None inside a window.

        Raises:
            RuntimeError: `backward` was not called since the last update.
        """
        if not self.micro_batches:
            text = "the window holds no micro-batch. Call accumulator.backward(losses) before"
            raise RuntimeError(f"Accumulator.step: {text}, instead of losses.backward()")
        held = self.samples if self.every.unit == "samples" else self.micro_batches
        return self._apply() if held >= self.every.number else None

    def flush(self) -> Optional[Update]:
        """Apply the open window, divided by its true count of samples.

        Returns:
            The update, or None if the window is empty.
        """
        return self._apply() if self.micro_batches else None

    def join(self) -> Optional[Update]:
        """Take part in the next update of other workers, without a sample: this one's data has ended.

        Returns:
            The update; None if the data of all workers has ended. An open window is applied, as by `flush`.
        """
        return self._apply()

    def _holds_numpy(self) -> bool:
        """Whether parameters hold arrays of `mx.np`; without values, as the switch of the thread says."""
        known = [numpy for numpy in map(holds_numpy, self._parameters) if numpy is not None]
        return any(known) if known else bool(mx.util.is_np_array())

    def _open_window(self) -> None:
        self.micro_batches = 0
        self.samples = 0
        self.count: float = 0
        self._scale = 1.0 if self.precision is None else self.precision.scale
        self._losses: List[Any] = []
        self._computed: List[Any] = []  # values whose gradients `backward` computed
        self._active: Dict[Any, None] = {}  # ordered set of the devices that computed a loss

    def trained(self) -> List[Any]:
        """Parameters of the Trainer that are not frozen."""
        return [parameter for parameter in self._parameters if parameter.grad_req != "null"]

    def _apply(self) -> Optional[Update]:
        trainer, trained = self.trainer, self.trained()
        own = self.micro_batches
        step = self.updates + 1
        total = self.workers.commit(step, self.samples, self.count if own else None, trainer, trained)
        if total is None:
            return None
        self.samples, self.count = total
        if not self._compared:
            self._compared = True
            self.workers.same_parameters(trained, f"before update {step}")
        if not self.count:
            self.count = self.least_count
        if not self.count:
            text = f"the window of update {step} has the count 0: none of its {self.samples} samples counts"
            raise DataError(f"{text}. Leave such batches out")
        self._refuse_other_passes()
        set_fresh(self._computed, True)
        with switches(self._holds_numpy()):
            if own:
                self._refresh_idle_replicas(trained)
            else:
                _set_to_zero(chain.from_iterable(gradients_of(parameter) or () for parameter in trained))
                set_fresh(self._replicas(), True)
            if self._on_kvstore is None:
                # otherwise an optimizer that was made before npx.set_np() refuses arrays of mx.np
                trainer.optimizer.allow_np_array = True
                trainers.begin_kvstore(trainer)
                self._on_kvstore = trainers.steps_on_kvstore(trainer)
            if not self._on_kvstore:
                self._losses = self.workers.add_up(trainer, trained, self._losses)
            skipped = self.precision is not None and self.precision.overflowed(trained)
            norm = None
            if skipped:
                set_fresh(self._replicas(), False)
            else:
                norm = self._step(trained, self._on_kvstore)
            self._zero_added_gradients()
        self.updates = step
        update = Update(self.updates, self.samples, self._losses, norm, count=self.count, skipped=skipped)
        update.learning_rate = float(trainer.learning_rate)
        self._open_window()
        return update

    def _step(self, trained: Sequence[Any], on_kvstore: bool) -> Optional[Any]:
        """Clip the gradients and update the weights; return the norm of the gradients, or None without `clip_norm`."""
        norm = None if self.clip_norm is None else self._clip(trained, on_kvstore)
        if self.clip_value is not None:
            self._clip_values(trained)
        if on_kvstore:
            self.trainer.step(self.count * self._scale)
            set_fresh(self._replicas(), False)  # Gluon does not, and would miss an unused parameter from now on (T24)
        else:
            self._optimizer_step(self.count * self._scale)
        return norm

    def _refresh_idle_replicas(self, trained: Sequence[Any]) -> None:
        """Zero the gradients of replicas without a sample in this window; refuse parameters without any gradient.

        An idle replica keeps the gradient of an earlier update. MXNet would add it again, or the replicas would drift
        apart, both without an error (T8, T24).

        Raises:
            UnusedParameterError: The loss does not depend on a parameter.
        """
        if len(self._active) == len(self._devices) and all_fresh(trained):
            return
        unused = []
        for parameter in trained:
            replicas = values_of(parameter) or []  # empty if the shape is still unknown
            fresh = {data.ctx: data.ctx in self._active and is_fresh(data) for data in replicas}
            if not any(fresh.values()):
                unused.append(parameter)
                continue
            for data, gradient in zip(replicas, gradients_of(parameter) or ()):
                if not fresh[data.ctx]:
                    _set_to_zero([gradient])
                    set_fresh([data], True)
        if unused:
            raise UnusedParameterError([parameter.name for parameter in unused], unused)

    def _clip(self, trained: Sequence[Any], on_kvstore: bool) -> Any:
        """Scale gradients so that their average has at most the norm `clip_norm`; return the norm before."""
        replicas = [gradients_of(parameter) or [] for parameter in trained]
        # the kvstore adds the replicas only during its update: the norm needs their sum now
        gradients = [_sum(one) if on_kvstore else one[0] for one in replicas]
        # the norm of the average, because clipping the sum would be too strong by the factor `count` (T9)
        average = trainers.gradient_scale(self.trainer) / (self.count * self._scale)
        norm = sum_of_squares(gradients).sqrt() * average
        if self.clip_norm != float("inf"):
            factor = mx.nd.minimum(self.clip_norm / norm, 1.0)
            factors: Dict[Any, Any] = {}
            for gradient in chain.from_iterable(replicas):
                here = gradient.ctx
                if (here, gradient.dtype) not in factors:
                    factors[here, gradient.dtype] = factor.as_in_context(here).astype(gradient.dtype)
                flat = gradient.reshape((-1,))  # a view, also of a gradient without axes
                mx.nd.broadcast_mul(flat, factors[here, gradient.dtype], out=flat)
        return norm

    def _clip_values(self, trained: Sequence[Any]) -> None:
        # MXNet's clip_gradient does the same, but is a setting of the optimizer, which would keep it
        limit = float(self.clip_value or 0) * self.count * self._scale / trainers.gradient_scale(self.trainer)
        for parameter in trained:
            for gradient in gradients_of(parameter) or ():
                flat = gradient.reshape((-1,))
                mx.nd.clip(flat, -limit, limit, out=flat)

    def _refuse_other_passes(self) -> None:
        if self._computed and any(map(is_fresh, self._replicas())):
            text = "another backward pass changed the gradients of the window. Compute other gradients"
            raise RuntimeError(f"Accumulator: {text} by mxkit.gradients.grad, or after accumulator.step()")

    def _replicas(self) -> List[Any]:
        """Values of the trained parameters on all devices."""
        return [replica for parameter in self.trained() for replica in values_of(parameter) or ()]

    @contextmanager
    def _window_kept(self, trained: Sequence[Any]) -> Iterator[None]:
        """Keep the gradients of an open window inside `with`, but not those of parameters that are `trained` there.

        The loss of a generator is computed through its discriminator, and its gradient would add to the window (T180).
        """
        others = [one for one in self.trained() if all(one is not own for own in trained)] if self.micro_batches else []
        gradients = [(gradient, copied(gradient)) for one in others for gradient in gradients_of(one) or ()]
        fresh = [(replica, is_fresh(replica)) for one in others for replica in values_of(one) or ()]
        yield
        for gradient, copy in gradients:
            copy_into(copy, gradient)
        for replica, was_fresh in fresh:
            set_fresh([replica], was_fresh)

    def _drop_gradients(self) -> None:
        self._zero_added_gradients()
        set_fresh(self._replicas(), False)

    def _zero_added_gradients(self) -> None:
        # otherwise the next window would count these gradients again (T1)
        added = [parameter for parameter in self._parameters if parameter.grad_req == "add"]
        if added:
            _set_to_zero(chain.from_iterable(gradients_of(parameter) or () for parameter in added))


def _set_to_zero(gradients: Iterable[Any]) -> None:
    by_device: Dict[Any, List[Any]] = {}
    for gradient in gradients:
        # the operator refuses arrays without axes under `npx.set_np()`
        by_device.setdefault(gradient.ctx, []).append(gradient if gradient.shape else gradient.reshape((-1,)))
    for dense in by_device.values():
        mx.nd.reset_arrays(*dense, num_arrays=len(dense))


def _flat(losses: Any, shape: Tuple[int, ...]) -> Any:
    """Losses as float32 of shape (B,), detached from their graph."""
    losses = losses.detach().astype("float32", copy=False)
    return losses if len(shape) == 1 else losses.reshape((-1,))


def _sum(replicas: Sequence[Any]) -> Any:
    return mx.nd.add_n(*[replica.as_in_context(replicas[0].ctx) for replica in replicas])
