"""Augmentation of images and batches, random only by the given generator: steps in a row, presets, and soft labels.

Steps may call augmenters of MXNet, gluoncv and users, with random numbers of the sample.
"""

from concurrent.futures import ThreadPoolExecutor
import copy
from functools import wraps
from math import ceil
import os
import random
import threading
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Type, Union

from mxkit.core.arguments import Plugged, split_spec, whole_number
from mxkit.core.arrays import of_kind, switches_here, to_host
from mxkit.core.seeding import generators_kept
from mxkit.data import augment_labels as labels
from mxkit.data import augment_steps as moves
from mxkit.data.augment_labels import Moved, Placed
from mxkit.data.augment_steps import Normalize, Place, Rng, Step, ToTensor, clipped, normalized
from mxkit.data.batching import each, like, to_batch
from mxkit.data.pixels import MXNET, NOTHING, call_user, drawn_by_transform, parts_of, takes_rng
from mxkit.data.workers import Switches
from mxkit.errors import DataError, LabelError, unknown_name
import mxnet as mx
from mxnet.gluon.data.vision import transforms
from mxnet.util import is_np_array, set_np
import numpy as np

# Mean and standard deviation of ImageNet's training images, in RGB from 0 to 1:
# https://github.com/facebookarchive/fb.resnet.torch, gluoncv.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Those of gluoncv's train_cifar10.py. Its std is the mean of each image's own; over all pixels it would be
# (0.2470, 0.2435, 0.2616).
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2023, 0.1994, 0.2010)

_IMAGENET_TENSOR = ["to_tensor", ("normalize", {"mean": IMAGENET_MEAN, "std": IMAGENET_STD})]
_CIFAR_TENSOR = ["to_tensor", ("normalize", {"mean": CIFAR10_MEAN, "std": CIFAR10_STD})]


# For each name its steps and its published size.
PRESETS: Dict[str, Tuple[Callable[[int], List[Any]], int]] = {
    # gluoncv's `train_imagenet.py`, after "Bag of Tricks for Image Classification", arXiv:1812.01187
    "imagenet_train": (
        lambda size: [
            ("resized_crop", {"size": size}),
            "flip",
            ("colour_jitter", {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}),
            ("lighting", {"std": 0.1}),
            *_IMAGENET_TENSOR,
        ],
        224,
    ),
    # the middle 7/8 of the shorter side: gluoncv's `transform_eval` with 256 and 224
    "imagenet_eval": (
        lambda size: [("resize", {"size": ceil(size / 0.875)}), ("center_crop", {"size": size}), *_IMAGENET_TENSOR],
        224,
    ),
    # gluoncv's `train_cifar10.py`, after "Deep Residual Learning", arXiv:1512.03385: 4 pixels of padding, flips
    "cifar_train": (lambda size: [("crop", {"size": size, "padding": 4}), "flip", *_CIFAR_TENSOR], 32),
    "cifar_eval": (lambda size: [("center_crop", {"size": size}), *_CIFAR_TENSOR], 32),
}


_lock = threading.RLock()
_executor: Optional[ThreadPoolExecutor] = None
_NAME = "mxkit-augment"


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
        self.draws = self.with_rng or bool(self.sources)  # type: ignore[misc]

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
        if MXNET not in self.sources or threading.current_thread().name.startswith(_NAME):
            return self._call_seeded(pixels, drawn)
        global _executor
        with _lock:
            _executor = _executor or ThreadPoolExecutor(1, _NAME)
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

    def place(self, drawn: Any, shape: Tuple[int, ...]) -> Place:
        raise DataError(
            f"Augment: {self!r} is a function, and may move pixels without their boxes, mask or points. Use steps by "
            "name, or dataset.transform(function) with a function of (image, label)"
        )

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", None) or type(self.function).__name__


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


StepSpec = Union[str, Tuple[str, Mapping[str, Any]], Callable[..., Any]]

