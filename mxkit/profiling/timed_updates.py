"""`updates` with a clock around its data, its Trainer and its metrics."""

from contextlib import ExitStack, closing
from typing import Any, ContextManager, Dict, Iterator, List, Sequence, Tuple

from mxkit.core.device import split_batch
from mxkit.core.prepared import OptimizerStep
from mxkit.core.trainers import TrainerSpec
from mxkit.metrics import MetricSpec, get_metrics
from mxkit.profiling.clock import Clock
from mxkit.training.rehearsal import copied_trainer
from mxkit.training.update import updates
from mxkit.training.workers import alone
import mxnet as mx

# Updates before the clock starts: the first ones compile graphs, create the optimizer's states and start workers.
WARM_UP = 5


class TimedUpdates:
    """A training that a clock measures; each call of `run` continues it."""

    def __init__(
        self,
        net: Any,
        batches: Iterator[Any],
        trainer: TrainerSpec,
        metrics: Sequence[MetricSpec],
        arguments: Dict[str, Any],
    ) -> None:
        self._net, self._batches, self._trainer = net, self._remembered(batches), trainer
        self._metrics, self._arguments = metrics, arguments
        self._passes = 0
        self._newest: Any = None

    def run(self, clock: Clock, count: int, around: Sequence[ContextManager[Any]] = ()) -> None:
        """Time `count` updates with `clock`, inside the contexts `around`, after WARM_UP updates without it."""
        self._passes += 1
        with alone():
            stream: Any = updates(
                self._net,
                clock.batches(self._batches),
                trainer=self._timed_trainer(clock),
                metrics=self._timed_metrics(clock),
                first_step=min(self._passes, 2),  # only the first pass checks its first batch
                **self._arguments,
            )
        with closing(stream), clock.watching(), ExitStack() as contexts:
            for number, update in enumerate(stream, 1 - WARM_UP):
                if number == 0:
                    mx.nd.waitall()
                    for context in around:
                        contexts.enter_context(context)
                    clock.begin()
                elif number > 0:
                    clock.end_update(update.samples)
                if number == count:
                    break
            clock.finish()

    def shapes(self, devices: Sequence["mx.Context"]) -> List[Tuple[int, ...]]:
        """Shapes of the newest batch's inputs on the first device."""
        return [array.shape for array in split_batch(self._newest, devices)[0].inputs]

    def _remembered(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._newest = batch
            yield batch

    def _timed_trainer(self, clock: Clock) -> Any:
        trainer = copied_trainer(self._net, self._trainer)
        trainer.update = OptimizerStep(trainer)  # what `Accumulator` calls for a Trainer that is not changed
        for name in ("allreduce_grads", "update", "step"):  # clipping, which follows, belongs to the update too
            setattr(trainer, name, clock.around("update", getattr(trainer, name), after=None))
        return trainer

    def _timed_metrics(self, clock: Clock) -> List[Any]:
        metrics: List[Any] = get_metrics(self._metrics)
        for metric in metrics:
            for name in ("update", "add_total"):  # the latter if the net's graph holds the sum
                if hasattr(metric, name):
                    setattr(metric, name, clock.around("metrics", getattr(metric, name)))
        return metrics
