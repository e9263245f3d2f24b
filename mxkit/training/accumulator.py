"""Gradients of many micro-batches that equal those of one big batch."""

import json
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type, Union

from mxkit.core.lengths import Length, length
from mxkit.core.replicas import gradients_of, is_fresh, request_gradient, set_fresh, values_of
from mxkit.core.trainers import (
    DRIFTING,
    begin_kvstore,
    gradient_scale,
    kvstore_settings,
    shall_step_on_kvstore,
    steps_on_kvstore,
    trainer_devices,
    trainer_parameters,
)
from mxkit.errors import DataError, LossShapeError, UnusedParameterError
from mxkit.losses.batch_loss import checked_count
from mxkit.training.checks import check_sparse
from mxkit.training.ledger import Update
from mxkit.training.norms import sum_of_squares
from mxkit.training.precision import MixedPrecision
import mxnet as mx
from mxnet import autograd, gluon

# Those inside `with`. If one is forgotten there, by a generator that nobody closed, the garbage collector ends it; it
# must not have freed the Trainer's arrays before, which would end the process.
_OPEN: Set["Accumulator"] = set()

# Operators that leave a loss of shape (1,) what it was, and those that make one value of all samples.
_SAME_SHAPE = ("_mul_scalar", "_div_scalar", "_plus_scalar", "_minus_scalar", "_copy", "negative", "Cast", "Reshape")
_PAIRS = ("add", "sub", "mul", "div", "plus", "minus")
_REDUCTIONS = ("mean", "sum", "nansum", "_npi_mean", "_np_sum")