_STEPS: List[Type[Step]] = [moves.CenterCrop, moves.ColourJitter, moves.Crop, moves.Cutout, moves.Erasing, moves.Flip]
_STEPS += [moves.Gray, moves.Hue, moves.Lighting, Normalize, moves.Resize, moves.ResizedCrop, ToTensor]
_STEPS += [labels.BoxCrop, labels.Expand, labels.Letterbox, labels.ScaledCrop]
STEPS = Plugged("mxkit.augment", {step.name(): step for step in _STEPS}, as_step)


class Augment:
    """A list of steps, each of which changes an image.

    `augment(image, rng)` returns a new image. It draws random numbers from `rng` only, so a loader with a generator for
    each sample makes the same images with any number of workers, in threads or processes, and after a resume. Colours
    are computed in float32 and clipped, so uint8 images do not overflow or become black as with MXNet's
    BrightnessJitterAug (T60). `with_label` moves boxes, masks and points with the image.

    The names, with the defaults of their arguments; `size` is a number or `(width, height)`, colours are 0 to 1:

        flip(p=0.5)                                         swaps left and right
        crop(size, padding=0, fill=0)                       random place, after padding (CIFAR: 32 and 4)
        resized_crop(size, area=(.08, 1), ratio=(3/4, 4/3), interpolation="bilinear")
        center_crop(size)    resize(size, interpolation)    size of the shorter side, or (width, height)
        colour_jitter(brightness=.4, contrast=.4, saturation=.4, hue=0)    hue(hue=.1)
        lighting(std=.1)     gray(p=.1)                     PCA noise; no colours
        cutout(size=16, p=1, fill=0)    erasing(p=.5, area=(.02, .4), ratio=.3, fill)
        scaled_crop(size, scale=(.5, 2), fill=0)            random scale, then a crop: segmentation
        letterbox(size, fill=.5)                            the whole image, its ratio kept, in `size`
        expand(ratio=4, p=.5, fill)    box_crop(area=(.09, 1), ratio=(.5, 2))    of SSD; box_crop needs boxes
        to_tensor            normalize(mean, std)           at the end: float32 (C, H, W) from 0 to 1

    Saturation, hue, lighting and gray do not change images of one channel.

    Args:
        steps: Names, pairs of a name and its arguments, `mx.image` augmenters, gluon's and gluoncv's transforms
            (Compose too), other Augments, or functions. Functions and transforms get float32 images from 0 to 255 as
            NDArrays, under `npx.set_np()` as arrays of `mx.np`; a function with a parameter `rng` gets NumPy and a
            generator. Their results are clipped.
        white: Value of white in float images: 1.0, as in all of mxkit's data, or 255. In uint8 images white is 255.

    Attributes:
        steps: The steps, in order.
        tensor: Whether the steps include "to_tensor".
        normalize: The last step if it is "normalize", else None.
        draws: The process's generators that functions and transforms may draw from, for `DatasetLoader`: "python",
            "numpy". They are seeded and restored, so only one thread at a time runs such a step.

    Raises:
        UnknownNameError: A step has an unknown name; the text lists the names and the nearest one.
        TypeError: A step has another form, or does not take an argument.
        ValueError: An argument is out of range, or a step comes after "to_tensor".

    >>> augment = Augment([("crop", {"size": 4, "padding": 1}), "flip", "to_tensor"])
    >>> augment(np.full((4, 4, 3), 255, np.uint8), np.random.default_rng(0)).shape
    (3, 4, 4)
    """

    def __init__(self, steps: Sequence[StepSpec], *, white: float = 1.0) -> None:
        if isinstance(steps, (str, Mapping)) or not isinstance(steps, Sequence):
            raise TypeError(f'Augment: expected a list of steps, like ["flip", "to_tensor"]; received {steps!r}')
        if not white > 0:
            raise ValueError(f"Augment: white: expected white in float images, above 0; received {white!r}")
        self.steps: List[Step] = [step for spec in steps for step in _steps_of(spec)]
        self.white = white
        foreign = [step for step in self.steps if isinstance(step, Foreign)]
        self.draws: FrozenSet[str] = frozenset().union(*(step.sources - {MXNET} for step in foreign))
        kinds = [type(step) for step in self.steps]
        tail = kinds[kinds.index(ToTensor) :] if ToTensor in kinds else []
        if tail not in ([], [ToTensor], [ToTensor, Normalize]) or (not tail and Normalize in kinds):
            raise ValueError(f"Augment: 'to_tensor' and then 'normalize' must be at the end; received {self.steps}")
        self.tensor = bool(tail)
        self._changes = self.steps[: len(kinds) - len(tail)]
        self.normalize: Optional[Normalize] = self.steps[-1] if len(tail) == 2 else None  # type: ignore[assignment]

    @classmethod
    def preset(cls, name: str, *, size: Optional[int] = None, white: float = 1.0) -> "Augment":
        """Create a published augmentation.

        Args:
            name: "imagenet_train": resized crop, flip, colour jitter, lighting; "imagenet_eval": resize and centre
                crop; "cifar_train": crop after 4 pixels of padding, flip; "cifar_eval". All end with "to_tensor" and
                "normalize", with the constants above `PRESETS` in `mxkit/data/augment.py`, which name their sources.
            size: Side of the result; None is the published size, 224 or 32.
            white: As for `Augment`.

        Raises:
            UnknownNameError: The preset does not exist.
        """
        if name not in PRESETS:
            raise unknown_name("preset of Augment", name, PRESETS)
        steps, usual = PRESETS[name]
        return cls(steps(usual if size is None else size), white=white)

    def __call__(self, image: Any, rng: Optional[Rng] = None) -> Any:
        """Change one image.

        Args:
            image: NumPy, NDArray or `mx.np` of shape (height, width, 1 or 3): uint8, or float from 0 to `white`.
            rng: Generator of the random numbers. None creates one from NumPy's global generator, which
                `mxkit.seed_all` seeds.

        Returns:
            A new image, of the kind of `image`: uint8 stays uint8, floats are float32; after "to_tensor" float32
            of shape (channels, height, width).

        Raises:
            DataError: The image has another shape or range, or is too small for a crop.
        """
        return self._called(image, rng)

    def with_label(
        self, image: Any, label: Any, rng: Optional[Rng] = None, *, moves: str, pairs: Sequence[Tuple[int, int]] = ()
    ) -> Tuple[Any, "np.ndarray"]:
        """Change one image, and move its boxes, mask or points with it.

        Boxes are cut at the borders; an object whose centre leaves the image is left out. Cutout and erasing move
        nothing.

        Args:
            image: As for `__call__`.
            label: NumPy, as `mxkit.data.AnnotatedImages` gives it.
            rng: As for `__call__`.
            moves: "boxes", "mask" or "points".
            pairs: As for `AnnotatedImages`.

        Returns:
            The image, and a new label of the same kind.

        Raises:
            DataError: As for `__call__`; or a step is a function, of which nobody knows what it moves.
        """
        moved = Moved(to_host(label), moves, pairs)
        changed = self._called(image, rng, moved)
        return changed, moved.label(changed.shape[1:] if self.tensor else changed.shape[:2])

    def with_place(self, image: Any) -> Tuple[Any, Placed]:
        """Change one image, without random numbers, and say where it lies in the result."""
        moved = Moved(np.zeros((0, 6), np.float32), "boxes")
        changed = self._called(image, None, moved)
        shape = changed.shape[1:] if self.tensor else changed.shape[:2]
        return changed, Placed(moved.place, tuple(image.shape[:2]), shape)

    def _called(self, image: Any, rng: Optional[Rng], moved: Optional[Moved] = None) -> Any:
        host, white = self._checked(_check_layout(to_host(image)))
        changed = self._changed(host, self._generator(rng), white, moved)
        if self.tensor:
            changed = self._normalized(changed.transpose(2, 0, 1), white)
        elif np.may_share_memory(changed, host):
            changed = np.array(changed, order="C")
        return like(image, np.ascontiguousarray(changed))

    def batch(self, x: Any, y: Any = None, rng: Union[Rng, Sequence[Rng], None] = None) -> Tuple[Any, Any]:
        """Change the images of a batch: `ArrayLoader(..., transform=augment.batch)`.

        The result is equal to the bit to one call per image.

        Args:
            x: NumPy, NDArray or `mx.np` of shape (N, 1 or 3, height, width), in the ranges of `__call__`.
            y: Labels, or anything else.
            rng: One generator for each image, or one for all images in turn.

        Returns:
            The new images, of shape (N, channels, height, width), and `y` unchanged.

        Raises:
            DataError: As for `__call__`; or the new images differ in size.
        """
        host = to_host(x)
        if host.ndim != 4 or host.shape[1] not in (1, 3) or not host.size:
            raise DataError(f"Augment.batch: expected images (N, 1 or 3, height, width); received {host.shape}")
        host, white = self._checked(host)
        rngs: Any = rng if isinstance(rng, Sequence) else [self._generator(rng)] * len(host)
        batch: Any = None
        for number, image in enumerate(host.transpose(0, 2, 3, 1)):
            changed = self._changed(image, self._generator(rngs[number]), white).transpose(2, 0, 1)
            if batch is None:
                batch = np.empty((len(host), *changed.shape), np.float32 if self.tensor else changed.dtype)
            if changed.shape != batch.shape[1:]:
                shapes = f"image {number} becomes {changed.shape}, image 0 {batch.shape[1:]}"
                raise DataError(f"Augment.batch: {shapes} (C, H, W); end with a crop or a resize to one size")
            batch[number] = changed
        batch = self._normalized(batch, white) if self.tensor else batch
        return like(x, batch), y

    def _generator(self, rng: Any) -> Any:
        if rng is None and any(step.draws for step in self.steps):
            return np.random.Generator(np.random.PCG64(np.random.randint(0, 2**31)))
        if rng is not None and not isinstance(rng, np.random.Generator):
            way = "pass dataset.transform_first(augment), or transform=augment"
            raise TypeError(f"Augment: rng: expected a numpy.random.Generator; received {type(rng).__name__}: {way}")
        return rng

    def _checked(self, image: "np.ndarray") -> Tuple["np.ndarray", float]:
        """Images as uint8 or float32, and their value of white."""
        if image.dtype == np.uint8:
            return image, 255
        if image.dtype.kind != "f":
            raise DataError(f"Augment: expected pixels of uint8 or float; received {image.dtype}")
        low, high = float(image.min()), float(image.max())
        if not (low >= -1e-3 * self.white and high <= 1.001 * self.white):
            raise DataError(
                f"Augment: float pixels are 0 to {self.white:g} here; received {low:g} to {high:g}. If 255 is white, "
                "pass white=255; normalized images cannot be augmented: make 'normalize' the last step"
            )
        return image.astype(np.float32, copy=False), self.white

    def _changed(self, image: "np.ndarray", rng: Any, white: float, moved: Optional[Moved] = None) -> "np.ndarray":
        changed = image
        for step in self._changes:
            if moved is None:
                changed = step.apply(changed, step.draw(rng, changed), white)
                continue
            drawn, before = step.draw_for(rng, changed, moved.boxes), changed.shape
            changed = step.apply(changed, drawn, white)
            moved.follow(step.place(drawn, before), changed.shape[:2])
        to_bytes = image.dtype == np.uint8 and changed.dtype != np.uint8 and not self.tensor
        return np.asarray(np.rint(changed), np.uint8) if to_bytes else changed

    def _normalized(self, image: "np.ndarray", white: float) -> "np.ndarray":
        channels, own = image.shape[-3], self.normalize
        sizes = () if own is None else (np.size(own.mean), np.size(own.std))
        if {*sizes} - {1, channels}:
            raise DataError(f"Augment: normalize has {max(sizes)} means, an image {channels} channels")
        return normalized(image, white, own)

    def __repr__(self) -> str:
        return f"Augment({self.steps})"


