"""Steps of an Augment that call augmenters of MXNet, gluoncv and users, with random numbers of the sample."""

from concurrent.futures import ThreadPoolExecutor
import copy
from functools import wraps
import os
import random
import threading
from typing import Any, Callable, FrozenSet, List, Optional, Tuple

from mxkit.core.arrays import of_kind, switches_here, to_host
from mxkit.core.blocks import child_blocks
from mxkit.core.seeding import generators_kept
from mxkit.data.augmentation.steps import Rng, Step, clipped
from mxkit.data.batching import to_batch
from mxkit.data.draws import MXNET, NOTHING, NUMPY, PYTHON, call_user, drawn_by_transform, takes_rng
from mxkit.data.reader_threads import Switches
from mxkit.errors import DataError
import mxnet as mx
from mxnet.util import is_np_array, set_np
import numpy as np

_lock = threading.RLock()
_executor: Optional[ThreadPoolExecutor] = None
_thread = threading.local()


def _reset() -> None:
    """A forked process has no thread of the executor, and nothing that releases the lock."""
    global _lock, _executor
    _lock, _executor = threading.RLock(), None


os.register_at_fork(after_in_child=_reset)


class Foreign(Step):
    """Calls a function with a copy of the image, float32 from 0 to 255; it must return an image of the same kind.

    Python's and NumPy's generators belong to the process: they are seeded from the sample's generator, under a lock,
    and restored. MXNet's generators cannot be restored (T67), but each thread has its own (T68): a function that may
    draw from them runs in a thread of its own.

    Args:
        function: Called with an NDArray, under `npx.set_np()` with an array of `mx.np`, except augmenters of MXNet and
            gluoncv; or with NumPy and `rng`, if it has a parameter of that name.
    """

    def __init__(self, function: Any) -> None:
        self.function = function
        self.sources: FrozenSet[str] = drawn_by_transform(function)
        self.with_rng = takes_rng(function)

    @property
    def draws(self) -> bool:  # type: ignore[override]
        return self.with_rng or bool(self.sources)

    @property
    def shared(self) -> FrozenSet[str]:
        """The process's generators that the function may draw from."""
        return self.sources & {PYTHON, NUMPY}

    def draw(self, rng: Rng, image: "np.ndarray") -> List[int]:
        # integers(2**32) gives only zeros in NumPy 1.17
        drawn = rng.integers(2**32 - 1, size=3, dtype=np.uint32, endpoint=True) if self.draws else ()
        return [int(number) for number in drawn]

    def apply(self, image: "np.ndarray", drawn: List[int], white: float) -> "np.ndarray":
        pixels = np.array(image, np.float32, order="C")
        if white != 255:
            pixels *= np.float32(255 / white)
        # a copy, because the result may share memory with an NDArray or belong to the function
        changed = np.array(to_host(self._call(pixels, drawn)), np.float32, order="C")
        if changed.ndim != 3 or changed.shape[2] != image.shape[2]:
            raise DataError(
                f"Augment: {self!r} was given an image of shape {image.shape} and gave one of shape {changed.shape}; "
                f"expected (height, width, {image.shape[2]}). For channels first put 'to_tensor' at the end"
            )
        if white != 255:
            changed *= np.float32(white / 255)
        return clipped(changed, white)

    def _call(self, pixels: "np.ndarray", drawn: List[int]) -> Any:
        if self.with_rng:
            return self.function(pixels, rng=np.random.Generator(np.random.PCG64(drawn)))
        if MXNET not in self.sources or getattr(_thread, "of_executor", False):
            return self._call_seeded(pixels, drawn)
        global _executor
        with _lock:
            _executor = _executor or ThreadPoolExecutor(1, "mxkit-augment", _mark_thread)
        return _executor.submit(self._call_in_thread, switches_here(), pixels, drawn).result()

    def _call_in_thread(self, callers: Switches, pixels: "np.ndarray", drawn: List[int]) -> Any:
        set_np(*callers)
        return self._call_seeded(pixels, drawn)

    def _call_seeded(self, pixels: "np.ndarray", drawn: List[int]) -> Any:
        function, image = _unshuffled(self.function), of_kind(to_batch(pixels), is_np_array())
        if self.sources == NOTHING:
            return call_user(function, image)
        with _lock, generators_kept():
            random.seed(drawn[0])
            np.random.seed(drawn[1])
            if MXNET in self.sources:
                mx.random.seed(drawn[2], ctx=mx.cpu())
            return to_host(call_user(function, image))

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", None)
        return name or type(self.function).__name__


def as_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a step's class of a function that returns a function of `(image, rng)`."""

    @wraps(function)
    def step(**arguments: Any) -> Any:
        result = function(**arguments)
        if not callable(result):
            raise TypeError(f"{function.__name__}: expected a function of (image, rng); received {result!r}")
        return Foreign(result)

    return step


def _unshuffled(function: Any) -> Any:
    """A copy of MXNet's RandomOrderAug, which shuffles its own list, so that a result would depend on earlier calls."""
    if not isinstance(function, mx.image.RandomOrderAug):
        return function
    copied = copy.copy(function)
    copied.ts = [_unshuffled(inner) for inner in function.ts]
    return copied


def _mark_thread() -> None:
    _thread.of_executor = True


def parts_of(transform: Any) -> Tuple[Any, ...]:
    """The transforms in a container of MXNet's that calls them in turn; `(transform,)` if it is not one."""
    compose = mx.gluon.data.vision.transforms.Compose
    if type(transform) in (compose, mx.gluon.nn.Sequential, mx.gluon.nn.HybridSequential):
        return tuple(child_blocks(transform).values())
    return tuple(transform.ts) if type(transform) is mx.image.SequentialAug else (transform,)