class Accumulator:
    """Sum gradients over windows of micro-batches and step once a window, in a loop of your own.

    The gradient of an update is the mean over every sample of its window, so that it equals one big
    batch, also when micro-batches differ in size. Replicas are reduced once an update.

    ```
    with Accumulator(trainer, every=4) as accumulator:
        for x, y in batches:
            with autograd.record():
                losses = loss(net(x), y)        # shape (B,): one value a sample
            accumulator.backward(losses)
            update = accumulator.step()         # None inside a window
        accumulator.flush()                     # a shorter last window, with its true count
    ```

    Args:
        trainer: Over the parameters to train. It alone changes them.
        every: Calls of `backward` in a window, at least 1; or "256 samples": a window is full when it holds this many
            samples or more, which suits micro-batches of different sizes.
        clip_norm: Largest L2 norm of the averaged gradient, over all parameters and devices at once; a
            larger one is scaled down to it. `float("inf")` only measures. None does neither.
        clip_value: Largest absolute value of each element of the averaged gradient, after `clip_norm`.
        precision: Its loss scale multiplies the gradients, the same for a whole window, and is divided out
            before clipping; a window whose gradients overflow is skipped. None scales nothing.

    Attributes:
        updates: Updates done, from 0; a skipped one counts.
        micro_batches: Calls of `backward` in the open window, from 0; each update sets it to 0.
        samples: Samples in the open window, from 0; each update sets it to 0.
        count: What the window's gradient will be divided by: `samples`, where no other count was stated.

    Raises:
        ValueError: `every` is no such length; a limit is not above 0; the Trainer would
            train replicas that drift apart, or clips values where only the kvstore adds
            replicas up.
        DeviceError: `precision` is bfloat16 and the Trainer's parameters live on a GPU.
        RuntimeError: `with` ends, also by `break`, while micro-batches wait for their update: call `flush` first.

    Side effects:
        Inside `with`, and where a window may hold several micro-batches, `grad_req` of the Trainer's
        parameters is `"add"` where it was `"write"` (frozen ones stay frozen); it is restored on exit, also
        after an error.
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
            if limit is not None and not limit > 0:
                raise ValueError(f"{name}: expected a number above 0, or None; received {limit!r:.100}")
        _refuse_trainer(trainer)
        if precision is not None:
            precision.check_devices(trainer_devices(trainer))
        if len(trainer_devices(trainer)) > 1 and shall_step_on_kvstore(trainer):
            hidden = {
                "clip_value": (clip_value is not None, "single values cannot be reached"),
                "amp='float16'": (precision is not None and precision.dtype == "float16", "no overflow can be seen"),
            }
            for name, (asked, why) in hidden.items():
                if asked:
                    raise ValueError(
                        f"{name}: the Trainer adds replicas up inside its kvstore, where {why}. "
                        "Make it with update_on_kvstore=False"
                    )
        self.trainer = trainer
        self._parameters, self._devices = trainer_parameters(trainer), trainer_devices(trainer)
        self._on_kvstore: Optional[bool] = None  # known once the kvstore is there
        self.every = length(every, "accumulate", ("batches", "samples"), "batches")
        self._adds = self.every != (1, "batches")
        self.clip_norm = clip_norm
        self.clip_value = clip_value
        self.precision = precision
        clips = clip_norm is not None or clip_value is not None
        check_sparse(trainer, ["accumulation"] * self._adds + ["clipping"] * clips)
        self.updates = 0
        self._looked = False
        self._switched: List[Any] = []
        self._open_window()

    def __enter__(self) -> "Accumulator":
        if self._adds:
            # Only "write" is touched, and before anything is recorded (T5).
            self._switched = [one for one in self._parameters if one.grad_req == "write"]
            for parameter in self._switched:
                request_gradient(parameter, "add")
        _OPEN.add(self)
        self._zero_added_gradients()
        self._forget_fresh_gradients()  # left by a window that was broken off, or by somebody else's backward
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
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
            raise RuntimeError(
                f"Accumulator: the last window held {batches} micro-batches, {samples} samples, that no update used; "
                f"their gradients were dropped after {self.updates} updates. Call accumulator.flush() inside `with`, "
                "after the loop over the batches"
            )

    def backward(self, losses: Any, *, count: Optional[float] = None) -> None:
        """Compute the gradients of one micro-batch and add them to the window.

        Args:
            losses: One value per sample, shape (B,), recorded; a list of them where the micro-batch is
                split over devices.
            count: What the micro-batch adds to the number that the window's gradient is divided by, at least
                0: the sum of sample weights, or of the tokens that a mask leaves. None is the number of samples.

        Raises:
            LossShapeError: A loss has no sample axis, or is a mean or a sum over the samples. The latter is looked for
                in the graph of the first loss of shape (1,), which a micro-batch of one sample has rightly.
            DataError: No loss was given, or `count` is no number of at least 0.
        """
        self.backward_of(list(losses) if isinstance(losses, (list, tuple)) else [losses], count=count)

    def backward_of(
        self,
        parts: List[Any],
        *,
        count: Optional[float] = None,
        ones: Sequence[Any] = (),
        others: Sequence[Tuple[Any, Any]] = (),
    ) -> None:
        """Do what `backward` does, with arrays that are made once a training; MXNet makes them in each call.

        Args:
            parts: The losses of each device.
            count: As for `backward`.
            ones: Arrays of ones of the losses' shapes, or None for a loss without one.
            others: Other outputs of the graphs that gave the losses, each with an array of zeros as its gradient.
                To make the zeros takes 30 us of a small net's 600.
        """
        if self._adds and not self._switched and any(p.grad_req == "write" for p in self._parameters):
            raise RuntimeError("Accumulator.backward: call it inside `with Accumulator(...) as accumulator:`")
        if not parts:
            raise DataError("Accumulator.backward: no loss was given")
        shapes = [part.shape for part in parts]
        if () in shapes:
            raise LossShapeError("Accumulator.backward: expected losses of shape (B,), one a sample; received a scalar")
        if (1,) in shapes and not self._looked:
            self._looked = True
            _refuse_means(parts)
        samples = sum(shape[0] for shape in shapes)
        count = samples if count is None else checked_count(count)
        self._losses.extend(_flat(part, shape) for part, shape in zip(parts, shapes))
        if self._scale != 1:
            ones = [part.ones_like() * self._scale for part in parts]
        elif not ones:
            ones = [None] * len(parts)
        autograd.backward([*parts, *(output for output, _ in others)], [*ones, *(zeros for _, zeros in others)])
        if len(parts) == len(self._devices):  # asking each array for its device takes longer
            self._active.update(dict.fromkeys(self._devices))
        else:
            self._active.update((part.context, None) for part in parts)
        self.samples += samples
        self.count += count
        self.micro_batches += 1

    def step(self) -> Optional[Update]:
        """Apply the window if it is full.

        Returns:
            The update, or None inside a window.

        Raises:
            RuntimeError: No gradient was computed by `backward` since the last update.
        """
        if not self.micro_batches:
            raise RuntimeError(
                "Accumulator.step: the window holds no micro-batch. Call accumulator.backward(losses) before, in place "
                "of losses.backward(), whose gradients this window does not count"
            )
        held = self.samples if self.every.unit == "samples" else self.micro_batches
        return self._apply() if held >= self.every.number else None

    def flush(self) -> Optional[Update]:
        """Apply the window that is open, with its true count of samples.

        Returns:
            The update, or None if no micro-batch is waiting.
        """
        return self._apply() if self.micro_batches else None

    def _open_window(self) -> None:
        self.micro_batches = 0
        self.samples = 0
        self.count: float = 0
        self._scale = 1.0 if self.precision is None else self.precision.scale
        self._losses: List[Any] = []
        self._active: Dict[Any, None] = {}  # an ordered set of the devices that computed something

    def trained(self) -> List[Any]:
        """Parameters of the Trainer that are not frozen."""
        return [one for one in self._parameters if one.grad_req != "null"]

    def _apply(self) -> Update:
        trainer, trained = self.trainer, self.trained()
        if not self.count:
            raise DataError(
                f"the window of update {self.updates + 1} has the count 0: of its {self.samples} samples none counts, "
                "so that its gradient has no mean. Leave such batches out"
            )
        self._refresh_idle_replicas(trained)
        if self._on_kvstore is None:
            begin_kvstore(trainer)
            self._on_kvstore = steps_on_kvstore(trainer)
        if not self._on_kvstore:
            trainer.allreduce_grads()
        skipped = self.precision is not None and self.precision.overflowed(trained)
        norm = None
        if skipped:
            self._forget_fresh_gradients()
        else:
            norm = self._step(trained, self._on_kvstore)
        self._zero_added_gradients()
        self.updates += 1
        update = Update(self.updates, self.samples, self._losses, norm, count=self.count, skipped=skipped)
        self._open_window()
        return update

    def _step(self, trained: Sequence[Any], on_kvstore: bool) -> Optional[Any]:
        """Clip the gradients, let the Trainer step, and return their norm, if it was measured."""
        norm = None if self.clip_norm is None else self._clip(trained, reduced=not on_kvstore)
        if self.clip_value is not None:
            self._clip_values(trained)
        if on_kvstore:
            self.trainer.step(self.count * self._scale)
            self._forget_fresh_gradients()  # Gluon does not on this path, and its own check never fires again (T24)
        else:
            self.trainer.update(self.count * self._scale)
        return norm

    def _refresh_idle_replicas(self, trained: Sequence[Any]) -> None:
        """Give replicas without a sample in this window a gradient of 0, or name what nobody used.

        An idle replica keeps the gradient of an earlier update: it would be added again, or the replicas
        drift apart, both without a word (T8, T24).
        """
        unused = []
        for parameter in trained:
            replicas = values_of(parameter) or []  # nothing, where the shape never became known
            if len(replicas) == 1 and is_fresh(replicas[0]):
                continue
            fresh = {data.context: data.context in self._active and is_fresh(data) for data in replicas}
            if not any(fresh.values()):
                unused.append(parameter)
                continue
            for data, gradient in zip(replicas, parameter.list_grad()):
                if not fresh[data.context]:
                    gradient[:] = 0
                    set_fresh([data], True)
        if unused:
            raise UnusedParameterError([parameter.name for parameter in unused], unused)

    def _clip(self, trained: Sequence[Any], reduced: bool) -> Any:
        """Scale gradients so that their average has at most the norm `clip_norm`; return the norm before."""
        if reduced:
            gradients = [parameter.list_grad()[0] for parameter in trained]
        else:  # the kvstore adds the replicas up only while it updates: add them here for the norm alone
            gradients = [_added(parameter.list_grad()) for parameter in trained]
        # After the division by the count: before it, clipping would be as many times too hard (T9).
        average = gradient_scale(self.trainer) / (self.count * self._scale)
        norm = sum_of_squares(gradients).sqrt() * average
        if self.clip_norm != float("inf"):
            factor = mx.nd.minimum(self.clip_norm / norm, 1.0)
            factors: Dict[Any, Any] = {}
            for parameter in trained:
                for gradient in parameter.list_grad():
                    here = gradient.context
                    if (here, gradient.dtype) not in factors:
                        factors[here, gradient.dtype] = factor.as_in_context(here).astype(gradient.dtype)
                    mx.nd.broadcast_mul(
                        gradient, factors[here, gradient.dtype].reshape((1,) * gradient.ndim), out=gradient
                    )
        return norm

    def _clip_values(self, trained: Sequence[Any]) -> None:
        # MXNet's own clip_gradient would do the same, but belongs to the optimizer and would stay there.
        limit = float(self.clip_value or 0) * self.count * self._scale / gradient_scale(self.trainer)
        for parameter in trained:
            for gradient in parameter.list_grad():
                mx.nd.clip(gradient, -limit, limit, out=gradient)

    def _forget_fresh_gradients(self) -> None:
        for parameter in self.trained():
            set_fresh(values_of(parameter) or (), False)

    def _zero_added_gradients(self) -> None:
        # Without this the next window would count this one's gradients again (T1).
        by_device: Dict[Any, List[Any]] = {}
        for parameter in self._parameters:
            if parameter.grad_req == "add" and gradients_of(parameter) is not None:
                for gradient in parameter.list_grad():
                    by_device.setdefault(gradient.context, []).append(gradient)
        for gradients in by_device.values():
            mx.nd.reset_arrays(*gradients, num_arrays=len(gradients))


def _refuse_means(losses: Sequence[Any]) -> None:
    """Refuse a loss that is a mean or a sum over the samples: it would count as one sample.

    Raises:
        LossShapeError: The recorded graph of a loss ends in such an operator.
    """
    for loss in losses:
        if loss.shape != (1,):
            continue
        graph = json.loads(autograd.get_symbol(loss).tojson())
        if _is_reduced(graph["nodes"], graph["heads"][0][0]):
            raise LossShapeError(
                "Accumulator.backward: expected losses of shape (B,), one a sample; received a mean or a sum over the "
                "samples, which would count as one sample. Pass the samples' own losses, without .mean() or .sum()"
            )


def _is_reduced(nodes: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Whether a node of a graph gives one value for all samples, which lie on axis 0."""
    node = nodes[number]
    if node["op"] in _REDUCTIONS:
        attributes = node.get("attrs", {})
        axes = [int(axis) for axis in attributes.get("axis", "").strip("()[]").split(",") if axis.strip(" None")]
        return not axes or (0 in axes) != (attributes.get("exclude") in ("True", "1"))
    inputs = [one[0] for one in node["inputs"]]
    if node["op"] in _SAME_SHAPE:
        return _is_reduced(nodes, inputs[0])
    pair = node["op"].startswith(("elemwise_", "broadcast_", "_")) and node["op"].endswith(_PAIRS)
    return pair and len(inputs) == 2 and all(_is_reduced(nodes, one) for one in inputs)