def _steps_of(spec: Any) -> List[Step]:
    """The steps of one element of the list."""
    name, arguments = split_spec(spec)
    if isinstance(name, str):
        if name not in STEPS:
            raise unknown_name("step of Augment", name, STEPS)
        return [STEPS[name](**arguments)]
    if isinstance(spec, Augment):
        return spec.steps
    if isinstance(spec, Step):
        return [spec]
    parts = parts_of(spec)
    if parts != [spec]:
        return [step for part in parts for step in _steps_of(part)]
    if type(spec) is transforms.ToTensor:
        return [ToTensor()]
    if type(spec) is transforms.Normalize:
        return [Normalize(spec._mean, spec._std)]
    if isinstance(spec, mx.image.ColorNormalizeAug) or not callable(spec):
        raise TypeError(
            "Augment: expected a name, (name, arguments) or a function that returns an image (in place of "
            f"ColorNormalizeAug put 'to_tensor', ('normalize', {{...}}) at the end); received {spec!r}"
        )
    return [Foreign(spec)]


def _check_layout(image: "np.ndarray") -> "np.ndarray":
    """Refuse other layouts than (height, width, channels), which would be read as other pixels silently (T13)."""
    if image.ndim == 3 and image.shape[2] in (1, 3) and image.size:
        return image
    way = "augment.batch takes (N, C, H, W), image.transpose(1, 2, 0) puts channels last"
    raise DataError(f"Augment: expected an image (height, width, 1 or 3); received {image.shape}: {way}")


