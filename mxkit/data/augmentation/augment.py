"""Augmentation of images: clipped to their range, and random only by the given generator."""

import inspect
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Type, Union

from mxkit.core.arguments import Plugged, split_spec
from mxkit.core.arrays import to_host
from mxkit.data.augmentation import colours
from mxkit.data.augmentation import steps as moves
from mxkit.data.augmentation.foreign import Foreign, as_step, parts_of
from mxkit.data.augmentation.presets import PRESETS
from mxkit.data.augmentation.steps import Normalize, Rng, Step, ToTensor
from mxkit.data.batching import like
from mxkit.errors import DataError, unknown_name
import mxnet as mx
from mxnet.gluon.data.vision import transforms
import numpy as np

StepSpec = Union[str, Tuple[str, Mapping[str, Any]], Callable[..., Any]]

STEPS: Dict[str, Type[Step]] = {
    "center_crop": moves.CenterCrop,
    "colour_jitter": colours.ColourJitter,
    "crop": moves.Crop,
    "cutout": moves.Cutout,
    "erasing": moves.Erasing,
    "flip": moves.Flip,
    "gray": colours.Gray,
    "hue": colours.Hue,
    "lighting": colours.Lighting,
    "normalize": Normalize,
    "resize": moves.Resize,
    "resized_crop": moves.ResizedCrop,
    "to_tensor": ToTensor,
}
STEPS = Plugged("mxkit.augment", STEPS, as_step)


class Augment:
    """A list of steps, each of which changes an image.

    `augment(image, rng)` returns a new image. It draws random numbers from `rng` only, so a loader with a generator for
    each sample makes the same images with any number of workers, in threads or processes, and after a resume. Colours
    are computed in float32 and clipped, so uint8 images do not overflow or become black as with MXNet's
    BrightnessJitterAug (T60). Only images are changed, not boxes or masks.

    The names, with the defaults of their arguments; `size` is a number or `(width, height)`, colours are 0 to 1:

        flip(p=0.5)                                         swaps left and right
        crop(size, padding=0, fill=0)                       random place, after padding (CIFAR: 32 and 4)
        resized_crop(size, area=(.08, 1), ratio=(3/4, 4/3), interpolation="bilinear")
        center_crop(size)    resize(size, interpolation)    size of the shorter side, or (width, height)
        colour_jitter(brightness=.4, contrast=.4, saturation=.4, hue=0)    hue(hue=.1)
        lighting(std=.1)     gray(p=.1)                     PCA noise; no colours
        cutout(size=16, p=1, fill=0)    erasing(p=.5, area=(.02, .4), ratio=.3, fill)
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
            raise ValueError(
                f"Augment: white: expected the value of white in float images, above 0; received {white!r}"
            )
        self.steps: List[Step] = [step for spec in steps for step in _steps_of(spec)]
        self.white = white
        foreign = [step for step in self.steps if isinstance(step, Foreign)]
        self.draws: FrozenSet[str] = frozenset().union(*(step.shared for step in foreign))
        kinds = [type(step) for step in self.steps]
        tail = kinds[kinds.index(ToTensor) :] if ToTensor in kinds else []
        if tail not in ([], [ToTensor], [ToTensor, Normalize]) or (not tail and Normalize in kinds):
            raise ValueError(
                "Augment: expected 'to_tensor' and then 'normalize' at the end, or 'to_tensor' alone, or neither; "
                f"received {self.steps}"
            )
        self.tensor = bool(tail)
        self._changes = self.steps[: len(kinds) - len(tail)]
        self.normalize: Optional[Normalize] = self.steps[-1] if len(tail) == 2 else None  # type: ignore[assignment]

    @classmethod
    def preset(cls, name: str, *, size: Optional[int] = None, white: float = 1.0) -> "Augment":
        """Create a published augmentation.

        Args:
            name: "imagenet_train": resized crop, flip, colour jitter, lighting; "imagenet_eval": resize and centre
                crop; "cifar_train": crop after 4 pixels of padding, flip; "cifar_eval". All end with "to_tensor" and
                "normalize", with the constants of `mxkit/data/augmentation/presets.py`, which names their sources.
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
        host, white = self._checked(_check_layout(to_host(image)))
        changed = self._changed(host, self._generator(rng), white)
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
            raise DataError(
                f"Augment.batch: expected images of shape (N, 1 or 3, height, width); received {host.shape}"
                + (": x.transpose(0, 3, 1, 2)" if host.ndim == 4 and host.shape[3] in (1, 3) else "")
            )
        host, white = self._checked(host)
        rngs: Any = rng if isinstance(rng, Sequence) else [self._generator(rng)] * len(host)
        if len(rngs) != len(host):
            raise DataError(f"Augment.batch: expected a generator for each of {len(host)} images; received {len(rngs)}")
        batch: Any = None
        for number, image in enumerate(host.transpose(0, 2, 3, 1)):
            changed = self._changed(image, self._generator(rngs[number]), white).transpose(2, 0, 1)
            if batch is None:
                batch = np.empty((len(host), *changed.shape), np.float32 if self.tensor else changed.dtype)
            if changed.shape != batch.shape[1:]:
                raise DataError(
                    f"Augment.batch: image {number} becomes {changed.shape}, image 0 {batch.shape[1:]} (C, H, W); end "
                    "with a crop or a resize to one size"
                )
            batch[number] = changed
        batch = self._normalized(batch, white) if self.tensor else batch
        return like(x, batch), y

    def _generator(self, rng: Any) -> Any:
        if rng is None and any(step.draws for step in self.steps):
            return np.random.Generator(np.random.PCG64(np.random.randint(0, 2**31)))
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise TypeError(
                f"Augment: rng: expected a numpy.random.Generator; received {type(rng).__name__}. An Augment changes "
                "images and knows nothing of labels: dataset.transform_first(augment), or transform=augment"
            )
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

    def _changed(self, image: "np.ndarray", rng: Any, white: float) -> "np.ndarray":
        changed = image
        for step in self._changes:
            changed = step.apply(changed, step.draw(rng, changed), white)
        to_bytes = image.dtype == np.uint8 and changed.dtype != np.uint8 and not self.tensor
        return np.asarray(np.rint(changed), np.uint8) if to_bytes else changed

    def _normalized(self, image: "np.ndarray", white: float) -> "np.ndarray":
        """A copy of (..., channels, height, width) after gluon's ToTensor and Normalize."""
        tensor: np.ndarray = np.array(image, np.float32, order="C")
        if white != 1:
            tensor /= np.float32(white)
        if self.normalize is not None:
            mean, std = (np.array(part, np.float32) for part in (self.normalize.mean, self.normalize.std))
            if {mean.size, std.size} - {1, image.shape[-3]}:
                raise DataError(
                    f"Augment: normalize has {mean.size} means and {std.size} stds, an image {image.shape[-3]} channels"
                )
            tensor -= mean.reshape(-1, 1, 1)
            tensor /= std.reshape(-1, 1, 1)
        return tensor

    def __repr__(self) -> str:
        return f"Augment({self.steps})"


