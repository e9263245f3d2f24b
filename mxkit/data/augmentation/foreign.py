"""Augmenters of MXNet, gluoncv and users as steps of an Augment: their pixels, but random numbers of the sample."""

from concurrent.futures import ThreadPoolExecutor
import copy
import os
import random
import threading
from typing import Any, FrozenSet, List, Optional, Tuple

from mxkit.core.arrays import to_host
from mxkit.core.blocks import child_blocks
from mxkit.core.seeding import generators_kept
from mxkit.data.augmentation.steps import Rng, Step, clipped
from mxkit.data.batching import to_batch
from mxkit.data.samples import MXNET, NOTHING, NUMPY, PYTHON, drawn_by_transform, takes_rng
from mxkit.errors import DataError
import mxnet as mx
import numpy as np

_lock = threading.RLock()
_executor: Optional[ThreadPoolExecutor] = None
_here = threading.local()


def _start_anew() -> None:
    """In a forked process there is no thread, and nobody to open a lock."""
    global _lock, _executor
    _lock, _executor = threading.RLock(), None


os.register_at_fork(after_in_child=_start_anew)


class Foreign(Step):
    """A callable that changes images: it gets float32 from 0 to 255, a copy, and must give the same kind.

    Python's and NumPy's generators belong to the process: they are seeded from the sample's generator, under a lock,
    and put back. MXNet's cannot be put back (T67), but each thread has its own (T68): what may draw from it runs in a
    thread that is kept for that.

    Args:
        function: Called with an NDArray; or with NumPy and `rng`, if it has a parameter of that name.
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
        """Generators of the whole process that it may draw from."""
        return self.sources & {PYTHON, NUMPY}

    def draw(self, rng: Rng, image: "np.ndarray") -> List[int]:
        # integers(2**32) gives zeros alone in NumPy 1.17
        drawn = rng.integers(2**32 - 1, size=3, dtype=np.uint32, endpoint=True) if self.draws else ()
        return [int(number) for number in drawn]

    def apply(self, image: "np.ndarray", drawn: List[int], white: float) -> "np.ndarray":
        pixels = np.array(image, np.float32, order="C")
        if white != 255:
            pixels *= np.float32(255 / white)
        found = self._called(pixels, drawn)
        # never `found` itself: it may lie in an NDArray, or be the function's own
        changed = np.array(to_host(found), np.float32, order="C")
        if changed.ndim != 3 or changed.shape[2] != image.shape[2]:
            raise DataError(
                f"Augment: {self!r} was given an image of shape {image.shape} and gave one of shape {changed.shape}; "
                f"expected (height, width, {image.shape[2]}). For channels first put 'to_tensor' at the end"
            )
        if white != 255:
            changed *= np.float32(white / 255)
        return clipped(changed, white)

    def _called(self, pixels: "np.ndarray", drawn: List[int]) -> Any:
        if self.with_rng:
            return self.function(pixels, rng=np.random.Generator(np.random.PCG64(drawn)))
        if MXNET not in self.sources or getattr(_here, "kept", False):
            return self._seeded(pixels, drawn)
        return _kept_thread().submit(self._seeded, pixels, drawn).result()

    def _seeded(self, pixels: "np.ndarray", drawn: List[int]) -> Any:
        function = _as_made(self.function)
        if self.sources == NOTHING:
            return function(to_batch(pixels))
        with _lock, generators_kept():
            random.seed(drawn[0])
            np.random.seed(drawn[1])
            if MXNET in self.sources:
                mx.random.seed(drawn[2], ctx=mx.cpu())
            found = function(to_batch(pixels))
            return found.asnumpy() if isinstance(found, mx.nd.NDArray) else found

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", None)
        return name or type(self.function).__name__


def _as_made(function: Any) -> Any:
    """MXNet's RandomOrderAug shuffles its own list, so that what it does depends on all it did before."""
    if not isinstance(function, mx.image.RandomOrderAug):
        return function
    made = copy.copy(function)
    made.ts = [_as_made(inner) for inner in function.ts]
    return made


def _kept_thread() -> ThreadPoolExecutor:
    global _executor
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(1, "mxkit-augment", _mark)
        return _executor


def _mark() -> None:
    _here.kept = True


def parts_of(transform: Any) -> Tuple[Any, ...]:
    """What a container of MXNet's calls one after the other; `(transform,)` if it is none."""
    compose = mx.gluon.data.vision.transforms.Compose
    if type(transform) in (compose, mx.gluon.nn.Sequential, mx.gluon.nn.HybridSequential):
        return tuple(child_blocks(transform).values())
    return tuple(transform.ts) if type(transform) is mx.image.SequentialAug else (transform,)
