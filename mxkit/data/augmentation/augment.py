"""Augmentation that cannot corrupt an image, and depends on nothing but its random generator."""

import inspect
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Type, Union

from mxkit.core.arguments import split_spec
from mxkit.core.arrays import to_host
from mxkit.data.augmentation.colours import ColourJitter, Gray, Hue, Lighting
from mxkit.data.augmentation.foreign import Foreign, parts_of
from mxkit.data.augmentation.presets import PRESETS
from mxkit.data.augmentation.steps import (
    CenterCrop,
    Crop,
    Cutout,
    Erasing,
    Flip,
    Normalize,
    Resize,
    ResizedCrop,
    Rng,
    Step,
    ToTensor,
)
from mxkit.data.batching import to_batch
from mxkit.errors import DataError, unknown_name
import mxnet as mx
from mxnet.gluon.data.vision import transforms
import numpy as np

StepSpec = Union[str, Tuple[str, Mapping[str, Any]], Callable[..., Any]]

STEPS: Dict[str, Type[Step]] = {
    "center_crop": CenterCrop,
    "colour_jitter": ColourJitter,
    "crop": Crop,
    "cutout": Cutout,
    "erasing": Erasing,
    "flip": Flip,
    "gray": Gray,
    "hue": Hue,
    "lighting": Lighting,
    "normalize": Normalize,
    "resize": Resize,
    "resized_crop": ResizedCrop,
    "to_tensor": ToTensor,
}


