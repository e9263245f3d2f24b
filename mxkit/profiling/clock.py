"""A clock that assigns the time of the training's thread to the current phase."""

from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
import sys
import threading
import time
from typing import Any, Callable, ContextManager, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxkit.core.prepared import BoundGraph, OptimizerStep
from mxkit.core.trainers import TrainerSpec
from mxkit.metrics import MetricSpec, get_metrics
from mxkit.training.rehearsal import copied_trainer
from mxkit.training.update import updates
from mxkit.training.workers import alone
import mxnet as mx
from mxnet import autograd

PHASES = ("data", "forward", "backward", "metrics", "update", "other", "waiting")
_MXKIT = Path(__file__).parents[1]
# MXNet and its repairs
_MXNET = str(Path(mx.__file__).parent), str(_MXKIT / "runtime"), __file__


# What starts forward and backward passes, with its phase; and what waits for the engine
_STARTS: Any = [(autograd, "record", "forward"), (autograd, "backward", "backward")]
_STARTS += [(BoundGraph, "forward", "forward"), (BoundGraph, "backward", "backward")]
_WAITS: Any = [(mx.nd.NDArray, "asnumpy"), (mx.nd.NDArray, "wait_to_read"), (mx.nd, "waitall"), (mx.npx, "waitall")]


class Span(NamedTuple):
    """An interval spent in one phase, in seconds since 1970."""

    phase: str
    begin: float
    end: float


class Clock:
    """Times of each update by phase; between `begin` and `finish` they add up to the time that passed.

    Args:
        alone: Wait for the engine before each change of phase, so that a phase includes all work that it started.

    Attributes:
        rows: Seconds by phase, for each update.
        tail: Seconds that the engine needed after the last update.
        wall: Seconds from `begin` to `finish`.
        samples: Number of samples of all updates.
        spans: All intervals, in order.
        reads: Calls and seconds by the place in the code that waited for the engine, `file:line`.
    """

    def __init__(self, alone: bool) -> None:
        self.rows: List[Dict[str, float]] = []
        self.tail = self.wall = 0.0
        self.samples = 0
        self.spans: List[Span] = []
        self.reads: Dict[str, Tuple[int, float]] = {}
        self._alone = alone
        self._since_1970 = time.time() - time.perf_counter()
        self._running = False
        self._thread = threading.get_ident()
        self._phase = "other"
        self._sums: Dict[str, float] = {}

    def begin(self) -> None:
        """Start measuring; the engine's queue must be empty."""
        self._running = True
        self._phase, self._sums = "other", {}
        self._start = self._since = time.perf_counter()

    def enter(self, phase: str) -> str:
        """Assign the time so far to the previous phase, begin `phase`, and return the previous one.

        Calls of other threads change nothing.
        """
        before = self._phase
        if phase != before and threading.get_ident() == self._thread:
            if self._alone:
                mx.nd.waitall()
            self._add_time()
            self._phase = phase
        return before

    def end_update(self, samples: int) -> None:
        """Complete the row of an update."""
        self.enter("other")
        self._add_time()
        self.rows.append(self._sums)
        self.samples += samples
        self._sums = {}

    def finish(self) -> None:
        """Wait for the engine, and stop measuring."""
        self.enter("waiting")
        mx.nd.waitall()
        self._add_time()
        self.tail = sum(self._sums.values())
        self.wall = self._since - self._start
        self._running = False

    def around(self, phase: str, call: Callable[..., Any], after: Optional[str] = "other") -> Callable[..., Any]:
        """Wrap a function so that it runs in `phase`. `after` begins when it returns; with None, `phase` continues."""

        def timed(*arguments: Any, **named: Any) -> Any:
            outer = self.enter(phase) != phase
            result = call(*arguments, **named)
            if outer and after is not None:
                self.enter(after)
            return result

        return timed

    def batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; the time to get one belongs to the phase "data"."""
        end = object()
        following = self.around("data", lambda: next(batches, end))
        while (batch := following()) is not end:
            yield batch

    def _add_time(self) -> None:
        if not self._running:
            return
        now = time.perf_counter()
        self._sums[self._phase] = self._sums.get(self._phase, 0.0) + now - self._since
        self.spans.append(Span(self._phase, self._since + self._since_1970, now + self._since_1970))
        self._since = now

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe MXNet's functions: the start of forward and backward and, unless phases are alone, waits.

        Side effects:
            Inside, `autograd.record` and `backward`, those of a bound graph, `NDArray.asnumpy`, `NDArray.wait_to_read`
            and `waitall` are wrapped. Calls of other threads are not counted.
        """
        wrapped: List[Tuple[Any, str, Callable[..., Any]]] = [
            (owner, name, self.around(phase, getattr(owner, name), after=None)) for owner, name, phase in _STARTS
        ]
        if not self._alone:
            wrapped += [(owner, name, self._waiting(getattr(owner, name))) for owner, name in _WAITS]
        originals = [getattr(owner, name) for owner, name, _ in wrapped]
        try:
            for owner, name, call in wrapped:
                setattr(owner, name, call)
            yield
        finally:
            for (owner, name, _), original in zip(wrapped, originals):
                setattr(owner, name, original)

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*arguments: Any) -> Any:
            if threading.get_ident() != self._thread or not self._running or self._phase == "waiting":
                return wait(*arguments)
            before, begin = self.enter("waiting"), time.perf_counter()
            try:
                return wait(*arguments)
            finally:
                waited, place = time.perf_counter() - begin, _caller()
                self.enter(before)
                calls, seconds = self.reads.get(place, (0, 0.0))
                self.reads[place] = calls + 1, seconds + waited

        return waiting


def _caller() -> str:
    """File and line of the innermost frame that is neither in MXNet or its repairs nor in this file."""
    frame: Any = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_MXNET):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    # that of mxkit from its package on, by which `advice` knows what a user cannot change
    named = file.relative_to(_MXKIT.parent) if _MXKIT in file.parents else Path(*file.parts[-2:])
    return f"{named.as_posix()}:{frame.f_lineno}"


# Updates before the clock starts: the first ones compile graphs, create the optimizer's states and start workers.
WARM_UP = 5


class TimedUpdates:
    """A training that a clock measures; each call of `run` continues it."""

    def __init__(
        self, net: Any, batches: Iterable[Any], trainer: TrainerSpec, metrics: Sequence[MetricSpec], arguments: Any
    ) -> None:
        self._net, self._batches, self._trainer = net, iter(batches), trainer
        self._metrics, self._arguments = metrics, arguments
        self._passes = 0

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
            next(islice(stream, WARM_UP - 1, None))
            mx.nd.waitall()
            for context in around:
                contexts.enter_context(context)
            clock.begin()
            for update in islice(stream, count):
                clock.end_update(update.samples)
            clock.finish()

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