def _steps_of(spec: Any) -> List[Step]:
    """The steps of one element of the list."""
    name, arguments = split_spec(spec)
    if isinstance(name, str):
        return [_named(name, arguments)]
    if isinstance(spec, Augment):
        return spec.steps
    if isinstance(spec, Step):
        return [spec]
    parts = parts_of(spec)
    if parts != (spec,):
        return [step for part in parts for step in _steps_of(part)]
    if type(spec) is transforms.ToTensor:
        return [ToTensor()]
    if type(spec) is transforms.Normalize:
        return [Normalize(spec._mean, spec._std)]
    if isinstance(spec, mx.image.ColorNormalizeAug):
        raise ValueError(
            "Augment: the result of ColorNormalizeAug is not an image; put 'to_tensor', "
            "('normalize', {'mean': ..., 'std': ...}) at the end instead, in a unit where white is 1"
        )
    if not callable(spec):
        raise TypeError(f"Augment: expected a name, (name, arguments) or a callable; received {spec!r}")
    return [Foreign(spec)]


def _named(name: str, arguments: Dict[str, Any]) -> Step:
    if name not in STEPS:
        raise unknown_name("step of Augment", name, STEPS)
    try:
        return STEPS[name](**arguments)
    except TypeError as error:
        signature = inspect.signature(STEPS[name])
        raise TypeError(f"Augment: {name!r} takes {signature}; received {arguments}: {error}") from error


def _check_layout(image: "np.ndarray") -> "np.ndarray":
    """Refuse other layouts than (height, width, channels), which would be read as other pixels silently (T13)."""
    if image.ndim == 3 and image.shape[2] in (1, 3) and image.size:
        return image
    hint = {2: ": image[:, :, None]", 4: "; augment.batch takes (N, C, H, W)"}.get(image.ndim, "")
    if image.ndim == 3 and image.shape[0] in (1, 3):
        hint = ": channels come first here; image.transpose(1, 2, 0), or augment.batch for (N, C, H, W)"
    raise DataError(f"Augment: expected an image of shape (height, width, 1 or 3); received {image.shape}{hint}")