def _flat(losses: Any, shape: Tuple[int, ...]) -> Any:
    """Losses as float32 of shape (B,), without the graph they came from."""
    losses = losses.detach().astype("float32", copy=False)
    return losses if len(shape) == 1 else losses.reshape((-1,))


def _added(replicas: Sequence[Any]) -> Any:
    if len(replicas) == 1:
        return replicas[0]
    return mx.nd.add_n(*[replica.as_in_context(replicas[0].context) for replica in replicas])


def _refuse_trainer(trainer: "gluon.Trainer") -> None:
    """Refuse a Trainer that cannot step, skips steps, or lets replicas drift apart without a word (T24)."""
    if not isinstance(trainer, gluon.Trainer):
        raise TypeError(
            f"Accumulator: expected a gluon.Trainer; received {type(trainer).__name__}. Make one over the net: "
            "gluon.Trainer(net.collect_params(), 'sgd')"
        )
    if getattr(trainer, "_amp_loss_scaler", None) is not None:
        raise ValueError(
            "the Trainer was given to amp.init_trainer, and would skip updates by a loss scale of its own. Make it "
            "anew and pass amp='float16'"
        )
    contexts = trainer_devices(trainer)
    settings = kvstore_settings(trainer)
    if len(contexts) < 2:
        if settings["update_on_kvstore"] and isinstance(settings["kvstore"], str) and "dist" not in settings["kvstore"]:
            raise ValueError(
                f"the Trainer has update_on_kvstore=True on one device {contexts}, where Gluon makes no kvstore and "
                "fails at the first step. Leave the argument out"
            )
        return
    if settings["kvstore"] is None:
        raise ValueError(
            f"the Trainer has kvstore=None on {len(contexts)} devices {contexts}: each would train a copy of its own. "
            "Make it with kvstore='device' (T24)"
        )
    if isinstance(trainer.optimizer, DRIFTING) and not shall_step_on_kvstore(trainer):
        raise ValueError(
            f"{type(trainer.optimizer).__name__} with update_on_kvstore=False on {len(contexts)} devices lets the "
            "replicas drift apart. Make the Trainer with update_on_kvstore=True (T24)"
        )