def smooth_labels(x: Any, y: Any, rng: Any = None, *, classes: int, epsilon: float = 0.1) -> Tuple[Any, Any]:
    """Spread a part of each label evenly over all classes.

    Args:
        x: Returned as it is.
        y: Class numbers of shape (N,), or soft labels of shape (N, classes); NumPy, NDArray or `mx.np`,
            as the result is.
        rng: Unused; it gives all functions of this module the same call.
        classes: Number of classes.
        epsilon: The part, at least 0 and below 1; 0.1 in arXiv:1512.00567.

    Returns:
        `x`, and float32 of shape (N, classes): `(1 - epsilon) * label + epsilon / classes`.

    Raises:
        LabelError: A class number is out of range (T10).
        ValueError: `epsilon` is out of range.

    >>> _, soft = smooth_labels(None, np.array([1]), classes=4, epsilon=0.2)
    >>> [round(float(share), 2) for share in soft[0]]
    [0.05, 0.85, 0.05, 0.05]
    """
    if not 0 <= epsilon < 1:
        raise ValueError(f"smooth_labels: epsilon: expected a number from 0 up to 1; received {epsilon!r}")
    soft = _soft(y, classes, "smooth_labels")
    return x, like(y, soft * np.float32(1 - epsilon) + np.float32(epsilon / classes))