class Augment:
    """Steps that change images, one after the other.

    `augment(image, rng)` gives a new image and leaves the old one as it is. What is random comes from `rng` and from
    nothing else, so a loader that gives each sample its own makes the same images with any number of workers, in
    threads or processes, and after a resume. Colours are computed in float32 and held between black and white: a
    uint8 image can neither wrap nor turn black, as with MXNet's BrightnessJitterAug (T60). Only images are changed:
    boxes and masks would not move with them.

    The names, with their arguments' defaults; `size` is a number or `(width, height)`, colours are 0 to 1:

        flip(p=0.5)                                         left becomes right
        crop(size, padding=0, fill=0)                       random place, after padding (CIFAR: 32 and 4)
        resized_crop(size, area=(.08, 1), ratio=(3/4, 4/3), interpolation="bilinear")
        center_crop(size)    resize(size, interpolation)    size of the shorter side, or (width, height)
        colour_jitter(brightness=.4, contrast=.4, saturation=.4, hue=0)    hue(hue=.1)
        lighting(std=.1)     gray(p=.1)                     PCA noise; no colours
        cutout(size=16, p=1, fill=0)    erasing(p=.5, area=(.02, .4), ratio=.3, fill)
        to_tensor            normalize(mean, std)           at the end: float32 (C, H, W) from 0 to 1

    Colour, hue, lighting and gray leave what images of one channel do not have.

    Args:
        steps: Names, pairs of a name and its arguments, `mx.image` augmenters, gluon's and gluoncv's transforms
            (a Compose is taken apart), other Augments, or callables. The last four get images of float32 from 0 to
            255, as NDArray; a callable with a parameter `rng` gets NumPy and a generator. What they give is clipped.
        white: Value of white in float images: 1.0, as in all of mxkit's data, or 255. That of uint8 is 255.

    Attributes:
        steps: What is done to an image, in order.
        tensor: Whether they end with "to_tensor".
        normalize: The last step, if it is "normalize", or None: its `mean` and `std` undo it.
        draws: Generators of the whole process that foreign steps may draw from, for `DatasetLoader`: "python",
            "numpy". They are seeded and put back, which lets only one thread work at a time.

    Raises:
        UnknownNameError: No step has this name; the known ones and the nearest are listed.
        TypeError: A step has another form, or does not take an argument.
        ValueError: An argument is out of range, or something follows "to_tensor".

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
        self.draws: FrozenSet[str] = frozenset().union(
            *(step.shared for step in self.steps if isinstance(step, Foreign))
        )
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
        """A published augmentation.

        Args:
            name: "imagenet_train": resized crop, flip, colour jitter, lighting; "imagenet_eval": resize and centre
                crop; "cifar_train": crop after 4 pixels of padding, flip; "cifar_eval". All end with "to_tensor" and
                "normalize", by the constants in `mxkit/data/augmentation/presets.py`, which names their sources.
            size: Side of the result; None is the published one, 224 or 32.
            white: As for `Augment`.

        Raises:
            UnknownNameError: There is no such preset.
        """
        if name not in PRESETS:
            raise unknown_name("preset of Augment", name, PRESETS)
        steps, usual = PRESETS[name]
        return cls(steps(usual if size is None else size), white=white)

    def __call__(self, image: Any, rng: Optional[Rng] = None) -> Any:
        """Change one image.

        Args:
            image: NumPy or NDArray of shape (height, width, 1 or 3): uint8, or float from 0 to `white`.
            rng: Where random numbers come from. None makes one from NumPy's global generator, so that
                `mxkit.seed_all` decides.

        Returns:
            A new image, NumPy or NDArray as `image`: uint8 stays uint8, floats are float32, "to_tensor" makes float32
            of shape (channels, height, width).

        Raises:
            DataError: The image has another form or range, or is too small to be cropped.
        """
        host = to_host(image)
        _check_layout(host)
        host, white = self._checked(host)
        changed = self._changed(host, self._generator(rng), white)
        if self.tensor:
            changed = self._finished(changed.transpose(2, 0, 1), white)
        elif np.may_share_memory(changed, host):
            changed = np.array(changed, order="C")
        return to_batch(changed) if isinstance(image, mx.nd.NDArray) else np.ascontiguousarray(changed)

    def batch(self, x: Any, y: Any = None, rng: Union[Rng, Sequence[Rng], None] = None) -> Tuple[Any, Any]:
        """Change the images of a batch: `ArrayLoader(..., transform=augment.batch)`.

        The result is that of one call for each image, to the last bit.

        Args:
            x: NumPy or NDArray of shape (N, 1 or 3, height, width), in the ranges of `__call__`.
            y: Whatever belongs to it.
            rng: One generator for each image, or one that all draw from in turn.

        Returns:
            The new images, of shape (N, channels, height, width), and `y` as it is.

        Raises:
            DataError: As for `__call__`; or the images do not all become the same size.
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
        found = self._stacked(host, rngs, white)
        found = self._finished(found, white) if self.tensor else found
        return (to_batch(found) if isinstance(x, mx.nd.NDArray) else found), y

    def _stacked(self, x: "np.ndarray", rngs: Sequence[Any], white: float) -> "np.ndarray":
        found: Any = None
        for number, image in enumerate(x.transpose(0, 2, 3, 1)):
            changed = self._changed(image, self._generator(rngs[number]), white).transpose(2, 0, 1)
            if found is None:
                found = np.empty((len(x), *changed.shape), np.float32 if self.tensor else changed.dtype)
            if changed.shape != found.shape[1:]:
                raise DataError(
                    f"Augment.batch: image {number} becomes {changed.shape}, image 0 {found.shape[1:]} (C, H, W); end "
                    "with a crop or a resize to one size"
                )
            found[number] = changed
        return np.asarray(found)

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
        """Images as uint8 or float32, and what white is in them."""
        if image.dtype == np.uint8:
            return image, 255
        if image.dtype.kind != "f":
            raise DataError(f"Augment: expected pixels of uint8 or float; received {image.dtype}")
        low, high = float(image.min()), float(image.max())
        if not (low >= -1e-3 * self.white and high <= 1.001 * self.white):
            raise DataError(
                f"Augment: float pixels are 0 to {self.white:g} here; received {low:g} to {high:g}. If 255 is white, "
                "say white=255; normalized images cannot be augmented: let 'normalize' be the last step"
            )
        return image.astype(np.float32, copy=False), self.white

    def _changed(self, image: "np.ndarray", rng: Any, white: float) -> "np.ndarray":
        whole = image.dtype
        for step in self._changes:
            image = step.apply(image, step.draw(rng, image), white)
        if whole == np.uint8 and image.dtype != np.uint8 and not self.tensor:
            return np.asarray(np.rint(image), np.uint8)
        return image

    def _finished(self, image: "np.ndarray", white: float) -> "np.ndarray":
        """As gluon's ToTensor and Normalize, of (..., channels, height, width); a copy."""
        found: np.ndarray = np.array(image, np.float32, order="C")
        if white != 1:
            found /= np.float32(white)
        if self.normalize is not None:
            mean, std = (np.array(part, np.float32) for part in (self.normalize.mean, self.normalize.std))
            if {mean.size, std.size} - {1, image.shape[-3]}:
                raise DataError(
                    f"Augment: normalize has {mean.size} means and {std.size} stds, an image {image.shape[-3]} channels"
                )
            found -= mean.reshape(-1, 1, 1)
            found /= std.reshape(-1, 1, 1)
        return found

    def __repr__(self) -> str:
        return f"Augment({self.steps})"


def _steps_of(spec: Any) -> List[Step]:
    """The steps that one element of a list means."""
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
            "Augment: ColorNormalizeAug makes what is no image any more; in its place put "
            "'to_tensor', ('normalize', {'mean': ..., 'std': ...}) at the end, with numbers where white is 1"
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
        takes = inspect.signature(STEPS[name])
        raise TypeError(f"Augment: {name!r} takes {takes}; received {arguments}: {error}") from error


def _check_layout(image: "np.ndarray") -> None:
    """Refuse what is not (height, width, channels): a mistake would be read as other pixels, in silence (T13)."""
    if image.ndim == 3 and image.shape[2] in (1, 3) and image.size:
        return
    if image.ndim == 3 and image.shape[0] in (1, 3):
        hint = ": channels come first here; image.transpose(1, 2, 0), or augment.batch for (N, C, H, W)"
    elif image.ndim == 2:
        hint = ": image[:, :, None]"
    else:
        hint = "; augment.batch takes (N, C, H, W)" if image.ndim == 4 else ""
    raise DataError(f"Augment: expected an image of shape (height, width, 1 or 3); received {image.shape}{hint}")