def mixup(x: Any, y: Any, rng: Rng, *, classes: int, alpha: float = 0.2) -> Tuple[Any, Any]:
    """Mix each sample with another one of the batch, and their labels with the same weight.

    Args:
        x: Inputs of shape (N, ...), or a tuple of them; NumPy, or MXNet's arrays, whose results are on the CPU.
        y: Class numbers of shape (N,), or soft labels of shape (N, classes).
        rng: Generator of the weight and the partners.
        classes: Number of classes.
        alpha: The weight of the batch is drawn from Beta(alpha, alpha); arXiv:1710.09412 has 0.2 for ImageNet and 1 for
            CIFAR-10.

    Returns:
        `weight * x + (1 - weight) * partner`, float32, and labels of the same mix, float32 of shape (N, classes).

    Raises:
        LabelError: A class number is out of range (T10).
        ValueError: `alpha` is not above 0.
    """
    weight = _weight(rng, alpha, "mixup")
    soft = _soft(y, classes, "mixup")
    order = rng.permutation(len(soft))

    def mixed(array: Any) -> Any:
        host = _host(array, len(soft), "mixup").astype(np.float32, copy=False)
        return like(array, _mean(host, host[order], weight))

    return each(mixed, x), like(y, _mean(soft, soft[order], weight))


def cutmix(x: Any, y: Any, rng: Rng, *, classes: int, alpha: float = 1.0) -> Tuple[Any, Any]:
    """Replace a rectangle of each image by that of another image of the batch, and its share of the label.

    Args:
        x: Images of shape (N, channels, height, width), NumPy, NDArray or `mx.np`, of any dtype.
        y: Class numbers of shape (N,), or soft labels of shape (N, classes).
        rng: Generator of the partners and of the rectangle, which all images of the batch share.
        classes: Number of classes.
        alpha: The remaining share of the area is drawn from Beta(alpha, alpha), before the rectangle is clipped at the
            borders; 1 in arXiv:1905.04899.

    Returns:
        New images, and labels float32 of shape (N, classes), weighted by the number of pixels of each image.

    Raises:
        DataError: `x` has another shape.
        LabelError: A class number is out of range (T10).
        ValueError: `alpha` is not above 0.
    """
    soft = _soft(y, classes, "cutmix")
    images = _host(x, len(soft), "cutmix")
    if images.ndim != 4:
        raise DataError(f"cutmix: expected images of shape (N, channels, height, width); received {images.shape}")
    height, width = images.shape[2:]
    side = np.sqrt(1 - _weight(rng, alpha, "cutmix"))
    order = rng.permutation(len(soft))
    top, bottom = _span(rng, height, side)
    left, right = _span(rng, width, side)
    images = images.copy()
    images[:, :, top:bottom, left:right] = images[order, :, top:bottom, left:right]
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return like(x, images), like(y, _mean(soft, soft[order], share))


def _span(rng: Rng, length: int, share: float) -> Tuple[int, int]:
    """Start and end of an interval around a random pixel, clipped at the borders."""
    centre, half = int(rng.integers(length)), int(length * share) // 2
    return max(centre - half, 0), min(centre + half, length)


def _weight(rng: Rng, alpha: float, name: str) -> float:
    if not alpha > 0:
        raise ValueError(f"{name}: alpha: expected a number above 0; received {alpha!r}")
    return float(rng.beta(alpha, alpha))


def _mean(first: "np.ndarray", second: "np.ndarray", weight: float) -> "np.ndarray":
    return np.asarray(first * np.float32(weight) + second * np.float32(1 - weight))


def _soft(y: Any, classes: int, name: str) -> "np.ndarray":
    """Labels as shares of the classes, float32 of shape (N, classes)."""
    classes = whole_number(classes, f"{name}: classes", least=2)
    labels = to_host(y)
    if labels.ndim == 2 and labels.shape[1] == classes and labels.dtype.kind == "f":
        return labels.astype(np.float32)
    if labels.ndim != 1:
        expected = f"class numbers of shape (N,), or soft labels (N, {classes})"
        raise LabelError(f"{name}: expected {expected}; received {labels.shape} of {labels.dtype}")
    with np.errstate(invalid="ignore"):  # NumPy before 1.19 warns of comparing NaN
        wrong = labels[~((labels >= 0) & (labels < classes) & (labels == np.floor(labels)))]
    if wrong.size:
        raise LabelError(f"{name}: expected class numbers from 0 to {classes - 1}; received {wrong[:5].tolist()}")
    soft = np.zeros((len(labels), classes), np.float32)
    soft[np.arange(len(labels)), labels.astype(np.int64)] = 1
    return soft


def _host(array: Any, samples: int, name: str) -> "np.ndarray":
    host = to_host(array)
    if not host.shape or len(host) != samples:
        raise DataError(f"{name}: {samples} labels and inputs of shape {host.shape}; axis 0 must be equal")
    return host
